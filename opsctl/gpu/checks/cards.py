"""What each GPU says about itself: lost, recovery, sameness, mode, ECC, heat, power, memory in use, and by whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median

from opsctl.gpu import state
from opsctl.gpu.checks.over import fail, merge, no_reading, over_gpus, sound, warn
from opsctl.gpu.model import Evidence, Found, Gpu, GpuRef, Reading, Verdict, skip
from opsctl.gpu.ownership import Class, classify, orphan_workers
from opsctl.gpu.settings import Settings


def lost(evidence: Evidence, settings: Settings) -> list[Found]:
    found = [
        Found(
            Verdict.WARN if e.kind == "inforom" else Verdict.FAIL,
            e.text,
            GpuRef(None, None, e.bus_id) if e.bus_id else None,
            remedy=e.remedy,
        )
        for e in evidence.smi_errors
        if e.check == "gpu.lost"
    ]
    for device in evidence.pci or ():
        if device.gpu and not device.answering:
            text = "the device does not answer on PCI (rev ff)"
            found.append(Found(Verdict.FAIL, text, GpuRef(None, None, device.bus_id)))
    for reading in evidence.readings:
        found += [
            Found(Verdict.FAIL, g.lost + _holders(g), g.ref, "lost", remedy="reset")
            if "requires reset" in g.lost
            else Found(Verdict.FAIL, g.lost, g.ref, "lost", remedy="lost")
            for g in reading.gpus
            if g.lost
        ]
        found += [
            Found(
                Verdict.WARN,
                f"{', '.join(name for name, _ in g.odd)} read {g.odd[0][1]!r}: read again",
                g.ref,
                g.odd[0][1],
                remedy="again",
            )
            for g in reading.readable
            if g.odd
        ]
    if found:
        return merge(found)
    told = [r for r in evidence.readings if any(_vital(g) for g in r.gpus)]
    if not told:
        return skip(no_reading(evidence) if not evidence.readings else "no value that a lost GPU would lose")
    cut = next((r for r in told if r.truncated), None)
    if cut:
        return skip(f"the output {cut.truncated}")
    return [sound(f"{len(told[0].gpus)} readable, no lost, ERR! or Unknown Error value")]


def _holders(gpu: Gpu) -> str:
    """What keeps a GPU from being reset, as far as its listing tells."""
    held = [f"pid {p.pid} {p.name}" for p in gpu.processes or ()]
    held += ["persistence mode"] if gpu.persistence == "Enabled" else []
    return f"; held by {', '.join(held[:5])}" if held else ""


def _vital(gpu: Gpu) -> bool:
    return sum(v is not None for v in (gpu.temperature, gpu.utilization, gpu.memory_used, gpu.power_limit)) >= 2


def recovery(evidence: Evidence, settings: Settings) -> list[Found]:
    def judge(gpu: Gpu) -> Found | None:
        if gpu.recovery_action is not None:
            if gpu.recovery_action != "None":
                return fail(f"recovery action: {gpu.recovery_action}", gpu.recovery_action, "None", remedy=_action(gpu))
            return sound("recovery action None", "None")
        said = (gpu.reset_required, gpu.drain_and_reset)
        if said == (None, None):
            return None
        if "Yes" in said:
            text = f"reset required {gpu.reset_required or 'N/A'}, drain and reset {gpu.drain_and_reset or 'N/A'}"
            return fail(text, "Yes", "No", remedy="reset")
        return sound("no reset required", "No")

    return over_gpus(evidence, judge, "no recovery action and no reset status in this driver's output")


def _action(gpu: Gpu) -> str | None:
    """The remedy for the driver's word: `GPU Reset`, `Node Reboot`, `Drain and Reset`, ..."""
    said = (gpu.recovery_action or "").lower()
    return "reboot" if "reboot" in said else "reset" if "reset" in said else None


def uniform(evidence: Evidence, settings: Settings) -> list[Found]:
    if not evidence.readings:
        return skip(no_reading(evidence))
    return merge([f for reading in evidence.readings for f in _uniform(reading, settings)])


