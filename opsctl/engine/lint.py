"""What can be said of a playbook without running it, beyond that it loads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from opsctl import modules
from opsctl.engine import ansible, find, usage
from opsctl.engine.loader import load_playbook
from opsctl.engine.tasks import Play, Playbook, Task
from opsctl.engine.templating import At
from opsctl.errors import OpsctlError, Place, UsageError
from opsctl.findings import Finding
from opsctl.inventory import Inventory, InventoryHost
from opsctl.modules.contract import Action
from opsctl.secret import Secret
from opsctl.secret_sources import too_short
from opsctl.text import did_you_mean, nearest
from opsctl.wire.secret_names import holds_secret
from opsctl.wire.secret_values import SHORTEST


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of finding, as `opsctl doc lint` and SARIF describe it."""

    name: str
    about: str
    check: Callable[[Play, frozenset[str]], Iterator[Finding]] | None = None


def lint(path: Path, inventory: Inventory | None) -> list[Finding]:
    """Everything found in the playbook at `path`, in the order of the file."""
    try:
        playbook = load_playbook(path)
    except UsageError as error:
        return [_mistake(one, path) for one in error.all]
    except OpsctlError as error:
        return [_mistake(error, path)]
    found = [f for play in playbook.plays for f in _of_play(play, playbook, inventory)]
    return sorted(found, key=_in_file_order)


def _mistake(error: OpsctlError, path: Path) -> Finding:
    place = error.where if isinstance(error.where, Place) else Place(str(path))
    return Finding("load", "error", error.message, place, error.hint or "")


def _in_file_order(finding: Finding) -> tuple[str, int, int, str]:
    place = finding.place or Place("")
    return place.file, place.line or 0, place.column or 0, finding.id


def _of_play(play: Play, playbook: Playbook, inventory: Inventory | None) -> Iterator[Finding]:
    hosts = frozenset(usage.RUN_TIME)
    chosen: list[InventoryHost] = []
    if inventory is not None:
        try:
            chosen = inventory.select(play.pattern)
        except OpsctlError as error:
            yield Finding("hosts", "error", error.message, (play.at / "hosts").place, error.hint or "")
            chosen = list(inventory.hosts.values())
        hosts |= frozenset(name for host in chosen for name in host.variables)
    for earlier in playbook.plays[: playbook.plays.index(play)]:
        hosts |= {t.keys.register_ for t in earlier.all_tasks() if t.keys.register_}
    for rule in RULES:
        if rule.check is not None:
            yield from rule.check(play, hosts)
    if inventory is not None:
        yield from _undefined(play, hosts)
        yield from _settings(play, chosen)
    tasks = [(task.args, task.keys, [values for values, _ in task.variables]) for task in play.all_tasks()]
    yield from _short(play.keys, tasks, [host.settings for host in chosen])
    yield from _files(play, playbook.path)


def _undefined(play: Play, known: frozenset[str]) -> Iterator[Finding]:
    names = known | set(play.keys.params) | set(play.keys.vars)
    registered = {t.keys.register_: t for t in reversed(list(play.all_tasks())) if t.keys.register_}  # by the first
    for use in usage.uses(play):
        # What stands in `vars` is rendered where it is used, so only a task's own templates can come too early.
        before = {n for n, by in registered.items() if use.task is None or by.number <= use.task.number}
        local = names | before | {n for values, _ in (use.task.variables if use.task else ()) for n in values}
        local |= {"item"} if use.task and use.task.keys.loop is not None else set()
        for name in sorted(use.names - use.guarded - local):
            if by := registered.get(name):
                message = f"the variable {name!r} is registered only later, by {by.name!r}"
                yield Finding("undefined", "error", message, use.at.place)
                continue
            close = nearest(name, local)
            hint = f"did you mean {close!r}?" if close else ""
            yield Finding("undefined", "error", f"the variable {name!r} is defined nowhere", use.at.place, hint)


