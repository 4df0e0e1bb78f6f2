"""The host around the GPUs: processors, memory, disks, limits, clock, updates; and our server on it."""

from __future__ import annotations

from opsctl.gpu import state
from opsctl.gpu.checks import kernel
from opsctl.gpu.checks.over import fail, sound, warn
from opsctl.gpu.model import Evidence, Found, Host, Mount, Verdict, skip
from opsctl.gpu.settings import Settings
from opsctl.text import duration, size


def unanswered(host: Host, check: str, otherwise: str) -> list[Found]:
    said = next((why for prefix, why in host.reasons if check.startswith(prefix)), otherwise)
    return skip(said)


def numa_balancing(evidence: Evidence, settings: Settings) -> list[Found]:
    value = evidence.host.numa_balancing
    if value is None:
        return unanswered(evidence.host, "host.numa_balancing", "kernel.numa_balancing is not known")
    return [warn("automatic NUMA balancing is on", value, 0) if value else sound("off", value, 0)]


def governor(evidence: Evidence, settings: Settings) -> list[Found]:
    found = evidence.host.governors
    if not found:
        return unanswered(evidence.host, "host.governor", "no cpufreq on this host")
    slow = sorted(set(found) - {"performance"})
    text = ", ".join(sorted(set(found)))
    return [warn(f"governor {text}", text, "performance") if slow else sound("performance", text, "performance")]


def cpus(evidence: Evidence, settings: Settings) -> list[Found]:
    online, present = evidence.host.cpus_online, evidence.host.cpus_present
    if online is None or present is None:
        return unanswered(evidence.host, "host.cpus", "processors online and present are not known")
    if online < present:
        return [warn(f"{present - online} of {present} processors are offline", online, present)]
    return [sound(f"{online} online", online, present)]


def ram(evidence: Evidence, settings: Settings) -> list[Found]:
    host = evidence.host
    if host.memory_available is None or not host.memory_total:
        return unanswered(host, "host.ram", "memory is not known")
    found: list[Found] = []
    least = max(host.memory_total * settings.limit("ram.available.fraction"), settings.limit("ram.available.bytes"))
    text = f"{size(host.memory_available)} of {size(host.memory_total)} available"
    if host.memory_available < least:
        found.append(warn(text, host.memory_available, least))
    if (host.swap_used or 0) > settings.limit("swap.used.bytes"):
        found.append(warn(f"{size(host.swap_used or 0)} of swap in use", host.swap_used))
    return found or [sound(text, host.memory_available, least)]


def memory_errors(evidence: Evidence, settings: Settings) -> list[Found]:
    """EDAC's counters and the kernel log, which may each know what the other does not."""
    logged = kernel.memory(evidence, settings)
    counted = _counted(evidence, settings)
    faults = sorted((f for f in logged + counted if f.verdict.rank > 1), key=lambda f: -f.verdict.rank)
    return faults or [f for f in counted + logged if f.verdict is Verdict.PASS][:1] or logged


def _counted(evidence: Evidence, settings: Settings) -> list[Found]:
    controllers = evidence.host.memory_controllers
    if not controllers:
        return skip("no memory controller is known to EDAC")
    hours, added = state.since(evidence.before, evidence) if evidence.before else (0.0, {})
    limit = settings.limit("edac.corrected.per_hour") * max(hours, 1 / 60)
    found = []
    for one in controllers:
        if one.uncorrected:
            where = f" ({', '.join(one.dimms)})" if one.dimms else ""
            text = f"{one.uncorrected} uncorrected errors on {one.name}{where}"
            found.append(fail(text, one.uncorrected, 0, remedy="dimm"))
        new = added.get(("edac_corrected", one.name), 0)
        if new > limit:
            text = f"{new:.0f} new corrected errors on {one.name} in {hours * 60:.0f} minutes"
            found.append(warn(text, new, limit, remedy="dimm_corrected"))
    corrected = sum(one.corrected for one in controllers)
    return found or [sound(f"no uncorrected error, {corrected} corrected on {len(controllers)} memory controllers")]


def ports(evidence: Evidence, settings: Settings) -> list[Found]:
    """InfiniBand and RoCE ports: one that is down while others of its kind are up, or that went down since."""
    told = evidence.host.network
    if told is None:
        return unanswered(evidence.host, "net.ports", "InfiniBand was not looked at")
    if not told:
        return [sound("no InfiniBand or RoCE adapter")]
    added = state.since(evidence.before, evidence)[1] if evidence.before else {}
    up = {(p.kind, bool(p.near)) for p in told if p.state == "ACTIVE"}
    found = []
    for port in told:
        beside = f" beside {', '.join(port.near[:4])}" if port.near else ""
        flapped = added.get(("link_downed", port.name), 0)
        if port.state != "ACTIVE" and port.physical != "Disabled" and (port.kind, bool(port.near)) in up:
            text = f"{port.name} is {port.state} ({port.physical}){beside}, others of its kind are up"
            found.append(warn(text, port.state, "ACTIVE", remedy="link_port"))
        elif flapped > 0:
            text = f"{port.name} went down {flapped:.0f} times since the last look{beside}"
            found.append(warn(text, flapped, 0, remedy="link_port"))
    active = sum(p.state == "ACTIVE" for p in told)
    return found or [sound(f"{active} of {len(told)} ports active", active)]


