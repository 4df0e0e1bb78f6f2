"""What ties the GPUs together: the NVLink fabric and its manager, the links, and whether CUDA can start on it."""

from __future__ import annotations

from collections import Counter

from opsctl.gpu import state
from opsctl.gpu.checks.host import unanswered
from opsctl.gpu.checks.over import fail, no_reading, over_gpus, sound, warn
from opsctl.gpu.model import Evidence, Found, Gpu, GpuRef, Links, Verdict, skip
from opsctl.gpu.settings import Settings

_READY = ("Completed", "Success")
_WAITING = ("Not Started", "In Progress")
# Words of <fabric><health> that say nothing is wrong, and how bad the others are, by what they are about.
_WELL = frozenset({"healthy", "full", "false", "none", "no error", "yes", "true"})
_DOUBTFUL = ("bandwidth", "route recovery in progress", "access timeout recovery")
_WHEN_TRUE = ("route recovery in progress", "route unhealthy", "access timeout recovery")


def fabric(evidence: Evidence, settings: Settings) -> list[Found]:
    """State and health of each GPU in the fabric, and the manager that puts them there."""
    manager = _manager(evidence)
    starts = evidence.host.cuda is not None and evidence.host.cuda.code == 0
    found = over_gpus(evidence, lambda gpu: _joined(gpu, starts), "no GPU is part of an NVLink fabric")
    faults = sorted(
        [*manager, *_left_out(evidence), *(f for f in found if f.verdict.rank > 1)], key=lambda f: -f.verdict.rank
    )
    if faults:
        return faults
    if has_switches(evidence) and found[0].verdict is Verdict.SKIP:
        if starts or evidence.host.fabric_manager == "active":
            return [sound(f"NVSwitches, and {'CUDA starts' if starts else 'the fabric manager runs'}")]
        return skip("NVSwitches are there; whether their fabric manager runs is not known")
    return found


def _joined(gpu: Gpu, cuda_starts: bool) -> Found | None:
    if gpu.fabric_state is None:
        return None
    said = f"fabric {gpu.fabric_state}" + (f", {gpu.fabric_status}" if gpu.fabric_status else "")
    if gpu.fabric_state != _READY[0] and (cuda_starts or gpu.fabric_state not in _WAITING):
        why = ", and CUDA starts all the same: peers are not reached by NVLink" if cuda_starts else ", an unknown state"
        return warn(said + why, gpu.fabric_state, _READY[0], remedy="fabric")
    if gpu.fabric_state != _READY[0]:
        return fail(f"{said}: CUDA does not start (error 802)", gpu.fabric_state, _READY[0], remedy="fabric")
    if gpu.fabric_status not in (None, _READY[1]):
        return fail(said, gpu.fabric_status, _READY[1], remedy="fabric")
    ill = [(what, word) for what, word in gpu.fabric_health if _ill(what, word)]
    if ill:
        text = ", ".join(f"{what} {word}" for what, word in ill)
        doubtful = all(what in _DOUBTFUL or word.lower() == "limited capacity" for what, word in ill)
        return (warn if doubtful else fail)(f"fabric health: {text}", text, "Healthy", remedy="fabric_health")
    return sound(said, gpu.fabric_state, _READY[0])


def _left_out(evidence: Evidence) -> list[Found]:
    """GPUs that name no fabric while others of the same product have joined one. With MIG a GPU leaves it."""
    gpus = [g for r in evidence.readings if not r.truncated for g in r.readable if g.mig != "Enabled"]
    joined = {g.name for g in gpus if g.fabric_state is not None}
    return [
        warn("in no fabric, its peers are", "N/A", _READY[0], remedy="fabric", gpu=g.ref)
        for g in gpus
        if g.fabric_state is None and g.name in joined
    ]


def _ill(what: str, word: str) -> bool:
    if what in _WHEN_TRUE:
        return word.lower() not in ("false", "no", "none")
    if what == "partition assigned":
        return word.lower() in ("false", "no")
    return word.lower() not in _WELL


def _manager(evidence: Evidence) -> list[Found]:
    """The fabric manager, where NVSwitches are there or the GPUs have a fabric; elsewhere nobody needs it."""
    unit = evidence.host.fabric_manager
    members = [g for r in evidence.readings for g in r.readable if g.fabric_state is not None]
    joined = [g.fabric_state for g in members]
    if unit in (None, "active") or not (joined or has_switches(evidence)):
        return []
    if any(g.in_rack for g in members):
        return []  # NVL72: it runs on the switch trays
    if unit == "failed":
        return [fail("nvidia-fabricmanager has failed", unit, "active", remedy="fabric")]
    if not has_switches(evidence):
        return []  # a guest, whose switches are managed outside: the state of each GPU tells
    told = "is not installed" if unit == "absent" else f"is {unit}"
    if joined and all(one == _READY[0] for one in joined):
        text = f"nvidia-fabricmanager {told}: the fabric stays as it is until a reset"
        return [warn(text, unit, "active", remedy="fabric")]
    return [fail(f"nvidia-fabricmanager {told}, and NVSwitches are there", unit, "active", remedy="fabric")]


def has_switches(evidence: Evidence) -> bool:
    return any(d.switch for d in evidence.pci or ())


def linked(evidence: Evidence) -> bool:
    """Whether all GPUs reach each other by NVLink: transfers between them do not pass PCIe then."""
    if _in_fabric(evidence):
        return True
    told = evidence.host.links or ()
    # Bridges tie cards in pairs: of more cards some reach each other over PCIe.
    tied = len(told) <= 2 or all(_on_board(one, evidence) for one in told)
    return bool(told) and tied and all(one.active for one in told)


