"""`opsctl doc`: modules and playbook keys, from the models themselves."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.errors import UsageError
from opsctl.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

app = typer.Typer()


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
        from opsctl.cli.manual import manual

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
    from opsctl.cli.reference import PAGES

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
