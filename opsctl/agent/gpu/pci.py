"""GPUs and the bridges above them, from sysfs: works when nvidia-smi hangs."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from typing import Any, Dict, List, Optional

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
        "driver": _driver(here),
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


def _driver(folder: str) -> Optional[str]:
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


def _number(folder: str, name: str) -> Optional[int]:
    text = _text(folder, name)
    return int(text) if re.match(r"^-?\d+$", text) else None


def _text(folder: str, name: str) -> str:
    return _bytes(folder, name).decode("utf-8", "replace").strip()


def _bytes(folder: str, name: str) -> bytes:
    with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as stream:
        return stream.read(4096)
    return b""