def shm(evidence: Evidence, settings: Settings) -> list[Found]:
    mount = next((m for m in evidence.host.mounts or () if m.use == "shm"), None)
    if mount is None:
        return unanswered(evidence.host, "host.shm", "/dev/shm is not known")
    bad, poor = settings.limit("shm.fail"), settings.limit("shm.warn")
    text = f"{size(mount.available)} left of {size(mount.size)}"
    if mount.available < bad:
        return [fail(text, mount.available, bad)]
    return [warn(text, mount.available, poor) if mount.available < poor else sound(text, mount.available, poor)]


def disk(evidence: Evidence, settings: Settings) -> list[Found]:
    mounts = [m for m in evidence.host.mounts or () if m.use != "shm" and m.size > 0]
    if not mounts:
        return unanswered(evidence.host, "host.disk", "no file system is known")
    found = [f for m in mounts for f in _disk(m, settings)]
    if found:
        return sorted(found, key=lambda f: -f.verdict.rank)
    tightest = min(mounts, key=lambda m: m.available / m.size)
    return [
        sound(f"{size(tightest.available)} left on {tightest.path}, the fullest of {len(mounts)}", tightest.available)
    ]


def _disk(mount: Mount, settings: Settings) -> list[Found]:
    if mount.read_only:
        return [fail(f"{mount.path} is mounted read-only", "ro", "rw")]
    bad, poor = settings.limit("disk.fail.fraction"), settings.limit("disk.warn.fraction")
    free = mount.available / mount.size
    text = f"{size(mount.available)} ({free:.0%}) left on {mount.path}"
    # A small file system cannot have 20 GiB left: the share counts there.
    least = min(settings.limit("disk.fail.bytes"), mount.size * poor)
    found = []
    if free < bad or mount.available < least:
        found.append(fail(text, mount.available))
    elif free < poor:
        found.append(warn(text, mount.available))
    if mount.inodes:
        left = mount.inodes_free / mount.inodes
        if left < poor:
            found.append(
                (fail if left < bad else warn)(f"{left:.0%} of the inodes left on {mount.path}", mount.inodes_free)
            )
    return found


def weights(evidence: Evidence, settings: Settings) -> list[Found]:
    missing, found = evidence.host.weights_missing, evidence.host.weights_found
    if missing is None:
        return unanswered(evidence.host, "host.weights", "no weights folder with an index was named")
    if missing:
        return [fail(f"{len(missing)} shards are missing: {', '.join(missing[:3])}", found)]
    return [sound(f"all {found} shards are there", found)]


def limits(evidence: Evidence, settings: Settings) -> list[Found]:
    said = dict(evidence.host.limits or ())
    if not said:
        return unanswered(evidence.host, "host.limits", "no running server whose limits could be read")
    found = []
    if "memlock" in said and said["memlock"] != "unlimited":
        found.append(warn(f"memlock {said['memlock']}", said["memlock"], "unlimited"))
    for name in ("nofile", "nproc"):
        value, least = said.get(name), settings.limit(f"limits.{name}")
        if value and value.isdigit() and int(value) < least:
            found.append(warn(f"{name} {value}", int(value), least))
    return found or [sound(", ".join(f"{name} {value}" for name, value in sorted(said.items())))]


def fd(evidence: Evidence, settings: Settings) -> list[Found]:
    used, most = evidence.host.fd_used, evidence.host.fd_max
    if used is None or not most:
        return unanswered(evidence.host, "host.fd", "open files of the host are not known")
    text, limit = f"{used} of {most} ({used / most:.1%})", settings.limit("fd.warn")
    return [warn(text, used, most) if used > most * limit else sound(text, used, most)]


def clock(evidence: Evidence, settings: Settings) -> list[Found]:
    synced, offset = evidence.host.clock_synced, evidence.host.clock_offset
    if synced is None and offset is None:
        return unanswered(evidence.host, "host.time", "the clock was not compared")
    if offset is not None and abs(offset) > settings.limit("clock.fail"):
        return [fail(f"{offset:+.1f} s against this machine", round(offset, 1))]
    found = []
    if offset is not None and abs(offset) > settings.limit("clock.warn"):
        found.append(warn(f"{offset:+.1f} s against this machine", round(offset, 1)))
    if synced is False:
        found.append(warn("not synchronised", "no", "yes"))
    return found or [sound("synchronised" if synced else f"{offset or 0:+.1f} s against this machine")]


def updates(evidence: Evidence, settings: Settings) -> list[Found]:
    host = evidence.host
    if host.reboot_required is None and host.kernel_installed is None and host.unattended is None:
        return unanswered(host, "host.updates", "pending updates are not known")
    found = []
    if host.reboot_required:
        found.append(warn("the system asks for a reboot", "yes", "no"))
    if host.kernel_installed and host.kernel_running and host.kernel_installed != host.kernel_running:
        text = f"kernel {host.kernel_running} runs, {host.kernel_installed} is installed"
        found.append(warn(text, host.kernel_running, host.kernel_installed))
    if host.unattended:
        text = f"unattended-upgrade changed NVIDIA packages, last on {host.unattended[-1]}"
        found.append(warn(text, len(host.unattended), 0))
    return found or [sound("no reboot is pending")]


def hugepages(evidence: Evidence, settings: Settings) -> list[Found]:
    value = evidence.host.hugepages
    if value is None:
        return unanswered(evidence.host, "host.hugepages", "transparent huge pages are not known")
    return [Found(Verdict.PASS, f"transparent huge pages: {value}", None, value)]


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