def _results(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    for error in usage.wrong_fields(play):
        if isinstance(error.where, Place):
            yield Finding("result", "error", error.message, error.where, error.hint or "")


def _unused(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    used = {name for use in usage.uses(play) for name in use.names}
    # A template file may use any of them, and what it holds is known only where its path is.
    texts = usage.template_files(play)
    if texts is None:
        return
    used |= texts
    for kind, names in (("params", play.keys.params), ("vars", play.keys.vars)):
        for name in names:
            if name not in used:
                place = play.at.source.key_place((*play.at.path, kind, name))
                yield Finding("unused", "warning", f"{name!r} is never used", place)


def _handlers(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    notified = {name for task in play.all_tasks() for name in task.keys.notify}
    if any("{{" in name for name in notified):
        return
    for handler in play.handlers:
        if handler.name not in notified:
            yield Finding("handler", "warning", f"the handler {handler.name!r} is never notified", handler.at.place)


def _gates(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    measured: set[str] = set()
    for task in play.all_tasks():
        module = modules.get(task.module)
        if isinstance(module, Action):
            measured |= set(module.measures)
    for index, gate in enumerate(play.keys.gates):
        if gate.measure and gate.measure not in measured:
            hint = did_you_mean(gate.measure, measured) if measured else "no task of the play measures anything"
            place = (play.at / "gates" / index / "measure").place
            yield Finding("gate", "error", f"nothing here can measure {gate.measure!r}", place, hint)


def _named_at(task: Task) -> Place:
    """Where a task names its module."""
    return task.at_args.source.key_place(task.at_args.path)


def _foreign(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    for key, why in ansible.NOT_NEEDED.items():
        if (path := (*play.at.path, key)) in play.at.source.keys:
            yield Finding("foreign", "notice", f"{key} says nothing here: {why}", play.at.source.key_place(path))
    for task in play.all_tasks():
        if (said := task.at_args.path[-1]) != task.module:
            yield Finding("foreign", "notice", f"{said} is read as {task.module}", _named_at(task))


def _commands(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    instead: dict[str, str] = {}
    for task in play.all_tasks():
        text, kind = task.args.get("cmd"), modules.get(task.module).command_line
        if kind is None or task.args.get("read_only") or not text:
            continue
        instead = instead or {each: name for name in modules.names() for each in modules.get(name).programs}
        if kind == "shell":
            found = list(programs(str(text)))
        else:
            found = [program(text.split() if isinstance(text, str) else [str(w) for w in text])]
        for name in dict.fromkeys(found):
            if name in instead:
                message = f"{name} in {task.module}: the module {instead[name]} can be checked and undone"
                yield Finding("module", "notice", message, _named_at(task), f"opsctl doc {instead[name]}")


def _undo(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    if play.keys.on_failure != "rollback":
        return
    for task in play.all_tasks():
        if remedy := modules.get(task.module).lasting(task.args):
            message = f"{task.name!r} cannot be undone, and the play promises rollback"
            yield Finding("undo", "warning", message, _named_at(task), remedy)


def _secrets(play: Play, hosts: frozenset[str]) -> Iterator[Finding]:
    from opsctl.wire.secret_patterns import RULES as SHAPES

    def look(value: Any, at: At, key: str) -> Iterator[Finding]:
        match value:
            case dict():
                for k, v in value.items():
                    yield from look(v, at / k, k)
            case list():
                for i, v in enumerate(value):
                    yield from look(v, at / i, key)
            case str() if "{{" not in value and _is_secret(key, value, SHAPES):
                yield Finding("secret", "error", f"{key!r} looks like a secret in clear", at.place,
                              "say where it comes from: !env NAME, !file PATH or !cmd [..]")  # fmt: skip

    yield from look(play.keys.vars, play.at / "vars", "vars")
    for name, param in play.keys.params.items():
        if not isinstance(param.default, Secret):
            yield from look({"default": param.default} if name == "default" else param.default,
                            play.at / "params" / name / "default", name)  # fmt: skip
    for task in play.all_tasks():
        yield from look(task.args, task.at_args, task.module)
        yield from look(task.keys.vars, task.at / "vars", "vars")


def _short(*values: Any) -> Iterator[Finding]:
    """Secrets that cannot be masked; commands are not run to find out."""
    for secret in dict.fromkeys(too_short(values)):
        message = f"{secret.described} is shorter than {SHORTEST} characters: it cannot be masked, and may be shown"
        yield Finding("short", "warning", message, secret.place, "use a longer secret")


def _is_secret(key: str, value: str, shapes: Any) -> bool:
    data = value.encode()
    return holds_secret(key, value) or any(
        not rule.keyed and not rule.prompt and rule.pattern.search(data) for rule in shapes
    )


def _files(play: Play, path: Path) -> Iterator[Finding]:
    """Local files that tasks name in clear and that are not there."""
    for task in play.all_tasks():
        src, kind = task.args.get("src"), modules.get(task.module).src
        if kind is None or not isinstance(src, str) or "{{" in src:
            continue
        try:
            find.file(kind, src, path)
        except OpsctlError as error:
            yield Finding("file", "error", error.message, (task.at_args / "src").place, error.hint or "")


def _settings(play: Play, hosts: Sequence[InventoryHost]) -> Iterator[Finding]:
    """What modules of the play find wrong in the settings of their hosts."""
    used = dict.fromkeys(task.module for task in play.all_tasks())
    found = (one for name in used for host in hosts for one in modules.get(name).lint_host(host))
    yield from dict.fromkeys(replace(one, place=one.place or play.at.place) for one in found)


RULES: tuple[Rule, ...] = (
    Rule("load", "The playbook cannot be read: malformed, unknown key or module, wrong type."),
    Rule("hosts", "The host pattern matches nothing in the inventory."),
    Rule("undefined", "A variable is used that is defined nowhere (needs the inventory)."),
    Rule("result", "A template asks a registered result for what its module never gives.", _results),
    Rule("unused", "A param or variable is defined and never used.", _unused),
    Rule("handler", "A handler is never notified.", _handlers),
    Rule("gate", "A gate asks for a measure that no task of the play takes.", _gates),
    Rule("foreign", "A word of Ansible is not needed, or read as ours.", _foreign),
    Rule("module", "A command does what a module does better.", _commands),
    Rule("undo", "A task cannot be undone in a play that promises rollback.", _undo),
    Rule("secret", "A secret stands in clear.", _secrets),
    Rule("short", "A secret is too short to be masked."),
    Rule("file", "A local file that a task needs is not there."),
    Rule("flag", "A host's `launch` has a flag that no SGLang takes (needs the inventory)."),
)


_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_HERE = re.compile(r"(?<!<)<<-?\s*['\"]?[A-Za-z_]")  # what follows such a line is a text, up to a word that it names
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BEFORE = {"sudo", "env", "exec", "time", "if", "then", "elif", "else", "while", "until", "do", "!", "{"}
_ENDS = "();|&\n"  # what ends a command; with < or > it is a redirection
_PIPE = re.compile(r"(^|[^|])\|&?\s*$")


def program(words: Sequence[str]) -> str:
    """The program that a command is about: what comes before it says as whom, with which environment, and when."""
    rest = (word for word in words if word not in _BEFORE and not _ASSIGNMENT.match(word))
    return next(rest, "").rpartition("/")[2]


def programs(text: str) -> Iterator[str]:
    """The programs of shell text in their order, up to what cannot be told; those are left out that only filter."""
    plain = _COMMENT.sub("", _TEMPLATE.sub("x", _HERE.split(text)[0])).replace("\\\n", " ")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=_ENDS + "<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    piped = False
    try:
        for word in chain(lexer, "\n"):
            if not set(word) <= set(_ENDS):
                words.append(word)
                continue
            found = program(words)
            if found and (not piped or found == "tee"):
                yield found
            if words or word.strip():
                piped, words = _PIPE.search(word) is not None, []
    except ValueError:  # a quote without its end
        return
