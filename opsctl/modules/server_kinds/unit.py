"""Servers that are units of systemd."""

from __future__ import annotations

import posixpath
import shlex
from typing import Any

from opsctl.errors import Conflict, TaskFailed
from opsctl.modules.contract import Change
from opsctl.modules.fields import reveal
from opsctl.modules.paths import look
from opsctl.modules.server_kinds.base import LAUNCH, NOW, START, STOP, Kind, Steps, render, words_in
from opsctl.secret import Secret
from opsctl.wire import command_line
from opsctl.wire.calls.process import Action, service_change, service_restore, service_resume, service_show
from opsctl.wire.protocol import Call

UNIT, ENV = "unit", "env"  # under these names its files are asked for, and kept
WRITTEN = b"# Written by opsctl"


class UnitServer(Kind):
    """A unit of systemd."""

    key = "unit"

    @property
    def name(self) -> str:
        said = str(self.server.settings.unit)
        return said if "." in said else f"{said}.service"

    @property
    def alive(self) -> dict[str, Any]:
        return {"unit": self.name, "user": self.server.settings.user_unit}

    def look(self) -> Call[Any]:
        return service_show(self.name, self.server.settings.user_unit)

    def own_files(self) -> dict[str, Call[Any]]:
        return {UNIT: look(self._unit_file, follow=False), ENV: look(self._env_file, follow=False)}

    def change(self) -> Change | None:
        args, server, now = self.args, self.server, self.known[NOW].result
        how: dict[str, Any] = {"unit": self.name, "user": server.settings.user_unit, "timeout": args.stop_wait + 60}
        stop = service_change(actions=["stop"], keep=STOP, **how)
        resume = service_resume(keep=STOP, **how)
        sound = now["up"] and not now.get("failing")
        again = (resume, self.wait()) if sound else (resume,)
        if args.state == "stopped":
            return Change(f"stop {self.name}", (stop,), (), again) if now["up"] else None
        if now.get("LoadState") == "not-found" and server.launch is None:
            raise TaskFailed(
                f"there is no unit {self.name}", hint="give `launch` in the inventory, and opsctl writes the unit"
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
        calls = (*first, *steps.calls, self.mark(), start, self.wait(marked=True))
        settle = again if now["up"] else ()
        return Change(", ".join([*steps.said, f"{verb} {self.name}"]), calls, undo, settle, diffs=tuple(steps.diffs))

    def _unit_files(self, steps: Steps) -> None:
        if self.server.launch is None:
            return
        seen = self.known[UNIT]
        if seen.result["kind"] == "file" and not seen.body.startswith(WRITTEN):
            raise Conflict(
                f"{self._unit_file} was not written by opsctl",
                kind="conflict",
                hint="leave `launch` out of the inventory to keep the unit as it is (its draft model is then the one "
                "that the release link names), or move the unit away",
            )
        secret = self._env_text()
        if secret is not None:
            steps.file(ENV, self._env_file, secret, self.known[ENV], 0o600, secret=True)
        text = self._unit_text()
        steps.file(UNIT, self._unit_file, text, self.known[UNIT], 0o644)

    def _in_service(self) -> str | None:
        """The draft model that the launch file names now."""
        return command_line.value(words_in(self.known[LAUNCH].body), command_line.DRAFTER)

    @property
    def _unit_file(self) -> str:
        """Where opsctl writes the unit; one that the operator wrote is never replaced."""
        top = "~/.config/systemd/user" if self.server.settings.user_unit else "/etc/systemd/system"
        return f"{top}/{self.name}"

    @property
    def _env_file(self) -> str:
        return posixpath.join(self.server.folder, f"launch-{self.server.port}.env")

    def _env_text(self) -> str | None:
        """The secret part of the environment, as systemd reads it; None where there is none."""
        secret = {key: reveal(value) for key, value in self.server.env.items() if isinstance(value, Secret)}
        return "".join(f"{key}={shlex.quote(value)}\n" for key, value in secret.items()) or None

    def _unit_text(self) -> str:
        return render(
            self.site,
            "sglang.service.j2",
            unit=self.name,
            port=self.server.port,
            launch_file=self.server.launch_file,
            env_file=self._env_file if self._env_text() else None,
            log=self.server.log,
            stop_wait=int(self.args.stop_wait),
            user=self.server.settings.user_unit,
        )
