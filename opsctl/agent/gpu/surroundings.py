"""The rest of the host: PCI devices, small files of /proc and /sys, file systems, weights, the server's endpoint.

Nothing of it asks nvidia-smi, which may hang.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import time
from typing import Any, Dict, List, Optional

from opsctl.agent.files.if_readable import names_in, text_of
from opsctl.wire.protocol import AgentError, Context

_HISTORY = 1 << 18  # bytes of apt's history that are looked at, from its end


def facts(root: str, folders: List[str]) -> Dict[str, Any]:
    """Everything that is read without starting a program."""
    proc, cpu = os.path.join(root, "proc"), os.path.join(root, "sys/devices/system/cpu")
    return {
        "uptime": float((_text(proc, "uptime") or "0").split()[0]),
        "machine": _machine(root),
        "boot_id": _text(proc, "sys/kernel/random/boot_id"),
        "driver_loaded": _driver(root),
        "cmdline": _text(proc, "cmdline"),
        "numa_balancing": _number(proc, "sys/kernel/numa_balancing"),
        "meminfo": _text(proc, "meminfo"),
        "file_nr": _text(proc, "sys/fs/file-nr"),
        "governors": _governors(cpu),
        "cpus_online": _count(_text(cpu, "online")),
        "cpus_present": _count(_text(cpu, "present")),
        "hugepages": _text(root, "sys/kernel/mm/transparent_hugepage/enabled"),
        "mounts": [m for m in (_mount(root, f) for f in ["/dev/shm", *folders]) if m],
        "reboot_required": any(os.path.exists(os.path.join(root, p, "reboot-required")) for p in ("run", "var/run")),
        "kernel_running": _text(proc, "sys/kernel/osrelease"),
        "kernel_installed": _installed(root),
        "unattended": _unattended(root),
        "numa_nodes": _count(_text(root, "sys/devices/system/node/online")),
        "memory_controllers": _memory_controllers(root),
        "network": _network(root),
        "iommus": len(names_in(os.path.join(root, "sys/class/iommu"))),
    }


def _memory_controllers(root: str) -> List[Dict[str, Any]]:
    """EDAC's counts since the kernel began; none where no driver counts."""
    folder = os.path.join(root, "sys/devices/system/edac/mc")
    found = []
    for name in (n for n in names_in(folder) if re.match(r"^mc\d+$", n)):
        here = os.path.join(folder, name)
        corrected, uncorrected = _number(here, "ce_count"), _number(here, "ue_count")
        if corrected is None or uncorrected is None:
            continue
        dimms = [
            _text(os.path.join(here, unit), "dimm_label") or unit
            for unit in names_in(here)
            if re.match(r"^(?:dimm|rank)\d+$", unit) and _number(os.path.join(here, unit), "dimm_ue_count")
        ]
        found.append({"name": name, "corrected": corrected, "uncorrected": uncorrected, "dimms": dimms})
    return found


def _network(root: str) -> List[Dict[str, Any]]:
    """The ports of InfiniBand and RoCE adapters, with the NUMA node of their adapter."""
    folder = os.path.join(root, "sys/class/infiniband")
    found = []
    for adapter in names_in(folder):
        ports = os.path.join(folder, adapter, "ports")
        for port in names_in(ports):
            here = os.path.join(ports, port)
            rate = re.match(r"^([\d.]+) Gb", _text(here, "rate"))
            found.append(
                {
                    "name": "%s/%s" % (adapter, port),
                    "state": _text(here, "state").partition(": ")[2],
                    "physical": _text(here, "phys_state").partition(": ")[2],
                    "kind": _text(here, "link_layer") or "InfiniBand",
                    "rate": float(rate.group(1)) if rate else None,
                    "downed": _number(os.path.join(here, "counters"), "link_downed"),
                    "numa_node": _number(os.path.join(folder, adapter, "device"), "numa_node"),
                }
            )
    return found


def _machine(root: str) -> Optional[str]:
    """What tells this machine from others of its name, without being the identifier that systemd keeps secret."""
    said = _text(root, "etc/machine-id")
    return hashlib.sha256(b"opsctl" + said.encode()).hexdigest()[:12] if said else None


def weights(root: str, folder: str) -> Optional[Dict[str, Any]]:
    """Which shards of the index are missing; None without an index."""
    here = os.path.join(root, folder.lstrip("/"))
    for name in names_in(here):
        if name.endswith(".safetensors.index.json"):
            try:
                with open(os.path.join(here, name), encoding="utf-8") as stream:
                    shards = sorted(set(json.load(stream)["weight_map"].values()))
            except (OSError, ValueError, KeyError, AttributeError, TypeError):
                return None
            missing = [s for s in shards if not os.path.exists(os.path.join(here, s))]
            return {"missing": missing, "found": len(shards) - len(missing)}
    return None


