"""The PCIe link of each GPU: width, generation under load, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from opsctl.gpu import state
from opsctl.gpu.checks.driver import short
from opsctl.gpu.checks.over import fail, merge, no_reading, over_gpus, sound, warn
from opsctl.gpu.model import Evidence, Found, Gpu, GpuRef, PciDevice, Reading, Verdict, skip
from opsctl.gpu.settings import Settings


def width(evidence: Evidence, settings: Settings) -> list[Found]:
    def judge(gpu: Gpu) -> Found | None:
        expected = settings.profile.width or gpu.width_max
        return _width(gpu.width_current, expected, settings)

    told = over_gpus(evidence, judge, "no current and maximum width listed")
    pci = [_of_device(d, settings) for d in evidence.pci or () if d.gpu and d.answering]
    found = merge([*told, *(f for f in pci if f)])
    # The same narrow link is told by nvidia-smi and by PCI: once is enough.
    named = {short(f.gpu.bus_id) for f in told if f.gpu and f.gpu.bus_id}
    return [f for f in found if f in told or not (f.gpu and f.gpu.bus_id and short(f.gpu.bus_id) in named)]


def _of_device(device: PciDevice, settings: Settings) -> Found | None:
    expected = settings.profile.width or device.width_max
    found = _width(device.width_current, expected, settings)
    if found is None or found.verdict is Verdict.PASS:
        return found
    return Found(found.verdict, found.evidence, GpuRef(None, None, device.bus_id), found.value, found.expected)


def _width(current: float | None, most: float | None, settings: Settings) -> Found | None:
    if current is None or most is None:
        return None
    text = f"x{current:.0f} of x{most:.0f}"
    if current < most:
        return (fail if current < settings.limit("width.fail") else warn)(text, current, most)
    if most < settings.limit("width.full") and settings.profile.width is None:
        return warn(f"{text}: slot or card has fewer lanes", current, settings.limit("width.full"))
    return sound(text, current, most)


def generation(evidence: Evidence, settings: Settings) -> list[Found]:
    if not evidence.readings:
        return skip(no_reading(evidence))
    looks = {short(d.bus_id): d.generations for d in evidence.pci or () if d.generations}
    return merge([f for reading in evidence.readings for f in _generation(reading, looks)])


def _generation(reading: Reading, looks: Mapping[str, Sequence[int]]) -> list[Found]:
    """Only GPUs that work are compared, with each other and with what card and slot can: at rest a link saves power.

    looks: what further looks at a slow link showed, by bus id; the fastest counts.
    """
    busy = [g for g in reading.readable if g.busy and g.gen_current is not None]
    slow = [
        f
        for gpu in busy
        if (f := _slower(gpu, [g for g in busy if g is not gpu], looks.get(short(gpu.ref.bus_id or ""), ())))
    ]
    slots = _narrow_slots(reading)
    if slow:
        return slow
    if reading.truncated:
        return skip(f"the output {reading.truncated}")
    if not busy:
        return skip(f"no GPU is busy: the generation at rest says nothing{slots}")
    if len(busy) == 1:
        return skip(f"one busy GPU, at generation {busy[0].gen_current:.0f}: no peer to compare with{slots}")
    usual = max(g.gen_current for g in busy if g.gen_current is not None)
    return [sound(f"{len(busy)} busy GPUs at generation {usual:.0f}{slots}", usual)]


def _narrow_slots(reading: Reading) -> str:
    """Information only: a slot slower than the card."""
    found = {
        (g.gen_host_max, g.gen_device_max)
        for g in reading.readable
        if g.gen_host_max and g.gen_device_max and g.gen_host_max < g.gen_device_max
    }
    return "".join(f"; the slot offers generation {host:.0f} of {device:.0f}" for host, device in sorted(found))


def _slower(gpu: Gpu, peers: list[Gpu], looks: Sequence[int]) -> Found | None:
    if gpu.gen_current is None:
        return None
    counted = Counter(p.gen_current for p in peers if p.gen_current is not None)
    usual = max(counted, key=lambda gen: (counted[gen], gen), default=0.0)
    seen = max([gpu.gen_current, *looks])
    often = f" in {len(looks) + 1} looks" if looks else ""
    if seen < usual:
        return fail(f"generation {seen:.0f} under load{often}, its peers {usual:.0f}", seen, usual, gpu=gpu.ref)
    possible = gpu.gen_possible
    if possible is None or seen >= possible or not gpu.loaded:
        return None
    text = f"generation {seen:.0f} under load{often}, card and slot can {possible:.0f}"
    # One step may be a setting of the BIOS; more is a link that did not train.
    return (fail if possible - seen > 1 else warn)(text, seen, possible, gpu=gpu.ref)


def errors(evidence: Evidence, settings: Settings) -> list[Found]:
    """Totals alone say nothing: what counts is what has been added since the last look."""
    after = state.of(evidence, at=0, boot_id="")
    if not any(what in _COUNTED for what, _ in after.counters):
        return skip("no PCIe error counters")
    if evidence.before is None:
        return skip("PCIe error counters are totals: a second look tells what is new")
    hours, added = state.since(evidence.before, evidence)
    found = [f for (what, which), n in added.items() if (f := _added(what, which, n, hours, evidence, settings))]
    return found or [sound(f"nothing new in {hours * 60:.0f} minutes", 0)]


_COUNTED = ("aer_fatal", "aer_nonfatal", "aer_correctable", "replays")


def _added(what: str, which: str, count: float, hours: float, evidence: Evidence, settings: Settings) -> Found | None:
    if count <= 0 or what not in _COUNTED:
        return None
    ref = GpuRef(None, None, which)
    if what in ("aer_fatal", "aer_nonfatal"):
        return Found(Verdict.FAIL, f"{count:.0f} new {what[4:]} errors", ref, count, 0)
    if what == "aer_correctable":
        limit = settings.limit("aer.corrected.per_hour")
        kind = "corrected errors"
    else:
        limit = _replays_per_hour(which, evidence, settings)
        kind = "replays"
    if count <= limit * max(hours, 1 / 60):
        return None
    return Found(Verdict.WARN, f"{count:.0f} new {kind} in {hours * 60:.0f} minutes", ref, count, limit)


def _replays_per_hour(bus_id: str, evidence: Evidence, settings: Settings) -> float:
    """DCGM's rate grows with lanes and generation; older links take that of generation 4."""
    gpu = next((g for r in evidence.readings for g in r.gpus if g.ref.bus_id == bus_id), None)
    name = "gen5" if gpu and (gpu.gen_max or 0) >= 5 else "gen4"
    lanes = (gpu.width_current if gpu else None) or 16
    return settings.limit(f"replay.per_minute_per_lane_{name}") * lanes * 60
