"""Units of systemd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl.errors import TaskFailed
from opsctl.modules.contract import Change, Module, ModuleArgs, Site
from opsctl.quantities import TimeLimit
from opsctl.wire.calls.process import Action, Unit, service_change, service_restore, service_resume, service_show
from opsctl.wire.protocol import Call, Reply

KEEP = "0"


class ServiceArgs(ModuleArgs):
    name: str = Field(description="The unit; .service is understood.", pattern=r"^[A-Za-z0-9:_.@\\-]+$")
    state: Literal["started", "stopped", "restarted", "reloaded"] | None = Field(None, description="What it is to do.")
    enabled: bool | None = Field(None, description="Whether it starts with the host.")
    scope: Literal["system", "user"] = Field("system", description="Whose systemd.")
    daemon_reload: bool = Field(
        False, description="Have systemd read its units again; done anyway when it asks for it."
    )
    timeout: TimeLimit = Field(300.0, description="Time for each action of systemd.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state is None and self.enabled is None and not self.daemon_reload:
            raise ValueError("give `state`, `enabled` or `daemon_reload`")
        return self

    @property
    def unit(self) -> str:
        return self.name if "." in self.name else f"{self.name}.service"


class Service(Module[ServiceArgs]):
    """Have a unit of systemd started, stopped, restarted, enabled.

    What systemd took as an order is looked at: a unit that ends at once, fails, or is started again and again has
    failed, with its exit code and the last line of this start in the journal. A service is to live for a second; one
    that takes longer to fail is caught by a `wait_for`. A unit that ends again and again is not `started`.

    A rollback stops what was started, restores enablement, and when all files are back starts what was running.
    """

    name = "service"
    programs = frozenset({"systemctl", "service"})
    args = ServiceArgs
    examples = """
- name: Server runs, now and after a reboot
  when: false
  service: {name: sglang, state: started, enabled: true}
"""

    def observe(self, args: ServiceArgs, site: Site) -> Sequence[Call[Any]]:
        return (service_show(args.unit, args.scope == "user"),)

    def plan(self, args: ServiceArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        now: Unit = seen[0].result
        actions = needed(args, now)
        if not actions:
            return None
        unit, user, timeout = args.unit, args.scope == "user", args.timeout
        failing = now.get("failing")
        expect = {"ActiveState": now.get("ActiveState"), "UnitFileState": now.get("UnitFileState")}
        if failing:  # between two starts its state is another one each time
            del expect["ActiveState"]
        call = service_change(unit, actions, user, expect, timeout, KEEP, judge=True)
        undo = service_restore(unit, KEEP, user, timeout)
        settle = service_resume(unit, KEEP, user, timeout, judge=True)
        why = f": {failing}" if failing else ""
        return Change(f"{', '.join(actions)} {args.unit}{why}", (call,), (undo,), (settle,))

    def result(
        self, args: ServiceArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        return {"unit": (done[-1] if done else seen[0]).result}


def needed(args: ServiceArgs, now: Unit) -> list[Action]:
    """Actions that bring a unit from how it is to how it is to be. Raises TaskFailed if there is no such unit."""
    loaded = now.get("LoadState")
    if loaded == "masked":
        raise TaskFailed(f"{args.unit} is masked", hint=f"systemctl unmask {args.unit}")
    # A unit file that a task before this one wrote is found by the daemon-reload; without one there is nothing to do.
    if loaded == "not-found" and not args.daemon_reload:
        if args.state == "stopped" and not args.enabled:
            return []
        raise TaskFailed(f"there is no unit {args.unit}", hint="`daemon_reload: true` if its file was just written")
    actions: list[Action] = ["daemon-reload"] if loaded == "not-found" or now.get("NeedDaemonReload") == "yes" else []
    if args.enabled is not None and args.enabled != now["enabled"]:
        actions.append("enable" if args.enabled else "disable")
    up = now["up"]
    match args.state:
        case "started" | "reloaded" if up and now.get("failing"):
            actions.append("restart")
        case "started" if not up:
            actions.append("start")
        case "stopped" if up:
            actions.append("stop")
        case "restarted":
            actions.append("restart")
        case "reloaded":
            actions.append("reload" if up else "start")
    return actions
