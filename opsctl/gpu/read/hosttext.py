"""Read the small texts of a host: /proc files and the output of standard tools, `dcgmi diag` of DCGM 2 to 4 among them.

Each reader gives fields of `Host`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opsctl.gpu.model import DiagnosticResult, Mount, Unit

Fields = dict[str, Any]

_THREE = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s*$")
_ONE = re.compile(r"^\s*(\d{4,})\s*$")
_LIMITS = {"Max locked memory": "memlock", "Max open files": "nofile", "Max processes": "nproc"}
_LISTEN = re.compile(r"^(?:LISTEN\s+)?\d+\s+\d+\s+\S+:(\d+)\s+\S+(?:\s+users:\(\(\"([^\"]*)\",pid=(\d+))?")
# Places whose fullness concerns a server; the rest of df is other people's business.
_IGNORED_TYPES = ("tmpfs", "devtmpfs", "udev", "overlay", "squashfs", "efivarfs", "none", "shm")


def recognise(text: str) -> Fields | None:
    """Fields of `Host` from a text, told apart by its content; None when it is none of these."""
    for read in _READERS:
        found = read(text)
        if found is not None:
            return found
    return None


def cmdline(text: str) -> Fields | None:
    line = text.strip()
    return (
        {"cmdline": line} if "\n" not in line and re.match(r"^(?:BOOT_IMAGE=|initrd=|root=|ro |quiet )", line) else None
    )


def file_nr(text: str) -> Fields | None:
    found = _THREE.match(text)
    return {"fd_used": int(found[1]), "fd_max": int(found[3])} if found else None


def file_max(text: str) -> Fields | None:
    found = _ONE.match(text)
    return {"fd_max": int(found[1])} if found else None


def meminfo(text: str) -> Fields | None:
    said = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if not {"MemTotal", "MemAvailable"} <= set(said):
        return None
    return {
        "memory_total": said["MemTotal"],
        "memory_available": said["MemAvailable"],
        "swap_used": said.get("SwapTotal", 0) - said.get("SwapFree", 0),
    }


def limits(text: str) -> Fields | None:
    if not text.startswith("Limit "):
        return None
    found = []
    for line in text.splitlines():
        for label, name in _LIMITS.items():
            if line.startswith(label):
                found.append((name, line[len(label) :].split()[0]))
    return {"limits": tuple(found)} if found else None


def df(text: str) -> Fields | None:
    """`df -P`: 1024-byte blocks."""
    lines = text.splitlines()
    if not lines or not re.match(r"^Filesystem\s+(?:1024|1K)-blocks\s", lines[0]):
        return None
    mounts = []
    for cells in (line.split(None, 5) for line in lines[1:]):
        if len(cells) != 6 or not (cells[1].isdigit() and cells[3].isdigit()):
            continue
        path = cells[5]
        shared = path == "/dev/shm"
        if shared or cells[0] not in _IGNORED_TYPES:
            mounts.append(Mount(path, "shm" if shared else "disk", int(cells[1]) * 1024, int(cells[3]) * 1024))
    return {"mounts": tuple(mounts)}


def unit(text: str) -> Fields | None:
    """`systemctl show`: KEY=value lines."""
    said = dict(re.findall(r"^([A-Z][A-Za-z0-9]+)=(.*)$", text, re.MULTILINE))
    if "ActiveState" not in said:
        return None
    return {"unit": unit_of(said)}


def unit_of(said: dict[str, str]) -> Unit:
    def number(key: str) -> int | None:
        value = said.get(key, "")
        return int(value) if value.isdigit() else None

    return Unit(
        name=said.get("Id", "unit"),
        active=said["ActiveState"],
        sub=said.get("SubState"),
        result=said.get("Result"),
        restarts=number("NRestarts"),
        kill_mode=said.get("KillMode"),
        main_pid=number("MainPID"),
        control_group=said.get("ControlGroup") or None,
    )


def listeners(text: str) -> Fields | None:
    """`ss -Hltnp`, or `ss -ltnp` with its header."""
    found = [m for m in map(_LISTEN.match, text.splitlines()) if m]
    if not found or not text.startswith(("State", "LISTEN")):
        return None
    return {"listeners": tuple((int(m[1]), int(m[3]) if m[3] else None, m[2] or "?") for m in found)}


def p2p(text: str) -> Fields | None:
    """`nvidia-smi topo -p2p r`: the header's underline codes are there even when piped."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = re.findall(
        r"^\s*GPU\d+[ \t]+((?:X|OK|CNS|GNS|TNS|NS|DR|U|[A-Z]{1,4})(?:[ \t]+[A-Z]{1,4})*)[ \t]*$", plain, re.MULTILINE
    )
    if not rows or "Legend" not in plain or "OK" not in plain:
        return None
    return {"p2p": tuple(tuple(row.split()) for row in rows)}


