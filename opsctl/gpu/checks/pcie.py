"""The PCIe link of each GPU: width, generation under load, errors."""

from __future__ import annotations

from collections import Counter

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
    return merge([f for reading in evidence.readings for f in _generation(reading)])


def _generation(reading: Reading) -> list[Found]:
    """Only GPUs in P0 that work are compared, each with the others: a link saves power at rest, at generation 1."""
    busy = [g for g in reading.readable if g.busy and g.gen_current is not None]
    slow = [f for gpu in busy if (f := _slower(gpu, [g for g in busy if g is not gpu]))]
    if slow:
        return slow
    if reading.truncated:
        return skip(f"the output {reading.truncated}")
    if not busy:
        return skip("no GPU is in P0 and busy: the generation at rest says nothing")
    if len(busy) == 1:
        return skip(f"one busy GPU, at generation {busy[0].gen_current:.0f}: no peer to compare with")
    return [sound(f"{len(busy)} busy GPUs, all at generation {busy[0].gen_current:.0f}", busy[0].gen_current)]


def _slower(gpu: Gpu, peers: list[Gpu]) -> Found | None:
    counted = Counter(p.gen_current for p in peers if p.gen_current is not None)
    if not counted or gpu.gen_current is None:
        return None
    usual = max(counted, key=lambda gen: (counted[gen], gen))
    if gpu.gen_current >= usual:
        return None
    text = f"generation {gpu.gen_current:.0f} under load, its peers {usual:.0f}"
    return Found(Verdict.FAIL, text, gpu.ref, gpu.gen_current, usual)


def errors(evidence: Evidence, settings: Settings) -> list[Found]:
    """Totals alone say nothing: what counts is what the comparison with the last run adds (see `changes`)."""
    devices = [d for d in evidence.pci or () if d.aer_fatal is not None or d.aer_nonfatal is not None]
    if not devices:
        return skip("no PCIe error counters, and no earlier reading to compare with")
    return [sound(f"error counters of {len(devices)} devices read; compared with the next run")]
