"""The refusals of nvidia-smi, which it prints on stdout: which check each one answers is data/smi_errors.csv."""

from __future__ import annotations

import re
from functools import cache

from opsctl.gpu.model import SmiError
from opsctl.gpu.read.fields import table

# Exit codes of the manual page that say something the text might not.
EXIT_CODES = {
    8: ("gpu.lost", "external power cable not attached", "power"),
    9: ("driver.loaded", "driver not loaded", "module"),
    12: ("driver.loaded", "NVML library missing", "library"),
    15: ("gpu.lost", "GPU fell off the bus", "lost"),
}
INFOROM = 14


@cache
def _patterns() -> tuple[tuple[str, str, re.Pattern[str], str | None], ...]:
    return tuple(
        (r["kind"], r["check"], re.compile(r["pattern"]), r["remedy"] or None) for r in table("smi_errors.csv")
    )


def read(text: str, rc: int | None = None) -> tuple[SmiError, ...]:
    """The refusals in an answer of nvidia-smi (stdout and stderr together), each once."""
    found: list[SmiError] = []
    lines = text.splitlines()
    for i, line in enumerate(lines):
        for kind, check, pattern, remedy in _patterns():
            if matched := pattern.match(line.strip()):
                following = lines[i + 1].strip() if i + 1 < len(lines) else ""
                detail = f"{line.strip()} {following}" if kind == "mismatch" and following else line.strip()
                found.append(SmiError(kind, detail, check, matched.groupdict().get("bus_id"), rc, remedy))
                break
    if rc == INFOROM and not found:
        found.append(SmiError("inforom", f"nvidia-smi ended with code {rc}: infoROM corrupt", "gpu.lost", None, rc))
    if not found and rc in EXIT_CODES:
        check, meaning, remedy = EXIT_CODES[rc]
        found.append(SmiError("exit", f"nvidia-smi ended with code {rc}: {meaning}", check, None, rc, remedy))
    return tuple(dict.fromkeys(found))


def recorded_runs(value: object) -> tuple[SmiError, ...] | None:
    """The refusals in a record of runs ({args, rc, stdout, stderr}, nested as it likes); None when it is none."""
    runs = list(_runs(value, 0))
    if not runs:
        return None
    found = [e for run in runs for e in read(f"{run.get('stdout', '')}\n{run.get('stderr', '')}", _code(run))]
    return tuple(dict.fromkeys(found))


def _code(run: dict[str, object]) -> int | None:
    rc = run.get("rc")
    return rc if isinstance(rc, int) else None


def _runs(value: object, depth: int) -> list[dict[str, object]]:
    if isinstance(value, dict):
        if "rc" in value and isinstance(value.get("stdout"), str):
            return [value]
        children = list(value.values())
    else:
        children = value if isinstance(value, list) else []
    return [run for child in children if depth < 4 for run in _runs(child, depth + 1)]
