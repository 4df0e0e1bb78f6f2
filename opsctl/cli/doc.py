"""`opsctl doc` and `opsctl schema`: modules, keys, commands and formats, from the models and commands themselves.

The reference pages of the site and the manual page are made of the same.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opsctl import __version__
from opsctl.errors import Exit, UsageError
from opsctl.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typer.core import TyperCommand, TyperGroup

    Command = TyperCommand | TyperGroup

app, schema_app = typer.Typer(), typer.Typer()


@app.command()
def doc(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="A module, or one of the topics that are listed without it; `man`: the manual page.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Modules, and the keys of playbooks and inventories. Without a topic: all modules.

    Examples:

      opsctl doc copy

      opsctl doc sglang
    """
    from opsctl import modules

    if topic is None:
        about = {name: summary(modules.get(name)) for name in modules.names()}
        if as_json:
            typer.echo(json.dumps({"modules": about, "topics": sorted([*_models(), *_others()])}, indent=2))
            return
        width = max(map(len, about))
        for name, line in about.items():
            typer.echo(f"{name:<{width}}  {line}")
        typer.echo(f"\nopsctl doc MODULE says more; other topics: {', '.join([*_models(), *_others()])}")
        return
    if topic == "man":
        typer.echo(manual(), nl=False)
        return
    typer.echo(json.dumps(as_data(topic), indent=2, default=str) if as_json else "\n".join(page(topic)))


def summary(module: Any) -> str:
    """The first line of a module's documentation."""
    return (inspect.getdoc(type(module)) or "").partition("\n")[0]


def page(topic: str) -> Iterator[str]:
    """The documentation of a topic as lines of Markdown. Raises UsageError."""
    from opsctl import modules

    if topic in _others():
        yield from _others()[topic]()
        return
    if topic in modules.names():
        module = modules.get(topic)
        yield f"# {topic}\n"
        yield inspect.getdoc(type(module)) or ""
        if module.free_form:
            yield f"\n`{topic}: ...` with a bare value sets `{module.free_form}`."
        yield "\n## Arguments\n"
        yield from _fields(module.args)
        if module.examples.strip():
            yield "\n## Examples\n"
            yield "```yaml\n" + module.examples.strip("\n") + "\n```"
        return
    model = _model(topic)
    yield f"# {topic}\n"
    yield inspect.getdoc(model) or ""
    yield ""
    yield from _fields(model)


def as_data(topic: str) -> dict[str, Any]:
    """The documentation of a topic as JSON data. Raises UsageError."""
    from opsctl import modules

    if topic in modules.names():
        module = modules.get(topic)
        return {
            "name": topic, "about": inspect.getdoc(type(module)), "free_form": module.free_form,
            "arguments": _rows(module.args), "examples": module.examples,
        }  # fmt: skip
    model = _model(topic)
    return {"name": topic, "about": inspect.getdoc(model), "keys": _rows(model)}


def _models() -> dict[str, type[BaseModel]]:
    from opsctl.engine import model
    from opsctl.inventory import model as inventory

    return {
        "play": model.PlayKeys, "task": model.TaskKeys, "block": model.BlockKeys, "include": model.IncludeKeys,
        "gate": model.Gate, "param": model.Param, "host": inventory.Settings, "group": inventory.Group,
        "sglang": inventory.SglangSettings, "ssh": inventory.Ssh, "timeouts": inventory.Timeouts,
    }  # fmt: skip


def _others() -> dict[str, Callable[[], Iterator[str]]]:
    return {"lint": _lint, **PAGES}


def _lint() -> Iterator[str]:
    from opsctl.engine.lint import RULES

    yield "# lint\n"
    yield from (f"- `{rule.name}`: {rule.about}" for rule in RULES)


def _model(topic: str) -> type[BaseModel]:
    from opsctl import modules

    try:
        return _models()[topic]
    except KeyError:
        valid = [*modules.names(), *_models(), *_others(), "man"]
        raise UsageError(f"there is nothing about {topic!r}", hint=did_you_mean(topic, valid)) from None