def limits(root: str, pid: int) -> str:
    return _text(os.path.join(root, "proc", str(pid)), "limits")


def endpoint(port: int, seconds: float) -> Dict[str, Any]:
    """/health, and when that is 200 /health_generate, which makes one token."""
    found: Dict[str, Any] = {"health": _get(port, "/health", 5.0)}
    if found["health"] == 200:
        found["generate"] = _get(port, "/health_generate", seconds)
        found["timed_out"] = found["generate"] is None
    return found


def _get(port: int, path: str, seconds: float) -> Optional[int]:
    from opsctl.agent.core.http_request import request  # slow to import, and only hosts with a server need it

    try:
        url = "http://127.0.0.1:%d%s" % (port, path)
        return int(request(Context(), url, timeout=seconds, follow=False).result["status"])
    except AgentError:
        return None


def _driver(root: str) -> Optional[str]:
    text = _text(root, "proc/driver/nvidia/version")
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", text)
    return found.group(1) if found else _text(root, "sys/module/nvidia/version") or None


def _governors(cpu: str) -> List[str]:
    found = {_text(os.path.join(cpu, n), "cpufreq/scaling_governor") for n in names_in(cpu) if re.match(r"cpu\d+$", n)}
    return sorted(found - {""})


def _count(ranges: str) -> Optional[int]:
    """'0-3,8' -> 5."""
    if not re.match(r"^\d+(-\d+)?(,\d+(-\d+)?)*$", ranges):
        return None
    pairs = [part.split("-") for part in ranges.split(",")]
    return sum(int(p[-1]) - int(p[0]) + 1 for p in pairs)


def _mount(root: str, folder: str) -> Optional[Dict[str, Any]]:
    try:
        said = os.statvfs(os.path.join(root, folder.lstrip("/")))
    except OSError:
        return None
    return {
        "path": folder,
        "use": "shm" if folder == "/dev/shm" else "disk",
        "size": said.f_blocks * said.f_frsize,
        "available": said.f_bavail * said.f_frsize,
        "inodes": said.f_files,
        "inodes_free": said.f_favail,
        "read_only": bool(said.f_flag & os.ST_RDONLY),
    }


def _installed(root: str) -> Optional[str]:
    """The kernel that the next boot takes: the one a link names, else the newest in /boot."""
    for link in ("boot/vmlinuz", "vmlinuz"):
        with contextlib.suppress(OSError):
            target = os.path.basename(os.readlink(os.path.join(root, link)))
            if target.startswith("vmlinuz-"):
                return target[len("vmlinuz-") :]
    images = [n[len("vmlinuz-") :] for n in names_in(os.path.join(root, "boot")) if n.startswith("vmlinuz-")]
    numbered = [name for name in images if name[:1].isdigit()]
    return max(numbered, key=_numbers) if numbered else None


def _numbers(version: str) -> List[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _unattended(root: str) -> Optional[List[Dict[str, str]]]:
    """The last upgrades of NVIDIA packages that nobody asked for: date and packages; None without apt's history."""
    path = os.path.join(root, "var/log/apt/history.log")
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.path.getsize(path) - _HISTORY))
            text = stream.read(_HISTORY).decode("utf-8", "replace")
    except OSError:
        return None
    found = []
    for stanza in text.split("\n\n"):
        date = re.search(r"^Start-Date: (.+)$", stanza, re.MULTILINE)
        if date is None or not re.search(r"^Commandline: .*unattended-upgrade", stanza, re.MULTILINE):
            continue
        changed = " ".join(re.findall(r"^(?:Upgrade|Install|Remove): (.*)$", stanza, re.MULTILINE))
        packages = re.findall(r"((?:lib)?nvidia[\w.+-]*):\w+ \(([^)]*)\)", changed)
        if packages:
            told = ", ".join("%s %s" % (name, versions.replace(", ", " to ")) for name, versions in packages[:3])
            found.append({"date": date.group(1).strip(), "packages": told})
    return found[-3:]


def _number(folder: str, name: str) -> Optional[int]:
    text = _text(folder, name)
    return int(text) if re.match(r"^-?\d+$", text) else None


def _text(folder: str, name: str) -> str:
    return text_of(os.path.join(folder, name)).strip("\n\0 ")


_BUS_ID = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
_SWITCH_CLASS = "0x0680"  # NVSwitch
# PCIe extended capability 13: Access Control Services. Control register at +6; bit 2 redirects peer requests upwards.
_LOOKS, _PAUSE = 3, 1.0  # a link that changes its speed while it works is caught by one of these
_GENERATION = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}
_GPU = re.compile(r'<gpu id="([0-9A-Fa-f]+):([0-9A-Fa-f:.]+)">(.*?)</gpu>', re.DOTALL)
_ACS, _ACS_CONTROL, _REQUEST_REDIRECT = 0x000D, 6, 1 << 2


