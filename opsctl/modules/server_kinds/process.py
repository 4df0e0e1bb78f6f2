"""Servers that are plain processes, started by opsctl or taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.errors import Conflict, TaskFailed
from opsctl.modules.contract import Change
from opsctl.modules.fields import reveal, seal
from opsctl.modules.server_kinds.base import LISTENER, NOW, START, STOP, Kind, Steps, unsaid, who
from opsctl.sglang.server import command
from opsctl.text import one_line
from opsctl.wire import command_line
from opsctl.wire.calls.process import (
    process_adopt,
    process_restore,
    process_resume,
    process_start,
    process_start_like,
    process_status,
    process_stop,
)
from opsctl.wire.digests import environment_digest
from opsctl.wire.protocol import Call


class ProcessServer(Kind):
    """A plain process of our own."""

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def alive(self) -> dict[str, Any]:
        return {"process": self.name}

    def look(self) -> Call[Any]:
        return process_status(self.name)

    def change(self) -> Change | None:
        args, server, now = self.args, self.server, self.known[NOW].result
        alive = now["state"] in ("running", "orphans")
        foreign = None if alive else self.known[LISTENER].result
        if foreign is not None:
            self._demand_adoption(foreign)
        takes: dict[str, Any] = {"name": server.name, "wait": args.stop_wait}
        stop: list[Call[Any]] = []
        if foreign is not None:
            stop.append(process_adopt(server.name, foreign["pid"], foreign["start"], server.port))
        if alive or foreign is not None:
            stop.append(process_stop(**takes, keep=STOP))
        theirs = [] if foreign is None else [f"stop {who(foreign)}"]
        served = now["state"] == "running" or foreign is not None
        again = (process_resume(**takes, keep=STOP), self.wait()) if served else ()
        if args.state == "stopped":
            return Change(", ".join(theirs) or f"stop {server.name}", tuple(stop), (), again) if stop else None
        if server.launch is None:
            return self._as_it_runs(now, stop, again, theirs)
        running = now["argv"] if alive else foreign["argv"] if foreign is not None else ()
        argv = self.argv(command_line.value(running, command_line.DRAFTER))
        steps = Steps()
        self.files(steps, argv)
        if args.state == "started" and now["state"] == "running" and self._same(now, argv) and not steps.calls:
            if self.known[LISTENER].result is not None:
                return None
            return Change(f"wait until {server.name} answers", (self.wait(),))  # it is still loading
        self.demand_flags(argv)
        start = process_start(keep=START, body=seal(server.env)[1], **self._start(argv))
        undo = (process_restore(**takes, keep=START), *steps.undo)
        verb = "restart" if stop else "start"
        summary = ", ".join([*theirs, *steps.said, f"{verb} {server.name}: {one_line(' '.join(argv), 160)}"])
        calls = (*stop, *steps.calls, self.mark(), start, self.wait(marked=True))
        return Change(summary, calls, undo, again, diffs=tuple(steps.diffs))

    def _as_it_runs(
        self, now: Mapping[str, Any], stop: list[Call[Any]], again: tuple[Call[Any], ...], theirs: list[str]
    ) -> Change | None:
        """The inventory says nothing of the command: the one that runs is started again."""
        args, name = self.args, self.server.name
        if not again:
            raise unsaid(self.site, ", and none runs")
        ready = self.wait()
        if args.state == "started" and args.speculation and not theirs:
            return None if self.known[LISTENER].result is not None else Change(f"wait until {name} answers", (ready,))
        without = None if args.speculation else command.SPECULATIVE
        start = process_start_like(name, STOP, without, START)
        undo = process_restore(name, START, args.stop_wait)
        how = "as it runs" if args.speculation else "as it runs, without speculation"
        return Change(", ".join([*theirs, f"restart {name} {how}"]), (*stop, self.mark(), start, ready), (undo,), again)

    def _start(self, argv: list[str]) -> dict[str, Any]:
        server = self.server
        how = {"name": server.name, "argv": argv, "log": server.log, "cwd": server.cwd, "port": server.port}
        return {**how, **seal(server.env)[0]}

    def _same(self, now: Mapping[str, Any], argv: list[str]) -> bool:
        env = environment_digest({key: reveal(value) for key, value in self.server.env.items()})
        return bool(now["argv"] == argv and now["env_digest"] == env)

    def _demand_adoption(self, foreign: Mapping[str, Any]) -> None:
        """Whoever holds the port may only be stopped when asked for, and when a rollback can start it again."""
        port, hint = self.server.port, "stop that one, or give the server another port"
        if foreign["pid"] is None:
            raise TaskFailed(f"port {port} is held by another user's process", hint="become that user, or root")
        unit, obstacle = foreign["service"], foreign["obstacle"]
        if not foreign["server"]:
            what = f"port {port} is held by a program that is not recognised as an SGLang server ({who(foreign)})"
        elif unit is not None:
            scope = " and `unit_scope: user`, and become its user" if unit["user"] else ""
            what = (
                f"the server on port {port} is the unit {unit['unit']} of systemd, which would start it again "
                f"({who(foreign)})"
            )
            hint = f"say `unit: {unit['unit']}`{scope} in the sglang section of the inventory, instead of `launch`"
        elif obstacle is not None:
            what = f"the server on port {port} cannot be taken over: {obstacle} ({who(foreign)})"
            hint = "stop it the way it was started, then run this again"
        elif not self.args.adopt:
            what = f"a server that opsctl did not start holds port {port} ({who(foreign)})"
            hint = "stop it, or say `adopt: true` (`--adopt`) to take it over; a rollback starts it again as it was"
        else:
            return
        raise Conflict(what, kind="conflict", hint=hint)
