"""The ledger of acceptance: what probes have measured, kept on this machine, and what earlier figures say of a new one.

Each result is a file of its own, in a folder for the host or address it came from: the object of `opsctl probe --json`
with the `outcome` of what it was measured in. Writers do not meet, and nothing is ever
changed. Acceptance depends on the prompts, on how long the answers may be, and on how many tokens are drafted: figures
are compared only where these are the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opsctl.errors import Unreadable, UsageError
from opsctl.text import did_you_mean

Result = Mapping[str, Any]

MARGIN = 0.1
"""The share by which a new drafter may stay below the last good length."""

ACCEPTED = 1.5
"""The acceptance length from which a drafter counts as accepted where the ledger has nothing to compare with."""

_CLEARLY = 1.1  # a length whose lower bound is not above it is no standard for others: 1.0 is no acceptance at all
_MOST = 2000  # of the newest results that are read
_LARGEST = 1 << 20  # bytes of one; those of a probe at 16 levels have some 20,000


class Served(BaseModel):
    """The server that was measured. draft_digest: as `drafter check` tells it."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)

    version: str | None = None
    commit: str | None = None
    algorithm: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    tp: int | None = None
    quantization: str | None = None
    attention_backend: str | None = None
    model: str | None = None
    draft_model: str | None = None
    draft_digest: str | None = None
    simulated: bool = False


class Plan(BaseModel):
    """How it was measured. prompts: a digest of them, in their order."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompts: str
    max_tokens: int
    concurrency: int


class Length(BaseModel):
    """An acceptance length, and the interval that holds the true one with 95 %."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    mean: float = Field(gt=0)
    ci95: tuple[float, float]


