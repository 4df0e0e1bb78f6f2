"""`opsctl probe`: measure acceptance length, throughput and latency of a running server."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import HostOption, InventoryOption, JunitOption, OutputOption, SummaryOption, YesOption
from opsctl.cli.reporting import Reporting
from opsctl.errors import Exit, UsageError
from opsctl.secret import remember
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.findings import Finding
    from opsctl.sglang.probe.chat_template import ChatTemplate
    from opsctl.sglang.probe.measure import Plan, Progress
    from opsctl.sglang.probe.probe_result import Baseline
    from opsctl.sglang.server.served import ServerInfo

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
    from opsctl.cli import probe_ab, probe_view
    from opsctl.cli.probe_target import reached_at
    from opsctl.report import probe_cases
    from opsctl.report.probe_page import probe_page
    from opsctl.sglang.probe import gates, probe_store
    from opsctl.sglang.probe.measure import measure
    from opsctl.sglang.probe.probe_findings import findings
    from opsctl.sglang.probe.probe_result import curve, summarise, to_json, words

    reporting = Reporting("probe", output, junit, summary_file, as_json)
    with reporting.errors():
        wanted = [gates.parse_gate(text) for text in gate or []]
        known = _baseline(baseline)
        plan = _plan(prompts, concurrency, max_tokens, temperature)
        key = os.environ.get(api_key_env) or None
        remember(key or "")
        if ab:
            probe_ab.check(url, baseline)
        with reached_at(url, inventory, host, port, key, max(plan.concurrency)) as reached:
            info = reached.server.info()
            template = _template(chat_template, info, reached.read)
            if ab:
                probe_ab.consent(info, reached.name, yes=yes)
            measured = measure(reached.server, info, plan, template, _progress())
            if ab:
                with probe_ab.without_speculation(reached) as plain:
                    known = probe_ab.baseline(plain, plan, template, reached.name, _progress())
    summary = summarise(measured, known)
    with_key = bool(key or (reached.host and reached.host.sglang.api_key))
    noticed = findings(measured, summary, with_key=with_key, simulated=reached.simulated)
    result = to_json(measured, summary) | {"target": reached.name, "findings": [_finding_json(f) for f in noticed]}
    outcomes = gates.judge(wanted, result)
    result["gates"] = [{"gate": str(o.gate), "value": o.value, "holds": o.holds} for o in outcomes]
    try:
        run = probe_store.keep(result, reached.name)
    except OSError as error:  # the figures are worth more than keeping them
        run = None
        typer.echo(f"warning: the result could not be kept: {error}", err=True)
    if report:
        even, steps = summary.break_even, info.speculative_num_steps
        _write(report, probe_page(result, curve(even, steps + 1) if even and steps else []))

    def tell() -> None:
        if as_json:
            typer.echo(json.dumps(result | {"run": run}))
            return
        sentence = words(summary, measured.info.speculative_num_steps)
        for line in probe_view.lines(result, sentence, noticed, outcomes):
            typer.echo(printable(line))
        if run:
            typer.echo(f"kept as run {run}")

    code = Exit.DONE if all(o.holds for o in outcomes) else Exit.GATE
    at = reached.host.place if reached.host else None
    reporting.tell(
        lambda: probe_cases.findings(reached.name, probe_view.figures(result), noticed, outcomes, at), code, tell
    )
    if code is not Exit.DONE:
        raise typer.Exit(code)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A run's name, or the file of a result.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two results."""
    from opsctl.cli import probe_view
    from opsctl.sglang.probe import probe_store

    rows = probe_store.compare(probe_store.load(a), probe_store.load(b))
    if as_json:
        typer.echo(json.dumps({r.name: {"a": r.a, "b": r.b, "clear": r.clear} for r in rows}))
        return
    for r in rows:
        verdict = {True: "  differs", False: "  within the uncertainty", None: ""}[r.clear]
        typer.echo(f"{r.name:32} {probe_view.number(r.a):>10} {probe_view.number(r.b):>10}{verdict}")


def _plan(prompts: Path | None, concurrency: str, max_tokens: int, temperature: float | None) -> Plan:
    from opsctl.sglang.probe.measure import Plan
    from opsctl.sglang.probe.prompts import built_in, read_prompts

    if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", concurrency):
        raise UsageError(f"not a list of numbers: {concurrency!r}", where="--concurrency", hint="write 1,4,16")
    levels = tuple(dict.fromkeys(int(n) for n in concurrency.split(",")))
    return Plan(read_prompts(prompts) if prompts else built_in(), levels, max_tokens, temperature)


def _baseline(text: str | None) -> Baseline | None:
    from opsctl.sglang.probe import probe_store
    from opsctl.sglang.probe.probe_result import Baseline

    if text is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", text) and not Path(text).exists() and float(text) < 1e6:
        if float(text) == 0:
            raise UsageError("a baseline of 0 tokens/s", where="--baseline")
        return Baseline(float(text))
    result = probe_store.load(text)
    if result["accept_length"] is not None:
        raise UsageError(
            f"{text} was measured with speculation", where="--baseline", hint="name a probe of a server without it"
        )
    first: dict[str, Any] = next(iter(result["throughput"].values()), {})
    if not first.get("per_request"):
        raise UsageError(f"{text} holds no tokens/s", where="--baseline")
    return Baseline(first["per_request"], tuple(result.get("outputs", {}).items()))


def _template(given: Path | None, info: ServerInfo, read: Callable[[str], str | None]) -> ChatTemplate | None:
    """The template of the folder that was named, else of the model's own folder where it can be read."""
    from opsctl.cli.probe_target import read_here
    from opsctl.sglang.probe.chat_template import read_template

    if given:
        found = read_template(lambda name: read_here(str(given / name)))
        if not found:
            raise UsageError(f"no chat template in {given}", where="--chat-template")
        return found
    folder = info.tokenizer_path or info.model_path
    return read_template(lambda name: read(f"{folder}/{name}")) if folder else None


def _progress() -> Callable[[Progress], None] | None:
    """A line on stderr that is rewritten; nothing when nobody watches."""
    if not sys.stderr.isatty():
        return None

    def told(p: Progress) -> None:
        end = "\n" if p.done == p.of else ""
        line = f"\r{p.done}/{p.of} answers, {p.concurrency} at a time, {p.verify_steps} verify steps"
        typer.echo(line + end, err=True, nl=False)

    return told


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the report: {error}", where=str(path)) from None


def _finding_json(f: Finding) -> dict[str, str]:
    from opsctl.sglang.probe.probe_findings import word

    return {"id": f.id, "severity": word(f.level), "message": printable(f.message), "hint": f.remedy}
