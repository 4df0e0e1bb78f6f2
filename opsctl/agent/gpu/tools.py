"""Ask tools that may hang for ever, nvidia-smi above all, without hanging ourselves: no signal reaches into the kernel.

The output goes to an unnamed file and not to a pipe: a stuck process then holds nothing that we wait for. A mark in its
environment tells, when it is given up, which processes it has moved out of its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import IO, Dict, List, NamedTuple, Optional, Sequence, Tuple

from opsctl.agent.process import pids
from opsctl.wire.protocol import Context

TICK = 0.05
GRACE = 1.0  # seconds between SIGTERM and SIGKILL, and for the kernel to act on SIGKILL
SMI = "nvidia-smi"
DRIVER_ROOT = "/run/nvidia/driver"
STAYS = 0.5  # seconds in which a process that only passes through D state has left it
# A login without root often lacks the folders where such tools live.
FOLDERS = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/usr/bin:/bin:/usr/lib/wsl/lib"
_MARK = "OPSCTL_RUN"  # in the environment


class Ran(NamedTuple):
    """How it went. `code` is None when it was given up; `out` then holds what it had written."""

    code: Optional[int]
    out: str
    seconds: float
    missing: bool = False
    pid: int = 0


def run(call: Context, argv: List[str], seconds: float, env: Dict[str, str], keep: int = 32 << 20) -> Ran:
    """Run `argv` in the environment `env` for at most `seconds` (and the grace after it).

    Gives both outputs together, at most `keep` bytes.
    """
    with _unnamed(env.get("TMPDIR") or "/tmp") as output:
        began = time.monotonic()
        mark = "%d.%d" % (os.getpid(), time.monotonic_ns())
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                env=dict(env, LC_ALL="C", **{_MARK: mark}),
                cwd="/",
            )
        except OSError:
            return Ran(None, "", 0.0, missing=True)
        code = _wait(call, child, began + seconds)
        took = time.monotonic() - began
        if code is None:
            _end(child)
            _end_marked(mark)
        else:
            _signal(child, signal.SIGKILL)  # what it may have left in its session
        return Ran(code, _read(output, keep), took, pid=child.pid)


def program(name: str, path: str) -> Optional[str]:
    """Where a program lies, looked for in the folders of `path`."""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if folder and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return None


def environment(programs: Sequence[str] = (), path: Optional[str] = None) -> Dict[str, str]:
    """Ours, with tools to be found in the folders `programs` first, then on `path` (ours and the usual ones)."""
    return dict(os.environ, PATH=":".join([*programs, path or os.environ.get("PATH", os.defpath) + FOLDERS]))


def stuck(root: str = "/", seen: Optional[List[pids.Process]] = None) -> List[int]:
    """Earlier ones that hang in the kernel. While one does, another would hang as well. seen: all processes."""
    found = [p.pid for p in (pids.processes(root) if seen is None else seen) if p.name == SMI and p.state == "D"]
    if found:
        time.sleep(STAYS)
    return [pid for pid in found if in_kernel(pid, root)]


def in_kernel(pid: int, root: str = "/") -> bool:
    """Whether a process is in the kernel now, where no signal ends it: state D."""
    now = pids.look(pid, root)
    return now is not None and now.state == "D"


def smi(call: Context, words: List[str], seconds: float, env: Dict[str, str], keep: int = 32 << 20) -> Ran:
    """What nvidia-smi says. `missing` where it is not installed; no code where it was given up after `seconds`."""
    found = program(SMI, env.get("PATH", os.defpath))
    argv = [found, *words] if found else _in_container(words)
    return Ran(None, "", 0.0, missing=True) if argv is None else run(call, argv, seconds, env, keep)


def smi_rows(call: Context, query: str, seconds: float) -> Tuple[Optional[List[List[str]]], str]:
    """The cells of a CSV query of nvidia-smi; None with the reason where it gives none."""
    if stuck():
        return None, "an earlier %s hangs in the kernel; not asked again" % SMI
    ran = smi(call, [query, "--format=csv,noheader,nounits"], seconds, environment(), 1 << 20)
    if ran.missing:
        return None, "%s is not installed" % SMI
    if ran.code is None:
        return None, "%s gave no answer in %g s" % (SMI, seconds)
    if ran.code != 0:
        return None, "%s: exit code %d: %s" % (SMI, ran.code, " ".join(ran.out.split())[:200])
    return [[cell.strip() for cell in line.split(",")] for line in ran.out.splitlines() if line], ""


def _in_container(words: List[str]) -> Optional[List[str]]:
    """The same below the root of a driver container (NVIDIA's GPU operator), where root may enter it."""
    folder = next((f for f in ("/usr/bin", "/bin") if os.access(DRIVER_ROOT + f + "/" + SMI, os.X_OK)), None)
    chroot = program("chroot", FOLDERS)
    if folder is None or chroot is None or os.geteuid() != 0 or os.stat(DRIVER_ROOT).st_uid != 0:
        return None
    return [chroot, DRIVER_ROOT, folder + "/" + SMI, *words]


def _unnamed(folder: str) -> "IO[bytes]":
    """A file without a name."""
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):  # a system or file system that has no such files, or no such folder
        import tempfile  # it takes long to load

        return tempfile.TemporaryFile()
    return os.fdopen(handle, "w+b")


def _wait(call: Context, child: "subprocess.Popen[bytes]", deadline: float) -> Optional[int]:
    while True:
        code = child.poll()
        if code is not None:
            return code
        if time.monotonic() >= deadline or call.cancelled():
            return None
        time.sleep(TICK)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, then SIGKILL, to the whole session; a process that survives both is left to the kernel."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(child, number)
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            if child.poll() is not None:
                break
            time.sleep(TICK)
    child.poll()
    child.returncode = child.returncode if child.returncode is not None else -signal.SIGKILL


def _end_marked(mark: str) -> None:
    """SIGKILL to what was started in it and is elsewhere by now."""
    wanted = ("\0%s=%s\0" % (_MARK, mark)).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/environ" % pid, "rb") as stream:
            if wanted in b"\0" + stream.read():
                os.kill(int(pid), signal.SIGKILL)


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, number)


def _read(output: "IO[bytes]", keep: int) -> str:
    output.seek(0)
    return output.read(keep).decode("utf-8", "replace")
