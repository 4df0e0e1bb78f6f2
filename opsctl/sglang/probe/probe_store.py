"""Results of probes, kept on this machine by the address or host they came from, and their comparison."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.errors import Unreadable, UsageError

Result = Mapping[str, Any]


def folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "opsctl" / "probes"


def keep(result: Result, target: str) -> str:
    """Store a result; returns the run's name, with which it can be compared later."""
    name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    place = folder() / (re.sub(r"[^A-Za-z0-9.-]+", "_", target).strip("_.") or "server")
    place.mkdir(parents=True, exist_ok=True)
    partial = place / f".{name}.part"
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.rename(place / f"{name}.json")
    return name


def load(run: str) -> Result:
    """A stored result by run name, or any result file by path. Raises UsageError, Unreadable."""
    path = Path(run)
    if not path.is_file():
        found = sorted(folder().glob(f"*/{run}.json")) if re.fullmatch(r"[0-9T]+", run) else []
        if not found:
            raise UsageError(
                f"no probe result {run!r}", hint=f"give the file of a result or a run's name; results lie in {folder()}"
            )
        path = found[0]
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"not a probe result: {error}", where=str(path)) from None
    if not isinstance(data, dict) or not {"accept_length", "throughput", "server"} <= data.keys():
        raise Unreadable("not a probe result: accept_length, throughput or server is missing", where=str(path))
    return data


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two results. clear: whether it is more than the stated uncertainty explains; None: not known."""

    name: str
    a: float | None
    b: float | None
    clear: bool | None = None


def compare(a: Result, b: Result) -> list[Difference]:
    one, two = a["accept_length"] or {}, b["accept_length"] or {}
    apart = None
    if one and two:
        apart = one["ci95"][1] < two["ci95"][0] or two["ci95"][1] < one["ci95"][0]
    rows = [Difference("acceptance length", one.get("mean"), two.get("mean"), apart)]
    rows.append(Difference("acceptance rate", a.get("accept_rate"), b.get("accept_rate"), apart))
    rows.append(Difference("cycle, ms", a.get("cycle_ms"), b.get("cycle_ms")))
    both = a["throughput"].keys() & b["throughput"].keys()
    for level in sorted(both, key=int):
        for key, words in (("per_request", "tok/s of a request"), ("total", "tok/s in total")):
            name = f"{words}, {level} at a time"
            rows.append(Difference(name, a["throughput"][level][key], b["throughput"][level][key]))
    for key, words in (("first_token", "first token, ms"), ("inter_token", "between tokens, ms")):
        one_q, two_q = (r["latency"][key] or {} for r in (a, b))
        rows.append(Difference(words, one_q.get("median"), two_q.get("median")))
    return rows
