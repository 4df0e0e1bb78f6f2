"""The host's side of `logs collect`, run in this process on a folder that stands for the host."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.core import facts, runs
from opsctl.agent.logs.collect import Clip, bundle
from opsctl.agent.logs.logfiles import family, offset_of
from opsctl.agent.server import startlog
from opsctl.errors import UsageError
from opsctl.sglang.logs.log_parts import Server, check_names, parts, select
from opsctl.wire.protocol import Context
from tests.logs.canaries import CANARIES
from tests.logs.test_redact import leaks
from tests.modules.conftest import InProcess


class Wire(Context):
    """Keeps what would cross the wire."""

    def __init__(self, secrets: list[str] | None = None) -> None:
        self.body = json.dumps(secrets or []).encode()
        self.files: dict[str, bytes] = defaultdict(bytes)
        self.finished: list[str] = []
        self.sent = 0

    def progress(self, data: Any, body: bytes = b"") -> None:
        if "part" not in data:
            return
        self.files[data["part"]] += zlib.decompress(body)
        self.sent += len(body)
        if data["last"]:
            self.finished.append(data["part"])


def plant(root: Path) -> list[dict[str, Any]]:
    """A host with every canary in its log, its environment and its unit file."""
    text = "\n".join(canary.text for canary in CANARIES) + "\n"
    (root / "proc/77").mkdir(parents=True)
    (root / "proc/77/environ").write_text("HF_TOKEN=hf_" + "aB3" * 12 + "\0PATH=/bin\0")
    (root / "server.log").write_text(text)
    (root / "server.log.1.gz").write_bytes(gzip.compress(b"older\n" + text.encode()))
    return [
        {"name": "server.log", "logs": ["/server.log.1.gz", "/server.log"]},
        {"name": "environment.txt", "path": "/proc/77/environ", "nul": True},
        {
            "name": "unit.txt",
            "argv": [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", str(root / "server.log")],
        },
        {"name": "failing.txt", "argv": [sys.executable, "-c", "import sys; print('half'); sys.exit(3)"]},
        {"name": "missing.txt", "path": "/no/such"},
        {"name": "no-command.txt", "argv": ["no-such-command"]},
        {
            "name": "stuck.txt",
            "argv": [sys.executable, "-c", "print('first', flush=True); import time; time.sleep(60)"],
            "seconds": 1.0,
        },
    ]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wire, dict[str, dict[str, Any]]]:
    root = tmp_path_factory.mktemp("host")
    wire = Wire(["what the inventory knows"])
    (root / "notes").write_text("said: what the inventory knows\n")
    manifest = bundle(wire, [*plant(root), {"name": "notes.txt", "path": "/notes"}], root=str(root))
    return wire, {part["name"]: part for part in manifest["parts"]}


def test_no_canary_crosses_the_wire(collected: tuple[Wire, dict[str, dict[str, Any]]]) -> None:
    wire, manifest = collected
    everything = b"\n".join(wire.files.values()).decode("utf-8", "replace") + json.dumps(manifest)
    for canary in CANARIES:
        assert not leaks(canary, everything), canary.kind
    assert "aB3aB3" not in everything
    assert "what the inventory knows" not in everything
    assert manifest["server.log"]["masked"] >= 2 * len(CANARIES)


def test_the_manifest_says_how_each_part_went(collected: tuple[Wire, dict[str, dict[str, Any]]]) -> None:
    wire, manifest = collected
    assert manifest["unit.txt"]["exit"] == 0
    assert (manifest["failing.txt"]["exit"], wire.files["failing.txt"]) == (3, b"half\n")
    assert "no such log" in manifest["missing.txt"]["error"]
    assert manifest["no-command.txt"]["error"] == "no such command: no-such-command"
    assert (manifest["stuck.txt"]["error"], wire.files["stuck.txt"]) == ("time limit", b"first\n")
    assert not manifest["server.log"]["truncated"]
    assert sorted(wire.finished) == sorted(manifest)
    assert b"PATH=/bin\n" in wire.files["environment.txt"]


def test_a_long_log_is_cut_around_its_first_trouble(tmp_path: Path) -> None:
    line = b"[2026-02-08 03:12:44 TP0] Decode batch, #running-req: 1, gen throughput (token/s): 118.40, #queue-req: 0\n"
    trouble = b"[2026-02-08 03:12:45 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
    (tmp_path / "server.log").write_bytes(b"first line\n" + line * 200000 + trouble + line * 400000 + b"last line\n")
    wire = Wire()
    part = {"name": "server.log", "logs": ["/server.log"], "head": 1 << 16, "window": 1 << 16, "tail": 1 << 16}
    (entry,) = bundle(wire, [part], root=str(tmp_path))["parts"]
    kept = wire.files["server.log"]
    assert kept.startswith(b"first line\n")
    assert kept.endswith(b"last line\n")
    assert trouble in kept
    assert kept.count(b"[opsctl: ") == 2
    assert all(row == line.rstrip() for row in kept.split(trouble)[0].splitlines()[-100:])
    assert entry["truncated"]
    assert entry["bytes"] == (tmp_path / "server.log").stat().st_size
    assert len(kept) < 1 << 20


@given(
    st.integers(0, 3000),
    st.integers(1, 200),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(-1, 2900),
)
def test_a_clip_keeps_what_it_says_and_counts_what_it_leaves_out(
    size: int, step: int, head: int, window: int, tail: int, trouble: int
) -> None:
    lines = [b"line %05d" % i for i in range(size // 10)]
    if 0 <= trouble < len(lines):
        lines[trouble] = b"NVRM: Xid (PCI:0000:17:00): 79"
    text = b"".join(line + b"\n" for line in lines)
    clip = Clip(head, window, tail)
    for at in range(0, len(text), step):
        clip.feed(text[at : at + step])
    out = b"".join(clip.pieces())
    left_out = sum(int(part.split(b" ", 1)[0]) for part in out.split(b"[opsctl: ")[1:])
    notes = sum(
        len(b"\n[opsctl: %d bytes left out]\n" % int(part.split(b" ", 1)[0])) for part in out.split(b"[opsctl: ")[1:]
    )
    assert len(out) - notes + left_out == len(text)
    assert out.startswith(text[:head])
    if window and 0 <= trouble < len(lines):
        assert b"NVRM: Xid"[:window] in out


def test_parts_are_named_once_and_can_be_chosen() -> None:
    server = Server(
        unit="sglang", logs=("/var/log/sglang.log",), pids=(77, 78), python="/opt/venv/bin/python", source="/opt/sglang"
    )
    every = parts(server)
    names = [part["name"] for part in every]
    assert len(names) == len(set(names))
    assert [p["name"] for p in select(every, {"unit.txt", "disks.txt"}, {"disks.txt"})] == ["unit.txt"]
    assert [p["name"] for p in select(every, {"proc/*"}, {"proc/78/*"})] == ["proc/77/status.txt", "proc/77/limits.txt"]
    usual = select(every, (), ())
    assert [p["name"] for p in every if p not in usual] == ["nvidia-bug-report.log"]
    assert len(select(every, {"nvidia-bug-report.log"}, ())) == len(usual) + 1
    check_names(["unit.txt", "health.json", "proc/77/limits.txt", "run.json", "container.*"])
    with pytest.raises(UsageError, match=r"no part 'unit\.tx'") as error:
        check_names(["unit.tx"])
    assert "unit.txt" in str(error.value.hint)


LINE = "[2026-02-08 %02d:%02d:00 TP0] Decode batch, #running-req: 1, gen throughput (token/s): 118.40, #queue-req: 0\n"


def test_the_files_of_a_log_are_found_in_the_order_of_their_age(tmp_path: Path) -> None:
    names = ["sglang.log.3.gz", "sglang.log.2.zst", "sglang-20260207.log", "sglang.log.1", "sglang.log"]
    for age, name in enumerate(reversed(names)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    for other in ("sglang.logic", "sglang.log.old.bak", "other.log", "sglang.log.1.tmp", "sglangd.log"):
        (tmp_path / other).write_text("x")
    assert [Path(name).name for name in family(str(tmp_path / "sglang.log"))] == names
    assert family(str(tmp_path / "nothing.log")) == []


@pytest.mark.parametrize("between", ["nothing", "rotated", "truncated", "packed", "made"])
def test_the_log_of_a_run_begins_with_the_start_that_it_made(
    between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second failure is not blamed on the crash that ended the first, whatever became of the file."""
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    log = tmp_path / "sglang.log"
    first, second = (
        f"[2026-02-08 0{hour}:00:00] server_args=ServerArgs(model_path='/m', port=1)\n"
        f"[2026-02-08 0{hour}:00:09] Scheduler hit an exception: Traceback (most recent call last):\n{error}\n\n"
        for hour, error in ((1, "torch.OutOfMemoryError: CUDA out of memory."), (2, "KeyError: 'd2t'"))
    )
    if between != "made":
        log.write_text(first)
        os.utime(log, (time.time() - 3600, time.time() - 3600))
    startlog.mark(InProcess(blobs=Path(runs.step_folder("r1", 3))), str(log))
    older = tmp_path / "sglang.log.1"
    if between in ("rotated", "packed"):
        log.rename(older)
    with log.open("w" if between == "truncated" else "a") as stream:
        stream.write(second)
    if between == "packed":
        (tmp_path / "sglang.log.1.gz").write_bytes(gzip.compress(older.read_bytes()))
        os.utime(tmp_path / "sglang.log.1.gz", (time.time() - 3600, time.time() - 3600))
        older.unlink()
    begun = startlog.of_run(InProcess(), "r1")
    assert startlog.of_run(InProcess(), "another") is None
    server = Server(logs=family(str(log)))
    wire = Wire()
    bundle(wire, select(parts(server, 7200.0, "r1", begun), ["server.log"], []))
    assert wire.files["server.log"].decode() == second


