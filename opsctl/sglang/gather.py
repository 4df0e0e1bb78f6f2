"""What a diagnosis looks at, fetched in as few round trips as possible and turned into `Evidence`.

Two round trips to the host: which servers run there, then everything about the one that is meant. A third goes to the
server itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opsctl.agent.protocol import AgentError, Call, Context, Reply
from opsctl.drafter.case import Case, Serving
from opsctl.drafter.folder import open_folder
from opsctl.drafter.judge import judge
from opsctl.drafter.settings import Settings
from opsctl.drafter.versions import Version
from opsctl.errors import OpsctlError, UsageError
from opsctl.sglang import launch, timeline, version
from opsctl.sglang.evidence import DrafterFault, Evidence, Flags, LogError, Measured, Source
from opsctl.sglang.http import Server, ServerInfo
from opsctl.sglang.metrics import Metrics
from opsctl.sglang.probe_store import Result

# Answers in the order of the calls; a failed one does not take the others with it.
Ask = Callable[[Sequence[Call]], Sequence[Reply | Exception]]

_LOG_TAIL = 32 << 20  # bytes: a third of a second to read, and weeks of decode lines at the default interval
_CONFIG_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user named; whatever is None is found out."""

    port: int | None = None
    drafter: str | None = None
    target: str | None = None
    log: str | None = None
    probe: Result | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The raw findings. Each is None (or empty) where there was nothing to look at; `notes` says what failed."""

    process: Mapping[str, Any] | None
    started: launch.Launch | None
    info: ServerInfo | None
    metrics: Metrics | None
    code: Mapping[str, Any] | None
    log: timeline.Summary | None
    draft_config: Mapping[str, Any] | None
    target_config: Mapping[str, Any] | None
    faults: tuple[DrafterFault, ...] | None
    source: Source
    probe: Result | None
    notes: tuple[str, ...]


def here(calls: Sequence[Call]) -> list[Reply | Exception]:
    """`Ask` for this machine: the agent's functions, called in this process."""
    from importlib import import_module

    answers: list[Reply | Exception] = []
    for call in calls:
        area, _, name = call.name.partition(".")
        function = import_module(f"opsctl.agent.{area}").CALLS[name]
        try:
            result = function(Context(), **call.args)
        except (AgentError, OSError) as error:
            answers.append(error)
        else:
            answers.append(result if isinstance(result, Reply) else Reply(result))
    return answers


def look(ask: Ask, connect: Callable[[int], Server], asked: Asked) -> Seen:
    """Fetch everything. connect: gives a client of the server on a port of the host."""
    (servers,) = ask([Call("servers.find")])
    if isinstance(servers, Exception):
        raise servers
    process = choose(servers.result, asked.port)
    started = launch.parse(process["argv"]) if process else None
    port = asked.port or (started.port if started else None)
    notes: list[str] = []
    info, metrics = _served(connect, port or launch.DEFAULT_PORT, notes) if process or asked.port else (None, None)
    # The log tells the settings of a server that is not there any more.
    log_path = asked.log or (process["log"] if process else None)
    dead = _scan(ask, asked.log, 0, notes) if asked.log and not process else None
    told = dict(dead.starts[-1].flags) if dead and dead.starts else {}
    draft = _first(
        asked.drafter,
        info.speculative_draft_model_path if info else None,
        started.draft_model if started else None,
        told.get("speculative_draft_model_path"),
    )
    target = _first(
        asked.target, info.model_path if info else None, started.model if started else None, told.get("model_path")
    )
    wanted: dict[str, Call] = {}
    if process:
        wanted["code"] = Call("servers.code", {"pid": process["pid"]})
    if target:
        wanted["target"] = Call("files.read", {"path": f"{target}/config.json", "limit": _CONFIG_LIMIT})
    if draft:
        wanted["draft"] = Call("checkpoint.gather", {"path": draft, "full": False, "follow_links": True})
    if log_path and dead is None:
        tail = max(0, (process["log_size"] if process else 0) - _LOG_TAIL)
        wanted["log"] = Call("serverlog.scan", {"path": log_path, "offset": tail})
    answers = dict(zip(wanted, ask(list(wanted.values())), strict=True)) if wanted else {}
    for name, answer in list(answers.items()):
        if isinstance(answer, Exception):
            notes.append(f"{name}: {answer}")
            del answers[name]
    good = {name: answer for name, answer in answers.items() if isinstance(answer, Reply)}
    log = timeline.build(good["log"].result) if "log" in good else dead
    target_config = _config(good["target"].body) if "target" in good else None
    serving = _serving(started, info, told)
    release = _first(info.version if info else None, log.version if log else None)
    draft_config, faults = None, None
    if draft and "draft" in good:
        draft_config, faults = _checked(draft, good["draft"], target_config, serving, release, notes)
    return Seen(
        process,
        started,
        info,
        metrics,
        good["code"].result if "code" in good else None,
        log,
        draft_config,
        target_config,
        faults,
        Source(),
        asked.probe,
        tuple(notes),
    )


