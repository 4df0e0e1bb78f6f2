"""Serves a tiny model of each family with an EAGLE-3 draft model, and compares what is captured with opsctl's table.

The proof is the width that the draft model receives with its first request: three times that of the target where hidden
states are captured, once where they are not. Where a server dies instead, its error is kept, and unless that names the
method which is missing, the target is served without a draft model, too: one that dies then as well proves nothing.

    python -m tests.real.kit.prove_capture [NAME ...] [--release 0.5.9]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.sglang import releases
from opsctl.sglang.releases import Capture, Target, Version

from . import environment, server
from .families import FAMILIES, WIDTH, Family

AUX = 3  # hidden states that an EAGLE-3 draft model is given
PROMPT = [40, 44, 48, 52]
_ERROR = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
_METHOD = re.compile(r"set_eagle3_layers_to_capture|get_embed_and_head")  # what dies for want of them says so


@dataclass(frozen=True)
class Outcome:
    """width: what the draft model received first. error: of the server that died. control: of one without it."""

    family: Family
    release: str
    width: int | None
    error: str
    control: str

    @property
    def captures(self) -> bool | None:
        """Whether the target captured; None where this machine cannot tell, since the target does not run on it."""
        if self.error:
            return None if self.control else False
        return self.width == AUX * WIDTH

    @property
    def agrees(self) -> bool | None:
        captures = self.captures
        return None if captures is None else captures is (self.target.capture is Capture.YES)

    @property
    def target(self) -> Target:
        known = releases.of(Version.parse(self.release)).targets
        return known.get(self.family.architecture, Target(Capture.NO, why="is not there"))


def prove(family: Family, release: str, folder: Path) -> Outcome:
    """Serve with the draft model, and where that dies for want of no method, without it."""
    target, received = family.make(folder / "target"), folder / "widths"
    error = served(family, release, target, folder / "server.log", received)
    width = int(received.read_text().split()[0]) if received.exists() else None
    control = ""
    if error and not _METHOD.search(error):
        control = served(family, release, target, folder / "control.log", None)
    return Outcome(family, release, width, error, control)


def served(family: Family, release: str, target: Path, log: Path, widths: Path | None) -> str:
    """The error that a server ends with, "" where it answers. widths: where its draft model is to note what it gets."""
    drafter = server.MODELS / "drafter-llama" if widths else None
    argv = server.command(release, "k25", drafter, server.free_port(), family.flags)
    argv[argv.index("--model-path") + 1] = str(target)
    argv += ["--load-format", "dummy", *(["--speculative-draft-load-format", "auto"] if drafter else [])]
    env = server.environ() | ({"OPSCTL_NOTE_WIDTHS": str(widths)} if widths else {})
    try:
        with server.serving(argv, env, log) as running:
            server.ask(running.url, PROMPT, 6)
            return ""
    except (server.DidNotStart, OSError):
        found = _ERROR.findall(log.read_text(errors="replace"))
        return found[0] if found else "the server ended without an error in its log"


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as a page's table."""
    rows = ["| family | class | SGLang | table | received | proved |", "|---|---|---|---|---|---|"]
    for o in outcomes:
        if o.captures is None:
            proved = f"does not run on a CPU: `{o.control or o.error}`"
        else:
            proved = ("captures" if o.captures else "does not") + (f": `{o.error}`" if o.error else "")
        mark = " **differs**" if o.agrees is False else ""
        rows.append(
            f"| {o.family.name} | `{o.family.architecture}` | {o.release} | {o.target.capture} | {o.width or '-'} "
            f"| {proved}{mark} |"
        )
    return "\n".join(rows) + "\n"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.kit.prove_capture", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="families; all if none")
    parser.add_argument("--release", action="append", choices=environment.VERSIONS)
    given = parser.parse_args(words)
    outcomes = []
    for family in FAMILIES:
        if given.names and family.name not in given.names:
            continue
        for release in given.release or environment.VERSIONS:
            with tempfile.TemporaryDirectory(prefix="capture-") as folder:
                outcomes.append(prove(family, release, Path(folder)))
            print(table(outcomes[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(f"Measured on {datetime.now(UTC):%Y-%m-%d}.\n\n{table(outcomes)}")
    return any(o.agrees is False for o in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
