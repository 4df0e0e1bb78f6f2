"""Servers whose HTTP is broken or hostile, asked by every command that asks a server.

A mode holds where the command ends with words and a documented exit code, without a traceback, and in bounded memory.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

from opsctl.errors import Exit
from tests.campaigns.campaign import Case

SHORT = 6
MOST_MEMORY = 640 << 20  # bytes: what Python makes of 16 MiB of JSON is thirty times as large at worst
REPOSITORY = Path(__file__).parents[2]
HUNG = 240  # seconds after which a command that should have ended is ended: no figure of a test hangs on it

Answer = Callable[[str], Iterable[bytes]]
"""Gives the pieces of an answer to a request for a path; the connection is closed after the last one."""

INFO = {"version": "0.5.9", "model_path": "/nowhere", "tp_size": 1, "context_length": 4096, "internal_states": []}
FINISHED = {"completion_tokens": 4, "prompt_tokens": 2, "finish_reason": {"type": "length", "length": 4}}
EVENT = {"text": "one", "output_ids": [1, 2, 3, 4], "meta_info": FINISHED}


def head(*more: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {kind}", *more, "Connection: close", "", ""]).encode()


def whole(body: bytes, *more: str, kind: str = "application/json") -> list[bytes]:
    return [head(f"Content-Length: {len(body)}", *more, kind=kind), body]


def stream(*events: object) -> list[bytes]:
    said = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return [head(kind="text/event-stream"), said + b"data: [DONE]\n\n"]


def honest(path: str) -> Iterable[bytes]:
    """What a server in order answers."""
    match path.partition("?")[0]:
        case "/server_info":
            return whole(json.dumps(INFO).encode())
        case "/metrics":
            return whole(b"sglang:generation_tokens_total 5\nsglang:spec_accept_length 2.5\n", kind="text/plain")
        case "/v1/loads":
            return whole(b'{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}')
        case "/generate":
            return stream(EVENT)
        case "/health_generate" | "/health":
            return whole(b"")
    return [head("Content-Length: 0", status="404 Not Found")]


def told(path: str, value: str) -> Iterable[bytes]:
    """An answer in which a number, a list or a text is `value`, as JSON or as a counter."""
    if path == "/metrics":
        return whole(f"sglang:generation_tokens_total {value}\n".encode(), kind="text/plain")
    if path == "/generate":
        said = json.dumps(EVENT).replace('"completion_tokens": 4', f'"completion_tokens": {value}')
        return [head(kind="text/event-stream"), f"data: {said}\n\ndata: [DONE]\n\n".encode()]
    if path == "/v1/loads":
        return whole(f'{{"loads": [{{"num_running_reqs": {value}, "num_waiting_reqs": 0}}]}}'.encode())
    return whole(json.dumps(INFO).replace('"tp_size": 1', f'"tp_size": {value}').encode())


def endless(path: str, piece: bytes) -> Iterator[bytes]:
    kind = "text/event-stream" if path == "/generate" else "text/plain" if path == "/metrics" else "application/json"
    return chain([head(kind=kind)], repeat(piece))


def bomb(path: str, packed: bytes, how: str) -> Iterable[bytes]:
    return whole(packed, f"Content-Encoding: {how}")


def zeros() -> bytes:
    """A gigabyte of zeros, compressed to a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 24)
    return b"".join([*(packer.compress(piece) for _ in range(64)), packer.flush()])


def dripping(first: bytes, drop: bytes) -> Iterator[bytes]:
    """One drop after the other; the asker's clock makes minutes of it."""
    return chain([first], repeat(drop))


def backwards() -> Answer:
    """Counters that are lower each time."""
    counts = iter(range(900_000, 0, -300_000))
    return lambda path: told(path, str(next(counts, 0))) if path == "/metrics" else honest(path)


@dataclass(frozen=True)
class Mode:
    """answer: a maker of what is answered at the broken endpoint. tick: see `_asking.py`. lasts: may exit DONE."""

    answer: Callable[[], Answer]
    tick: float = 0.0


def mode(answer: Answer, tick: float = 0.0) -> Mode:
    return Mode(lambda: answer, tick)


