"""`opsctl drafter`: check, compare and convert EAGLE-3 draft models."""

from __future__ import annotations

import json
from typing import Any

import typer

from opsctl.errors import Exit, UsageError

app = typer.Typer(no_args_is_help=True, help="Check, compare, convert and stage EAGLE-3 draft models.")

_JSON = typer.Option(False, "--json", help="Print one JSON object.")
_LINKS = typer.Option(
    False, "--follow-links", help="Follow symbolic links out of the folder (a Hugging Face cache has them)."
)


@app.command()
def check(
    path: str = typer.Argument(help="The drafter's folder."),
    target: str = typer.Option(None, "--target", help="The target model's folder, for its config.json."),
    sglang: str = typer.Option(None, "--sglang", help="SGLang versions, as 0.5.9,0.5.12. Default: all known ones."),
    tp: int = typer.Option(8, "--tp", min=1, max=1024, help="Tensor-parallel size."),
    context_length: int = typer.Option(
        None, "--context-length", min=1, help="Context length of the server. Default: the target's."
    ),
    full: bool = typer.Option(False, "--full", help="Read every byte for NaN and zeros, not samples."),
    follow_links: bool = _LINKS,
    as_json: bool = _JSON,
) -> int:
    """Say whether a drafter fits, in a second: what is wrong, what will be seen, and what to do."""
    from opsctl.drafter.case import Case, Serving
    from opsctl.drafter.folder import open_folder, read_config
    from opsctl.drafter.judge import judge
    from opsctl.drafter.versions import parse_list
    from opsctl.drafter.view import COLOURS, lines

    versions = parse_list(sglang)
    known = read_config(target) if target is not None else None
    folder = open_folder(path, full=full, follow_links=follow_links)
    judgement = judge(Case(folder, known, Serving(tp=tp, context_length=context_length)), versions)
    if as_json:
        _print_json(judgement.as_json())
    else:
        for line, verdict in lines(judgement):
            typer.secho(line, fg=COLOURS[verdict] if verdict else None)
    return judgement.exit_code


@app.command()
def compare(
    a: str = typer.Argument(help="A drafter's folder."),
    b: str = typer.Argument(help="Another one's."),
    freq: str = typer.Option(None, "--freq", help='Token frequencies of your traffic: JSON, {"token id": count}.'),
    specials: str = typer.Option(None, "--specials", help='Special tokens to look for: JSON, {"name": token id}.'),
    top: int = typer.Option(10, "--top", min=0, max=1000, help="How many uncovered tokens to list."),
    follow_links: bool = _LINKS,
    as_json: bool = _JSON,
) -> int:
    """Compare two drafters: same mapping, same weights, which traffic they cover."""
    from opsctl.drafter.compare import compare_folders, read_table
    from opsctl.drafter.folder import open_folder

    counts = read_table(freq) if freq else None
    names = read_table(specials) if specials else None
    found = compare_folders(
        open_folder(a, follow_links=follow_links),
        open_folder(b, follow_links=follow_links),
        counts=counts,
        specials=names,
        top=top,
    )
    if as_json:
        _print_json(found.as_json())
    else:
        for line in found.lines():
            typer.echo(line)
    return Exit.DONE


@app.command()
def convert(
    source: str = typer.Argument(help="The drafter's folder. It is only read."),
    destination: str = typer.Argument(help="The new folder. It must not exist."),
    to: str = typer.Option(..., "--to", help="sglang or speculators."),
    target: str = typer.Option(None, "--target", help="The target model's folder, for vocabulary and dtype."),
    as_json: bool = _JSON,
) -> int:
    """Write a drafter in another layout, when the facts allow it."""
    from opsctl.drafter.convert import LAYOUTS, convert_folder
    from opsctl.drafter.folder import read_config
    from opsctl.text import did_you_mean

    if to not in LAYOUTS:
        raise UsageError(f"unknown layout {to!r}", where="--to", hint=did_you_mean(to, LAYOUTS))
    known = read_config(target) if target is not None else None
    done = convert_folder(source, destination, to, known)
    if as_json:
        _print_json(done.as_json())
    else:
        for line in done.lines():
            typer.echo(line)
    return done.exit_code


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))