@pytest.mark.parametrize("minutes", [1, 30, 90, 600])
def test_since_finds_the_line_whatever_the_time_zone_of_the_log(tmp_path: Path, minutes: int) -> None:
    log = tmp_path / "sglang.log"
    noise = "  File x, line 3\n" * 40
    log.write_text("".join(LINE % divmod(minute, 60) + noise for minute in range(1200)))
    os.utime(log, (time.time() - 60, time.time() - 60))  # the log's last line says 19:59 of a day long ago
    rest = log.read_bytes()[offset_of(str(log), minutes * 60) :].decode()
    first = next(line for line in rest.splitlines() if line.startswith("["))
    # Not later than asked for, and at most the grain of the search (a few lines) earlier.
    assert LINE % divmod(1200 - minutes - 8, 60) <= first + "\n" <= LINE % divmod(1200 - minutes, 60)


def test_what_another_call_gives_is_json_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, token = "k3y" + "Ab1" * 6, "hf_" + "aB3" * 12
    answer = {
        "processes": [
            {"pid": 1, "argv": ["python", "--api-key", key, "--tp", "8"]},
            {"environ": f"A=1\nHF_TOKEN={token}"},
        ],
        "text": f"line one\n-----BEGIN PRIVATE KEY-----\n{'MIIabc0+' * 8}\n-----END PRIVATE KEY-----\nline two",
        "count": 3,
    }
    monkeypatch.setitem(facts.CALLS, "canned", lambda call: answer)
    wire = Wire()
    (entry,) = bundle(wire, [{"name": "a.json", "call": "facts.canned"}])["parts"]
    text = wire.files["a.json"].decode()
    assert not any(secret in text for secret in (key, token, "MIIabc0+"))
    told = json.loads(text)
    assert told["count"] == 3
    assert told["processes"][0]["argv"][::4] == ["python", "8"]
    assert told["text"].startswith("line one\n[REDACTED/private-key/")
    assert told["text"].endswith("line two")
    assert entry["error"] is None


def test_a_call_that_fails_fails_its_part_alone() -> None:
    wire = Wire()
    parts_asked = [{"name": "a.json", "call": "no.such"}, {"name": "b.txt", "argv": ["echo", "fine"]}]
    first, second = bundle(wire, parts_asked)["parts"]
    assert "'no.such' is no call" in first["error"]
    assert (second["error"], wire.files["b.txt"]) == (None, b"fine\n")
