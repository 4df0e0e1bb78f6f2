"""Long-running processes without a service manager."""

from __future__ import annotations

from collections.abc import Sequence
from posixpath import normpath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from opsctl.modules.contract import Change, Module, ModuleArgs, Site
from opsctl.modules.fields import HostPath, Public, Text, reveal, seal, split
from opsctl.quantities import Duration
from opsctl.wire.calls.process import (
    Status,
    process_restore,
    process_resume,
    process_start,
    process_status,
    process_stop,
)
from opsctl.wire.digests import environment_digest
from opsctl.wire.protocol import Call, Reply

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]*$")]
Argv = Annotated[list[Public], BeforeValidator(lambda value: split(value, "argv") if isinstance(value, str) else value)]

STOP, START = "0", "1"  # what the two calls of a change keep


class ProcessArgs(ModuleArgs):
    name: Name = Field(description="Name of its record on the host; one process per name.")
    state: Literal["started", "stopped", "restarted"] = "started"
    argv: Argv | None = Field(None, description="Program and arguments, as a list or as one text.", min_length=1)
    log: HostPath | None = Field(None, description="File its output is appended to.")
    cwd: HostPath | None = Field(None, description="Folder to run in (default /).")
    env: dict[str, Text] = Field(default={}, description="Environment variables on top of the usual ones.")
    port: int | None = Field(None, description="Port it will listen on; not started while another holds it.", ge=1)
    stop_wait: Duration = Field(90.0, description="Time after SIGTERM before it and its children are killed.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state != "stopped" and (self.argv is None or self.log is None):
            raise ValueError(f"`argv` and `log` are needed for `state: {self.state}`")
        return self


class Process(Module[ProcessArgs]):
    """Have a program running in the background, or not.

    It runs in a session of its own and outlives the connection. It is known by pid, start time and boot id, so only
    what this module started is ever stopped: SIGTERM to the program, then to its children, then SIGKILL. `started`
    restarts it when program, arguments, environment, folder or log differ. One that does not live for a second has
    failed, with its exit code and last line; whether it serves is for a `wait_for`. A rollback starts what was running
    before.
    """

    name = "process"
    programs = frozenset({"nohup", "kill", "pkill"})
    args = ProcessArgs
    examples = """
- name: A server
  process: {name: example, argv: [sleep, "60"], log: "{{ scratch }}/example.log"}
- name: No server
  process: {name: example, state: stopped, stop_wait: 5}
"""

    def observe(self, args: ProcessArgs, site: Site) -> Sequence[Call[Any]]:
        return (process_status(args.name),)

    def plan(self, args: ProcessArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        now: Status = seen[0].result
        alive = now["state"] in ("running", "orphans")
        if args.state == "stopped":
            if not alive:
                return None
            return Change(f"stop {args.name} (pid {now['pid']})", (stop(args.name, args.stop_wait),), (), _again(args))
        why = differs(args, now) if now["state"] == "running" else None
        if now["state"] == "running" and args.state == "started" and why is None:
            return None
        first = (stop(args.name, args.stop_wait),) if alive else ()
        undo = (process_restore(args.name, START, args.stop_wait),)
        reason = f": {why}" if why else ""
        summary = f"restart {args.name} (pid {now['pid']}){reason}" if alive else f"start {args.name}"
        return Change(summary, (*first, _start(args)), undo, _again(args) if alive else ())

    def result(
        self, args: ProcessArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        said = done[-1].result if done else seen[0].result
        return {key: said[key] for key in ("pid", "log", "log_offset", "state") if key in said}


def stop(name: str, wait: float) -> Call[Any]:
    return process_stop(name, wait, STOP)


def differs(args: ProcessArgs, now: Status) -> str | None:
    """What a running process has otherwise than asked for."""
    env = environment_digest({key: reveal(value) for key, value in args.env.items()})
    log = normpath(args.log) if args.log else None  # as the host records it
    wanted = {"argv": args.argv, "cwd": args.cwd or "/", "env_digest": env, "log": log, "port": args.port}
    words = {"argv": "arguments", "cwd": "folder", "env_digest": "environment"}
    other = [words.get(key, key) for key, value in wanted.items() if now.get(key) != value and not _home(value)]
    return f"other {', '.join(other)}" if other else None


def _home(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("~")  # only the host knows where that is


def _start(args: ProcessArgs) -> Call[Any]:
    sealed, body = seal(args.env)
    assert args.argv is not None
    assert args.log is not None
    how = {"keep": START, "judge": True, "body": body, **sealed}
    return process_start(args.name, args.argv, args.log, args.cwd, port=args.port, **how)


def _again(args: ProcessArgs) -> tuple[Call[Any], ...]:
    return (process_resume(args.name, STOP, args.stop_wait, judge=True),)
