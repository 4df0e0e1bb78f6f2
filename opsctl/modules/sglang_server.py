"""The server that serves a host's model."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl.agent.process import env_digest
from opsctl.agent.protocol import Call, Reply
from opsctl.agent.readiness import STALL_SECONDS
from opsctl.errors import Conflict, TaskFailed
from opsctl.modules import sglang_plan as plan_of
from opsctl.modules.command import seal
from opsctl.modules.content import look, place
from opsctl.modules.contract import Change, FileDiff, Module, ModuleArgs, Site
from opsctl.modules.fields import HostPath, Seconds, reveal
from opsctl.modules.paths import Dress, expected, refuse
from opsctl.modules.sglang_plan import Server
from opsctl.sglang import command
from opsctl.text import one_line

STOP, LINK, LAUNCH, SETTINGS, ENV, UNIT, START = "stop", "link", "launch", "settings", "env", "unit", "start"


class ServerArgs(ModuleArgs):
    state: Literal["started", "stopped", "restarted"] = Field(
        "started", description="`started` restarts a server whose command, environment or draft model differ."
    )
    drafter: HostPath | None = Field(
        None, description="Folder of the draft model to serve; by default the one in service stays."
    )
    link: HostPath | None = Field(
        None, description="Link that names the release in service; by default `current` beside the draft model."
    )
    ready_timeout: Seconds = Field(1200.0, description="Time from start to the first token.")
    stall: Seconds | None = Field(
        STALL_SECONDS, description="Give up when neither the log nor GPU memory has grown for this time."
    )
    speculation: bool = Field(
        True, description="false: serve without a draft model, to measure what speculation brings."
    )
    stop_wait: Seconds = Field(180.0, description="Time to finish requests before it is killed.")
    adopt: bool = Field(
        False, description="Take over a server on this port that opsctl did not start; a rollback starts it as it was."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state == "stopped" and self.drafter is not None:
            raise ValueError("`drafter` means nothing with `state: stopped`")
        if not self.speculation and (self.drafter is not None or self.state == "stopped"):
            raise ValueError("`speculation: false` starts a server without a draft model")
        return self


class SglangServer(Module[ServerArgs]):
    """Have the host's SGLang server running with a given draft model, answering, or stopped.

    What it runs comes from the host's `sglang` section: a launch command, a systemd unit or a container. One change
    stops the old server, switches the release link, writes the launch file, starts the new server and waits for its
    first token.
    Taken back, it stops the new server, restores link and files, starts the old server and waits for that.
    A server that opsctl did not start is left alone unless `adopt` says otherwise.
    """

    name = "sglang_server"
    args = ServerArgs
    examples = """
- name: Serve the release that was staged
  when: false
  sglang_server: {drafter: /models/releases/draft/3f9a1c, ready_timeout: 20m}
  supervise: {confirm_within: 30m}
- name: Stop
  when: false
  sglang_server: {state: stopped}
