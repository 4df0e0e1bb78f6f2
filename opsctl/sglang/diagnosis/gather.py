"""What a diagnosis looks at, fetched in as few round trips as possible and turned into `Evidence`.

Three round trips to the host: which servers run there; the log, the drafter and the target of the one that is meant;
its source, once the target's class is known. Between the first two, the server itself is asked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl import this_machine
from opsctl.drafter.case import Case, Serving
from opsctl.drafter.embedding import compared
from opsctl.drafter.folder import open_folder
from opsctl.drafter.judge import judge
from opsctl.drafter.kind import Kind, recognise
from opsctl.drafter.settings import Settings
from opsctl.drafter.versions import Version
from opsctl.errors import Lost, OpsctlError, Unreachable, UsageError
from opsctl.sglang import releases
from opsctl.sglang.diagnosis.evidence import DrafterFault
from opsctl.sglang.diagnosis.seen import Seen, settings, target_class, version_text
from opsctl.sglang.logs import timeline
from opsctl.sglang.probe.acceptance import Acceptance, acceptance, read_counters
from opsctl.sglang.probe.ledger import Result
from opsctl.sglang.releases import Range
from opsctl.sglang.server import command
from opsctl.sglang.server.api import Server
from opsctl.sglang.server.served import ROOTED, Metrics, Sampling, ServerInfo, placed
from opsctl.sglang.source import facts, tree
from opsctl.sglang.source.facts import Facts
from opsctl.wire import command_line
from opsctl.wire.calls.checkpoint import checkpoint_gather
from opsctl.wire.calls.files import filelook_read
from opsctl.wire.calls.logs import serverlog_scan
from opsctl.wire.calls.server import ServerProcess, servers_find
from opsctl.wire.protocol import Call, Reply

# Answers in the order of the calls; a failed one does not take the others with it.
Ask = Callable[[Sequence[Call[Any]]], Sequence[Reply[Any] | Exception]]

_LOG_TAIL = 32 << 20  # bytes: a third of a second to read, and weeks of decode lines at the default interval
_CONFIG_LIMIT = 4 << 20
_PROMPT = "Count from one to fifty in words: one, two, three, four, five,"
_PROMPT_IDS = tuple(range(10, 30))
_REQUEST_TOKENS = 96
_REQUEST_PATIENCE = 60.0  # seconds without a byte of the answer


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user named; whatever is None is found out.

    requests: whether the server may be sent one, to measure.
    usual_port, usual_log: where the host's server is when it runs, as the inventory says.
    """

    port: int | None = None
    drafter: str | None = None
    target: str | None = None
    log: str | None = None
    probe: Result | None = None
    requests: bool = True
    usual_port: int | None = None
    usual_log: str | None = None