def _uniform(reading: Reading, settings: Settings) -> list[Found]:
    gpus = reading.readable
    named = [g for g in gpus if g.vbios is not None]
    expected = settings.profile
    odd: list[Found] = []
    for gpu in reading.readable:
        for what, value, wanted in (
            ("name", gpu.name, expected.name),
            ("memory MiB", gpu.memory_total, expected.memory_mib),
        ):
            if wanted is not None and value is not None and value != wanted:
                odd.append(Found(Verdict.WARN, f"{what} {value}, the profile says {wanted}", gpu.ref, value, wanted))
    for what, value_of in _COMPARED.items():
        values = Counter(v for v in map(value_of, gpus) if v is not None)
        if len(values) > 1:
            usual = values.most_common(1)[0][0]
            for gpu in gpus:
                value = value_of(gpu)
                if value is not None and value != usual:
                    odd.append(Found(Verdict.WARN, f"{what} {value}, the others {usual}", gpu.ref, value, usual))
    if odd:
        return odd
    if reading.truncated:
        return skip(f"the output {reading.truncated}")
    if len(reading.gpus) == 1:
        return skip("one GPU: nothing to compare")
    if len(named) < 2:
        return skip("fewer than two GPUs name their VBIOS")
    return [sound(f"name, VBIOS, driver, power limit, ECC, MIG and compute mode equal on {len(named)}")]


_COMPARED: dict[str, Callable[[Gpu], str | float | None]] = {
    "name": lambda g: g.name,
    "VBIOS": lambda g: g.vbios,
    "driver": lambda g: g.driver,
    "power limit": lambda g: g.power_limit,
    "ECC mode": lambda g: g.ecc_mode,
    "MIG": lambda g: g.mig,
    "compute mode": lambda g: g.compute_mode,
}


def mode(evidence: Evidence, settings: Settings) -> list[Found]:
    def judge(gpu: Gpu) -> Found | None:
        if gpu.mig == "Enabled":
            return fail("MIG is enabled: no whole GPU for tensor parallelism", "MIG Enabled", "Disabled")
        if gpu.compute_mode in ("Prohibited", "Exclusive_Process", "Exclusive_Thread"):
            return fail(f"compute mode {gpu.compute_mode}", gpu.compute_mode, "Default")
        if gpu.compute_mode is None:
            return None
        return sound(f"compute mode {gpu.compute_mode}, MIG {gpu.mig or 'N/A'}", gpu.compute_mode, "Default")

    return over_gpus(evidence, judge, "compute mode not listed")


def persistence(evidence: Evidence, settings: Settings) -> list[Found]:
    daemon = evidence.host.persistence_daemon
    said = f"; nvidia-persistenced {daemon}" if daemon else ""

    def judge(gpu: Gpu) -> Found | None:
        if gpu.persistence is None:
            return None
        if gpu.persistence != "Enabled":
            return warn(f"persistence {gpu.persistence}{said}", gpu.persistence, "Enabled")
        return sound("persistence Enabled", "Enabled", "Enabled")

    return over_gpus(evidence, judge, "persistence mode N/A or not listed")


def temperature(evidence: Evidence, settings: Settings) -> list[Found]:
    def judge(gpu: Gpu) -> Found | None:
        headroom, memory = gpu.headroom, gpu.memory_temperature
        heat = [
            _below(headroom, settings.limit("temp.headroom.fail"), settings.limit("temp.headroom.warn"), "headroom"),
            _above(memory, settings.limit("temp.memory.fail"), settings.limit("temp.memory.warn"), "memory"),
        ]
        worst = max((f for f in heat if f), key=lambda f: f.verdict.rank, default=None)
        if worst:
            return worst
        idle = settings.limit("temp.idle.warn")
        if gpu.temperature is not None and gpu.utilization == 0 and gpu.temperature > idle:
            return warn(f"{gpu.temperature:.0f} °C while idle", gpu.temperature, idle)
        if headroom is None:
            return None
        return sound(f"headroom {headroom:.0f} °C", headroom, settings.limit("temp.headroom.warn"))

    return over_gpus(evidence, judge, "no slowdown threshold to measure against")


