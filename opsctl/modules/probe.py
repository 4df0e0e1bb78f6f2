"""How well a server speculates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from opsctl.errors import Lost, RemoteError, Unreachable
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.sglang.probe import ledger
from opsctl.sglang.probe import measure as probing
from opsctl.sglang.probe.on_host import concluded, process_on, reader, template_of
from opsctl.sglang.probe.probe_findings import word
from opsctl.sglang.probe.prompts import built_in, read_prompts
from opsctl.sglang.server.api import Server
from opsctl.text import one_line, printable
from opsctl.wire.host import Host

_ABSENT = ("refused", "not-found")  # kinds of error that mean: no server of SGLang answers on this port


class ProbeArgs(ModuleArgs):
    port: int | None = Field(None, description="Port of the server; default: the one in the host's sglang section.")
    prompts: str | None = Field(None, description="JSONL file of prompts; default: the built-in ones.")
    concurrency: list[int] = Field([1], min_length=1, description="Requests at a time, one level after the other.")
    max_tokens: int = Field(128, ge=2, description="Longest answer, in tokens.")
    patience: float = Field(60.0, gt=0, description="Seconds after which enough has been measured.")
    if_serving: bool = Field(
        False, description="Measure for comparison only: no server, or one without speculation, is no failure."
    )
    compare_with: dict[str, Any] | None = Field(None, description="An earlier result of this module.")


class Probe(Action[ProbeArgs]):
    """Measure acceptance length, acceptance rate and speed of the running server.

    Acceptance is counted from the server's own counters of each request, at temperature 0. What was measured can be
    used in gates, unless `if_serving` says that it is for comparison only.
    """

    name = "probe"
    args = ProbeArgs
    read_only = True
    measures: ClassVar[tuple[str, ...]] = ("accept_length", "accept_rate", "tokens_per_second")
    examples = """
- name: How well does it speculate?
  when: false
  probe: {max_tokens: 64}
  register: measured
"""

    def reads_only(self, args: ProbeArgs) -> bool:
        # What is in service can be measured in check mode; what the play is going to start cannot.
        return args.if_serving

    def run(self, args: ProbeArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        prompts = read_prompts(site.find("files", args.prompts)) if args.prompts else built_in()
        plan = probing.Plan(prompts, tuple(args.concurrency), args.max_tokens, patience=args.patience)
        port = args.port or site.sglang.port
        with host.http(port) as http:
            server = Server(http, site.sglang.api_key)
            try:
                info = server.info()
            except Lost:
                raise
            except Unreachable as error:
                return _nothing(args, error.message)
            except RemoteError as error:
                if error.kind not in _ABSENT:
                    raise
                return _nothing(args, error.message)
            if info.skip_tokenizer_init and args.if_serving and not args.prompts:
                return _nothing(args, "the server takes token ids only")
            template = template_of(info, reader(host))
            measured = probing.measure(server, info, plan, template, _told(progress))
        found = concluded(measured, site.host, process_on(host, port), with_key=site.sglang.api_key is not None)
        told = outcome(args, found.result, [f"{word(f.level)}: {printable(f.message)}" for f in found.findings])
        # What is in service already does not depend on how the play ends.
        of_itself = "measured" if args.if_serving else None
        return replace(told, at_end=lambda ended: ledger.keep(found.result, site.host, of_itself or ended))


def outcome(args: ProbeArgs, result: dict[str, Any], noticed: list[str]) -> Outcome:
    """What the play gets of a probe's result, the object of `opsctl probe --json`."""
    figures = _figures(result)
    length = figures.get("accept_length")
    if length is None and not args.if_serving:
        return Outcome(
            {"serving": True, **figures},
            failed="the server runs without speculation: there is no acceptance length to measure",
            hint="`opsctl server status` shows its launch flags; --speculative-algorithm is missing there",
        )
    good, words = (None, []) if args.if_serving else _last_good(result)
    return Outcome(
        values={"serving": True, **figures, "at_least": good.at_least if good else ledger.ACCEPTED, "probe": result},
        measures={} if args.if_serving else figures,
        lines=(*_lines(figures, result, args.compare_with), *words, *(line for line in noticed if not _is_note(line))),
        details=tuple(filter(_is_note, noticed)),
    )


def _last_good(result: dict[str, Any]) -> tuple[ledger.Entry | None, list[str]]:
    """What the ledger has for a server like this one, and what is to be said of that."""
    now = ledger.entry(result)
    if now is None:
        return None, []
    kept, unread = ledger.entries()
    good = ledger.last_good(now, kept)
    if good is None:
        words = f"the ledger has no good measurement like this one: at least {ledger.ACCEPTED:g} counts as accepted"
    else:
        words = (
            f"last good of {one_line(good.target, 60)}: {good.accept_length.mean:.2f} on {good.when:%Y-%m-%d}, "
            f"run {good.run}; {ledger.MARGIN:.0%} less is {good.at_least:.2f}"
        )
    return good, [words, *(f"the ledger: {text}" for text in unread)]


def _is_note(line: str) -> bool:
    """Whether it is for those who want to understand the figures, not for those who act on them."""
    return line.startswith("note: ")


def _figures(result: dict[str, Any]) -> dict[str, float]:
    """The measures that there are: acceptance length, rate, and tokens/s of one request at the first concurrency."""
    first: dict[str, Any] = next(iter(result["throughput"].values()), {})
    found = {
        "accept_length": (result["accept_length"] or {}).get("mean"),
        "accept_rate": result["accept_rate"],
        "tokens_per_second": first.get("per_request"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _lines(figures: dict[str, float], result: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    lines = []
    if accept := result["accept_length"]:
        low, high = accept["ci95"]
        lines.append(
            f"acceptance length {accept['mean']:.2f} (95 %: {low:.2f} to {high:.2f}, {accept['verify_steps']} "
            f"verify steps){_was('accept_length', before, 2)}"
        )
    if "tokens_per_second" in figures:
        lines.append(f"{figures['tokens_per_second']:.1f} tokens/s per request{_was('tokens_per_second', before, 1)}")
    return lines


def _was(name: str, before: dict[str, Any] | None, digits: int) -> str:
    value = (before or {}).get(name)
    return f", before: {value:.{digits}f}" if isinstance(value, int | float) else ""


def _nothing(args: ProbeArgs, why: str) -> Outcome:
    if args.if_serving:
        return Outcome({"serving": False}, lines=(f"nothing to compare with: {one_line(why, 200)}",))
    return Outcome({"serving": False}, failed=why, hint="`opsctl server status` tells what runs on the host")


def _told(progress: Progress) -> Callable[[probing.Progress], None]:
    def told(p: probing.Progress) -> None:
        progress(f"{p.done}/{p.of} answers, {p.verify_steps} verify steps", p.done / p.of if p.of else None)

    return told