MODES = {
    "endless body": mode(lambda path: endless(path, b'{"a": "' + b"x" * 65_536)),
    "endless metrics": mode(lambda path: endless(path, b"sglang:generation_tokens_total 1\n" * 2048)),
    "gzip bomb": Mode(lambda: partial(bomb, packed=zeros(), how="gzip")),
    "deflate bomb": Mode(lambda: partial(bomb, packed=zlib.compress(bytes(1 << 26), 9), how="deflate")),
    "nested gzip": Mode(lambda: partial(bomb, packed=gzip.compress(zeros()), how="gzip, gzip")),
    "br": mode(partial(bomb, packed=b"\x00" * 4096, how="br")),
    "a charset that unpacks": Mode(
        lambda: lambda path: whole(zlib.compress(bytes(1 << 26)), kind="text/plain; charset=zlib")
    ),
    "dripping headers": mode(lambda path: dripping(b"HTTP/1.1 200 OK\r\nX: ", b"a"), tick=1.0),
    "dripping body": mode(lambda path: dripping(head("Content-Length: 100000000"), b" "), tick=1.0),
    "dripping chunks": mode(lambda path: dripping(head("Transfer-Encoding: chunked"), b"1\r\n \r\n"), tick=1.0),
    "a status line without end": mode(lambda path: repeat(b"HTTP/1.1 200 " + b"O" * 65_536)),
    "header flood": mode(lambda path: chain([b"HTTP/1.1 200 OK\r\n"], repeat(b"X-Y: z\r\n" * 4096))),
    "100 Continue for ever": mode(lambda path: repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 2048)),
    "header injection": mode(
        lambda path: whole(json.dumps(INFO).encode(), "X: a\rSet-Cookie: b", "\x1b[31mY: \x1b]0;owned\x07")
    ),
    "redirect elsewhere": mode(lambda path: [head("Location: http://127.0.0.1:1/", status="302 Found")]),
    "redirect in a circle": mode(lambda path: [head(f"Location: {path}", status="307 Temporary Redirect")]),
    "redirect to a file": mode(lambda path: [head("Location: file:///etc/passwd", status="301 Moved")]),
    "redirect to no address": mode(lambda path: [head("Location: http://[", status="302 Found")]),
    "a length too long": mode(lambda path: [head("Content-Length: 5000"), b'{"a": 1}']),
    "a length too short": mode(lambda path: [head("Content-Length: 4"), json.dumps(INFO).encode()]),
    "a length below zero": mode(lambda path: [head("Content-Length: -1"), b"{}"]),
    "chunked garbage": mode(lambda path: [head("Transfer-Encoding: chunked"), b"zz\r\nabc"]),
    "a chunk without end": mode(
        lambda path: chain([head("Transfer-Encoding: chunked"), b"7fffffffffff\r\n"], repeat(b" " * 65_536))
    ),
    "closed at once": mode(lambda path: []),
    "closed half-way": mode(lambda path: [head("Content-Length: 4000")[:-20]]),
    "HTTP/0.9": mode(lambda path: [b"<html>it works</html>\n"]),
    "a page": mode(lambda path: whole(b"<html><h1>It works!</h1></html>", kind="text/html")),
    "a stream's line without end": mode(lambda path: endless("/generate", b"data: " + b"x" * 65_536)),
    "a stream without end": mode(lambda path: endless("/generate", b'data: {"text": "", "meta_info": {}}\n\n' * 1024)),
    "events after the last": mode(lambda path: chain(stream(EVENT), repeat(b"data: {}\n\n" * 1024))),
    "NaN": mode(lambda path: told(path, "NaN")),
    "Infinity": mode(lambda path: told(path, "Infinity")),
    "1e999": mode(lambda path: told(path, "1e999")),
    "below zero": mode(lambda path: told(path, "-5")),
    "a number of 5000 digits": mode(lambda path: told(path, "9" * 5000)),
    "a number as text": mode(lambda path: told(path, '"many"')),
    "null": mode(lambda path: told(path, "null")),
    "a list for a number": mode(lambda path: told(path, "[[]]")),
    "counters that go back": Mode(backwards),
    "deep JSON": mode(lambda path: told(path, "[" * 100_000 + "]" * 100_000)),
    "JSON of 70 levels": mode(lambda path: told(path, "[" * 70 + "]" * 70)),
    "a key twice": mode(lambda path: told(path, '1, "tp_size": 2, "num_running_reqs": 2, "tp_size": 3')),
    "a list of a million": mode(lambda path: told(path, json.dumps([{"id": "m"}] * 1_000_000))),
    "an answer of nothing": mode(lambda path: whole(b"")),
    "only null": mode(lambda path: whole(b"null")),
    "not UTF-8": mode(lambda path: whole(b'{"version": "\xff\xfe"}')),
    "escapes in names": mode(
        lambda path: whole(json.dumps({"\x1b]0;owned\x07": 1, "tp_size": "\x1b[2J\n::error::x"}).encode())
    ),
    "escapes in an error": mode(
        lambda path: [head(status="400 \x1b[31mBad"), json.dumps({"message": "\x1b]0;x\x07\n::error::no"}).encode()]
    ),
}


