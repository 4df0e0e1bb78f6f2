"""opsctl source: read an SGLang source tree without moving it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from opsctl.text import one_line, printable

app = typer.Typer(no_args_is_help=True)

_TREE = typer.Option("--tree", help="Root of an SGLang checkout, or the folder that contains sglang/.")
_JSON = typer.Option("--json", help="One JSON object on standard output.")


@app.command()
def facts(
    tree: Annotated[Path, _TREE],
    targets: Annotated[
        list[str] | None, typer.Option("--for-target", metavar="CLASS", help="A target model class; may be repeated.")
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """What the source does with a draft model and a target, each with the lines that prove it."""
    from opsctl.sglang import facts as source_facts
    from opsctl.sglang.tree import here, load, unknown_class

    chosen = targets or list(source_facts.DEFAULT_TARGETS)
    found = load(here, str(tree), chosen)
    for target in targets or ():
        if not found.classes.get(target):
            raise unknown_class(found, target)
    result = source_facts.gather(found, chosen)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    version = str(found.version) or "unknown version"
    typer.echo(printable(f"{found.root}: SGLang {version}{f', commit {found.commit}' if found.commit else ''}"))
    for heading, group in (("", result.draft), *result.targets.items()):
        if heading:
            typer.echo(printable(f"\n{heading}"))
        for name, fact in group.items():
            typer.echo(printable(f"{name:18} {fact.value or 'cannot tell':20} {fact.says}"))
            if fact.place:
                typer.echo(printable(f"{'':39} {fact.place}  {one_line(fact.snippet, 90)}"))


@app.command()
def grep(
    pattern: Annotated[str, typer.Argument(help="A regular expression.")],
    tree: Annotated[Path, _TREE],
    globs: Annotated[
        list[str] | None, typer.Option("--glob", help="Only files of this name or path, as in '*eagle*.py'.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Stop after so many lines.")] = 200,
    as_json: Annotated[bool, _JSON] = False,
) -> int:
    """Lines of the source that match a pattern. Exit code 4 if there are none."""
    from opsctl.agent.protocol import AgentError, Call
    from opsctl.errors import Exit, UsageError
    from opsctl.sglang.tree import here

    arguments = {"root": str(tree), "pattern": pattern, "globs": globs or ["*.py"], "limit": limit}
    try:
        found = here(Call("source.grep", arguments)).result
    except AgentError as error:
        raise UsageError(error.message) from error
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
    tree: Annotated[Path, _TREE],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """A class, a method (followed to the parent that defines it) or lines of a file, with line numbers."""
    from opsctl.sglang import show as parts
    from opsctl.sglang.tree import here

    found = parts.show(here, str(tree), what)
    if as_json:
        typer.echo(json.dumps({"parts": [part.to_json() for part in found]}, indent=2))
        return
    for part in found:
        typer.echo(printable(f"{part.file}:{part.first}-{part.last}{f'  ({part.note})' if part.note else ''}"))
        for number, line in enumerate(part.text.split("\n"), part.first):
            typer.echo(printable(f"{number:6}  {line}"))
