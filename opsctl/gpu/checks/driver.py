"""Is the driver there, does it match, does nvidia-smi answer, and are all GPUs listed?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from opsctl.gpu.checks.over import fail, no_reading, sound, warn
from opsctl.gpu.model import Evidence, Found, GpuRef, PciDevice, Reading, Verdict, skip
from opsctl.gpu.settings import Settings

NO_GPUS = "the profile says that this host has no GPUs"


def loaded(evidence: Evidence, settings: Settings) -> list[Found]:
    refused = [e for e in evidence.smi_errors if e.check == "driver.loaded"]
    unsigned = [e for e in (evidence.kernel.events if evidence.kernel else ()) if e.kind == "unsigned"]
    if refused:
        signed = not unsigned or evidence.host.driver_loaded
        because = "" if signed else f"; {unsigned[-1].text}"
        return [fail(e.text + because, value=e.rc, remedy=e.remedy if signed else "secure_boot") for e in refused]
    host = evidence.host
    if settings.profile.gpus == 0 and not evidence.readings and host.driver_loaded is None:
        return skip("the profile expects no GPU")
    if evidence.smi_run and evidence.smi_run.missing and host.driver_loaded is None:
        if settings.profile.gpus == 0:
            return skip(NO_GPUS)
        if unsigned:
            text = f"no module is loaded: {unsigned[-1].text}"
            return [fail(text, remedy="secure_boot")]
        return [fail("nvidia-smi is not installed and no module is loaded")]
    if evidence.smi_run and evidence.smi_run.missing and any(d.gpu for d in evidence.pci or ()):
        text = f"module {host.driver_loaded} is loaded, and no nvidia-smi is found: nothing it tells was looked at"
        return [warn(text, host.driver_loaded, remedy="smi_path")]
    driver = next((r.driver for r in evidence.readings if r.driver), None) or host.driver_loaded
    answered = [r for r in evidence.readings if r.gpus]
    expected = settings.profile.driver
    if driver and expected and driver != expected:
        return [warn(f"driver {driver}, the profile says {expected}", driver, expected)]
    if driver:
        return [sound(f"driver {driver}" + (" answers" if answered else " is loaded"), driver)]
    if any(r.source != "csv" for r in answered):
        return [sound("nvidia-smi answered; its output names no driver version")]
    if any(e.kind in ("handle", "lost", "none", "power") for e in evidence.smi_errors):
        return [sound("NVML started")]
    if evidence.smi_run and not answered and not evidence.smi_run.missing:
        text = "/proc/driver/nvidia/version is missing: the module is not loaded"
        return [fail(text, remedy="secure_boot" if unsigned else None)]
    return skip("no driver version in it" if answered else no_reading(evidence))


def mismatch(evidence: Evidence, settings: Settings) -> list[Found]:
    refused = [e.text for e in evidence.smi_errors if e.kind == "mismatch"]
    if refused:
        return [fail(f"{text} (running jobs go on until they restart)") for text in refused]
    logged = [e for e in (evidence.kernel.events if evidence.kernel else ()) if e.kind == "mismatch"]
    if logged:
        return [fail(f"{e.time or ''} {e.text}".strip()) for e in logged[-1:]]
    host = evidence.host
    if host.driver_loaded and host.driver_on_disk:
        if host.driver_loaded != host.driver_on_disk:
            text = f"module {host.driver_loaded} is loaded, {host.driver_on_disk} is on disk: breaks at the next start"
            return [warn(text, host.driver_loaded, host.driver_on_disk)]
        return [sound(f"loaded and installed module are {host.driver_loaded}", host.driver_loaded)]
    return skip("the versions of the loaded and the installed module are not both known")


def responsive(evidence: Evidence, settings: Settings) -> list[Found]:
    run = evidence.smi_run
    if run is None:
        answered = bool(evidence.smi_errors) and not evidence.readings
        return [sound("it answered")] if answered else skip("how long nvidia-smi took is not recorded")
    if run.stuck_pids:
        pids = ", ".join(map(str, run.stuck_pids))
        return [fail(f"nvidia-smi hangs in the kernel already (D state, pid {pids}): not started again", pids)]
    if run.missing:
        return skip("nvidia-smi is not installed")
    limit, slow = settings.limit("smi.fail"), settings.limit("smi.warn")
    if run.timed_out:
        return [fail(f"no answer within {run.seconds or limit:.0f} s", "no answer", limit)]
    if run.garbage is not None:
        return [fail(f"the answer is not its XML: {run.garbage}", "unreadable")]
    if run.seconds is not None and run.seconds > limit:
        return [fail(f"answered after {run.seconds:.1f} s", round(run.seconds, 1), limit)]
    if run.seconds is not None and run.seconds > slow:
        return [warn(f"answered after {run.seconds:.1f} s", round(run.seconds, 1), slow)]
    return [sound(f"answered in {run.seconds or 0:.1f} s", round(run.seconds or 0, 1), slow)]


def count(evidence: Evidence, settings: Settings) -> list[Found]:
    expected = settings.profile.gpus
    pci = None if evidence.pci is None else [d for d in evidence.pci if d.gpu]
    if not pci and any(r.gpus for r in evidence.readings):
        pci = None  # WSL and some containers hide the bus, not the GPUs
    found = [fail(e.text, remedy=e.remedy) for e in evidence.smi_errors if e.check == "gpu.count"]
    if pci is not None and expected is not None and len(pci) < expected:
        found.append(fail(f"{len(pci)} GPUs on PCI, {expected} expected", len(pci), expected))
    elif pci is not None and not pci and expected == 0:
        return skip(NO_GPUS)
    elif pci is not None and not pci and evidence.smi_run and expected != 0:
        found.append(fail("no NVIDIA GPU on PCI", 0, expected))
    for reading in evidence.readings:
        if reading.partial and evidence.smi_run is None:  # we never ask about one alone
            found += skip(f"{reading.attached} attached, 1 listed: the answer is about that one alone (nvidia-smi -i)")
        else:
            found += _listed(reading, pci, expected, _unserved(evidence))
    if not evidence.readings and evidence.smi_errors and pci:
        found.append(fail(f"{len(pci)} GPUs on PCI, none in nvidia-smi", 0, len(pci)))
    if any(f.verdict is Verdict.FAIL for f in found):
        return [f for f in found if f.verdict is Verdict.FAIL]
    if found:
        return found[:1]
    if pci and expected == 0:
        return [warn(f"{len(pci)} GPUs on PCI, none expected", len(pci), 0)]
    if pci == [] and expected == 0:
        return [sound("no GPU, as expected", 0, 0)]
    if pci:
        return [sound(f"{len(pci)} GPUs on PCI", len(pci), expected)]
    return skip(no_reading(evidence) if not evidence.pci else "no NVIDIA GPU in the PCI list")


def _unserved(evidence: Evidence) -> dict[str, str]:
    """Why NVIDIA's driver leaves a card alone, by bus id: another driver holds it, or it says so itself."""
    found = {
        short(d.bus_id): f"is held by {d.driver}"
        for d in evidence.pci or ()
        if d.gpu and d.driver not in (None, "", "nvidia")
    }
    for event in evidence.kernel.events if evidence.kernel else ():
        if event.kind == "unserved" and event.bdf:
            found.setdefault(f"{short(event.bdf)}.0", f"is not served by this driver: {event.text}")
    return found