def choose(servers: Sequence[Mapping[str, Any]], port: int | None) -> Mapping[str, Any] | None:
    """The server that is meant; None when none runs. Raises UsageError when several do and no port was named."""
    if port is not None:
        return next((s for s in servers if port_of(s) == port), None)
    if len(servers) > 1:
        ports = ", ".join(str(port_of(s)) for s in servers)
        raise UsageError(f"{len(servers)} servers run here", hint=f"name one by --port: {ports}")
    return servers[0] if servers else None


def evidence(seen: Seen) -> Evidence:
    """What was seen, as the tree of hypotheses wants it."""
    info, started = seen.info, seen.started
    told: Mapping[str, Any] = seen.log.starts[-1].flags if seen.log and seen.log.starts else {}
    flags = _flags(info, started, told)
    environment = seen.process["environment"] if seen.process else None
    if environment is not None:
        flags = replace(flags, simulated=environment.get("SGLANG_SIMULATE_ACC_LEN", ""))
    measured = _measured(seen)
    error = seen.log.first_error if seen.log else None
    text = version.parse(info.version if info else None) or version.parse(seen.log.version if seen.log else None)
    return Evidence(
        version=text,
        alive=_alive(seen),
        measured=measured,
        verifies=_verifies(info, flags, measured),
        flags=flags,
        source=seen.source,
        drafter=seen.faults,
        errors=(LogError(error.kind, error.message, error.where or ""),) if error else (),
        old_code=_old_code(seen),
        default_ids=_default_ids(seen.draft_config, seen.target_config),
        fused_all_reduce=info.enable_flashinfer_allreduce_fusion if info else None,
    )


def _served(connect: Callable[[int], Server], port: int, notes: list[str]) -> tuple[ServerInfo | None, Metrics | None]:
    try:
        server = connect(port)
        return server.info(), server.metrics()
    except OpsctlError as error:
        notes.append(f"server: {error}")
        return None, None


def _scan(ask: Ask, path: str, offset: int, notes: list[str]) -> timeline.Summary | None:
    (answer,) = ask([Call("serverlog.scan", {"path": path, "offset": offset})])
    if isinstance(answer, Exception):
        notes.append(f"log: {answer}")
        return None
    return timeline.build(answer.result)


def _checked(
    path: str,
    reply: Reply,
    target: Mapping[str, Any] | None,
    serving: Serving,
    release: str | None,
    notes: list[str],
) -> tuple[Mapping[str, Any] | None, tuple[DrafterFault, ...] | None]:
    """The drafter's config and the findings of its check for the version that runs."""
    folder = open_folder(path, lambda call: reply)
    if not release:
        notes.append("drafter: SGLang's version is not known, so it was not checked")
        return folder.raw_config, None
    case = Case(folder, Settings(dict(target)) if target else None, serving)
    findings = judge(case, [Version.parse(release)]).findings
    faults = tuple(
        DrafterFault(f.check, f.verdict.value, f.subject, f.detail, f.remedy) for f in findings if f.in_outcome
    )
    return folder.raw_config, faults


def _serving(started: launch.Launch | None, info: ServerInfo | None, told: Mapping[str, Any]) -> Serving:
    flags = _flags(info, started, told)
    return Serving(
        tp=flags.tp,
        context_length=info.context_length if info else started.context_length if started else None,
        algorithm=flags.algorithm or "EAGLE3",
        draft_quantization=flags.draft_quantization,
        draft_path=True,
        steps=flags.steps,
        topk=flags.topk,
        draft_tokens=flags.draft_tokens,
    )


def _flags(info: ServerInfo | None, started: launch.Launch | None, told: Mapping[str, Any]) -> Flags:
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


def _measured(seen: Seen) -> Measured | None:
    """The best figure there is: counted by a probe, the server's own average, its log, its gauge of the last moment."""
    if seen.probe and (accept := seen.probe["accept_length"]):
        dead = accept["exact"] and accept["mean"] == 1.0
        return Measured(accept["mean"], "probe", dead, accept["verify_steps"])
    if seen.info and (own := seen.info.own_accept_length):
        return Measured(own, "server")
    last = (seen.log.decode["accept_length"] or {}).get("last") if seen.log else None
    if last:
        return Measured(last, "log")
    gauge = seen.metrics.accept_length if seen.metrics else None
    return Measured(gauge, "metrics") if gauge else None


def _verifies(info: ServerInfo | None, flags: Flags, measured: Measured | None) -> bool | None:
    if measured:
        return True
    return False if info and not flags.algorithm else None


def _alive(seen: Seen) -> bool | None:
    """Whether the server serves; None while a process is there that does not answer: it may still be starting."""
    if seen.info:
        return True
    ended = bool(seen.log and seen.log.starts and seen.log.starts[-1].ended)
    if seen.process:
        return False if ended else None
    return False if seen.log else None


def _old_code(seen: Seen) -> bool | None:
    newest = seen.code["newest"] if seen.code else None
    if newest is None or seen.process is None:
        return None
    return bool(newest > seen.process["started"])


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


def port_of(server: Mapping[str, Any]) -> int:
    """The port that a server of `servers.find` listens on."""
    found = launch.parse(server["argv"])
    return found.port if found and found.port else launch.DEFAULT_PORT


def _config(data: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value), None)
