"""The state of a server, from its process and its own words. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opsctl.sglang.server import command
from opsctl.sglang.server.served import ServerInfo, placed
from opsctl.text import duration, size
from opsctl.wire import command_line
from opsctl.wire.calls.server import ServerProcess


@dataclass(frozen=True, slots=True)
class Status:
    """One server of a host. Times in seconds.

    unit, container: how it is run, else it is a plain process. user_unit: of its user's own systemd. answers:
    whether it says what it is. refusal: why not, where it said something else. ready: whether it generates tokens.
    old_code: it started before its source was last changed; None where that is not known. gpu_memory: bytes that its
    processes hold; None where nvidia-smi does not tell. ours: whether it is the one that the inventory describes.
    """

    pid: int
    port: int
    unit: str | None
    user_unit: bool
    container: str | None
    user: str | None
    started: float
    uptime: float
    answers: bool
    refusal: str | None
    ready: bool
    version: str | None
    commit: str | None
    package: str | None
    old_code: bool | None
    newest_file: str | None
    model: str | None
    draft_model: str | None
    algorithm: str | None
    gpu_memory: int | None
    log: str | None
    ours: bool
    argv: tuple[str, ...]


def status(
    process: ServerProcess,
    info: ServerInfo | None,
    *,
    refusal: str | None = None,
    ready: bool = False,
    memory: Mapping[str, int] | None = None,
    usual_port: int | None = None,
) -> Status:
    """The state of a process of `servers.find` (with `locate`).

    memory: MiB on GPUs by pid, of `vram.processes`. usual_port: the one of the host's own server.
    """
    settings = command.parse(process["argv"]) or command.Launch()
    newest = process["newest"]
    port = command_line.port(process["argv"])
    return Status(
        pid=process["pid"],
        port=port,
        unit=process["unit"],
        user_unit=process["user_unit"],
        container=process["container"],
        user=process["user"],
        started=process["started"],
        uptime=max(0.0, process["now"] - process["started"]),
        answers=info is not None,
        refusal=refusal,
        ready=ready,
        version=info.version if info else None,
        commit=process["commit"],
        package=process["package"],
        old_code=None if newest is None else newest > process["started"],
        newest_file=process["newest_file"],
        model=placed(process["cwd"], info.model_path if info else None, process["model"], settings.model),
        draft_model=placed(
            process["cwd"],
            info.speculative_draft_model_path if info else None,
            process["drafter"],
            settings.draft_model,
        ),
        algorithm=(info.speculative_algorithm if info else None) or settings.algorithm,
        gpu_memory=None if memory is None else sum(memory.get(str(pid), 0) for pid in process["members"]) << 20,
        log=process["log"],
        ours=port == usual_port,
        argv=tuple(process["argv"]),
    )


def line(s: Status) -> str:
    """The state of a server that is only of interest as a neighbour, on one line."""
    held = f", {size(s.gpu_memory)} on GPUs" if s.gpu_memory else ""
    return f"port {s.port}: {_state(s)}; {_process(s)}{held}; {s.model or 'model unknown'}"


def _state(s: Status) -> str:
    if s.ready:
        return "ready"
    return "answers, but generates nothing" if s.answers else f"not ready: {s.refusal or 'starting, or hung'}"


def _process(s: Status) -> str:
    named = f"unit {s.unit} of the user's own systemd" if s.user_unit else f"unit {s.unit}"
    how = named if s.unit else f"container {s.container[:12]}" if s.container else "plain process"
    return f"pid {s.pid}, {how}, user {s.user or 'unknown'}, up {duration(s.uptime)}"


def lines(s: Status) -> Iterator[str]:
    """The state for people."""
    yield f"port {s.port}: {_state(s)}"
    yield f"  process  {_process(s)}"
    code = " at ".join(text for text in (s.package, s.commit and s.commit[:12]) if text)
    yield f"  code     SGLang {s.version or 'unknown'}" + (f", {code}" if code else "")
    if s.old_code:
        yield f"           OLD: {s.newest_file} was changed after the start; restart it to run the new code"
    yield f"  target   {s.model or 'unknown'}"
    yield f"  drafter  {s.draft_model or 'none'}" + (f" ({s.algorithm})" if s.algorithm else "")
    if s.gpu_memory is not None:
        yield f"  memory   {size(s.gpu_memory)} on GPUs"
    if s.log:
        yield f"  log      {s.log}"
    flags = command_line.arguments(s.argv)
    if flags:
        yield f"  flags    {shlex.join(flags)}"