def _below(value: float | None, bad: float, poor: float, what: str) -> Found | None:
    if value is None or value > poor:
        return None
    return (fail if value <= bad else warn)(f"{what} {value:.0f} °C", value, bad if value <= bad else poor)


def _above(value: float | None, bad: float, poor: float, what: str) -> Found | None:
    if value is None or value < poor:
        return None
    return (fail if value >= bad else warn)(f"{what} {value:.0f} °C", value, bad if value >= bad else poor)


def throttle(evidence: Evidence, settings: Settings) -> list[Found]:
    added = state.since(evidence.before, evidence)[1] if evidence.before else {}

    def judge(gpu: Gpu) -> Found | None:
        reasons = {"HW slowdown": gpu.hw_slowdown, "HW thermal": gpu.hw_thermal, "power brake": gpu.hw_power_brake}
        active = [name for name, on in reasons.items() if on]
        if active:
            return fail(f"{', '.join(active)} active", ", ".join(active), "none")
        since = _throttled_since(gpu, added)
        if since:
            return since
        if gpu.sw_thermal:
            return warn("SW thermal slowdown active", "SW thermal", "none")
        if all(on is None for on in (*reasons.values(), gpu.sw_thermal)):
            return None
        return sound("no slowdown active", "none", "none")

    return over_gpus(evidence, judge, "no clock event reasons listed")


def _throttled_since(gpu: Gpu, added: Mapping[tuple[str, str], float]) -> Found | None:
    """The hardware counters grow only while it holds the clocks down, also between two looks."""
    for what, name in (("hw_thermal_us", "HW thermal"), ("hw_power_brake_us", "power brake")):
        grown = added.get((what, gpu.ref.bus_id or ""), 0)
        if grown > 0:
            return warn(f"{name} for {grown / 1e6:.1f} s since the last look", grown, 0)
    return None


_FULL_LOAD = 90  # per cent of utilisation


def clocks(evidence: Evidence, settings: Settings) -> list[Found]:
    if not evidence.readings:
        return skip(no_reading(evidence))
    return merge([f for reading in evidence.readings for f in _clocks(reading, settings)])


def _clocks(reading: Reading, settings: Settings) -> list[Found]:
    """The SM clock of GPUs at work, against their busy peers of the same name and against their own maximum."""
    busy = [g for g in reading.readable if g.loaded and g.sm_clock is not None]
    found = []
    for gpu in busy:
        peers = [g.sm_clock for g in busy if g is not gpu and g.name == gpu.name and g.sm_clock is not None]
        slow = _slow(gpu, median(peers) if peers else None, settings)
        if slow is not None:
            found.append(slow)
    if found:
        return found
    if reading.truncated:
        return skip(f"the output {reading.truncated}")
    if not busy:
        return skip("no GPU is busy: clocks at rest say nothing")
    slowest = min(g.sm_clock for g in busy if g.sm_clock is not None)
    return [sound(f"{len(busy)} busy GPUs, the slowest at {slowest:.0f} MHz", slowest)]


def _slow(gpu: Gpu, peers: float | None, settings: Settings) -> Found | None:
    assert gpu.sm_clock is not None
    reasons = {
        "power cap": gpu.sw_power_cap, "HW slowdown": gpu.hw_slowdown, "HW thermal": gpu.hw_thermal,
        "power brake": gpu.hw_power_brake, "SW thermal": gpu.sw_thermal, "locked by a setting": gpu.locked_clocks,
    }  # fmt: skip
    active = [name for name, on in reasons.items() if on]
    why = f" ({', '.join(active)})" if active else ""
    remedy = "locked_clocks" if gpu.locked_clocks else "clocks"
    told = f"SM clock {gpu.sm_clock:.0f} MHz at {gpu.utilization:.0f} % utilisation"
    if peers is not None and gpu.sm_clock < peers * settings.limit("clocks.peers") and not gpu.at_power_limit:
        return fail(f"{told}, its peers {peers:.0f}{why}", gpu.sm_clock, peers, remedy=remedy, gpu=gpu.ref)
    # Short work between pauses leaves the clock anywhere: at full load alone the maximum is a yardstick.
    full = (gpu.utilization or 0) >= _FULL_LOAD
    share = gpu.sm_clock / gpu.sm_clock_max if gpu.sm_clock_max and full else 1.0
    if share >= settings.limit("clocks.fail" if gpu.at_power_limit else "clocks.warn"):
        return None
    bad = share < settings.limit("clocks.fail") and not gpu.locked_clocks
    text = f"{told} of {gpu.sm_clock_max:.0f}{why}"
    return (fail if bad else warn)(text, gpu.sm_clock, gpu.sm_clock_max, remedy=remedy, gpu=gpu.ref)


