"""Commands on the host: run in a session of their own, watched, limited, and never asked anything."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple, Union

from opsctl.agent.core.undo_record import load, save
from opsctl.wire import masking
from opsctl.wire.output import KEEP, Output
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Ran, Restored

LONGEST_LINE = 64 << 10  # bytes of a line that are waited for before it is sent on in part
KILL_AFTER = 3.0  # seconds between SIGTERM and SIGKILL
LINGER = 0.5  # seconds to read on after the command has ended: a child it left behind may hold the pipe for ever
TICK = 0.2


class Done(NamedTuple):
    """How a command ended. `code` is negative for a signal, as in subprocess."""

    code: int
    out: bytes
    err: bytes
    seconds: float
    dropped: int = 0  # bytes of output that were not kept


class Live:
    """Sends output on as it comes, whole lines as long as they are not too long: half a secret could not be masked."""

    def __init__(self, call: Context, stream: str) -> None:
        self._call, self._stream, self._rest = call, stream, b""

    def add(self, part: bytes) -> None:
        text = self._rest + part
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > LONGEST_LINE:
            end = len(text)
        self._rest = text[end:]
        self._send(text[:end])

    def end(self) -> None:
        self._send(self._rest)

    def _send(self, text: bytes) -> None:
        if text:
            self._call.progress({"stream": self._stream}, text)


def run(
    call: Context,
    argv: Union[List[str], str],
    shell: str = "/bin/sh",
    cwd: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    timeout: float = 600.0,
    idle: Optional[float] = None,
    keep_output: int = KEEP,
    ok: Optional[List[int]] = None,
    live: bool = False,
    sealed: int = 0,
    keep: Optional[str] = None,
) -> Ran:
    """Run a list of arguments as it is, or a text with `shell -c`.

    The first `sealed` bytes of the body are JSON {"env": {...}}, the rest is standard input (nothing: /dev/null).
    With `ok`, any other exit code is an error that carries the outputs. `idle` limits the seconds without output.
    With `live`, output is sent on as it comes: progress {"stream": "out" | "err"}, the bytes as body.
    """
    secret, stdin = unseal(call.body, sealed)
    save(call, keep, {"begun": True})
    command = [shell, "-c", argv] if isinstance(argv, str) else argv
    extra = dict(env or {}, **secret.get("env", {}))
    done = execute(call, command, cwd, extra, stdin, timeout, idle, keep_output, live)
    result: Ran = {
        "code": done.code,
        "stdout": _text(done.out),
        "stderr": _text(done.err),
        "seconds": round(done.seconds, 3),
        "dropped": done.dropped,
    }
    if ok is not None and done.code not in ok:
        raise AgentError("failed", ending(done), **result)
    return result


def undo(
    call: Context,
    keep: str,
    argv: Union[List[str], str],
    shell: str = "/bin/sh",
    cwd: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    timeout: float = 600.0,
    idle: Optional[float] = None,
) -> Restored:
    """Run the command that takes another one back, once, if that one was begun at all."""
    record = load(call, keep)
    if record is None or record.get("undone"):
        return {"restored": False}
    run(call, argv, shell, cwd, env, timeout, idle, ok=[0])
    save(call, keep, dict(record, undone=True))
    return {"restored": True}


def execute(
    call: Context,
    argv: List[str],
    cwd: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    stdin: bytes = b"",
    timeout: float = 600.0,
    idle: Optional[float] = None,
    keep_output: int = KEEP,
    live: bool = False,
    clean: bool = False,
) -> Done:
    """Run a command and wait for it. Raises AgentError: not-found, permission, timeout.

    env: what is added to our environment; `clean`: the whole of it.
    """
    process = _start(argv, cwd, dict({} if clean else os.environ, **(env or {})), bool(stdin))
    call.started(process.pid)
    try:
        return _watch(call, process, stdin, timeout, idle, keep_output, live)
    finally:
        if process.poll() is None:
            _kill(process)
        call.ended(process.pid)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def ending(done: Done) -> str:
    """How a command failed, in one line: its exit code and the last thing it said."""
    how = "exit code %d" % done.code if done.code >= 0 else "killed by %s" % _signal_name(-done.code)
    said = [line for line in masking.text(_text(done.err or done.out)).splitlines() if line.strip()]
    return "%s: %s" % (how, said[-1].strip()[:300]) if said else how


def unseal(body: bytes, sealed: int) -> Tuple[Dict[str, Any], bytes]:
    """The secret values at the front of a body, and the rest of it."""
    return (json.loads(body[:sealed]) if sealed else {}), body[sealed:]


def _start(argv: List[str], cwd: Optional[str], env: Dict[str, str], piped: bool) -> "subprocess.Popen[bytes]":
    if not argv or any("\0" in word for word in argv):
        raise AgentError("invalid", "not a command: %r" % (argv,))
    folder = os.path.expanduser(cwd) if cwd else None
    if folder and not os.path.isdir(folder):
        raise AgentError("not-found", "there is no folder %s to run %s in" % (cwd, argv[0]), path=cwd)
    try:
        return subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise AgentError("not-found", "there is no program %s on this host" % argv[0], path=argv[0]) from None
    except PermissionError:
        raise AgentError("permission", "%s may not be executed" % argv[0], path=argv[0]) from None
    except OSError as error:
        raise AgentError("failed", "cannot run %s: %s" % (argv[0], error.strerror), errno=error.errno) from error


def _watch(
    call: Context,
    process: "subprocess.Popen[bytes]",
    stdin: bytes,
    timeout: float,
    idle: Optional[float],
    keep_output: int,
    live: bool,
) -> Done:
    began = heard = time.monotonic()
    ended: Optional[float] = None
    outputs = {"out": Output(keep_output), "err": Output(keep_output)}
    lives = {name: Live(call, name) for name in outputs} if live else {}
    waiting = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("out", process.stdout), ("err", process.stderr), ("in", process.stdin)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_WRITE if name == "in" else selectors.EVENT_READ, name)
        while True:
            reading = any(key.data != "in" for key in selector.get_map().values())
            for key, _ in selector.select(TICK) if selector.get_map() else ():
                if key.data == "in":
                    waiting = _feed(selector, key.fileobj, waiting)
                    continue
                part = _read(key.fd)
                if part is None:
                    selector.unregister(key.fileobj)
                    continue
                heard = time.monotonic()
                outputs[key.data].add(part)
                if live:
                    lives[key.data].add(part)
            if not selector.get_map() and ended is None:
                _wait(process, TICK)
            now = time.monotonic()
            if process.poll() is not None:
                ended = ended or now
                if not reading or now - max(heard, ended) > LINGER:
                    break
            elif call.cancelled():
                raise AgentError("failed", "cancelled after %.0f s" % (now - began))
            elif now - began > timeout:
                raise _too_long("still running after its time limit of %g s" % timeout, outputs)
            elif idle is not None and now - heard > idle:
                raise _too_long("no output for %g s" % idle, outputs)
    for one in lives.values():
        one.end()
    dropped = outputs["out"].dropped + outputs["err"].dropped
    return Done(process.returncode, outputs["out"].whole(), outputs["err"].whole(), time.monotonic() - began, dropped)


def _feed(selector: selectors.BaseSelector, pipe: Any, waiting: memoryview) -> memoryview:
    try:
        waiting = waiting[os.write(pipe.fileno(), waiting[:65536]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:  # it does not read its input, which is its own affair
        waiting = waiting[len(waiting) :]
    if not waiting:
        selector.unregister(pipe)
        pipe.close()
    return waiting


def _read(descriptor: int) -> Optional[bytes]:
    try:
        return os.read(descriptor, 65536) or None
    except BlockingIOError:
        return b""


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the command and its children: its session has one process group, led by it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except OSError:
            return
        _wait(process, KILL_AFTER)  # the leader may go and leave children: SIGKILL takes those in any case


def _too_long(message: str, outputs: Dict[str, Output]) -> AgentError:
    return AgentError(
        "timeout",
        message + "; it was stopped",
        stdout=_text(outputs["out"].whole()),
        stderr=_text(outputs["err"].whole()),
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


CALLS = {"run": run, "undo": undo}
