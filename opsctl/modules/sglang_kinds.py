"""What starts, restarts or stops a server, by the kind of thing that it is: process, unit or container. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from opsctl.agent.process.process import env_digest
from opsctl.errors import Conflict, TaskFailed
from opsctl.modules import sglang_plan as plan_of
from opsctl.modules.contract import Change, FileDiff, Site
from opsctl.modules.fields import reveal, seal
from opsctl.modules.paths import FileAttributes, expected, place, refuse
from opsctl.modules.sglang_plan import Server, ServerArgs
from opsctl.sglang.server import command, flags
from opsctl.text import one_line
from opsctl.wire import command_line
from opsctl.wire.calls.files import State, files_link, files_restore
from opsctl.wire.calls.process import (
    Action,
    container_restore,
    container_resume,
    container_start,
    container_stop,
    process_adopt,
    process_restore,
    process_resume,
    process_start,
    process_start_like,
    process_stop,
    service_change,
    service_restore,
    service_resume,
)
from opsctl.wire.calls.server import LOG_MARK, ready_wait, startlog_mark
from opsctl.wire.protocol import Call, Reply

# What is known of the host before, and what the calls of a change keep, by these names.
STOP, LINK, LAUNCH, SETTINGS, ENV, UNIT, START = "stop", "link", "launch", "settings", "env", "unit", "start"
FLAGS = "flags"


@dataclass
class Steps:
    """Calls in the order in which they run, and what takes each back."""

    calls: list[Call[Any]] = field(default_factory=list)
    undo: list[Call[Any]] = field(default_factory=list)
    diffs: list[FileDiff] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def file(self, keep: str, path: str, content: str, seen: Reply[Any], mode: int, secret: bool = False) -> None:
        change = place(path, content.encode(), seen, FileAttributes.model_construct(mode=mode), None, secret)
        if change is None:
            return
        for call in change.calls:
            self.calls.append(call.with_args(keep=keep))
            self.undo.insert(0, files_restore(call.args["path"], keep))
        self.diffs += change.diffs
        self.said.append(f"write {posixpath.basename(path)}")

    def link(self, path: str, target: str, now: State) -> None:
        if now["kind"] == "link" and now["target"] == target:
            return
        if now["kind"] not in ("absent", "link"):
            raise refuse(path, now, "link")
        self.calls.append(files_link(path, target, expect=expected(now), keep=LINK))
        self.undo.insert(0, files_restore(path, LINK))
        self.said.append(f"switch {path} to {target}")


class Kind:
    """What is common to servers under systemd and plain processes."""

    def __init__(self, args: ServerArgs, server: Server, site: Site, known: Mapping[str, Reply[Any]]) -> None:
        self.args, self.server, self.site, self.known = args, server, site, known

    def argv(self, in_service: str | None) -> list[str]:
        assert self.server.launch is not None
        if not self.args.speculation:
            return command_line.without(self.server.launch, command.SPECULATIVE)
        drafter = self.args.drafter or self._stays(in_service)
        return command.with_drafter(self.server.launch, drafter) if drafter else self.server.launch

    def _stays(self, in_service: str | None) -> str | None:
        """The draft model that a restart keeps: a release that was deployed; else the command's own comes first."""
        assert self.server.launch is not None
        own = command_line.value(self.server.launch, command_line.DRAFTER)
        top = (self.server.releases or "").lstrip("~")
        deployed = bool(top) and f"{top}/" in (in_service or "")
        return in_service if own is None or deployed else None

    def demand_flags(self, argv: list[str]) -> None:
        """SGLang ends at a flag that it does not know, when the server before is gone already."""
        told = self.known[FLAGS].result if FLAGS in self.known else {}
        if not told.get("flags"):
            return  # it could not be read
        wrong = flags.unknown(argv, told["flags"])
        if wrong:
            names = " and ".join(one.flag for one in wrong)
            raise TaskFailed(
                f"the SGLang in {told['package']} has no flag {names}",
                hint=f"{'; '.join(one.hint for one in wrong)}; it stands in `launch` of the host",
            )

    def files(self, steps: Steps, argv: list[str] | None) -> None:
        link = self.args.release_link
        if link is not None and self.args.drafter is not None:
            name = posixpath.basename(self.args.drafter.rstrip("/"))
            beside = posixpath.dirname(link) == posixpath.dirname(self.args.drafter.rstrip("/"))
            steps.link(link, name if beside else self.args.drafter, self.known[LINK].result)
        if argv is not None:
            settings = plan_of.settings_text(self.server)
            if settings is not None:
                steps.file(SETTINGS, self.server.settings_file, settings, self.known[SETTINGS], 0o600, secret=True)
            text = plan_of.launch_text(self.site, self.server, argv)
            steps.file(LAUNCH, self.server.launch_file, text, self.known[LAUNCH], 0o755)

    def mark(self) -> Call[Any]:
        """Notes where the words of the start that follows will begin in the log."""
        return startlog_mark(self.server.log, LOG_MARK)

    def wait(self, alive: dict[str, Any], *, marked: bool = False) -> Call[Any]:
        args: dict[str, Any] = {"port": self.server.port, "timeout": self.args.ready_timeout, "alive": alive}
        if self.server.bind not in ("0.0.0.0", "::", "127.0.0.1"):
            args["host"] = self.server.bind
        if "process" not in alive and self.server.log is not None:
            args["log"] = self.server.log
        if marked:
            args["begun"] = LOG_MARK
        args["stall"] = self.args.stall
        return ready_wait(**args)

    def demand_launch(self) -> None:
        """A command that we do not know cannot be changed."""
        if self.server.launch is None and not self.args.speculation:
            raise TaskFailed(
                "its launch command is not known here, so it cannot be started without speculation",
                hint="give `launch` in the inventory, or probe a server without speculation by hand",
            )

    def demand_port(self) -> None:
        """Nobody else may listen where the new server will: its answers would be taken for the new one's."""
        holder = self.known["listener"].result
        if holder is not None:
            raise Conflict(
                f"port {self.server.port} is held by a process that is no part of it ({who(holder)})",
                kind="conflict",
                hint="stop that one, or give the server another port",
            )


