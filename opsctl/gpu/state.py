"""What has happened since the last look: counters and kernel events taken from evidence, compared, and kept.

They are kept in a small file for each host, on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from opsctl.gpu.model import Evidence, KernelEvent, State

Counters = dict[tuple[str, str], float]


def of(evidence: Evidence, *, at: float, boot_id: str) -> State:
    """The counters in `evidence`."""
    found: Counters = {}
    for device in evidence.pci or ():
        for name in ("aer_correctable", "aer_nonfatal", "aer_fatal"):
            _keep(found, name, device.bus_id, getattr(device, name))
    for gpu in (g for r in evidence.readings for g in r.readable):
        for name in ("replays", "hw_thermal_us", "hw_power_brake_us"):
            _keep(found, name, gpu.ref.bus_id, getattr(gpu, name))
    for one in evidence.host.links or ():
        _keep(found, "nvlink_errors", one.uuid or str(one.index), one.errors)
    for controller in evidence.host.memory_controllers or ():
        _keep(found, "edac_corrected", controller.name, controller.corrected)
    for port in evidence.host.network or ():
        _keep(found, "link_downed", port.name, port.downed)
    unit = evidence.host.unit
    if unit is not None:
        _keep(found, "restarts", unit.name, unit.restarts)
    return State(at, boot_id, found)


def now(evidence: Evidence) -> State:
    """The counters with the host's own clock and boot, and the kernel events so far."""
    table, log = evidence.table, evidence.kernel
    counted = of(evidence, at=evidence.host.now or 0.0, boot_id=table.boot_id if table else "")
    return replace(counted, told=frozenset(_digest(e) for e in (log.events if log else ())))


def is_new(event: KernelEvent, evidence: Evidence) -> bool | None:
    """Whether the event has come since the last look; None without a look in this boot."""
    before, table = evidence.before, evidence.table
    if before is None or table is None or before.boot_id != table.boot_id:
        return None
    return _digest(event) not in before.told


def since(before: State, evidence: Evidence) -> tuple[float, Mapping[tuple[str, str], float]]:
    """Hours between the two looks, and how much each counter known to both has grown.

    After a reboot, or where a counter went back (a reset GPU), the whole count is new.
    """
    after = now(evidence)
    rebooted = before.boot_id != after.boot_id
    grown = {}
    for key, value in after.counters.items():
        earlier = before.counters.get(key)
        if rebooted or (earlier is not None and value < earlier):
            grown[key] = value
        elif earlier is not None:
            grown[key] = value - earlier
    return max(after.at - before.at, 0.0) / 3600, grown


def dump(state: State) -> dict[str, Any]:
    """As JSON."""
    counters = [[what, which, value] for (what, which), value in sorted(state.counters.items())]
    return {"at": state.at, "boot_id": state.boot_id, "counters": counters, "told": sorted(state.told)}


def load(data: Mapping[str, Any]) -> State:
    """From what `dump` gave."""
    counters = {(what, which): float(value) for what, which, value in data["counters"]}
    return State(float(data["at"]), str(data["boot_id"]), counters, frozenset(data["told"]))


def _digest(event: KernelEvent) -> str:
    return sha256(event.key.encode("utf-8", "replace")).hexdigest()[:16]


def _keep(found: Counters, what: str, which: str | None, value: float | None) -> None:
    if which and value is not None:
        found[what, which] = float(value)


def folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "opsctl" / "health"


def compared(host: str, evidence: Evidence) -> Evidence:
    """The evidence with the last look at the same machine, which this one replaces."""
    file = _file(host, evidence.host.machine or "")
    before = _read(file)
    _write(file, now(evidence))
    return replace(evidence, before=before)


def _read(file: Path) -> State | None:
    """None when there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return load(json.loads(file.read_text(encoding="utf-8")))
    return None


def _write(file: Path, seen: State) -> None:
    """Keep it for the next look. A folder that cannot be written is no reason to fail: the next look is a first one."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=".look-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(dump(seen), stream)
            Path(partial).replace(file)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise


def _file(host: str, machine: str) -> Path:
    """Two inventories may call different machines by one name: what tells them apart is part of the file's name."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", host)[:60]
    digest = sha256("\0".join((host, machine)).encode()).hexdigest()[:12]
    return folder() / f"{readable}-{digest}.json"