def driver_version(text: str) -> Fields | None:
    """/proc/driver/nvidia/version."""
    found = re.search(r"^NVRM version: NVIDIA UNIX .*?Kernel Module(?: for \S+)?\s+(\d[\d.]+)", text)
    return {"driver_loaded": found[1]} if found else None


def lscpu(text: str) -> Fields | None:
    said = dict(re.findall(r"^[ \t]*([A-Z][^:\n]*):[ \t]+(.*?)[ \t]*$", text, re.MULTILINE))
    if "CPU(s)" not in said or not said["CPU(s)"].isdigit() or "Architecture" not in said:
        return None
    fields: Fields = {"cpus_present": int(said["CPU(s)"])}
    online = said.get("On-line CPU(s) list", "")
    if counted := _count(online):
        fields["cpus_online"] = counted
    if said.get("NUMA node(s)", "").isdigit():
        fields["numa_nodes"] = int(said["NUMA node(s)"])
    return fields


def numactl(text: str) -> Fields | None:
    """`numactl --hardware`."""
    found = re.match(r"^available: (\d+) nodes? \(", text)
    return {"numa_nodes": int(found[1])} if found else None


def _count(ranges: str) -> int:
    """'0-3,8' -> 5; 0 for anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", ranges):
        return 0
    pairs = [part.split("-") for part in ranges.split(",")]
    return sum(int(pair[-1]) - int(pair[0]) + 1 for pair in pairs)


def diagnostics(text: str) -> Fields | None:
    """`dcgmi diag`, as table or with -j."""
    found = read(text)
    return {"diagnostics": found} if found is not None else None


_READERS: tuple[Callable[[str], Fields | None], ...] = (
    cmdline, file_nr, file_max, meminfo, limits, df, unit, listeners, p2p,
    driver_version, lscpu, numactl, diagnostics,
)  # fmt: skip


_TABLE = re.compile(r"^\|\s*Diagnostic\s*\|\s*Result\s*\|", re.MULTILINE)
_ROW = re.compile(r"^\|\s*(?P<test>[^|]*?)\s*\|\s*(?P<result>[^|]*?)\s*\|?\s*$")
_OUTCOME = re.compile(r"^(?P<word>Pass|Fail|Warn|Skip)(?:ed)?\b(?:\s*-\s*(?P<who>.*))?$", re.IGNORECASE)
_GPU = re.compile(r"\bGPU ?:? ?(\d+)", re.IGNORECASE)
_TOPS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")


def read(text: str) -> tuple[DiagnosticResult, ...] | None:
    """The results in it; None when it is no output of dcgmi diag."""
    start = text.lstrip()
    if start.startswith("{"):
        try:
            document = json.loads(start)
        except (ValueError, RecursionError):
            return None
        top = next((document[name] for name in _TOPS if name in document), None) if isinstance(document, dict) else None
        return tuple(_of_document(top)) if isinstance(top, dict) else None
    return tuple(_of_table(text)) if _TABLE.search(text) else None


def _of_table(text: str) -> Iterator[DiagnosticResult]:
    """A row is a test with its outcome; a row without a test, `Warning` or `Error` continues the one before."""
    current: DiagnosticResult | None = None
    for line in text.splitlines():
        row = _ROW.match(line)
        if row is None:
            continue
        test, result = row["test"], row["result"]
        if outcome := _OUTCOME.match(result):
            if current:
                yield current
            gpu = _GPU.search(outcome["who"] or "")
            current = DiagnosticResult(test, outcome["word"].lower(), gpu[1] if gpu else None)
        elif current and result and (not test or test.lower().startswith(("warning", "error", "info"))):
            said = f"{current.text} {result}".strip()
            named = _GPU.search(said)
            gpu_index = current.gpu or (named[1] if named else None)
            current = DiagnosticResult(current.test, current.outcome, gpu_index, said)
    if current:
        yield current


def _of_document(top: Mapping[str, Any]) -> Iterator[DiagnosticResult]:
    for category in _dicts(top.get("test_categories")):
        for test in _dicts(category.get("tests")):
            for result in _dicts(test.get("results")):
                word = str(result.get("status", "")).lower()
                outcome = next((known for known in ("pass", "fail", "warn", "skip") if word.startswith(known)), None)
                if outcome is None:
                    continue
                gpu = result.get("gpu_id", result.get("entity_id"))
                said = [str(w.get("warning", "")) for w in _dicts(result.get("warnings"))]
                text = " ".join(filter(None, said))
                yield DiagnosticResult(str(test.get("name", "test")), outcome, None if gpu is None else str(gpu), text)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