def look(ask: Ask, connect: Callable[[int], Server], asked: Asked) -> Seen:
    """Fetch everything. connect: gives a client of the server on a port of the host."""
    (servers,) = ask([servers_find(locate=True)])
    if isinstance(servers, Exception):
        raise servers
    # Where the inventory says where the host's own server writes, another on the machine is not taken for it.
    port = asked.usual_port if asked.usual_log and asked.port is None else asked.port
    process = choose(servers.result, port, asked.usual_port)
    started = command.parse(process["argv"]) if process else None
    port = asked.port or (started.port if started else None)
    notes: list[str] = []
    info, metrics, counted, refusal = None, None, None, None
    if process or asked.port:
        info, metrics, counted, refusal = _served(connect, port or command_line.DEFAULT_PORT, asked)
        if refusal:
            notes.append(f"server: {refusal}")
    usual = asked.usual_log if asked.port in (None, asked.usual_port) else None
    log_path = asked.log or (process["log"] if process else usual)
    if not (process or info or log_path or asked.drafter or asked.target):
        if refusal and not isinstance(refusal, Unreachable):
            raise refusal
        raise Unreachable(
            f"no server answers on port {port}" if port else "no server runs there, and no log of one is known",
            hint="`opsctl server status` shows what runs; the log of one that is gone is named by --log",
        )
    # The log tells the settings of a server that is not there any more.
    dead = _scan(ask, log_path, 0, notes) if log_path and not process else None
    told = dict(dead.starts[-1].flags) if dead and dead.starts else {}
    cwd = process["cwd"] if process else None
    draft = asked.drafter or placed(
        cwd,
        info.speculative_draft_model_path if info else None,
        process["drafter"] if process else None,
        told.get("speculative_draft_model_path"),
    )
    target = asked.target or placed(
        cwd, info.model_path if info else None, process["model"] if process else None, told.get("model_path")
    )
    wanted: dict[str, Call[Any]] = {}
    if target and (asked.target or _known("target", target, notes)):
        wanted["target"] = filelook_read(f"{target}/config.json", limit=_CONFIG_LIMIT)
    if draft and (asked.drafter or _known("drafter", draft, notes)):
        wanted["draft"] = checkpoint_gather(draft, follow_links=True)
    if log_path and process:
        tail = max(0, process["log_size"] - _LOG_TAIL)
        wanted["log"] = serverlog_scan(log_path, tail)
    answers = dict(zip(wanted, ask(list(wanted.values())), strict=True)) if wanted else {}
    for name, answer in list(answers.items()):
        if isinstance(answer, Exception):
            path = str(wanted[name].args["path"])
            notes.append(f"{name}: {answer}" if path in str(answer) else f"{name}: {path}: {answer}")
            del answers[name]
    good = {name: answer for name, answer in answers.items() if isinstance(answer, Reply)}
    log = timeline.build(good["log"].result, current=True) if "log" in good else dead
    if log and not log.of_sglang:
        notes.append(f"log: nothing in {log_path} is SGLang's: it is another program's, and was not judged")
    target_config = _config(good["target"].body) if "target" in good else None
    serving = _serving(started, info, told)
    release = version_text(info, log)
    draft_config, faults, kind, digest = None, None, None, None
    if draft and "draft" in good:
        draft_config, kind, digest, faults = _checked(
            draft, good["draft"], target_config, serving, release, notes, ask, target if "target" in good else None
        )
    elif not draft and serving.algorithm:
        kind = _of_itself(target_config)
    package = process["package"] if process else None
    facts = _facts(ask, package, target_class(target_config), notes) if package else None
    return Seen(
        process,
        started,
        info,
        metrics,
        log,
        draft_config,
        kind,
        digest,
        target_config,
        faults,
        facts,
        asked.probe,
        counted,
        tuple(notes),
    )


def choose(servers: Sequence[ServerProcess], port: int | None, usual: int | None = None) -> ServerProcess | None:
    """The server that is meant; None when none runs. Raises UsageError when several do and no port tells them apart."""
    if port is not None:
        return next((s for s in servers if port_of(s) == port), None)
    expected = next((s for s in servers if port_of(s) == usual), None)
    if expected is not None:
        return expected
    if len(servers) > 1:
        ports = ", ".join(str(port_of(s)) for s in servers)
        raise UsageError(f"{len(servers)} servers run here", hint=f"name one by --port: {ports}")
    return servers[0] if servers else None


def _served(
    connect: Callable[[int], Server], port: int, asked: Asked
) -> tuple[ServerInfo | None, Metrics | None, Acceptance | None, OpsctlError | None]:
    """What the server tells, what it counted for a request of ours, and why it tells no more."""
    info, metrics = None, None
    try:
        server = connect(port)
        info = server.info(wake=asked.requests)
        metrics = server.metrics()
        measures = asked.requests and asked.probe is None and info.speculative_algorithm
        counted = _request(server, info) if measures else None
        return info, metrics, counted, None
    except Lost:
        raise
    except OpsctlError as error:
        return info, metrics, None, error


def _request(server: Server, info: ServerInfo) -> Acceptance | None:
    """The acceptance of one short greedy request, by its own counters."""
    prompt = _PROMPT_IDS if info.skip_tokenizer_init else _PROMPT
    answer = server.generate(prompt, Sampling(_REQUEST_TOKENS, ignore_eos=True), patience=_REQUEST_PATIENCE)
    counted = read_counters(answer.meta, info.speculative_num_steps)
    return acceptance([counted], info.speculative_num_steps) if counted else None