def _fields(model: type[BaseModel]) -> Iterator[str]:
    for row in _rows(model):
        extra = "required" if row["required"] else f"default: {json.dumps(row['default'], default=str)}"
        yield f"- `{row['name']}` ({row['type']}; {extra})" + (f": {row['about']}" if row["about"] else "")


def _rows(model: type[BaseModel]) -> list[dict[str, Any]]:
    return [
        {
            "name": info.alias or name,
            "type": _type(info.annotation),
            "required": info.is_required(),
            "default": None if info.is_required() else info.get_default(call_default_factory=True),
            "about": info.description or "",
        }
        for name, info in model.model_fields.items()
    ]


def _type(annotation: Any) -> str:
    """An annotation in the words of YAML."""
    import types
    import typing

    from opsctl.secret import Secret

    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(a) for a in args if a is not type(None)))
    if origin is typing.Literal:
        return " or ".join(map(str, args))
    if origin is typing.Annotated:
        return _type(args[0])
    if origin in (list, tuple):
        return f"list of {_type(args[0])}" if args else "list"
    if origin is dict:
        return "mapping"
    words = {str: "text", int: "whole number", float: "number", bool: "true or false", list: "list", dict: "mapping",
             Secret: "secret", Any: "anything"}  # fmt: skip
    return words.get(annotation, "mapping" if inspect.isclass(annotation) else str(annotation))


@schema_app.command()
def schema(
    what: Annotated[
        Literal["playbook", "inventory", "patch"], typer.Argument(help="Of which kind of file.")
    ] = "playbook",
) -> None:
    """JSON Schema of playbooks, inventories and end-state patches, for editors with a YAML language server.

    Example: opsctl schema playbook > .vscode/opsctl-playbook.json
    """
    from opsctl.engine import schema as schemas

    kinds = {"playbook": schemas.playbook, "inventory": schemas.inventory, "patch": schemas.patch}
    typer.echo(json.dumps(kinds[what](), indent=2))


def exit_codes() -> Iterator[str]:
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


def manual() -> str:
    """The page in roff, for `man`."""
    return "\n".join(_manual()) + "\n"


def _manual() -> Iterator[str]:
    yield f'.TH OPSCTL 1 "" "opsctl {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "opsctl \\- serve large models with SGLang and EAGLE-3 on GPU hosts reached by SSH"
    yield ".SH SYNOPSIS"
    yield ".B opsctl"
    yield "COMMAND [OPTIONS] [ARGUMENTS]"
    yield ".SH COMMANDS"
    for words, command in tree():
        yield f".SS {_roff(words.removeprefix('opsctl '))}"
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            example = paragraph.strip().startswith("opsctl ")
            yield from (
                [".RS", _roff(paragraph.strip()), ".RE"] if example else [".PP", _roff(" ".join(paragraph.split()))]
            )
        for one in command.params:
            about = getattr(one, "help", None)
            if about and one.name != "help" and one.opts[0].startswith("-"):
                yield ".TP"
                yield f"\\fB{_roff(', '.join([*one.opts, *one.secondary_opts]))}\\fR"
                yield _roff(about)
    yield ".SH EXIT STATUS"
    for code in Exit:
        yield f".TP\n{int(code)}\n{code.name.lower().replace('_', ' ')}"
    yield ".SH ENVIRONMENT"
    yield ".TP\nOPSCTL_INVENTORY\nThe inventory, where \\-i does not name one."
    yield ".TP\nOPSCTL_OUTPUT, OPSCTL_SUMMARY\nDefaults of \\-\\-output and \\-\\-summary, for CI."
    yield ".TP\nOPSCTL_API_KEY\nAPI key of the server, where the inventory does not name one."


def _roff(text: str) -> str:
    """Text that roff takes for nothing but text."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
