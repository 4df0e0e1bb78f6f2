"""What was seen of one server, and what of it bears on its acceptance. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from opsctl.drafter.kind import Kind
from opsctl.sglang.diagnosis.evidence import DrafterFault, Evidence, Flags, LogError, Measured, Source
from opsctl.sglang.logs import timeline
from opsctl.sglang.logs.blame import TROUBLES, Blamed
from opsctl.sglang.probe.acceptance import Acceptance
from opsctl.sglang.probe.ledger import Result
from opsctl.sglang.releases import Range
from opsctl.sglang.server import command
from opsctl.sglang.server.served import Metrics, ServerInfo
from opsctl.sglang.source.facts import Facts
from opsctl.wire.calls.logs import Bucket
from opsctl.wire.calls.server import ServerProcess

_LOG_INTERVAL = 40  # cycles between two Decode lines, unless --decode-log-interval says otherwise


@dataclass(frozen=True, slots=True)
class Seen:
    """The raw findings. Each is None (or empty) where there was nothing to look at; `notes` says what failed."""

    process: ServerProcess | None
    started: command.Launch | None
    info: ServerInfo | None
    metrics: Metrics | None
    log: timeline.Summary | None
    draft_config: Mapping[str, Any] | None
    draft_kind: Kind | None
    draft_digest: str | None
    target_config: Mapping[str, Any] | None
    faults: tuple[DrafterFault, ...] | None
    facts: Facts | None
    probe: Result | None
    counted: Acceptance | None  # for a request of the diagnosis itself
    notes: tuple[str, ...]


def evidence(seen: Seen) -> Evidence:
    """What was seen, as the tree of hypotheses wants it."""
    info, started = seen.info, seen.started
    told: Mapping[str, Any] = seen.log.starts[-1].flags if seen.log and seen.log.starts else {}
    flags = settings(info, started, told)
    environment = seen.process["environment"] if seen.process else None
    if environment is not None:
        flags = replace(flags, simulated=environment.get("SGLANG_SIMULATE_ACC_LEN", ""))
    measured = _measured(seen, flags, told)
    error = seen.log.first_error if seen.log else None
    return Evidence(
        version=Range.told(version_text(seen.info, seen.log)),
        alive=_alive(seen),
        measured=measured,
        verifies=_verifies(info, flags, measured),
        flags=flags,
        source=seen.facts.evidence(target_class(seen.target_config)) if seen.facts else Source(),
        drafter=seen.faults,
        draft_kind=seen.draft_kind,
        errors=(_logged(error),) if error else (),
        old_code=_old_code(seen),
        default_ids=_default_ids(seen.draft_config, seen.target_config),
        fused_all_reduce=info.enable_flashinfer_allreduce_fusion if info else None,
        target_class=target_class(seen.target_config),
        quant_method=_quant_method(seen.target_config),
        once=_best_logged(seen.log) if seen.log else None,
    )


def _logged(error: Blamed) -> LogError:
    trouble = TROUBLES[error.kind]
    meaning = trouble.meaning if trouble.explains else ""
    return LogError(error.kind, error.message, error.where or "", meaning, trouble.elsewhere)


def version_text(info: ServerInfo | None, log: timeline.Summary | None) -> str | None:
    """The version by the server's own word, else by its log."""
    return (info.version if info else None) or (log.version if log else None)


def settings(info: ServerInfo | None, started: command.Launch | None, told: Mapping[str, Any]) -> Flags:
    """The settings: what the server says, else what its log says, else its command line."""
    if info:
        return Flags(
            info.speculative_algorithm,
            info.speculative_draft_model_path,
            info.speculative_num_steps,
            info.speculative_eagle_topk,
            info.speculative_num_draft_tokens,
            info.tp_size,
            not info.disable_cuda_graph,
            info.quantization,
            info.speculative_draft_model_quantization,
            dp_attention=info.enable_dp_attention,
            overlap=_not(info.disable_overlap_schedule),
            radix_cache=_not(info.disable_radix_cache),
            mamba_strategy=info.mamba_radix_cache_strategy or info.mamba_scheduler_strategy or "",
        )
    if told:
        return Flags(
            told.get("speculative_algorithm"),
            told.get("speculative_draft_model_path"),
            told.get("speculative_num_steps"),
            told.get("speculative_eagle_topk"),
            told.get("speculative_num_draft_tokens"),
            told.get("tp_size") or 1,
            None,
            told.get("quantization"),
            told.get("speculative_draft_model_quantization"),
            dp_attention=told.get("enable_dp_attention"),
            overlap=_not(told.get("disable_overlap_schedule")),
            radix_cache=_not(told.get("disable_radix_cache")),
            mamba_strategy=told.get("mamba_radix_cache_strategy") or told.get("mamba_scheduler_strategy"),
        )
    if started:
        return Flags(
            started.algorithm,
            started.draft_model,
            started.steps,
            started.topk,
            started.draft_tokens,
            started.tp or 1,
            not started.no_cuda_graph,
            started.quantization,
            started.draft_quantization,
        )
    return Flags()


