"""What a drafter will meet on a host: SGLang as it is there, how it is started, and the target.

Everything is asked in one answer where the inventory tells where things are; what only the running server tells (its
command line, the package it imported) takes a second one.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case, Serving
from opsctl.drafter.embedding import compared
from opsctl.drafter.folder import Folder, Reader, open_folder
from opsctl.drafter.judge import Judgement, judge
from opsctl.drafter.settings import Settings
from opsctl.drafter.versions import Feature, InTree, Version
from opsctl.errors import OpsctlError
from opsctl.inventory.model import SglangSettings
from opsctl.sglang.diagnosis.gather import choose
from opsctl.sglang.diagnosis.seen import target_class
from opsctl.sglang.server import command
from opsctl.sglang.source import facts, tree
from opsctl.sglang.source.facts import Facts
from opsctl.wire.calls.checkpoint import checkpoint_gather
from opsctl.wire.calls.files import filelook_read
from opsctl.wire.calls.process import proc_run
from opsctl.wire.calls.server import ServerProcess, servers_find
from opsctl.wire.protocol import Call, Reply

# Answers in the order of the calls; a failed one does not take the others with it.
Ask = Callable[[Sequence[Call[Any]]], Sequence[Reply[Any] | Exception]]

_CONFIG_LIMIT = 1 << 20
_OVERWRITES = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
# Classes asked for before the target is known, so that its class is in the first answer.
_USUAL = ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "KimiK2ForCausalLM")
_LOCATE = "import importlib.util as u; print(list(u.find_spec('sglang').submodule_search_locations)[0])"


@dataclass(frozen=True, slots=True)
class Met:
    """What was found.

    target_path: the target's folder on the host. lines: in words, each with where it comes from. unknown: what could
    not be found out.
    """

    versions: tuple[Version, ...]
    serving: Serving
    target: Settings | None
    target_path: str | None
    drafter: Folder | None
    lines: tuple[str, ...]
    unknown: tuple[str, ...]


def meet(ask: Ask, settings: SglangSettings, *, drafter: str | None = None, follow_links: bool = False) -> Met:
    """Ask a host. settings: its `sglang` section. drafter: a drafter's folder there, which is gathered as well.

    Raises what reading the drafter raises; everything else that fails is told in `unknown`.
    """
    return _Meeting(ask, settings, drafter, follow_links).met()


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a drafter drafts for, as far as it is known: its config, its folder, and what reads that."""

    config: Settings | None
    path: str | None
    read: Reader


def judged(
    folder: Folder,
    read: Reader,
    met: Met | None = None,
    target: Target | None = None,
    *,
    versions: Sequence[Version] = (),
    tp: int | None = None,
    context_length: int | None = None,
) -> Judgement:
    """Judge a drafter by what it meets on a host. What is given wins; where neither says it, a usual value does.

    read: reads the drafter's folder.
    """
    serving = met.serving if met else Serving(tp_known=False)
    if tp is not None:
        serving = replace(serving, tp=tp, tp_known=True)
    if context_length is not None:
        serving = replace(serving, context_length=context_length)
    likeness = compared(folder, read, target.path, target.read) if target else None
    case = Case(folder, target.config if target else None, serving, likeness)
    return judge(case, tuple(versions) or (met.versions if met else v.KNOWN))