class _Speed(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    per_request: float | None = None


class _Finding(BaseModel):
    model_config = ConfigDict(extra="ignore")

    severity: str


class _Gate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    holds: bool


class Entry(BaseModel):
    """One measurement of a server that speculates.

    Attributes:
        run: the name of the result.
        target: the host or address that it is kept under; empty for this machine, looked at without a connection.
        outcome: `measured` by itself; else how the play ended on the host in which it was measured: `done`, ...
        plan: how it was measured; None for what a server counted of whatever it was asked.
    """

    model_config = ConfigDict(extra="ignore")

    run: str = ""
    when: datetime
    target: str
    outcome: str = "measured"
    server: Served
    plan: Plan | None
    accept_length: Length
    throughput: dict[str, _Speed] = {}
    findings: list[_Finding] = []
    gates: list[_Gate] = []

    @property
    def good(self) -> bool:
        """Whether others may be judged by it: nothing was found wrong, and drafts are clearly accepted."""
        return (
            self.outcome in ("done", "measured")
            and not self.server.simulated
            and all(gate.holds for gate in self.gates)
            and all(finding.severity != "error" for finding in self.findings)
            and self.accept_length.ci95[0] > _CLEARLY
        )

    @property
    def at_least(self) -> float:
        """The least acceptance length of a drafter that is as good as this one, less the margin."""
        return round(self.accept_length.mean * (1 - MARGIN), 2)

    @property
    def tokens_per_second(self) -> float | None:
        """Of one request, at the first concurrency."""
        return next((speed.per_request for speed in self.throughput.values()), None)

    def as_measured(self, other: Entry) -> bool:
        """Whether the other was measured in the same way: prompts, length of answers, concurrency, tokens drafted."""
        return (
            self.plan is not None
            and self.plan == other.plan
            and all(
                getattr(self.server, name) == getattr(other.server, name) for name in ("steps", "topk", "draft_tokens")
            )
        )

    def differences(self, earlier: Entry) -> list[str]:
        """What is not as it was for an earlier entry, in words: host, SGLang, flags, prompts."""
        said = []
        if self.target and self.target != earlier.target:
            said.append(f"host {earlier.target} → {self.target}")
        for name, words in _TOLD.items():
            before, now = getattr(earlier.server, name), getattr(self.server, name)
            if before != now:
                said.append(f"{words} {_shown(before)} → {_shown(now)}")
        if self.plan != earlier.plan:
            said.append("prompts or length of answers")
        return said


_TOLD = {
    "model": "target",
    "draft_digest": "draft model",
    "version": "SGLang",
    "commit": "commit",
    "algorithm": "algorithm",
    "steps": "steps",
    "topk": "top-k",
    "draft_tokens": "draft tokens",
    "tp": "tensor parallel size",
    "quantization": "quantisation",
    "attention_backend": "attention backend",
}


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the ledger has of the same draft model before.

    differences: what is not as it was then, in words. fell: whether it reads clearly less now, measured in the same
    way; None where it was measured in another.
    """

    entry: Entry
    differences: tuple[str, ...]
    fell: bool | None


def folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "opsctl" / "probes"


def keep(result: Result, target: str, outcome: str = "measured") -> str:
    """Store a result; returns the run's name, with which it can be compared later. Raises OSError."""
    place = folder() / (re.sub(r"[^A-Za-z0-9.-]+", "_", target).strip("_.") or "server")
    place.mkdir(parents=True, exist_ok=True)
    partial = place / f".{datetime.now(UTC):%Y%m%dT%H%M%S%f}.{os.getpid()}.part"
    try:
        partial.write_text(json.dumps({**result, "outcome": outcome}, indent=1) + "\n", encoding="utf-8")
        while True:
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"[:-3]
            try:
                os.link(partial, place / f"{name}.json")  # unlike a rename, it never replaces what is there
            except FileExistsError:
                continue
            return name
    finally:
        partial.unlink(missing_ok=True)


def load(run: str) -> Result:
    """A stored result by run name, or any result file by path. Raises UsageError, Unreadable."""
    path = Path(run)
    if not path.is_file():
        found = sorted(folder().glob(f"*/{run}.json")) if re.fullmatch(r"[0-9T]+", run) else []
        if not found:
            raise UsageError(
                f"no probe result {run!r}", hint="give the file of a result or a run's name, as of `opsctl probe list`"
            )
        path = found[0]
    return _result(path)


def _result(path: Path) -> Result:
    try:
        if path.stat().st_size > _LARGEST:
            raise Unreadable(f"not a probe result: more than {_LARGEST} bytes", where=str(path))
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a probe result: {error}", where=str(path)) from None
    if not isinstance(data, dict) or not {"accept_length", "throughput", "server"} <= data.keys():
        raise Unreadable("not a probe result: accept_length, throughput or server is missing", where=str(path))
    return data


def entry(result: Result, run: str = "") -> Entry | None:
    """A result as an entry; None where it is of a server without speculation, or does not say how it was measured.

    Raises ValidationError for what is no result.
    """
    if not result.get("accept_length") or "plan" not in result or "when" not in result:
        return None
    return Entry.model_validate({**result, "run": run})


def entries(target: str | None = None) -> tuple[list[Entry], list[str]]:
    """The newest entries, the last one first, and what could not be read, a sentence each. Raises UsageError.

    target: the host or address whose entries are meant; None: all.
    """
    found, unread = [], []
    files = sorted(folder().glob("*/[0-9]*.json"), key=lambda path: path.stem, reverse=True)[:_MOST]
    for path in files:
        try:
            if one := entry(_result(path), path.stem):
                found.append(one)
        except (Unreadable, ValidationError) as error:
            what = error if isinstance(error, Unreadable) else f"{path}: not a probe result"
            unread.append(str(what))
    if target is not None:
        known = {one.target for one in found}
        if target not in known:
            raise UsageError(f"nothing was measured of {target!r}",
                             hint=did_you_mean(target, known) if known else "opsctl probe measures")  # fmt: skip
        found = [one for one in found if one.target == target]
    return found, unread


def last_good(now: Entry, among: Iterable[Entry]) -> Entry | None:
    """What a measurement is to be judged by: the last good one of the same target model, measured in the same way.

    A drafter that a deploy has accepted comes before one that was only measured, this host before others.
    """
    fit = [one for one in among if one.good and one.as_measured(now) and _same_model(one, now)]
    fit.sort(key=lambda one: (one.target == now.target, one.outcome == "done", one.when), reverse=True)
    return next(iter(fit), None)


def earlier(now: Entry, among: Iterable[Entry]) -> Earlier | None:
    """The best that the same draft model has read for the same target; one measured in the same way comes first."""
    digest = now.server.draft_digest
    known = [one for one in among if one.good and digest and one.server.draft_digest == digest]
    fit = [one for one in known if _same_model(one, now) and one.when < now.when]
    alike = [one for one in fit if one.as_measured(now)]
    best = max(alike or fit, key=lambda one: one.accept_length.mean, default=None)
    if best is None:
        return None
    apart = now.accept_length.ci95[1] < best.accept_length.ci95[0] and now.accept_length.mean < best.at_least
    return Earlier(best, tuple(now.differences(best)), apart if alike else None)


def _same_model(one: Entry, other: Entry) -> bool:
    """By the name of the folder: the same model lies in different places on different hosts."""
    names = [Path(each.server.model).name if each.server.model else None for each in (one, other)]
    return names[0] is not None and names[0] == names[1]


def _shown(value: object) -> str:
    text = "unknown" if value is None else str(value).removeprefix("quick-sha256:")
    return text[:12]


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