def links(evidence: Evidence, settings: Settings) -> list[Found]:
    """Active links compared with the peers of the same product, and errors that are new. Unused links are no fault."""
    told = evidence.host.links
    if told is None:
        return unanswered(evidence.host, "gpu.nvlink", "nvidia-smi nvlink -s was not asked")
    if not any(one.active or one.inactive for one in told):
        if told and _in_fabric(evidence):
            return [fail("no NVLink of any GPU is up, and the GPUs are in a fabric", 0, remedy="nvlink")]
        return [sound("no GPU has NVLinks")]
    found = _fewer(told, evidence) + _erring(told, evidence, settings)
    if found:
        return sorted(found, key=lambda f: -f.verdict.rank)
    counts = Counter((one.active, one.active + one.inactive) for one in told)
    text = ", ".join(f"{active} of {of} links up on {n} GPUs" for (active, of), n in counts.most_common())
    if not any(one.active for one in told) and _in_fabric(evidence):
        return [fail(f"{text}, and the GPUs are in a fabric", 0, remedy="nvlink")]
    return [sound(text)]


def _in_fabric(evidence: Evidence) -> bool:
    return has_switches(evidence) or any(g.fabric_state is not None for r in evidence.readings for g in r.readable)


def _fewer(told: tuple[Links, ...], evidence: Evidence) -> list[Found]:
    names = {g.ref.index: g.name for r in evidence.readings for g in r.gpus}
    found = []
    for one in told:
        name = names.get(one.index)
        most = max(o.active for o in told if None in (name, names.get(o.index)) or names[o.index] == name)
        # Cards in slots are bridged in pairs or not at all: one that has no link up is simply not bridged.
        whole = _in_fabric(evidence) or _on_board(one, evidence)
        if one.active < most and (one.active or whole):
            text = f"{one.active} of {one.active + one.inactive} NVLinks up, its peers {most}"
            ref = _ref(one, evidence)
            found.append((fail if whole else warn)(text, one.active, most, remedy="nvlink", gpu=ref))
    return found


def _on_board(one: Links, evidence: Evidence) -> bool:
    """Whether the GPU is one of a board, whose traces link all of them: an SXM module, for H100 named by its HBM3."""
    names = (g.name or "" for r in evidence.readings for g in r.gpus if g.ref.index == one.index)
    return any("SXM" in name or "HBM3" in name for name in names)


def _erring(told: tuple[Links, ...], evidence: Evidence, settings: Settings) -> list[Found]:
    if evidence.before is None:
        return []
    hours, added = state.since(evidence.before, evidence)
    limit = settings.limit("nvlink.errors")
    return [
        warn(
            f"{new:.0f} new NVLink errors in {hours * 60:.0f} minutes", new, limit, remedy="nvlink",
            gpu=_ref(one, evidence),
        )
        for one in told
        if (new := added.get(("nvlink_errors", one.uuid or str(one.index)), 0)) > limit
    ]  # fmt: skip


def _ref(one: Links, evidence: Evidence) -> GpuRef:
    known = (g.ref for r in evidence.readings for g in r.gpus if g.ref.index == one.index)
    return next(known, GpuRef(one.index, one.uuid, None))


_CUDA = {
    802: "cuda_fabric",  # CUDA_ERROR_SYSTEM_NOT_READY
    803: "mismatch",  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    46: "cuda_busy",  # CUDA_ERROR_DEVICE_UNAVAILABLE
    100: "permission",  # CUDA_ERROR_NO_DEVICE
    304: "permission",  # CUDA_ERROR_OPERATING_SYSTEM
    999: "cgroup",  # CUDA_ERROR_UNKNOWN
}


def cuda(evidence: Evidence, settings: Settings) -> list[Found]:
    """What cuInit answered; the numbers are those of cuda.h."""
    said = evidence.host.cuda
    if said is None:
        return unanswered(evidence.host, "gpu.cuda", "CUDA was not started")
    if said.missing is not None:
        return skip(said.missing)
    if said.code is None:
        limit = settings.limit("cuda.limit")
        return [fail(f"cuInit gives no answer within {limit:.0f} s", "no answer", limit, remedy="reboot")]
    if said.code:
        text = f"cuInit fails with {said.code}" + (f" ({said.name})" if said.name else "")
        return [fail(text, said.code, 0, remedy=_CUDA.get(said.code))]
    listed = max((len(r.gpus) for r in evidence.readings), default=None)
    if said.devices is not None and listed is not None and said.devices < listed and not _divided(evidence):
        text = f"CUDA sees {said.devices} of {listed} GPUs"
        return [fail(text, said.devices, listed, remedy="permission")]
    return [sound(f"cuInit answers, {said.devices} devices" if said.devices is not None else "cuInit answers", 0, 0)]


def _divided(evidence: Evidence) -> bool:
    """With MIG a process sees one slice."""
    return any(g.mig == "Enabled" for r in evidence.readings for g in r.gpus)


def license(evidence: Evidence, settings: Settings) -> list[Found]:
    if not evidence.readings:
        return skip(no_reading(evidence))

    def judge(gpu: Gpu) -> Found | None:
        if gpu.license is None or (gpu.virtualization or "VGPU").upper() != "VGPU":
            return None  # a whole GPU computes without a licence
        if gpu.license.lower().startswith("unlicensed"):
            slowed = "unrestricted" not in gpu.license.lower()
            text = f"vGPU {gpu.license}: it {'is' if slowed else 'will be'} slowed down"
            return (fail if slowed else warn)(text, gpu.license, "Licensed", remedy="license")
        return sound(f"vGPU {gpu.license}", gpu.license)

    return over_gpus(evidence, judge, "no virtual GPU")