"""

    def observe(self, args: ServerArgs, site: Site) -> Sequence[Call]:
        return tuple(_questions(args, plan_of.server(site)).values())

    def plan(self, args: ServerArgs, seen: Sequence[Reply], site: Site) -> Change | None:
        server = plan_of.server(site)
        known = dict(zip(_questions(args, server), seen, strict=True))
        kind = _Unit if server.unit else _Container if server.container else _Process
        return kind(args, server, site, known).change()

    def result(self, args: ServerArgs, seen: Sequence[Reply], done: Sequence[Reply] | None) -> dict[str, Any]:
        ready = done[-1].result if done and args.state != "stopped" else {}
        return {key: ready[key] for key in ("seconds", "phases") if key in ready}


def _questions(args: ServerArgs, server: Server) -> dict[str, Call]:
    asked: dict[str, Call] = {}
    if server.container is not None:
        asked["container"] = Call("container.look", {"name": server.container})
    elif server.unit is None:
        asked["process"] = Call("process.status", {"name": server.name})
    else:
        asked["service"] = Call("service.show", {"unit": server.unit, "user": server.user_unit})
    if args.state != "stopped" or "process" in asked:
        asked["listener"] = Call("process.listener", {"port": server.port})
    if args.state == "stopped":
        return asked
    if server.launch is not None:
        asked[LAUNCH] = look(server.launch_file, follow=False)
        if server.api_key is not None:
            asked[SETTINGS] = look(server.settings_file, follow=False)
    if server.unit is not None and server.launch is not None:
        asked[UNIT] = look(server.unit_file, follow=False)
        asked[ENV] = look(server.env_file, follow=False)
    link = _link(args)
    if link is not None:
        asked[LINK] = Call("files.stat", {"path": link, "digest": False})
    return asked


def _link(args: ServerArgs) -> str | None:
    if args.drafter is None:
        return None
    return args.link or posixpath.join(posixpath.dirname(args.drafter.rstrip("/")), "current")


@dataclass
class _Steps:
    """Calls in the order in which they run, and what takes each back."""

    calls: list[Call] = field(default_factory=list)
    undo: list[Call] = field(default_factory=list)
    diffs: list[FileDiff] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def file(self, keep: str, path: str, content: str, seen: Reply, mode: int, secret: bool = False) -> None:
        change = place(path, content.encode(), seen, Dress.model_construct(mode=mode), secret)
        if change is None:
            return
        for call in change.calls:
            self.calls.append(call._replace(args={**call.args, "keep": keep}))
            self.undo.insert(0, Call("files.restore", {"path": call.args["path"], "keep": keep}))
        self.diffs += change.diffs
        self.said.append(f"write {posixpath.basename(path)}")

    def link(self, path: str, target: str, now: Mapping[str, Any]) -> None:
        if now["kind"] == "link" and now["target"] == target:
            return
        if now["kind"] not in ("absent", "link"):
            raise refuse(path, now, "link")
        self.calls.append(Call("files.link", {"path": path, "target": target, "expect": expected(now), "keep": LINK}))
        self.undo.insert(0, Call("files.restore", {"path": path, "keep": LINK}))
        self.said.append(f"switch {path} to {target}")


class _Kind:
    """What is common to servers under systemd and plain processes."""

    def __init__(self, args: ServerArgs, server: Server, site: Site, known: Mapping[str, Reply]) -> None:
        self.args, self.server, self.site, self.known = args, server, site, known

    def argv(self, in_service: str | None) -> list[str]:
        assert self.server.launch is not None
        if not self.args.speculation:
            return command.without_speculation(self.server.launch)
        drafter = self.args.drafter or in_service
        return command.with_drafter(self.server.launch, drafter) if drafter else self.server.launch

    def files(self, steps: _Steps, argv: list[str] | None) -> None:
        link = _link(self.args)
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

    def wait(self, alive: dict[str, Any]) -> Call:
        args: dict[str, Any] = {"port": self.server.port, "timeout": self.args.ready_timeout, "alive": alive}
        if self.server.bind not in ("0.0.0.0", "::", "127.0.0.1"):
            args["host"] = self.server.bind
        if "process" not in alive and self.server.log is not None:
            args["log"] = self.server.log
        args["stall"] = self.args.stall
        return Call("ready.wait", args)

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
            who = (
                "another user's process"
                if holder["pid"] is None
                else f"pid {holder['pid']}: {one_line(holder['command'], 120)}"
            )
            raise Conflict(
                f"port {self.server.port} is held by a process that is no part of it ({who})",
                kind="conflict",
                hint="stop that one, or give the server another port",
            )


class _Process(_Kind):
    """A plain process of our own."""

    def change(self) -> Change | None:
        args, server, now = self.args, self.server, self.known["process"].result
        alive = now["state"] in ("running", "orphans")
        foreign = None if alive else self.known["listener"].result
        if foreign is not None:
            self._demand_adoption(foreign)
        takes = {"name": server.name, "wait": args.stop_wait}
        stop: list[Call] = []
        if foreign is not None:
            whom = {"name": server.name, "pid": foreign["pid"], "start": foreign["start"], "port": server.port}
            stop.append(Call("process.adopt", whom))
        if alive or foreign is not None:
            stop.append(Call("process.stop", {**takes, "keep": STOP}))
        ours = {"process": server.name}
        served = now["state"] == "running" or foreign is not None
        again = (Call("process.resume", {**takes, "keep": STOP}), self.wait(ours)) if served else ()
        if args.state == "stopped":
            return Change(f"stop {server.name}", tuple(stop), (), again) if stop else None
        argv = self.argv(plan_of.drafter_of(now["argv"]) if alive else None)
        steps = _Steps()
        self.files(steps, argv)
        if args.state == "started" and now["state"] == "running" and self._same(now, argv) and not steps.calls:
            if self.known["listener"].result is not None:
                return None
            return Change(f"wait until {server.name} answers", (self.wait(ours),))  # it is still loading
        start = Call("process.start", {**self._start(argv), "keep": START}, seal(server.env, None)[1])
        undo = (Call("process.restore", {**takes, "keep": START}), *steps.undo)
        verb = "restart" if stop else "start"
        summary = ", ".join([*steps.said, f"{verb} {server.name}: {one_line(' '.join(argv), 160)}"])
        calls = (*stop, *steps.calls, start, self.wait(ours))
        return Change(summary, calls, undo, again, diffs=tuple(steps.diffs))

    def _start(self, argv: list[str]) -> dict[str, Any]:
        server = self.server
        how = {"name": server.name, "argv": argv, "log": server.log, "cwd": server.cwd, "port": server.port}
        return {**how, **seal(server.env, None)[0]}

    def _same(self, now: Mapping[str, Any], argv: list[str]) -> bool:
        env = env_digest({key: reveal(value) for key, value in self.server.env.items()})
        return bool(now["argv"] == argv and now["env_digest"] == env)

    def _demand_adoption(self, foreign: Mapping[str, Any]) -> None:
        server, who = self.server, f"pid {foreign['pid']}: {one_line(foreign['command'], 120)}"
        if foreign["pid"] is None:
            raise TaskFailed(f"port {server.port} is held by another user's process", hint="become that user, or root")
        if not self.args.adopt:
            raise Conflict(
                f"a server that opsctl did not start holds port {server.port} ({who})",
                kind="conflict",
                hint="stop it, or say `adopt: true` to take it over; a rollback starts it again as it was",
            )
        if not foreign["leads"]:
            raise Conflict(
                f"the server on port {server.port} shares its process group with what started it ({who})",
                kind="conflict",
                hint="stop it the way it was started, then run this again",
            )


class _Unit(_Kind):
    """A unit of systemd."""

    def change(self) -> Change | None:
        args, server, now = self.args, self.server, self.known["service"].result
        where = {"unit": server.unit, "user": server.user_unit}
        limit = {"timeout": args.stop_wait + 60}
        stop = Call("service.change", {**where, "actions": ["stop"], **limit, "keep": STOP})
        alive = {"unit": server.unit, "user": server.user_unit}
        resume = Call("service.resume", {**where, "keep": STOP, **limit})
        again = (resume, self.wait(alive)) if now["up"] else (resume,)
        if args.state == "stopped":
            return Change(f"stop {server.unit}", (stop,), (), again) if now["up"] else None
        if now.get("LoadState") == "not-found" and server.launch is None:
            raise TaskFailed(
                f"there is no unit {server.unit}", hint="give `launch` in the inventory, and opsctl writes the unit"
            )
        steps = _Steps()
        self.demand_launch()
        self.files(steps, None if server.launch is None else self.argv(self._in_service()))
        self._unit_files(steps)
        if args.state == "started" and now["up"] and not steps.calls:
            return None
        if not now["up"]:
            self.demand_port()
        first = [stop] if now["up"] else []
        reload = ["daemon-reload"] if any(call.args.get("keep") == UNIT for call in steps.calls) else []
        start = Call("service.change", {**where, "actions": [*reload, "start"], **limit, "keep": START})
        undo = (Call("service.restore", {**where, "keep": START, **limit}), *steps.undo)
        verb = "restart" if now["up"] else "start"
        calls = (*first, *steps.calls, start, self.wait(alive))
        settle = again if now["up"] else ()
        return Change(", ".join([*steps.said, f"{verb} {server.unit}"]), calls, undo, settle, diffs=tuple(steps.diffs))

    def _unit_files(self, steps: _Steps) -> None:
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
        return plan_of.drafter_of(plan_of.words_in(self.known[LAUNCH].body))


class _Container(_Kind):
    """A docker container. Its command names the release link, so switching that and restarting is all there is."""

    def change(self) -> Change | None:
        args, name, now = self.args, self.server.name, self.known["container"].result
        if not now["exists"]:
            raise TaskFailed(f"there is no container {name}", hint="make it once, with the release link in its command")
        limit = {"name": name, "wait": args.stop_wait}
        stop = [Call("container.stop", {**limit, "keep": STOP})] if now["running"] else []
        ready = self.wait({"container": name})
        again = (Call("container.resume", {"name": name, "keep": STOP}), ready) if now["running"] else ()
        if args.state == "stopped":
            return Change(f"stop container {name}", tuple(stop), (), again) if stop else None
        self.demand_launch()
        steps = _Steps()
        self.files(steps, None)
        if args.state == "started" and now["running"] and not steps.calls:
            return None
        if not now["running"]:
            self.demand_port()
        start = Call("container.start", {"name": name, "keep": START})
        undo = (Call("container.restore", {**limit, "keep": START}), *steps.undo)
        verb = "restart" if now["running"] else "start"
        summary = ", ".join([*steps.said, f"{verb} container {name}"])
        return Change(summary, (*stop, *steps.calls, start, ready), undo, again)