def power(evidence: Evidence, settings: Settings) -> list[Found]:
    expected = settings.profile.power_limit_w
    over = settings.limit("power.over")

    def judge(gpu: Gpu) -> Found | None:
        wanted = expected if expected is not None else gpu.power_default
        if gpu.power_limit is not None and (gpu.power_draw or 0) > gpu.power_limit * over:
            text = f"draws {gpu.power_draw:.0f} W, its limit is {gpu.power_limit:.0f} W"
            return warn(text, gpu.power_draw, gpu.power_limit, remedy="power_draw")
        if gpu.power_limit is None or wanted is None:
            return None
        text = f"limit {gpu.power_limit:.0f} W, {'expected' if expected is not None else 'default'} {wanted:.0f} W"
        return (warn if gpu.power_limit < wanted else sound)(text, gpu.power_limit, wanted)

    return over_gpus(evidence, judge, "no power limit and default to compare")


def leftover(evidence: Evidence, settings: Settings) -> list[Found]:
    limit = settings.limit("leftover.fail")

    def judge(gpu: Gpu) -> Found | None:
        if gpu.memory_used is None:
            return None
        listed = gpu.processes or ()
        free = max(0.0, gpu.memory_used - sum(p.memory_mib or 0 for p in listed))
        if free <= limit:
            return sound(f"{free:.0f} MiB without a listed owner", free, limit)
        if gpu.processes is None:
            return Found(Verdict.SKIP, f"who owns the {free:.0f} MiB in use is not listed")
        unknown = [p.pid for p in listed if p.memory_mib is None]
        if unknown:
            return Found(Verdict.SKIP, f"pid {unknown[0]} does not say how much of the {free:.0f} MiB it holds")
        text = f"{free:.0f} of {gpu.memory_used:.0f} MiB in use without a listed owner"
        if gpu.display_active == "Enabled":
            return warn(f"{text}; a display is active", free, limit)
        return fail(text, free, limit)

    found = over_gpus(evidence, judge, "memory in use or its owners are not listed")
    owners = _owners(evidence, limit)
    return sorted(owners + [f for f in found if f.verdict.rank > 1], key=lambda f: -f.verdict.rank) or found


def _owners(evidence: Evidence, limit: float) -> list[Found]:
    """Holders of much memory that /proc does not show, or that are not part of our server, where we know that one."""
    table = evidence.table
    if table is None:
        return []
    found = []
    for owned in classify(table):
        held = owned.gpu_memory_mib or 0
        if held <= limit:
            continue
        if owned.klass is Class.INVISIBLE:
            found.append(fail(f"pid {owned.pid} holds {held:.0f} MiB: {owned.proof}", owned.pid))
        elif owned.klass is Class.FOREIGN and table.records:
            name = owned.process.comm if owned.process else ""
            found.append(
                warn(f"{name} (pid {owned.pid}) holds {held:.0f} MiB and is not part of our server", owned.pid)
            )
    return found


_NO_TABLE = "no process table"


def orphans(evidence: Evidence, settings: Settings) -> list[Found]:
    if evidence.table is None:
        return skip(_NO_TABLE)
    found = classify(evidence.table, stuck_after=settings.limit("stuck.fail"))
    left = orphan_workers(found, {p.pid: p for p in evidence.table.processes})
    if not left:
        return [sound("no worker without a living server", 0, 0)]
    held = sum(o.gpu_memory_mib or 0 for o in left)
    names = ", ".join(f"{o.pid} {o.process.title if o.process else ''}".strip() for o in left[:8])
    return [fail(f"{len(left)} workers without a living server hold {held / 1024:.0f} GiB: {names}", len(left), 0)]