@contextmanager
def answering(answer: Answer, broken: str) -> Iterator[int]:
    """A server on the loopback, its port: `answer` is what it says at the path `broken` (*: everywhere)."""

    def serve(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            asked = b""
            while b"\r\n\r\n" not in asked:
                if not (data := peer.recv(65_536)):
                    return
                asked += data
            front, _, body = asked.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", front)
            while length and len(body) < int(length[1]):
                body += peer.recv(65_536)
            path = front.split(b" ")[1].decode()
            for piece in answer(path) if broken in ("*", path) else honest(path):
                peer.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    memory: int  # bytes at most


def asking(folder: Path, tick: float, *words: str) -> Ended:
    """Run `_asking.py` to its end."""
    environment = os.environ | {
        name: str(folder / name) for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "OPSCTL_STATE_DIR", "HOME")
    }
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns._asking", str(tick), *words],
            cwd=REPOSITORY, env=environment | {"PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.DEVNULL,
            stdout=out, stderr=err,
        )  # fmt: skip
        guard = threading.Timer(HUNG, process.kill)
        guard.start()
        _, status, used = os.wait4(process.pid, 0)
        guard.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        return Ended(process.returncode, out.read(), err.read(), used.ru_maxrss << 10)


PLAY = """\
hosts: all
tasks:
  - http: {{url: "http://127.0.0.1:{port}/server_info", timeout: 5s}}
    register: said
"""


def probe(folder: Path, port: int) -> tuple[str, ...]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"id": "a", "input_ids": [40, 44]}\n')
    return ("opsctl", "probe", "--url", f"http://127.0.0.1:{port}", "--prompts", str(prompts), "--max-tokens", "4")


def diagnose(folder: Path, port: int) -> tuple[str, ...]:
    return ("opsctl", "diagnose", "--here", "--port", str(port))


def module(folder: Path, port: int) -> tuple[str, ...]:
    (folder / "play.yaml").write_text(PLAY.format(port=port))
    (folder / "inventory.yaml").write_text("hosts: {here: {connection: local}}\n")
    return ("opsctl", "run", str(folder / "play.yaml"), "-y", "--inventory", str(folder / "inventory.yaml"))


def calling(call: str, **arguments: object) -> Callable[[Path, int], tuple[str, ...]]:
    def words(folder: Path, port: int) -> tuple[str, ...]:
        said = json.dumps(arguments).replace("PORT", str(port)).replace(f'"{port}"', str(port))
        return ("agent", call, said)

    return words


URL = "http://127.0.0.1:PORT"
# How a server is asked, and at which of its paths it may be broken.
ASKERS: dict[str, tuple[Callable[[Path, int], tuple[str, ...]], tuple[str, ...]]] = {
    "probe": (probe, ("/server_info", "/metrics", "/generate", "/v1/loads")),
    "diagnose": (diagnose, ("/server_info", "/metrics")),
    "http": (module, ("*",)),
    "request": (calling("http.request", url=f"{URL}/", timeout=5.0), ("*",)),
    "wait_for": (calling("wait.http", url=f"{URL}/", contains="never", timeout=0.3), ("*",)),
    "ready": (calling("ready.wait", port="PORT", timeout=0.3), ("*",)),
    "fetch": (calling("fetch.folder", source="a/b", endpoint=URL), ("*",)),
    "fetch of a folder": (calling("fetch.folder", source=f"{URL}/m", endpoint=""), ("*",)),
}
DOCUMENTED = {*map(int, Exit)} - {Exit.BUG}


def hold(folder: Path, name: str, asker: str, broken: str) -> None:
    how = MODES[name]
    words, _ = ASKERS[asker]
    with answering(how.answer(), broken) as port:
        ended = asking(folder, how.tick, *words(folder, port))
    said = f"exit {ended.code}, {ended.memory >> 20} MiB: {ended.out[-600:]}{ended.err[-600:]}"
    assert ended.code in DOCUMENTED, said
    assert "Traceback" not in ended.out + ended.err, said
    assert ended.code == Exit.DONE or ended.out.strip() or ended.err.strip(), said
    assert "\x1b" not in ended.out + ended.err, said
    assert not re.search(r"^::", ended.out + ended.err, re.M), said
    assert ended.memory < MOST_MEMORY, said


def cases(rng: random.Random) -> Iterator[Case]:
    """Every mode at every place that is asked, in an order that `rng` draws; then again."""
    every = [(name, asker, broken) for name in MODES for asker, (_, places) in ASKERS.items() for broken in places]
    while True:
        rng.shuffle(every)
        for name, asker, broken in every:
            yield Case(f"{name}, {asker} at {broken}", partial(hold, name=name, asker=asker, broken=broken))