def _scan(ask: Ask, path: str, offset: int, notes: list[str]) -> timeline.Summary | None:
    (answer,) = ask([serverlog_scan(path, offset)])
    if isinstance(answer, Exception):
        notes.append(f"log: {answer}")
        return None
    return timeline.build(answer.result, current=True)


def _facts(ask: Ask, package: str, target: str | None, notes: list[str]) -> Facts | None:
    """What the tree that the server imported does."""
    classes = [target] if target else []
    drafting = [name for name in map(releases.drafting_class, classes) if name]
    (answer,) = ask([tree.request(package.rpartition("/")[0], [*classes, *drafting])])
    if isinstance(answer, Exception):
        notes.append(f"source: {answer}")
        return None
    return facts.gather(tree.received(answer), classes)


def _checked(
    path: str,
    reply: Reply[Any],
    target: Mapping[str, Any] | None,
    serving: Serving,
    release: str | None,
    notes: list[str],
    ask: Ask,
    target_path: str | None,
) -> tuple[Mapping[str, Any] | None, Kind, str, tuple[DrafterFault, ...] | None]:
    """The drafter's config, its kind, its digest, and the findings of its check for the version that runs."""

    def read(call: Call[Any]) -> Reply[Any]:
        (answer,) = ask([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    folder = open_folder(path, lambda call: reply, there=ask is not this_machine.outcomes)
    likeness = compared(folder, read, target_path, read)
    case = Case(folder, Settings(dict(target)) if target else None, serving, likeness)
    kind = case.recognised.kind
    if folder.oversized:  # the target itself, where its own layers draft
        notes.append(
            f"drafter: {path} is a whole model with more tensors than a draft model has, so it was not checked"
        )
        return folder.raw_config, kind, folder.digest, None
    versions = _possible(release)
    if not versions:
        what = f"SGLang's version {release!r:.60} names no release" if release else "SGLang's version is not known"
        notes.append(f"drafter: {what}, so it was not checked")
        return folder.raw_config, kind, folder.digest, None
    findings = [f for f in judge(case, versions).findings if f.in_outcome]
    faults = tuple(
        DrafterFault(f.check, f.verdict.value, f.subject, f.detail, f.remedy)
        for f in findings
        if f.versions == versions
    )
    for finding in findings:
        if finding.versions != versions:
            some = ", ".join(map(str, finding.versions))
            notes.append(f"drafter: {finding.check}, if the server is SGLang {some}: {finding.detail}")
    return folder.raw_config, kind, folder.digest, faults


def _possible(release: str | None) -> tuple[Version, ...]:
    """The releases that a server may be, by its own word or by its log."""
    between = Range.told(release)
    if between is not None and between.first != between.last:
        return tuple(version for version in releases.known() if version in between)
    with contextlib.suppress(UsageError):  # a build from source names the release that it leads to
        found = Version.parse(release or "")
        return (found,) if found > Version(0, 0, 0) else ()
    return ()


def _of_itself(target: Mapping[str, Any] | None) -> Kind | None:
    """The kind of what drafts where no draft model is named: the target's own layers, if its config has such."""
    kind = recognise(target, {}, complete=False).kind
    return kind if kind is Kind.MTP else None


def _serving(started: command.Launch | None, info: ServerInfo | None, told: Mapping[str, Any]) -> Serving:
    flags = settings(info, started, told)
    return Serving(
        tp=flags.tp,
        context_length=info.context_length if info else started.context_length if started else None,
        algorithm=flags.algorithm,
        draft_quantization=flags.draft_quantization,
        draft_path=True,
        steps=flags.steps,
        topk=flags.topk,
        draft_tokens=flags.draft_tokens,
    )


def port_of(server: ServerProcess) -> int:
    """The port that a server of `servers.find` listens on."""
    return command_line.port(server["argv"])


def _config(data: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _known(what: str, path: str, notes: list[str]) -> bool:
    """Whether it is known where a path leads; told where it is not."""
    if path[0] in ROOTED:
        return True
    kind = "is relative to a folder that is not known" if path[0] == "." else "is no folder of the host"
    notes.append(f"{what}: {path} {kind}, so it was not read; --{what} names one")
    return False