class ProcessServer(Kind):
    """A plain process of our own."""

    def change(self) -> Change | None:
        args, server, now = self.args, self.server, self.known["process"].result
        alive = now["state"] in ("running", "orphans")
        foreign = None if alive else self.known["listener"].result
        if foreign is not None:
            self._demand_adoption(foreign)
        takes: dict[str, Any] = {"name": server.name, "wait": args.stop_wait}
        stop: list[Call[Any]] = []
        if foreign is not None:
            stop.append(process_adopt(server.name, foreign["pid"], foreign["start"], server.port))
        if alive or foreign is not None:
            stop.append(process_stop(**takes, keep=STOP))
        ours = {"process": server.name}
        theirs = [] if foreign is None else [f"stop {who(foreign)}"]
        served = now["state"] == "running" or foreign is not None
        again = (process_resume(**takes, keep=STOP), self.wait(ours)) if served else ()
        if args.state == "stopped":
            return Change(", ".join(theirs) or f"stop {server.name}", tuple(stop), (), again) if stop else None
        if server.launch is None:
            return self._as_it_runs(now, stop, again, theirs)
        running = now["argv"] if alive else foreign["argv"] if foreign is not None else ()
        argv = self.argv(command_line.value(running, command_line.DRAFTER))
        steps = Steps()
        self.files(steps, argv)
        if args.state == "started" and now["state"] == "running" and self._same(now, argv) and not steps.calls:
            if self.known["listener"].result is not None:
                return None
            return Change(f"wait until {server.name} answers", (self.wait(ours),))  # it is still loading
        self.demand_flags(argv)
        start = process_start(keep=START, body=seal(server.env)[1], **self._start(argv))
        undo = (process_restore(**takes, keep=START), *steps.undo)
        verb = "restart" if stop else "start"
        summary = ", ".join([*theirs, *steps.said, f"{verb} {server.name}: {one_line(' '.join(argv), 160)}"])
        calls = (*stop, *steps.calls, self.mark(), start, self.wait(ours, marked=True))
        return Change(summary, calls, undo, again, diffs=tuple(steps.diffs))

    def _as_it_runs(
        self, now: Mapping[str, Any], stop: list[Call[Any]], again: tuple[Call[Any], ...], theirs: list[str]
    ) -> Change | None:
        """The inventory says nothing of the command: the one that runs is started again."""
        args, name = self.args, self.server.name
        if not again:
            raise plan_of.unsaid(self.site, ", and none runs")
        ready = self.wait({"process": name})
        if args.state == "started" and args.speculation and not theirs:
            return None if self.known["listener"].result is not None else Change(f"wait until {name} answers", (ready,))
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
        env = env_digest({key: reveal(value) for key, value in self.server.env.items()})
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


