"""`opsctl probe`: measure acceptance length, throughput and latency of a running server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import HostOption, InventoryOption, JunitOption, OutputOption, SummaryOption, YesOption
from opsctl.cli.reporting import Reporting
from opsctl.cli.terminal import TERMINAL, clear_progress, write_file
from opsctl.errors import Exit, UsageError
from opsctl.findings import Finding
from opsctl.secret import remember
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.sglang.probe.measure import Plan
    from opsctl.verbs.probe import Outcome

_BAR = 40  # characters of the longest bar

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def probe(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="Address of the server, such as http://127.0.0.1:30000.")] = None,
    host: HostOption = None,
    inventory: InventoryOption = None,
    port: Annotated[int | None, typer.Option(help="With --host: port of the server, where several run.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL file: messages, prompt or input_ids a line.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at a time, one level after the other: 1,4,16.")] = "1",
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, max=2.0, help="Probe once more at this temperature.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="RUN|TPS", help="A probe without speculation, or its tokens/s per request.")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="The model's folder, for servers that do not render messages.")
    ] = None,
    ab: Annotated[
        bool, typer.Option("--ab", help="Measure the baseline too: restart without speculation, measure, put back.")
    ] = False,
    yes: YesOption = False,
    gate: Annotated[list[str] | None, typer.Option(help='Condition that must hold: "accept_length>=3.0".')] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPSCTL_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    output: OutputOption = "human",
    junit: JunitOption = None,
    summary_file: SummaryOption = None,
) -> None:
    """Measure acceptance length, throughput and latency."""
    if context.invoked_subcommand:
        return
    from opsctl.report.pages import probe_page
    from opsctl.sglang.probe.gates import parse_gate
    from opsctl.sglang.probe.probe_result import curve
    from opsctl.verbs import probe as verb

    reporting = Reporting("probe", output, junit, summary_file, as_json)
    with reporting.errors():
        wanted = [parse_gate(text) for text in gate or []]
        known = verb.known_baseline(baseline) if baseline is not None else None
        key = os.environ.get(api_key_env) or None
        remember(key or "")
        done = verb.probe(
            verb.Where(url, inventory, host, port, key),
            _plan(prompts, concurrency, max_tokens, temperature),
            wanted=wanted, baseline=known, template=chat_template, compare=ab, yes=yes, front=TERMINAL,
        )  # fmt: skip
        clear_progress()
    if done is None:
        raise typer.Exit(Exit.INTERRUPTED)
    result, info = done.probed.result, done.probed.measured.info
    if report:
        even, steps = done.probed.summary.break_even, info.speculative_num_steps
        write_file(report, probe_page(result, curve(even, steps + 1) if even and steps else []))

    def tell() -> None:
        if as_json:
            typer.echo(json.dumps(result | {"run": done.run}))
            return
        for line in _lines(done):
            typer.echo(printable(line))
        if done.run:
            typer.echo(f"kept as run {done.run}")

    code = Exit.DONE if done.holds else Exit.GATE
    reporting.tell(lambda: _findings(done), code, tell)
    if code is not Exit.DONE:
        raise typer.Exit(code)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A run's name, or the file of a result.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two results."""
    from opsctl.sglang.probe import ledger

    rows = ledger.compare(ledger.load(a), ledger.load(b))
    if as_json:
        typer.echo(json.dumps({r.name: {"a": r.a, "b": r.b, "clear": r.clear} for r in rows}))
        return
    for r in rows:
        verdict = {True: "  differs", False: "  within the uncertainty", None: ""}[r.clear]
        typer.echo(f"{r.name:32} {_number(r.a):>10} {_number(r.b):>10}{verdict}")


