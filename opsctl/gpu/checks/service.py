"""Our server on the host: its port, its unit, whether it answers."""

from __future__ import annotations

from opsctl.gpu import state
from opsctl.gpu.checks.host import unanswered
from opsctl.gpu.checks.over import fail, sound, warn
from opsctl.gpu.model import Evidence, Found, Host
from opsctl.gpu.settings import Settings
from opsctl.text import duration


def port(evidence: Evidence, settings: Settings) -> list[Found]:
    host = evidence.host
    if host.port is None or host.listeners is None:
        return unanswered(host, "svc.port", "no server port was named")
    held = [(pid, program) for number, pid, program in host.listeners if number == host.port]
    active = host.unit is not None and host.unit.active == "active"
    if not held:
        return [_starting(host, settings) if active else sound("free", host.port)]
    pid, program = held[0]
    if host.server_pid is not None and pid is not None and pid != host.server_pid:
        return [fail(f"{program} (pid {pid}) holds port {host.port}, not our server", pid, host.server_pid)]
    if host.unit is not None and not active:
        return [fail(f"{program} (pid {pid or '?'}) holds port {host.port} while our unit is {host.unit.active}", pid)]
    return [sound(f"{program} (pid {pid or '?'}) listens", host.port)]


def _starting(host: Host, settings: Settings) -> Found:
    """The unit runs and nobody listens yet: loading takes minutes, but not for ever."""
    waited = host.unit.active_seconds if host.unit else None
    text = f"nothing listens on {host.port}"
    if waited is None:
        return warn(f"{text} although the unit is active", "free")
    told = f"{text} after {duration(waited)}"
    if waited > settings.limit("ready.fail"):
        return fail(told, round(waited), settings.limit("ready.fail"))
    return warn(told, round(waited)) if waited > settings.limit("ready.warn") else sound(f"{told}: loading")


def unit(evidence: Evidence, settings: Settings) -> list[Found]:
    found = evidence.host.unit
    if found is None:
        return unanswered(evidence.host, "svc.unit", "no unit was named")
    said = f"{found.name} {found.active}/{found.sub}"
    if found.active == "failed" or found.result not in (None, "", "success"):
        return [fail(f"{said}, result {found.result}", found.result, "success")]
    if found.kill_mode in ("process", "none"):
        return [warn(f"KillMode={found.kill_mode} leaves the schedulers behind", found.kill_mode, "mixed")]
    restarts = state.since(evidence.before, evidence)[1].get(("restarts", found.name), 0) if evidence.before else 0
    if restarts > 0:
        return [warn(f"{said}, {restarts:.0f} new restarts", restarts, 0)]
    return [sound(f"{said}, {found.restarts or 0} restarts", found.active)]


def ready(evidence: Evidence, settings: Settings) -> list[Found]:
    status = evidence.host.health_status
    if status is None:
        return unanswered(evidence.host, "svc.ready", "no endpoint was asked")
    return [sound("/health 200", 200, 200) if status == 200 else fail(f"/health {status}", status, 200)]


def live(evidence: Evidence, settings: Settings) -> list[Found]:
    host = evidence.host
    if host.generate_timed_out:
        return [
            fail(f"/health {host.health_status or 'unknown'}, but /health_generate does not answer", "no answer", 200)
        ]
    if host.generate_status is None:
        return unanswered(host, "svc.live", "no endpoint was asked, or /health is not 200")
    good = host.generate_status == 200
    return [(sound if good else fail)(f"/health_generate {host.generate_status}", host.generate_status, 200)]
