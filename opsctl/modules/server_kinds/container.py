"""Servers that run in a docker container."""

from __future__ import annotations

from typing import Any

from opsctl.errors import TaskFailed
from opsctl.modules.contract import Change
from opsctl.modules.server_kinds.base import NOW, START, STOP, Kind, Steps
from opsctl.wire.calls.process import (
    container_look,
    container_restore,
    container_resume,
    container_start,
    container_stop,
)
from opsctl.wire.protocol import Call


class ContainerServer(Kind):
    """A docker container. Its command names the release link, so switching that and restarting is all there is."""

    key = "container"
    launches = False  # it is made with its command, which a restart cannot change

    @property
    def name(self) -> str:
        return str(self.server.settings.container)

    @property
    def alive(self) -> dict[str, Any]:
        return {"container": self.name}

    def look(self) -> Call[Any]:
        return container_look(self.name)

    def change(self) -> Change | None:
        args, name, now = self.args, self.name, self.known[NOW].result
        if not now["exists"]:
            raise TaskFailed(f"there is no container {name}", hint="make it once, with the release link in its command")
        wait = args.stop_wait
        stop = [container_stop(name, wait, STOP)] if now["running"] else []
        ready = self.wait()
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
        calls = (*stop, *steps.calls, self.mark(), start, self.wait(marked=True))
        return Change(summary, calls, undo, again)