def _not(switched_off: bool | None) -> bool | None:
    return None if switched_off is None else not switched_off


def _measured(seen: Seen, flags: Flags, told: Mapping[str, Any]) -> Measured | None:
    """The best figure there is: counted by a probe or a request, the server's average, its log, its latest gauge."""
    if seen.probe and (accept := seen.probe["accept_length"]):
        dead = accept["mean"] == 1.0 if accept["exact"] else None
        return Measured(accept["mean"], "probe", dead, accept["verify_steps"], *accept["ci95"])
    if c := seen.counted:
        dead = c.none_accepted if c.exact else None
        return Measured(c.length, "request", dead, c.verify_steps, c.low, c.high + c.bias)
    steps = (seen.info and seen.info.decode_log_interval) or told.get("decode_log_interval") or _LOG_INTERVAL
    ends = _most_ends(seen.log) if seen.log else None
    if seen.info and (own := seen.info.own_accept_length):
        lines = sum(bucket["lines"] for bucket in _since_start(seen.log)) if seen.log else 1
        return _loosely(own, "server", steps * max(lines, 1), ends, flags)
    last = _last_logged(seen.log) if seen.log else None
    if last:
        return _loosely(last, "log", steps, ends, flags)
    gauge = seen.metrics.accept_length if seen.metrics else None
    return _loosely(gauge, "metrics", steps, ends, flags) if gauge else None


def _loosely(length: float, source: str, steps: int, ends: int | None, flags: Flags) -> Measured:
    """A length that a server averaged over at least `steps` verify steps, those of one log line or more.

    The last step of a request may count as short as one token, since what goes beyond the request's end is cut off:
    this happened `ends` times at most (None: not known). The rest of the width is chance: 95 % of the spread of so many
    steps.
    """
    most = float(flags.steps or max(length - 1, 1.0))
    extra = max(length - 1, 0.0)
    cut = most * (1.0 if ends is None else min(ends / steps, 1.0))
    chance = max(1.96 * math.sqrt(extra * max(most - extra, 0.0) / steps), 3 * most / steps if extra >= most else 0.0)
    high = length + cut + max(chance, 3 / steps)
    return Measured(length, source, None, steps, max(1.0, length - chance), min(high, max(1 + most, length)))


def _most_ends(log: timeline.Summary) -> int | None:
    """How many requests ended since the server's start; None where the log does not go back to it, or tells of none."""
    return log.sequences or None if log.starts else None


def _last_logged(log: timeline.Summary) -> float | None:
    """The last acceptance in the log, if it is of the server's present life: restarts may share one file."""
    began = log.starts[-1].at if log.starts else None
    logged = log.decode["last_accept_at"]
    if began and logged and logged < began[: len(logged)]:
        return None
    accept = log.decode["accept_length"]
    return accept["last"] if accept else None


def _best_logged(log: timeline.Summary) -> float | None:
    """The best acceptance length of any stretch of the log since the last start in it."""
    return max((bucket["accept"] for bucket in _since_start(log) if bucket["accept"]), default=None)


def _since_start(log: timeline.Summary) -> list[Bucket]:
    """The stretches of the log that lie wholly after its last start."""
    began = _seconds(log.starts[-1].at) if log.starts else None
    return [bucket for bucket in log.decode["series"] if began is None or bucket["at"] >= began]


def _seconds(at: str | None) -> float | None:
    """A time of the log as the buckets of its series count it."""
    try:
        return datetime.fromisoformat(at or "").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _verifies(info: ServerInfo | None, flags: Flags, measured: Measured | None) -> bool | None:
    if measured:
        return True
    return False if info and not flags.algorithm else None


def _alive(seen: Seen) -> bool | None:
    """Whether the server serves; None where it does not answer and its log tells of no end: it may be starting."""
    if seen.info:
        return True
    return False if seen.log and seen.log.starts and seen.log.starts[-1].ended else None


def _old_code(seen: Seen) -> bool | None:
    newest = seen.process["newest"] if seen.process else None
    return bool(newest > seen.process["started"]) if newest is not None and seen.process else None


def target_class(config: Mapping[str, Any] | None) -> str | None:
    names = (config or {}).get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _quant_method(config: Mapping[str, Any] | None) -> str | None:
    if config is None:
        return None
    for section in (config, config.get("text_config")):
        found = section.get("quantization_config") if isinstance(section, dict) else None
        if isinstance(found, dict):
            return str(found.get("quant_method") or "quantised")
    return ""


def _default_ids(draft: Mapping[str, Any] | None, target: Mapping[str, Any] | None) -> bool | None:
    """Whether the drafter's aux layers are those that are taken for want of others: outputs of 1, n/2 - 1, n - 4."""
    if draft is None:
        return None
    eagle = draft.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    if ids is None:
        return True
    text = (target or {}).get("text_config") or target or {}
    n = text.get("num_hidden_layers") if isinstance(text, dict) else None
    return ids == [1, n // 2 - 1, n - 4] if isinstance(n, int) else None
