"""What a host is: gathered in parts side by side, each with a time limit of its own.

A part that fails or hangs is named in `missing` with the reason; it never holds up the others. Mounted file systems
are only asked for their size when they are local: statvfs on a dead network mount never returns.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, cast

from opsctl.agent.files.if_readable import names_in, text_of
from opsctl.agent.gpu import tools
from opsctl.agent.process.pids import boot_id
from opsctl.wire.protocol import Context

if TYPE_CHECKING:
    from opsctl.wire.calls.core import (
        CpuFacts,
        CudaFacts,
        Disk,
        Facts,
        Gpu,
        GpuDevice,
        GpuFacts,
        HostFacts,
        KernelFacts,
        MemoryFacts,
        NumaNode,
        OsFacts,
        PythonFacts,
        UserFacts,
    )

LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs", "vfat", "bcachefs", "jfs"}
NVIDIA = "0x10de"
SMI_LIMIT = 2.9  # seconds; with the grace that a hung one is given, less than a part has


def gather(call: Context, parts: Optional[List[str]] = None, limit: float = 5.0) -> Facts:
    """The parts asked for (all), and why others are missing."""
    wanted = [name for name in PARTS if parts is None or name in parts]
    found: Dict[str, Any] = {}
    missing: Dict[str, str] = {}

    def work(name: str) -> None:
        try:
            found[name] = PARTS[name]()
        except Exception as error:  # noqa: BLE001  one part must not take the others with it
            missing[name] = "%s: %s" % (type(error).__name__, error)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in wanted]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for name, thread in zip(wanted, threads):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            missing[name] = "no answer in %g s" % limit
    return cast("Facts", dict({name: found[name] for name in wanted if name in found}, missing=missing))


def _os() -> OsFacts:
    release = _pairs(text_of("/etc/os-release"), "=")
    return {
        "id": release.get("ID", "").strip('"'),
        "version": release.get("VERSION_ID", "").strip('"'),
        "name": release.get("PRETTY_NAME", "").strip('"'),
    }


def _kernel() -> KernelFacts:
    return {
        "release": platform.release(),
        "machine": platform.machine(),
        "command_line": text_of("/proc/cmdline").strip(),
    }


def _cpu() -> CpuFacts:
    info = text_of("/proc/cpuinfo")
    models = re.findall(r"^model name\s*:\s*(.*)$", info, re.M)
    sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", info, re.M))
    usable = len(os.sched_getaffinity(0))
    return {"model": models[0] if models else platform.processor(), "count": usable, "sockets": len(sockets) or 1}


def _memory() -> MemoryFacts:
    info = _pairs(text_of("/proc/meminfo"), ":")
    kib = {key: int(value.split()[0]) for key, value in info.items() if value.split()}
    names = {"total": "MemTotal", "available": "MemAvailable", "swap_total": "SwapTotal", "swap_free": "SwapFree"}
    return cast("MemoryFacts", {name: kib.get(key, 0) << 10 for name, key in names.items()})


def _disks() -> List[Disk]:
    seen: Dict[str, Disk] = {}
    for line in text_of("/proc/self/mounts").splitlines():
        device, path, kind = (_unescaped(word) for word in line.split()[:3])
        if path.startswith(("/proc", "/sys", "/dev", "/run/")) and path != "/dev/shm":
            continue
        if kind in LOCAL or _is_remote(kind):
            seen[path] = {"path": path, "device": device, "type": kind}
    for path, disk in seen.items():
        if disk["type"] in LOCAL:
            info = os.statvfs(path)
            disk["total"], disk["free"] = info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize
    return [seen[path] for path in sorted(seen)]


def _numa() -> List[NumaNode]:
    top = "/sys/devices/system/node"
    names = sorted((n for n in names_in(top) if re.match(r"node\d+$", n)), key=lambda n: int(n[4:]))
    return [{"node": int(name[4:]), "cpus": text_of("%s/%s/cpulist" % (top, name)).strip()} for name in names]


def _gpus() -> GpuFacts:
    """Devices from sysfs, which answers when the driver does not; names and memory from nvidia-smi if it is quick."""
    devices: List[GpuDevice] = []
    top = "/sys/bus/pci/devices"
    for name in names_in(top):
        folder = "%s/%s" % (top, name)
        kind = text_of(folder + "/class")
        if text_of(folder + "/vendor").strip() != NVIDIA or not kind.startswith(("0x0300", "0x0302")):
            continue
        code, numa = text_of(folder + "/device").strip(), text_of(folder + "/numa_node").strip()
        devices.append({"bus": name.lower(), "device": code, "numa": numa})
    columns = "index,uuid,pci.bus_id,name,driver_version,memory.total"
    rows, reason = tools.smi_rows(Context(), "--query-gpu=" + columns, SMI_LIMIT)
    names = ("index", "uuid", "bus", "name", "driver", "memory_mib")
    gpus = [cast("Gpu", dict(zip(names, row))) for row in rows or []]
    found: GpuFacts = {
        "devices": devices,
        "driver": text_of("/sys/module/nvidia/version").strip() or None,
        "gpus": gpus,
        "count": len(gpus) or len(devices),
    }
    if rows is None:
        found["nvidia_smi"] = reason
    return found


def _python() -> PythonFacts:
    import sys

    return {"version": platform.python_version(), "executable": sys.executable}


def _cuda() -> CudaFacts:
    homes = sorted("/usr/local/" + name for name in names_in("/usr/local") if re.match(r"cuda(-\d|$)", name))
    text = text_of("/usr/local/cuda/version.json")
    version = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([^"]+)"', text)
    return {"homes": homes, "home": os.environ.get("CUDA_HOME"), "version": version.group(1) if version else None}


def _host() -> HostFacts:
    return {
        "name": socket.gethostname(),
        "boot": boot_id(),
        "uptime": float(text_of("/proc/uptime").split()[0]),
    }


def _user() -> UserFacts:
    import pwd

    entry = pwd.getpwuid(os.geteuid())
    return {"name": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir, "shell": entry.pw_shell}


def _pairs(text: str, separator: str) -> Dict[str, str]:
    split = (line.partition(separator) for line in text.splitlines())
    return {key.strip(): value.strip() for key, found, value in split if found}


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def _is_remote(kind: str) -> bool:
    return kind.startswith(("nfs", "cifs", "ceph", "lustre", "fuse.", "9p", "beegfs", "gpfs", "smb"))


PARTS: Dict[str, Callable[[], Any]] = {
    "os": _os,
    "kernel": _kernel,
    "cpu": _cpu,
    "memory": _memory,
    "disks": _disks,
    "numa": _numa,
    "gpu": _gpus,
    "python": _python,
    "cuda": _cuda,
    "host": _host,
    "user": _user,
}

CALLS = {"gather": gather}
