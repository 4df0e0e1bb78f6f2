"""`opsctl drafter`: check, compare, convert and stage EAGLE-3 draft models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import As, Asked, InventoryOption, JunitOption, OutputOption, SummaryOption, runs
from opsctl.cli.playing import play
from opsctl.cli.reporting import Reporting
from opsctl.errors import Exit, UsageError

if TYPE_CHECKING:
    from opsctl.cli.drafter_places import Place, Places
    from opsctl.drafter.case import Case
    from opsctl.drafter.versions import Version
    from opsctl.sglang.diagnosis.drafting import Met

app = typer.Typer(no_args_is_help=True, help="Check, compare, convert and stage EAGLE-3 draft models.")


_JSON = typer.Option(False, "--json", help="Print one JSON object.")
_LINKS = typer.Option(
    False, "--follow-links", help="Follow symbolic links out of the folder (a Hugging Face cache has them)."
)
_VERSIONS = re.compile(r"v?\d+\.\d")
_REFERENCE = re.compile(r"main|master|HEAD|latest|nightly|dev|[0-9a-f]{7,40}")


@app.command()
def check(
    path: str = typer.Argument(help="The drafter's folder: PATH, or HOST:PATH."),
    target: str = typer.Option(
        None, "--target", help="The target model's folder, for its config.json: PATH, or HOST:PATH."
    ),
    sglang: str = typer.Option(
        None, "--sglang", help="SGLang versions, as 0.5.9,0.5.12, or a host that serves. Default: all known versions."
    ),
    host: str = typer.Option(
        None, "--host", "-H", help="The host that is to serve it: version, source, launch settings, target are its own."
    ),
    tp: int = typer.Option(None, "--tp", min=1, max=1024, help="Tensor-parallel size. Default: the host's, or 8."),
    context_length: int = typer.Option(
        None, "--context-length", min=1, help="Context length of the server. Default: the host's, or the target's."
    ),
    full: bool = typer.Option(False, "--full", help="Read every byte for NaN and zeros, not samples."),
    follow_links: bool = _LINKS,
    inventory: InventoryOption = None,
    as_json: bool = _JSON,
    output: OutputOption = "human",
    junit: JunitOption = None,
    summary: SummaryOption = None,
) -> int:
    """Say whether a drafter fits, in a second: what is wrong, what will be seen, and what to do."""
    from opsctl.cli.drafter_places import Places, place
    from opsctl.drafter.judge import judge
    from opsctl.drafter.view import COLOURS, lines
    from opsctl.report import drafter_cases
    from opsctl.text import printable

    reporting = Reporting("drafter check", output, junit, summary, as_json)
    with reporting.errors():
        by_version = sglang is not None and (_VERSIONS.match(sglang) is not None or "," in sglang)
        drafter = place(path)
        serving = host or (sglang if not by_version else None) or drafter.host
        if host and sglang and not by_version and sglang != host:
            raise UsageError("--sglang and --host name two hosts", hint="one host serves: give one of them")
        if sglang and not by_version:
            _demand_host(inventory, sglang)
        with Places(inventory) as places:
            met = places.meet(serving, drafter, follow_links=follow_links and not full) if serving else None
            case = _case(places, drafter, target, serving, met, tp, context_length, full, follow_links)
        judgement = judge(case, _versions(sglang if by_version else None, met))
    told = [*met.lines, *(f"not known: {text}" for text in met.unknown)] if met else []

    def tell() -> None:
        if as_json:
            found = judgement.as_json()
            seen = {"host": {"name": serving, "seen": list(map(printable, told))}} if met else {}
            _print_json(found | seen)
            return
        for number, (line, verdict) in enumerate(lines(judgement)):
            typer.secho(line, fg=COLOURS[verdict] if verdict else None)
            if number == 0:
                for text in told:
                    typer.echo(f"  {serving}: {printable(text)}")

    reporting.tell(lambda: drafter_cases.findings(judgement, path, _config(drafter, case)), judgement.exit_code, tell)
    return judgement.exit_code


def _demand_host(inventory: str | None, name: str) -> None:
    """Refuse what --sglang was given, where it is neither a version nor a host: a branch, a commit, a slip."""
    from opsctl.cli.hosts import the_host

    hint = "what a branch or commit does is read where it lies: give the host that serves it, as --host HOST"
    try:
        host = the_host(inventory, name)
    except UsageError as error:
        raise UsageError(
            f"--sglang {name}: neither a release, as 0.5.23, nor a host: {error.message}", hint=hint
        ) from error
    if host.sglang.checkout is None and _REFERENCE.fullmatch(name):  # without an inventory any name is a host's
        raise UsageError(f"--sglang {name}: a branch or commit is not a release, as 0.5.23 is", hint=hint)


def _config(drafter: Place, case: Case) -> str | None:
    """Text of the drafter's config.json, to point at its lines; None where the folder is on a host."""
    if drafter.host:
        return None
    if case.folder.raw_config is None:  # not there, or not to be read
        return ""
    return (Path(drafter.path) / "config.json").read_text("utf-8", "replace")


