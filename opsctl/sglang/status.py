"""The state of a server, from its process and its own words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.sglang import launch
from opsctl.sglang.served import ServerInfo
from opsctl.text import duration


@dataclass(frozen=True, slots=True)
class Status:
    """One server of a host. Times in seconds.

    unit, container: how it is run, else it is a plain process. answers: whether it says what it is; while it does not,
    it is starting or hung. old_code: it started before its source was last changed; None where that is not known.
    """

    pid: int
    port: int
    unit: str | None
    container: str | None
    user: str | None
    started: float
    uptime: float
    answers: bool
    version: str | None
    package: str | None
    old_code: bool | None
    newest_file: str | None
    model: str | None
    draft_model: str | None
    algorithm: str | None
    log: str | None
    argv: tuple[str, ...]


def status(process: Mapping[str, Any], info: ServerInfo | None, now: float) -> Status:
    """The state of a process of `servers.find` (with `locate`). now: the host's time."""
    settings = launch.parse(process["argv"]) or launch.Launch()
    newest = process["newest"]
    return Status(
        pid=process["pid"],
        port=settings.port or launch.DEFAULT_PORT,
        unit=process["unit"],
        container=process["container"],
        user=process["user"],
        started=process["started"],
        uptime=max(0.0, now - process["started"]),
        answers=info is not None,
        version=info.version if info else None,
        package=process["package"],
        old_code=None if newest is None else newest > process["started"],
        newest_file=process["newest_file"],
        model=(info.model_path if info else None) or settings.model,
        draft_model=(info.speculative_draft_model_path if info else None) or settings.draft_model,
        algorithm=(info.speculative_algorithm if info else None) or settings.algorithm,
        log=process["log"],
        argv=tuple(process["argv"]),
    )


def lines(s: Status) -> Iterator[str]:
    """The state for people."""
    how = f"unit {s.unit}" if s.unit else f"container {s.container[:12]}" if s.container else "a plain process"
    yield f"pid {s.pid}, {how}, user {s.user or 'unknown'}, up {duration(s.uptime)}, port {s.port}"
    yield f"  {'answers' if s.answers else 'does not answer: starting, or hung'}; SGLang {s.version or 'unknown'}"
    if s.package:
        yield f"  code     {s.package}"
    if s.old_code:
        yield f"           OLD: {s.newest_file} was changed after the start; restart it to run the new code"
    yield f"  target   {s.model or 'unknown'}"
    yield f"  drafter  {s.draft_model or 'none'}" + (f" ({s.algorithm})" if s.algorithm else "")
    if s.log:
        yield f"  log      {s.log}"
