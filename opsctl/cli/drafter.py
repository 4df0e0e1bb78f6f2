"""`opsctl drafter` and `opsctl deploy`: check, compare, convert and stage draft models, and put them into service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import As, Asked, InventoryOption, JunitOption, OutputOption, SummaryOption, runs
from opsctl.cli.playing import play
from opsctl.cli.reporting import Reporting
from opsctl.cli.terminal import TERMINAL
from opsctl.errors import Exit, UsageError

if TYPE_CHECKING:
    from opsctl.drafter.case import Case
    from opsctl.findings import Finding
    from opsctl.verbs.drafter import Place

app = typer.Typer(no_args_is_help=True, help="Check, compare, convert and stage EAGLE-3 draft models.")
deploy = typer.Typer(no_args_is_help=True, help="Put a draft model into service, measured and undoable.")


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
    from opsctl.drafter.findings import findings
    from opsctl.drafter.versions import parse_list
    from opsctl.drafter.view import COLOURS, lines
    from opsctl.text import printable
    from opsctl.verbs import drafter as verb

    reporting = Reporting("drafter check", output, junit, summary, as_json)
    with reporting.errors():
        by_version = sglang is not None and (_VERSIONS.match(sglang) is not None or "," in sglang)
        drafter = verb.place(path)
        serving = host or (sglang if not by_version else None) or drafter.host
        if host and sglang and not by_version and sglang != host:
            raise UsageError("--sglang and --host name two hosts", hint="one host serves: give one of them")
        if sglang and not by_version:
            _demand_host(inventory, sglang)
        asked = verb.Serving(serving, parse_list(sglang) if by_version else (), target, tp, context_length)
        judgement, met = verb.check(
            path, asked, inventory=inventory, full=full, follow_links=follow_links, front=TERMINAL
        )
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

    def found() -> list[Finding]:
        return findings(judgement, path, _config(drafter, judgement.case))

    reporting.tell(found, judgement.exit_code, tell)
    return judgement.exit_code


def _demand_host(inventory: str | None, name: str) -> None:
    """Refuse what --sglang was given, where it is neither a version nor a host: a branch, a commit, a slip."""
    from opsctl.verbs.hosts import choose_one

    hint = "what a branch or commit does is read where it lies: give the host that serves it, as --host HOST"
    try:
        host = choose_one(inventory, name)
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
    from opsctl.drafter.compare import read_table
    from opsctl.verbs.drafter import compare as verb

    counts = read_table(freq) if freq else None
    names = read_table(specials) if specials else None
    found = verb(
        a, b, counts=counts, specials=names, top=top, inventory=inventory, follow_links=follow_links, front=TERMINAL
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
    from opsctl.verbs.drafter import Place, from_web, place

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


@deploy.callback()
def _deploy() -> None:
    pass


@deploy.command("drafter")
@runs(
    "deploy-drafter",
    {"accept_findings": As("--accept", "FINDING"), "min_accept_length": As(min=1.0)},
)
def deploy_drafter(asked: Asked) -> int:
    """Check a draft model, stage it, restart with it, measure it, and take it back if it does not serve well.

    Examples:

      opsctl deploy drafter ./my-drafter --host k25 --check

      opsctl deploy drafter ./my-drafter --host k25 --min-accept-length 2.5
    """
    return play(asked.options(), asked.showing)


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
    from opsctl.drafter.convert import convert_folder
    from opsctl.drafter.folder import read_config
    from opsctl.verbs.drafter import place

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