@app.command("list")
def list_(
    host: Annotated[str | None, typer.Option("--host", help="Only of this host or address.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List what was measured before: the ledger of acceptance on this machine, the last first.

    Example: opsctl probe list --host k25
    """
    from opsctl.sglang.probe import ledger

    found, unread = ledger.entries(host)
    if as_json:
        told = [one.model_dump(mode="json") | {"good": one.good} for one in found]
        typer.echo(json.dumps({"entries": told, "unread": unread}))
        return
    for text in unread:
        typer.echo(f"note: {printable(text)}", err=True)
    for one in found:
        length, server = one.accept_length, one.server
        draft = Path(server.draft_model or "no draft model").name
        speed = f"{one.tokens_per_second:.1f} tok/s" if one.tokens_per_second else "-"
        typer.echo(printable(
            f"{one.run}  {one.target}  {length.mean:.2f} ({length.ci95[0]:.2f} to {length.ci95[1]:.2f})  {speed}  "
            f"{draft} for {Path(server.model or '?').name}, SGLang {server.version or '?'}, "
            f"{server.steps}/{server.topk}/{server.draft_tokens}: {one.outcome}"
        ))  # fmt: skip
    if not found:
        typer.echo("nothing was measured yet: opsctl probe measures")


def _plan(prompts: Path | None, concurrency: str, max_tokens: int, temperature: float | None) -> Plan:
    from opsctl.sglang.probe.measure import Plan
    from opsctl.sglang.probe.prompts import built_in, read_prompts

    if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", concurrency):
        raise UsageError(f"not a list of numbers: {concurrency!r}", where="--concurrency", hint="write 1,4,16")
    levels = tuple(dict.fromkeys(int(n) for n in concurrency.split(",")))
    return Plan(read_prompts(prompts) if prompts else built_in(), levels, max_tokens, temperature)


def _lines(done: Outcome) -> Iterator[str]:
    """The result as text for people."""
    result = done.probed.result
    server = result["server"]
    yield f"SGLang {server['version']}, {_speculation(server)}"
    if result["accept_length"]:
        yield from _acceptance(result)
    for level, t in result["throughput"].items():
        yield f"throughput at {level:>3}  {_number(t['per_request'])} tok/s per request, {_number(t['total'])} in total"
    for key, words in (("first_token", "first token"), ("inter_token", "between tokens")):
        if q := result["latency"][key]:
            yield f"{words:18} {q['median']:.1f} ms  (95 %: {q['p95']:.1f}, 99 %: {q['p99']:.1f})"
    if result["cycle_ms"]:
        yield f"verify cycle       {result['cycle_ms']:.1f} ms"
    if sentence := result["break_even_words"]:
        yield sentence
    if result["outputs_agree"]:
        same, of = result["outputs_agree"]
        yield f"greedy output      equal to the baseline's for {same} of {of} prompts"
    for found in result["findings"]:
        yield f"{found['severity']}: {found['message']}"
        if found["hint"]:
            yield f"  → {found['hint']}"
    for gate in done.gates:
        yield f"gate {gate}"


def _findings(done: Outcome) -> list[Finding]:
    """The gates, what was noticed, and the figures. The host's line of the inventory is to blame."""
    place, where = (done.host.place if done.host else None), done.name
    gates = [Finding("gate", "passed" if o.holds else "error", str(o), place, where=where, subject=str(o.gate))
             for o in done.gates]  # fmt: skip
    noticed = [replace(one, where=where, place=place) for one in done.probed.findings]
    return [*gates, *noticed, Finding("measured", "passed", _figures(done.probed.result), where=where)]


def _figures(result: dict[str, Any]) -> str:
    """The two figures that matter, on one line."""
    accept = result["accept_length"]
    parts = [f"acceptance length {accept['mean']:.2f}" if accept else "no speculation"]
    parts += [f"{_number(t['per_request'])} tok/s per request at {level}" for level, t in result["throughput"].items()]
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _speculation(server: dict[str, Any]) -> str:
    if not server["algorithm"]:
        return "no speculation"
    return (
        f"{server['algorithm']}, {server['steps']} steps, top-k {server['topk']}, {server['draft_tokens']} draft tokens"
    )


def _acceptance(result: dict[str, Any]) -> Iterator[str]:
    accept = result["accept_length"]
    low, high = accept["ci95"]
    yield (
        f"acceptance length  {accept['mean']:.2f}  (95 %: {low:.2f} to {high:.2f}, "
        f"{accept['verify_steps']} verify steps, {accept['requests']} answers)"
    )
    yield f"acceptance rate    {_number(result['accept_rate'])}  accepted drafts / proposed drafts"
    if result["accept_rate_in_log"] is not None:
        yield f"  in the log       {_number(result['accept_rate_in_log'])}"
    most = max(accept["histogram"], default=0) or 1
    for n, count in enumerate(accept["histogram"]):
        yield f"  {n} accepted       {'#' * round(_BAR * count / most):{_BAR}} {count}"
    for name, part in result["workloads"].items():
        if part:
            yield f"  {name:16} {part['mean']:.2f}"
    sampled = result["sampled"]
    if sampled and sampled["accept_length"]:
        yield f"  temperature {sampled['temperature']:g}  {sampled['accept_length']['mean']:.2f}"
