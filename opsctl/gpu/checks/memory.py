"""ECC errors, ECC mode, remapped rows."""

from __future__ import annotations

from opsctl.gpu.checks.over import fail, over_gpus, sound, warn
from opsctl.gpu.model import Evidence, Found, Gpu
from opsctl.gpu.settings import Settings


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


def mode(evidence: Evidence, settings: Settings) -> list[Found]:
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