def who(holder: Mapping[str, Any]) -> str:
    """Whose process holds a port, for people: its number, user, age and command."""
    if holder["pid"] is None:
        return "another user's process"
    since = datetime.fromtimestamp(holder["began"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"pid {holder['pid']} of {holder['user']}, since {since} UTC: {one_line(holder['command'], 120)}"


class UnitServer(Kind):
    """A unit of systemd."""

    def change(self) -> Change | None:
        args, server, now = self.args, self.server, self.known["service"].result
        how: dict[str, Any] = {"unit": server.unit, "user": server.user_unit, "timeout": args.stop_wait + 60}
        stop = service_change(actions=["stop"], keep=STOP, **how)
        alive = {"unit": server.unit, "user": server.user_unit}
        resume = service_resume(keep=STOP, **how)
        sound = now["up"] and not now.get("failing")
        again = (resume, self.wait(alive)) if sound else (resume,)
        if args.state == "stopped":
            return Change(f"stop {server.unit}", (stop,), (), again) if now["up"] else None
        if now.get("LoadState") == "not-found" and server.launch is None:
            raise TaskFailed(
                f"there is no unit {server.unit}", hint="give `launch` in the inventory, and opsctl writes the unit"
            )
        steps = Steps()
        self.demand_launch()
        self.files(steps, None if server.launch is None else self.argv(self._in_service()))
        self._unit_files(steps)
        if args.state == "started" and sound and not steps.calls:
            return None
        if server.launch is not None:
            self.demand_flags(self.argv(self._in_service()))
        if not now["up"]:
            self.demand_port()
        first = [stop] if now["up"] else []
        reload: list[Action] = ["daemon-reload"] if any(call.args.get("keep") == UNIT for call in steps.calls) else []
        start = service_change(actions=[*reload, "start"], keep=START, **how)
        undo = (service_restore(keep=START, **how), *steps.undo)
        verb = "restart" if now["up"] else "start"
        calls = (*first, *steps.calls, self.mark(), start, self.wait(alive, marked=True))
        settle = again if now["up"] else ()
        return Change(", ".join([*steps.said, f"{verb} {server.unit}"]), calls, undo, settle, diffs=tuple(steps.diffs))

    def _unit_files(self, steps: Steps) -> None:
        if self.server.launch is None:
            return
        seen = self.known[UNIT]
        if seen.result["kind"] == "file" and not seen.body.startswith(plan_of.WRITTEN):
            raise Conflict(
                f"{self.server.unit_file} was not written by opsctl",
                kind="conflict",
                hint="leave `launch` out of the inventory to keep the unit as it is (its draft model is then the one "
                "that the release link names), or move the unit away",
            )
        secret = plan_of.env_text(self.server)
        if secret is not None:
            steps.file(ENV, self.server.env_file, secret, self.known[ENV], 0o600, secret=True)
        text = plan_of.unit_text(self.site, self.server, self.args.stop_wait)
        steps.file(UNIT, self.server.unit_file, text, self.known[UNIT], 0o644)

    def _in_service(self) -> str | None:
        """The draft model that the launch file names now."""
        return command_line.value(plan_of.words_in(self.known[LAUNCH].body), command_line.DRAFTER)


class ContainerServer(Kind):
    """A docker container. Its command names the release link, so switching that and restarting is all there is."""

    def change(self) -> Change | None:
        args, name, now = self.args, self.server.name, self.known["container"].result
        if not now["exists"]:
            raise TaskFailed(f"there is no container {name}", hint="make it once, with the release link in its command")
        wait = args.stop_wait
        stop = [container_stop(name, wait, STOP)] if now["running"] else []
        ready = self.wait({"container": name})
        sound = now["running"] and not now.get("restarting")
        resume = container_resume(name, STOP)
        again = (resume, ready) if sound else (resume,) if now["running"] else ()
        if args.state == "stopped":
            return Change(f"stop container {name}", tuple(stop), (), again) if stop else None
        self.demand_launch()
        steps = Steps()
        self.files(steps, None)
        if args.state == "started" and sound and not steps.calls:
            return None
        if not now["running"]:
            self.demand_port()
        start = container_start(name, START)
        undo = (container_restore(name, START, wait), *steps.undo)
        verb = "restart" if now["running"] else "start"
        summary = ", ".join([*steps.said, f"{verb} container {name}"])
        calls = (*stop, *steps.calls, self.mark(), start, self.wait({"container": name}, marked=True))
        return Change(summary, calls, undo, again)