class _Meeting:
    def __init__(self, ask: Ask, settings: SglangSettings, drafter: str | None, follow_links: bool) -> None:
        self.ask, self.settings, self.drafter, self.follow_links = ask, settings, drafter, follow_links
        self.lines: list[str] = []
        self.unknown: list[str] = []

    def met(self) -> Met:
        words = command.words(self.settings)
        checkout = self.settings.checkout
        model = self.settings.model_path
        wanted: dict[str, Call[Any]] = {}
        if words is None or not checkout:
            wanted["servers"] = servers_find(locate=not checkout)
        if not checkout and self.settings.interpreter:
            argv = [self.settings.interpreter, "-c", _LOCATE]
            wanted["package"] = proc_run(argv, timeout=20.0)
        started = command.parse(words) if words else None
        model = (started.model if started else None) or model
        if model and model.startswith("."):
            model = posixpath.normpath(posixpath.join(self.settings.folder, model))
        if _is_path(model):
            wanted["target"] = _config_of(str(model))
        if checkout:
            wanted["source"] = tree.request(str(checkout), _USUAL)
        if self.drafter:
            wanted["drafter"] = checkpoint_gather(self.drafter, follow_links=self.follow_links)
        answers = self._asked(wanted)
        folder = self._folder(answers.get("drafter"))
        process = self._process(answers.get("servers"))
        environment: Mapping[str, Any] = self.settings.env
        if process is not None and words is None:
            started = command.parse(process["argv"])
            environment = process["environment"] or {}
            model = process["model"] or model
        target = self._target(answers.get("target"), model)
        root = str(checkout) if checkout else self._root(process, answers.get("package"))
        known = self._facts(answers.get("source"), root, target)
        serving = self._serving(started, environment)
        return Met(
            self._versions(known, target),
            serving,
            target,
            model if _is_path(model) else None,
            folder,
            tuple(self.lines),
            tuple(self.unknown),
        )

    def _asked(self, wanted: Mapping[str, Call[Any]]) -> dict[str, Reply[Any] | Exception]:
        return dict(zip(wanted, self.ask(list(wanted.values())), strict=True)) if wanted else {}

    def _folder(self, answer: Reply[Any] | Exception | None) -> Folder | None:
        if answer is None or self.drafter is None:
            return None

        def read(call: Call[Any]) -> Reply[Any]:
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None
            return answer

        return open_folder(self.drafter, read, follow_links=self.follow_links, there=True)

    def _process(self, answer: Reply[Any] | Exception | None) -> ServerProcess | None:
        if not isinstance(answer, Reply):
            return None
        port = self.settings.port
        if len(answer.result) > 1:
            return choose(answer.result, port)  # of several, the host's own; before its first start there is none
        return choose(answer.result, None, port)

    def _target(self, answer: Reply[Any] | Exception | None, model: str | None) -> Settings | None:
        if not model:
            self.unknown.append("the target: no model_path in the inventory, and no server runs")
            return None
        if not _is_path(model):
            self.unknown.append(f"the target's config: {model} is a hub name, not a folder of the host")
            return None
        if answer is None:
            (answer,) = self.ask([_config_of(model)])
        if isinstance(answer, Exception):
            self.unknown.append(f"the target's config: {answer}")
            return None
        try:
            raw = json.loads(answer.body)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            self.unknown.append(f"the target's config: {model}/config.json is no JSON object")
            return None
        self.lines.append(f"target: {target_class(raw) or 'no class named'}, {model}")
        return Settings(raw)

    def _root(self, process: ServerProcess | None, answer: Reply[Any] | Exception | None) -> str | None:
        """The folder above the package that serves, by the running server, else by the interpreter."""
        package = process["package"] if process else None
        if not package and isinstance(answer, Reply) and answer.result["code"] == 0:
            package = answer.result["stdout"].strip().rpartition("\n")[2]
        return str(package).rpartition("/")[0] if package else None

    def _facts(self, answer: Reply[Any] | Exception | None, root: str | None, target: Settings | None) -> Facts | None:
        if root is None:
            self.unknown.append("SGLang: no `checkout` in the inventory, and no server runs: every version is judged")
            return None
        name = target_class(target.raw) if target else None
        own = (name,) if name and name.isidentifier() else ()
        if answer is None or not set(own) <= set(_USUAL):
            (answer,) = self.ask([tree.request(root, (*_USUAL, *own))])
        if isinstance(answer, Exception):
            self.unknown.append(f"SGLang's source: {answer}")
            return None
        try:
            return facts.gather(tree.received(answer), own)
        except OpsctlError as error:
            self.unknown.append(f"SGLang's source: {error}")
            return None

    def _versions(self, known: Facts | None, target: Settings | None) -> tuple[Version, ...]:
        if known is None:
            return v.KNOWN
        source = known.tree
        name = target_class(target.raw) if target else None
        read = features(known)
        commit = f", commit {source.commit[:12]}" if source.commit else ", commit unknown" if source.git_refused else ""
        changed = len(source.dirty)
        dirty = f", {changed} changed file{'s' if changed > 1 else ''}" if changed else ""
        where = f"source {source.root}{commit}{dirty}"
        fact = known.targets.get(name or "", {}).get("capture")
        floor = source.version.floor
        if floor is None:
            self.unknown.append(f"SGLang's version: the {where} does not tell it: every version is judged")
        else:
            exact = "" if source.version.exact else " or a commit after it"
            self.lines.append(f"SGLang {floor}{exact}: {where}")
            newest = v.KNOWN[-1]
            if floor > newest or (floor == newest and source.version.exact is None):
                read_there = ", ".join([*(name for name in _DRAFT if known.draft[name].value is not None), "capture"])
                newer = "newer than" if floor > newest else "at least"
                self.lines.append(
                    f"{newer} {newest}, the newest release that was read: {read_there} are judged by its source"
                    f" alone, everything else by the rules of {newest}"
                )
        if fact is not None and fact.value is not None:
            self.lines.append(f"capture: {fact.says} ({fact.place})")
        effect = known.effects.get(name or "")
        versions = v.KNOWN if floor is None else (floor,)
        return tuple(InTree(*version.key, version.text, read, effect) for version in versions)

    def _serving(self, started: command.Launch | None, environment: Mapping[str, Any]) -> Serving:
        tp = (started.tp if started else None) or self.settings.tp
        known = tp is not None
        if tp is None:
            self.unknown.append("tensor parallelism: 1 is taken" if started else "tensor parallelism: 8 is taken")
            tp = 1 if started else 8
        if started is None:
            self.unknown.append("how it is started: no `launch` in the inventory, and no server runs")
            return Serving(tp=int(tp), tp_known=known)
        # A launch command without an algorithm gets EAGLE3 together with the drafter (command.with_drafter).
        found = Serving(
            tp=int(tp),
            context_length=started.context_length,
            algorithm=started.algorithm or "EAGLE3",
            overwrite_longer=str(environment.get(_OVERWRITES, "")).lower() in ("1", "true", "yes", "y"),
            draft_quantization=started.draft_quantization,
            steps=started.steps,
            topk=started.topk,
            draft_tokens=started.draft_tokens,
        )
        said = [("steps", found.steps), ("topk", found.topk), ("draft tokens", found.draft_tokens)]
        more = "".join(f", {name} {value}" for name, value in said if value is not None)
        context = f", context length {found.context_length}" if found.context_length else ""
        self.lines.append(f"launch: {found.algorithm}, tp {found.tp}{context}{more}")
        return found


# Fact of a draft model -> the feature it proves or disproves, and the value that proves it.
_DRAFT = {
    "layer-names": (v.LAYERS_0_NAMES, "midlayer, layers.0"),
    "draft-layers": (v.MULTI_LAYER, "any"),
    "fc-width": (v.FREE_AUX_COUNT, "configured"),
    "graph-layer-ids": (v.AUX_IDS_IN_GRAPHS, "configured"),
}


def features(known: Facts) -> dict[Feature, bool]:
    """What the source itself says of what a drafter may need; what it does not tell is left out."""
    found: dict[Feature, bool] = {}
    for name, (feature, sound) in _DRAFT.items():
        value = known.draft[name].value
        if value is not None:
            found[feature] = value == sound
    return found


def _is_path(model: Any) -> bool:
    return isinstance(model, str) and model.startswith(("/", "~"))


def _config_of(model: str) -> Call[Any]:
    return filelook_read(f"{model}/config.json", limit=_CONFIG_LIMIT)