def _case(
    places: Places,
    drafter: Place,
    target: str | None,
    serving_host: str | None,
    met: Met | None,
    tp: int | None,
    context_length: int | None,
    full: bool,
    follow_links: bool,
) -> Case:
    """What was asked: given options win over what the host says."""
    from dataclasses import replace

    from opsctl.cli.drafter_places import Place, place
    from opsctl.drafter.case import Case, Serving
    from opsctl.drafter.embedding import compared
    from opsctl.drafter.folder import open_folder, read_config

    known = met.target if met else None
    at = place(target) if target is not None else None
    if at is not None:
        known = read_config(at.path, places.reader(at))
    elif met and met.target_path and serving_host:
        at = Place(serving_host, met.target_path)
    folder = met.drafter if met else None
    if folder is None or full:
        there = drafter.host is not None
        folder = open_folder(drafter.path, places.reader(drafter), full=full, follow_links=follow_links, there=there)
    serving = met.serving if met else Serving()
    serving = replace(
        serving,
        tp=serving.tp if tp is None else tp,
        context_length=serving.context_length if context_length is None else context_length,
    )
    likeness = compared(folder, places.reader(drafter), at.path, places.reader(at)) if at is not None else None
    return Case(folder, known, serving, likeness)


def _versions(given: str | None, met: Met | None) -> tuple[Version, ...]:
    from opsctl.drafter.versions import parse_list

    return met.versions if met and given is None else parse_list(given)


@app.command()
def compare(
    a: str = typer.Argument(help="A drafter's folder: PATH, or HOST:PATH."),
    b: str = typer.Argument(help="Another one's."),
    freq: str = typer.Option(None, "--freq", help='Token frequencies of your traffic: JSON, {"token id": count}.'),
    specials: str = typer.Option(None, "--specials", help='Special tokens to look for: JSON, {"name": token id}.'),
    top: int = typer.Option(10, "--top", min=0, max=1000, help="How many uncovered tokens to list."),
    follow_links: bool = _LINKS,
    inventory: InventoryOption = None,
    as_json: bool = _JSON,
) -> int:
    """Compare two drafters: same mapping, same weights, which traffic they cover."""
    from opsctl.cli.drafter_places import Places, place
    from opsctl.drafter.compare import compare_folders, read_table
    from opsctl.drafter.folder import open_folder

    counts = read_table(freq) if freq else None
    names = read_table(specials) if specials else None
    first, second = place(a), place(b)
    with Places(inventory) as places:
        read_a, read_b = places.reader(first), places.reader(second)
        found = compare_folders(
            open_folder(first.path, read_a, follow_links=follow_links),
            open_folder(second.path, read_b, follow_links=follow_links),
            counts=counts,
            specials=names,
            top=top,
            read=read_a,
            read_b=read_b,
        )
    if as_json:
        _print_json(found.as_json())
    else:
        for line in found.lines():
            typer.echo(line)
    return Exit.DONE


@app.command()
@runs(
    "stage-drafter",
    {"accept_findings": As("--force", "FINDING"), "keep": As(min=0)},
    hidden=("drafter", "there", "source"),
)
def stage(
    asked: Asked,
    path: Annotated[
        str,
        typer.Argument(
            help="The drafter's folder: PATH, HOST:PATH for one that lies on the host already, an https address, or "
            "ORG/NAME@REVISION of the Hugging Face hub (HF_TOKEN and HF_ENDPOINT count)."
        ),
    ],
) -> int:
    """Bring a drafter to a host as a release, moving only what changed. What is in service stays in service."""
    from opsctl.cli.drafter_places import Place, from_web, place

    web = from_web(path)
    if "fetch_on" in asked.given and not web:
        raise UsageError(f"--fetch-on is for what comes from the web, and {path} is a folder")
    source = place(path) if web is None else Place(None, web)
    if source.host and asked.host and source.host != asked.host:
        raise UsageError(
            f"the folder lies on {source.host}, and --host is {asked.host}",
            hint="copy it here first, then stage it from here",
        )
    params = {"source" if web else "drafter" if source.host is None else "there": source.path}
    if web:
        params["name"] = web.partition("@")[0].rstrip("/").rpartition("/")[2]
    return play(asked.options(limit=source.host or asked.host, params=params), asked.showing)


@app.command()
def convert(
    source: str = typer.Argument(help="The drafter's folder. It is only read."),
    destination: str = typer.Argument(help="The new folder. It must not exist."),
    target: str = typer.Option(
        None, "--target", help="The target model's folder, for vocabulary, dtype and embedding."
    ),
    follow_links: bool = _LINKS,
    as_json: bool = _JSON,
) -> int:
    """Write a drafter of another producer in the layout that SGLang loads, when the facts allow it."""
    from opsctl.cli.drafter_places import place
    from opsctl.drafter.convert import convert_folder
    from opsctl.drafter.folder import read_config

    for folder in filter(None, (source, target)):
        if place(folder).host is not None:
            raise UsageError("conversion is from and to folders of this machine", where=folder,
                             hint="copy it here first, and name the copy")  # fmt: skip
    known = read_config(target) if target is not None else None
    done = convert_folder(source, destination, known, target_path=target, follow_links=follow_links)
    if as_json:
        _print_json(done.as_json())
    else:
        for line in done.lines():
            typer.echo(line)
    return done.exit_code


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))