def stuck(evidence: Evidence, settings: Settings) -> list[Found]:
    if evidence.table is None and evidence.smi_run is not None:
        return [fail("reading the process table hangs: a process is stuck in the kernel with its memory locked")]
    if evidence.table is None:
        return skip(_NO_TABLE)
    found = classify(evidence.table, stuck_after=settings.limit("stuck.fail"))
    held = [o for o in found if o.klass is Class.STUCK]
    if held:
        return [fail(f"pid {o.pid} {o.process.comm if o.process else ''}: {o.proof}", o.pid) for o in held]
    old = settings.limit("zombie.warn")
    dead = [o for o in found if o.klass is Class.ZOMBIE and o.process and o.process.age > old]
    if dead:
        return [warn(f"pid {o.pid} {o.process.comm if o.process else ''}: {o.proof}", o.pid) for o in dead]
    return [sound("no process that holds a GPU is stuck")]


def uncorrected(evidence: Evidence, settings: Settings) -> list[Found]:
    def judge(gpu: Gpu) -> Found | None:
        if gpu.unrepairable_memory:
            return fail("unrepairable memory", "Yes", "No")
        if gpu.sram_threshold_exceeded:
            return fail("SRAM error threshold exceeded", "Yes", "No")
        volatile, aggregate = gpu.ecc_volatile, gpu.ecc_aggregate
        if volatile:
            return fail(f"{volatile:.0f} uncorrected errors since the driver was loaded", volatile, 0)
        if aggregate:
            return warn(
                f"{aggregate:.0f} uncorrected errors in the card's life, none since the driver was loaded", aggregate, 0
            )
        if volatile is None and aggregate is None:
            return None
        return sound("no uncorrected errors", 0, 0)

    return over_gpus(evidence, judge, "no ECC counters (N/A)")


def ecc_mode(evidence: Evidence, settings: Settings) -> list[Found]:
    def judge(gpu: Gpu) -> Found | None:
        if gpu.ecc_mode is None:
            return None
        if gpu.ecc_pending not in (None, gpu.ecc_mode):
            return warn(f"ECC {gpu.ecc_mode}, {gpu.ecc_pending} after the next reset", gpu.ecc_mode, gpu.ecc_pending)
        return sound(f"ECC {gpu.ecc_mode}", gpu.ecc_mode)

    return over_gpus(evidence, judge, "ECC mode N/A or not listed")


def rows(evidence: Evidence, settings: Settings) -> list[Found]:
    most, most_pages = settings.limit("rows.uncorrectable.fail"), settings.limit("rows.pages.fail")

    def judge(gpu: Gpu) -> Found | None:
        if gpu.rows_failure:
            return fail("row remapping failed", "failure", "none")
        if gpu.rows_none:
            return fail(f"{gpu.rows_none:.0f} memory banks have no spare row left", gpu.rows_none, 0)
        if (gpu.rows_uncorrectable or 0) > most:
            return fail(
                f"{gpu.rows_uncorrectable:.0f} rows remapped for uncorrectable errors", gpu.rows_uncorrectable, most
            )
        pages = (gpu.pages_single or 0) + (gpu.pages_double or 0)
        if pages >= most_pages:
            return fail(f"{pages:.0f} memory pages retired", pages, most_pages)
        pending = {
            "page retirement": gpu.pages_pending,
            "row remap": gpu.rows_pending,
            "channel repair": gpu.channel_repair_pending,
            "TPC repair": gpu.tpc_repair_pending,
        }
        waiting = [name for name, on in pending.items() if on]
        if waiting:
            return warn(f"{', '.join(waiting)} pending until the GPU is reset", ", ".join(waiting), "none")
        if gpu.rows_low:
            return warn(f"{gpu.rows_low:.0f} memory banks are low on spare rows", gpu.rows_low, 0)
        if all(v is None for v in (gpu.rows_failure, gpu.rows_pending, gpu.rows_uncorrectable)):
            return None
        return sound(
            f"no remap pending or failed, {gpu.rows_uncorrectable or 0:.0f} rows remapped", gpu.rows_uncorrectable
        )

    return over_gpus(evidence, judge, "remapped rows absent or N/A")
