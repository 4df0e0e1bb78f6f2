"""nvidia-smi, asked in one way: it may hang in the kernel, where no signal ends it."""

from __future__ import annotations

import os
import time
from typing import Dict, List, Optional, Tuple

from opsctl.agent.process import detached, pids
from opsctl.wire.protocol import Context

NAME = "nvidia-smi"
DRIVER_ROOT = "/run/nvidia/driver"
STAYS = 0.5  # seconds in which a process that only passes through D state has left it
# A login without root often lacks the folders where such tools live.
FOLDERS = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/usr/bin:/bin:/usr/lib/wsl/lib"


def stuck(root: str = "/", seen: Optional[List[pids.Process]] = None) -> List[int]:
    """Earlier ones that hang in the kernel. While one does, another would hang as well. seen: all processes."""
    found = [p.pid for p in (pids.processes(root) if seen is None else seen) if p.name == NAME and p.state == "D"]
    if found:
        time.sleep(STAYS)
    return [pid for pid in found if in_kernel(pid, root)]


def in_kernel(pid: int, root: str = "/") -> bool:
    """Whether a process is in the kernel now, where no signal ends it: state D."""
    now = pids.look(pid, root)
    return now is not None and now.state == "D"


def ask(
    call: Context, words: List[str], seconds: float, env: Optional[Dict[str, str]] = None, keep: int = 32 << 20
) -> detached.Ran:
    """What it says. `missing` where it is not installed; no code where it was given up after `seconds`."""
    path = (env or os.environ).get("PATH", os.defpath) + ("" if env else FOLDERS)
    program = detached.program(NAME, path)
    argv = [program, *words] if program else _in_container(words)
    if argv is None:
        return detached.Ran(None, "", 0.0, missing=True)
    return detached.run(call, argv, seconds, env, keep)


def _in_container(words: List[str]) -> Optional[List[str]]:
    """The same below the root of a driver container (NVIDIA's GPU operator), where root may enter it."""
    folder = next((f for f in ("/usr/bin", "/bin") if os.access(DRIVER_ROOT + f + "/" + NAME, os.X_OK)), None)
    chroot = detached.program("chroot", FOLDERS)
    if folder is None or chroot is None or os.geteuid() != 0 or os.stat(DRIVER_ROOT).st_uid != 0:
        return None
    return [chroot, DRIVER_ROOT, folder + "/" + NAME, *words]


def rows(call: Context, query: str, seconds: float) -> Tuple[Optional[List[List[str]]], str]:
    """The cells of a CSV query; None with the reason where it gives none."""
    if stuck():
        return None, "an earlier %s hangs in the kernel; not asked again" % NAME
    ran = ask(call, [query, "--format=csv,noheader,nounits"], seconds, keep=1 << 20)
    if ran.missing:
        return None, "%s is not installed" % NAME
    if ran.code is None:
        return None, "%s gave no answer in %g s" % (NAME, seconds)
    if ran.code != 0:
        return None, "%s: exit code %d: %s" % (NAME, ran.code, " ".join(ran.out.split())[:200])
    return [[cell.strip() for cell in line.split(",")] for line in ran.out.splitlines() if line], ""
