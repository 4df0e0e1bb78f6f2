"""Reference pages in Markdown, made from the models, tables and commands themselves.

`opsctl doc TOPIC` prints them, and the site is built from the same ones.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

    Command = TyperCommand | TyperGroup


def exit_codes() -> Iterator[str]:
    from opsctl.errors import Exit

    yield "# exit-codes\n"
    yield "The same for every command, and part of the interface.\n"
    yield "| code | name | when |"
    yield "|---|---|---|"
    said = dict(re.findall(r"^    ([A-Z_]+) = \d+  # (.*)$", inspect.getsource(Exit), re.M))
    for one in Exit:
        yield f"| {int(one)} | `{one.name.lower().replace('_', '-')}` | {_cell(said[one.name])} |"


def events() -> Iterator[str]:
    from opsctl.engine import events as module

    yield "# events\n"
    yield "What `--output jsonl` prints, one JSON object on each line, with its kind under `event` and the seconds"
    yield "since the run began under `at`. Secrets are masked. Keys are added in later versions, never renamed.\n"
    kinds = [k for k in vars(module).values() if inspect.isclass(k) and issubclass(k, module.Event)]
    for kind in kinds:
        if kind is module.Event:
            continue
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        about = inspect.getdoc(kind) or ""
        yield f"## {name}\n"
        if not about.startswith(kind.__name__):  # a dataclass without words of its own
            yield about.partition("\n")[0] + "\n"
        yield "| key | type |"
        yield "|---|---|"
        for field in fields(kind):
            if field.name != "at":
                yield f"| `{field.name}` | {_json_type(str(field.type))} |"
        yield ""


def health_checks() -> Iterator[str]:
    from opsctl.gpu.checks.registry import checks
    from opsctl.gpu.settings import thresholds

    yield "# health-checks\n"
    yield "`opsctl health explain CHECK` says the same on a terminal, with the thresholds that belong to the check.\n"
    for check in checks().values():
        yield f"## {check.id}\n"
        yield f"{check.meaning}\n"
        yield f"- Causes: {check.causes}"
        yield f"- Remedy: {check.remedy}" + (f" (`{check.command}`)" if check.command else "")
        yield ""
    yield "## Thresholds\n"
    yield "Set another value under `health: {thresholds: {NAME: VALUE}}` in the host's `vars`.\n"
    yield "| name | value | meaning | source |"
    yield "|---|---|---|---|"
    for limit in thresholds().values():
        yield f"| `{limit.name}` | {limit.value:g} {limit.unit} | {limit.meaning} | {limit.source} |"


def patches() -> Iterator[str]:
    from opsctl.sglang.patches import ALL

    yield "# patches\n"
    yield "Each is an end state of the source, found by syntax and not by line numbers.\n"
    for patch in ALL:
        about = patch.about
        yield f"## {patch.name}\n"
        yield f"{about.reason}\n"
        yield f"- In the versions: {about.upstream}"
        yield f"- Applies when: {about.precondition}"
        yield f"- Then: {about.end_state}"
        yield f"- Proved by: {about.proof}"
        yield ""


def commands() -> Iterator[str]:
    yield "# commands\n"
    yield "Every command says the same with `--help`.\n"
    for words, command in tree():
        if getattr(command, "commands", None) and not getattr(command, "invoke_without_command", False):
            continue
        yield f"## {words}\n"
        yield from _help(command.help or "")
        yield ""
        rows = list(_options(command))
        if rows:
            yield "| argument or option | meaning |"
            yield "|---|---|"
            yield from rows
            yield ""


def tree() -> Iterator[tuple[str, Command]]:
    """Every command with its words, `opsctl health explain`, groups before what is in them."""
    from opsctl.cli import main

    def walk(words: str, command: Command) -> Iterator[tuple[str, Command]]:
        yield words, command
        for name, below in (getattr(command, "commands", None) or {}).items():
            yield from walk(f"{words} {name}", below)

    for name, entry in main.COMMANDS.items():
        yield from walk(f"opsctl {name}", main.load(name, entry))


def _help(text: str) -> Iterator[str]:
    """Help text as Markdown: indented lines are commands."""
    for paragraph in (inspect.cleandoc(part) for part in inspect.cleandoc(text).split("\n\n")):
        example = re.fullmatch(r"(?:Example: )?(opsctl .*)", paragraph, re.S)
        if example:
            yield f"```\n{' '.join(example[1].split())}\n```\n"
        elif paragraph not in ("Example:", "Examples:"):
            yield paragraph + "\n"


def _options(command: Command) -> Iterator[str]:
    for one in command.params:
        if one.name in ("help", "install_completion", "show_completion"):
            continue
        names = [*one.opts, *one.secondary_opts] if one.opts[0].startswith("-") else [_metavar(one)]
        about = _cell(getattr(one, "help", None) or "")
        yield f"| {', '.join(f'`{name}`' for name in names)}{' (required)' if one.required else ''} | {about} |"


_TYPES = (
    (r"Literal\[(.*?)\]", r"one of \1"),
    (r"tuple\[(.*), \.\.\.\]", r"list of \1"),
    (r"dict\[str, (\w+)\]", r"mapping to \1"),
    (r"\bstr\b", "text"),
    (r"\bint\b", "whole number"),
    (r"\bfloat\b", "number"),
    (r"\bbool\b", "true or false"),
    (r"\bAny\b", "anything"),
    (r"\bProblem\b", "{message, where, file, line, column, hint}"),
    (r"\bFileDiff\b", "{path, before, after}"),
    (r" \| None", " or null"),
)


def _json_type(annotation: str) -> str:
    """The annotation of an event's field in the words of JSON."""
    from typing import get_args

    from opsctl.engine.events import HostStatus, Status

    for name, kind in (("HostStatus", HostStatus), ("Status", Status)):
        if annotation == name:
            return "one of " + ", ".join(get_args(kind))
    for pattern, words in _TYPES:
        annotation = re.sub(pattern, words, annotation)
    return _cell(annotation.replace("'", ""))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _metavar(one: object) -> str:
    return str(getattr(one, "metavar", None) or getattr(one, "name", "")).strip("[]{}").upper()


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "events": events,
    "health-checks": health_checks,
    "patches": patches,
}