def devices(root: str) -> Optional[List[Dict[str, Any]]]:
    """GPUs and NVSwitches, then the bridges above the GPUs; None without sysfs."""
    folder = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    slots = _slots(root)
    gpus = [n for n in names if _is_gpu(os.path.join(folder, n))]
    parents = {n: _parents(os.path.join(folder, n)) for n in gpus}
    switches = [n for n in names if _is_switch(os.path.join(folder, n))]
    bridges = sorted({p for above in parents.values() for p in above})
    return [_device(folder, n, n in parents, parents.get(n, []), slots) for n in gpus + switches + bridges]


def _is_gpu(folder: str) -> bool:
    return _text(folder, "vendor") == _NVIDIA and _text(folder, "class")[:6] in _GPU_CLASSES


def _is_switch(folder: str) -> bool:
    return _text(folder, "vendor") == _NVIDIA and _text(folder, "class")[:6] == _SWITCH_CLASS


def _parents(folder: str) -> List[str]:
    """The bridges on the way, nearest first: sysfs nests them."""
    parts = os.path.realpath(folder).split(os.sep)
    return [p for p in reversed(parts[:-1]) if _BUS_ID.match(p)]


def _device(folder: str, name: str, gpu: bool, parents: List[str], slots: Dict[str, str]) -> Dict[str, Any]:
    here = os.path.join(folder, name)
    config = _bytes(here, "config")
    return {
        "bus_id": name,
        "gpu": gpu,
        "switch": _is_switch(here),
        "driver": _bound_driver(here),
        "answering": not config or config[:4] != b"\xff\xff\xff\xff",
        "slot": slots.get(name.rpartition(".")[0]),
        "numa_node": _number(here, "numa_node"),
        "width_current": _number(here, "current_link_width"),
        "width_max": _number(here, "max_link_width"),
        "parents": parents,
        "acs_redirect": acs_redirect(config),
        "iommu": _text(here, "iommu_group/type") or None,
        "aer_correctable": _total(here, "aer_dev_correctable"),
        "aer_nonfatal": _total(here, "aer_dev_nonfatal"),
        "aer_fatal": _total(here, "aer_dev_fatal"),
    }


def slow_at_work(answer: str) -> List[str]:
    """The GPUs that nvidia-smi -q -x shows at work with a link below the fastest of them, or below what it can."""
    found, slow = {}, []
    for domain, rest, body in _GPU.findall(answer):
        generation = re.search(r"<current_link_gen>(\d+)", body)
        possible = re.search(r"<max_link_gen>(\d+)", body)
        if generation and re.search(r"<performance_state>P[012]<", body) and re.search(r"<gpu_util>[1-9]", body):
            name = "%04x:%s" % (int(domain, 16), rest.lower())
            found[name] = int(generation.group(1))
            if possible and found[name] < int(possible.group(1)):
                slow.append(name)
    return [name for name, generation in found.items() if name in slow or generation < max(found.values())]


def generations(root: str, names: List[str]) -> Dict[str, List[int]]:
    """The PCIe generation of each device in a few looks; takes seconds."""
    found: Dict[str, List[int]] = {name: [] for name in names}
    for look in range(_LOOKS if names else 0):
        time.sleep(_PAUSE if look else 0)
        for name in names:
            speed = _text(os.path.join(root, "sys/bus/pci/devices", name), "current_link_speed")
            generation = _GENERATION.get(speed.partition(" ")[0])
            if generation:
                found[name].append(generation)
    return found


def acs_redirect(config: bytes) -> Optional[bool]:
    """Whether peer requests are redirected; None without the capability, or when only root could see it."""
    offset = 0x100
    for _ in range(64):  # a damaged list must not be walked for ever
        if offset < 0x100 or len(config) < offset + 8:
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, offset + _ACS_CONTROL)
            return bool(control & _REQUEST_REDIRECT)
        offset = header >> 20
    return None


def _bound_driver(folder: str) -> Optional[str]:
    try:
        return os.path.basename(os.readlink(os.path.join(folder, "driver")))
    except OSError:
        return None


def _slots(root: str) -> Dict[str, str]:
    """domain:bus:device -> name of the physical slot."""
    folder = os.path.join(root, "sys/bus/pci/slots")
    found = {}
    with contextlib.suppress(OSError):
        for slot in os.listdir(folder):
            address = _text(os.path.join(folder, slot), "address")
            if address:
                found[address] = slot
    return found


def _total(folder: str, name: str) -> Optional[int]:
    found = re.search(r"^TOTAL_ERR_\w+ (\d+)", _text(folder, name), re.MULTILINE)
    return int(found.group(1)) if found else None


def _bytes(folder: str, name: str) -> bytes:
    with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as stream:
        return stream.read(4096)
    return b""
