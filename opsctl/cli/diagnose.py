"""`opsctl diagnose`: why the acceptance is what it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import HostOption, InventoryOption
from opsctl.cli.terminal import TERMINAL
from opsctl.errors import Exit
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.secret import Secret
    from opsctl.sglang.probe.ledger import Earlier
    from opsctl.verbs.diagnose import Found

_SOURCES = {
    "probe": "the probe",
    "request": "a request of its own",
    "server": "the server's own average",
    "log": "its log",
    "metrics": "its metrics",
}

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def diagnose(
    host: HostOption = None,
    inventory: InventoryOption = None,
    here: Annotated[bool, typer.Option("--here", help="Look at this machine, without a connection.")] = False,
    port: Annotated[int | None, typer.Option(help="Port of the server, where several run.")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="The drafter's folder on the host, if the server is gone.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The target's folder on the host, if the server is gone.")] = None,
    log: Annotated[str | None, typer.Option(help="The server's log on the host, if it is not its output.")] = None,
    probe: Annotated[str | None, typer.Option(metavar="RUN", help="A probe's result, for the measured length.")] = None,
    no_requests: Annotated[
        bool, typer.Option("--no-requests", help="Send no request: judge by what was counted before.")
    ] = False,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPSCTL_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say why the acceptance is what it is: what was looked at, what is ruled out, the cause, and what to do."""
    from opsctl.sglang.diagnosis.gather import Asked
    from opsctl.sglang.diagnosis.hypotheses import to_json
    from opsctl.sglang.probe.ledger import load
    from opsctl.verbs import diagnose as verb
    from opsctl.verbs.hosts import choose_one

    if here:
        drafter, target, log = (path and os.path.abspath(os.path.expanduser(path)) for path in (drafter, target, log))
    asked = Asked(port, drafter, target, log, load(probe) if probe else None, requests=not no_requests)
    key = _key(api_key_env)
    told = verb.diagnose_here(asked, key) if here else verb.diagnose(choose_one(inventory, host), asked, key, TERMINAL)
    found, seen = told.diagnosis, told.seen
    if as_json:
        error = seen.log.first_error if seen.log else None
        more = {
            "first_error": error.document() if error else None,
            "notes": [printable(note) for note in told.notes],
            "earlier": _earlier_json(told.earlier),
        }
        typer.echo(json.dumps(to_json(found) | more))
    else:
        _show(told)
    if seen.log and not seen.log.of_sglang and not found.symptoms:
        return Exit.FOREIGN
    return Exit.DEGRADED if found.cause else Exit.DONE if told.sound else Exit.UNKNOWN


def _key(name: str) -> Secret | None:
    from opsctl.secret import Secret

    value = os.environ.get(name)
    return Secret(value) if value else None


def _earlier_json(earlier: Earlier | None) -> dict[str, Any] | None:
    if earlier is None:
        return None
    entry = earlier.entry
    return {
        "run": entry.run, "when": entry.when.isoformat(), "target": entry.target, "length": entry.accept_length.mean,
        "fell": earlier.fell, "differences": list(earlier.differences),
    }  # fmt: skip


def _told_of(earlier: Earlier) -> Iterator[str]:
    """What the ledger has of the same draft model, for people."""
    entry, differs = earlier.entry, "; ".join(earlier.differences) or "nothing that was looked at"
    version = f", SGLang {entry.server.version}" if entry.server.version else ""
    yield (
        f"earlier      this draft model read {entry.accept_length.mean:.2f} on {entry.when:%Y-%m-%d}, {entry.target}"
        f"{version} (run {entry.run})"
    )
    yield f"             differs from then: {differs}"
    if earlier.fell:
        yield "             it reads less now, measured in the same way: what differs is where to look"
    elif earlier.fell is None:
        yield "             not measured in the same way: `opsctl probe`, then again with --probe RUN, compares them"


def _show(told: Found) -> None:
    from opsctl.sglang.diagnosis.hypotheses import Verdict

    found, seen = told.diagnosis, told.seen
    for note in told.notes:
        typer.echo(f"note: {printable(note)}")
    typer.echo(f"seen: {found.seen or 'no acceptance was measured'}")
    if m := found.measured:
        between = f", truly {m.low:.2f} to {m.high:.2f}" if m.low is not None and m.high is not None else ""
        typer.echo(f"acceptance length {m.length:.2f}{between}, by {_SOURCES[m.source]}")
    if seen.log and (error := seen.log.first_error):
        typer.echo(f"first error in the log: {printable(error.message)}" + (f" ({error.where})" if error.where else ""))
    for j in found.hypotheses:
        if j.verdict is Verdict.CONFIRMED:
            typer.echo(f"confirmed    {j.id}: {j.claim}\n             predicts {j.predicts}")
            for line in (j.seen, *(text for text in j.evidence if text not in j.seen)):
                typer.echo(f"             {printable(line)}")
    for j in found.hypotheses:
        if j.verdict is Verdict.UNDECIDABLE:
            typer.echo(f"undecidable  {j.id}: {j.claim}; {printable(j.seen)}")
    fine = [j.id for j in found.hypotheses if j.fine]
    other = [j.id for j in found.hypotheses if j.verdict is Verdict.RULED_OUT and not j.fine]
    if fine:
        typer.echo(f"OK           {', '.join(fine)}")
    if other:
        typer.echo(f"ruled out    {', '.join(other)}")
    for line in _told_of(told.earlier) if told.earlier else ():
        typer.echo(printable(line))
    if found.cause is None:
        typer.echo("nothing is wrong" if told.sound else "what is wrong, or whether anything is, is not known")
        if found.seen is None and seen.info:
            typer.echo("  → `opsctl probe` measures the acceptance; then again")
        return
    typer.echo(f"cause: {found.cause.claim}")
    typer.echo(f"  → {printable(found.cause.remedy)}")
    typer.echo(f"    brings: {found.cause.effect}")