def _listed(
    reading: Reading, pci: list[PciDevice] | None, expected: int | None, unserved: Mapping[str, str]
) -> list[Found]:
    listed = len(reading.gpus)
    uuids = Counter(g.ref.uuid for g in reading.gpus if g.ref.uuid)
    # Masked captures carry one placeholder of zeros for all.
    doubled = [u for u, n in uuids.items() if n > 1 and len(set(u.lower().removeprefix("gpu-"))) > 3]
    if doubled:
        return [fail(f"UUID {doubled[0]} is listed {uuids[doubled[0]]} times", listed)]
    if reading.truncated:
        return skip(f"the output {reading.truncated}: {listed} of {reading.attached or '?'} GPUs begun")
    if pci is not None and listed < len(pci):
        absent = [device for device in pci if not _named(device, reading)]
        lost = [_missing(d, listed, len(pci)) for d in absent if short(d.bus_id) not in unserved]
        if lost:
            return lost
        told = "; ".join(f"{d.bus_id} {unserved[short(d.bus_id)]}" for d in absent)
        remedy = "other_driver" if any(d.driver not in (None, "", "nvidia") for d in absent) else "unserved"
        if expected is not None and listed < expected:
            return [fail(f"{listed} listed, {expected} expected: {told}", listed, expected, remedy=remedy)]
        if absent:
            return [sound(f"{listed} listed; {told}", listed, expected)]
    if reading.attached is not None and listed < reading.attached:
        return [fail(f"{reading.attached} attached, {listed} listed", listed, reading.attached)]
    if expected is not None and listed < expected:
        return [fail(f"{listed} listed, {expected} expected", listed, expected)]
    if expected is not None and listed > expected:
        return [warn(f"{listed} listed, {expected} expected", listed, expected)]
    if reading.attached is None and reading.source not in ("table", "list") and pci is None:
        return skip(f"{listed} listed; how many are attached is not said")
    return [
        sound(f"{listed} listed, UUIDs distinct" if uuids else f"{listed} listed", listed, expected or reading.attached)
    ]


def _missing(device: PciDevice, listed: int, on_pci: int) -> Found:
    slot = f" (slot {device.slot})" if device.slot else ""
    text = f"{device.bus_id}{slot} is on PCI but not in nvidia-smi: {listed} of {on_pci}"
    return Found(Verdict.FAIL, text, GpuRef(None, None, device.bus_id), listed, on_pci)


def _named(device: PciDevice, reading: Reading) -> bool:
    return short(device.bus_id) in {short(g.ref.bus_id) for g in reading.gpus if g.ref.bus_id}


def short(bus_id: str) -> str:
    """A bus id in one form: '00000000:61:00.0' and '0000:61:00.0' -> '0:61:00.0'."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"
