"""opsctl source: read an SGLang source tree, here or on a host, without moving it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from opsctl.cli.options import HostOption, InventoryOption
from opsctl.cli.terminal import TERMINAL
from opsctl.errors import Exit
from opsctl.text import one_line, printable
from opsctl.verbs.source import grep as matches
from opsctl.verbs.source import reading

app = typer.Typer(no_args_is_help=True)

TreeOption = Annotated[
    str | None,
    typer.Option(
        "--tree",
        metavar="FOLDER",
        help="Root of a checkout, or the folder that contains sglang/: on this machine, with --host on that host "
        "(default there: its checkout).",
    ),
]
_JSON = typer.Option("--json", help="One JSON object on standard output.")


@app.command()
def facts(
    tree: TreeOption = None,
    host: HostOption = None,
    inventory: InventoryOption = None,
    targets: Annotated[
        list[str] | None, typer.Option("--for-target", metavar="CLASS", help="A target model class; may be repeated.")
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """What the source does with a draft model and a target, each with the lines that prove it."""
    from opsctl.sglang.source import facts as source_facts
    from opsctl.sglang.source.tree import load, unknown_class

    chosen = targets or list(source_facts.DEFAULT_TARGETS)
    with reading(tree, inventory, host, TERMINAL) as (read, root):
        found = load(read, root, chosen)
    for target in targets or ():
        if not found.classes.get(target):
            raise unknown_class(found, target)
    result = source_facts.gather(found, chosen)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    version = str(found.version) or "unknown version"
    typer.echo(printable(f"{found.root}: SGLang {version}, {found.at}"))
    for heading, group in (("", result.draft | result.worker), *result.targets.items()):
        if heading:
            typer.echo(printable(f"\n{heading}"))
        for name, fact in group.items():
            typer.echo(printable(f"{name:18} {fact.value or 'cannot tell':20} {fact.says}"))
            if fact.place:
                typer.echo(printable(f"{'':39} {fact.place}  {one_line(fact.snippet, 90)}"))


@app.command()
def grep(
    pattern: Annotated[str, typer.Argument(help="A regular expression.")],
    tree: TreeOption = None,
    host: HostOption = None,
    inventory: InventoryOption = None,
    globs: Annotated[
        list[str] | None, typer.Option("--glob", help="Only files of this name or path, as in '*eagle*.py'.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Stop after so many lines.")] = 200,
    as_json: Annotated[bool, _JSON] = False,
) -> int:
    """Lines of the source that match a pattern. Exit code 4 if there are none."""
    with reading(tree, inventory, host, TERMINAL) as (read, root):
        found = matches(read, root, pattern, globs or ["*.py"], limit)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for match in found["matches"]:
            typer.echo(printable(f"{match['path']}:{match['line']}: {match['text']}"))
        if found["more"]:
            typer.echo(f"more than {limit} lines match: narrow the pattern, or raise --limit", err=True)
    return Exit.DONE if found["matches"] else Exit.FAILED


@app.command()
def show(
    what: Annotated[list[str], typer.Argument(help="Class, Class.method, function, path.py:line or path.py:from-to.")],
    tree: TreeOption = None,
    host: HostOption = None,
    inventory: InventoryOption = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """A class, a method (followed to the parent that defines it) or lines of a file, with line numbers."""
    from opsctl.sglang.source import show as parts

    with reading(tree, inventory, host, TERMINAL) as (read, root):
        found = parts.show(read, root, what)
    if as_json:
        typer.echo(json.dumps({"parts": [part.to_json() for part in found]}, indent=2))
        return
    for part in found:
        typer.echo(printable(f"{part.file}:{part.first}-{part.last}{f'  ({part.note})' if part.note else ''}"))
        for number, line in enumerate(part.text.split("\n"), part.first):
            typer.echo(printable(f"{number:6}  {line}"))
