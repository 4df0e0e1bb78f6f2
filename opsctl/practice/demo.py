"""A guided tour: what opsctl does on the practice host, with the commands one would type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.errors import Exit
from opsctl.practice.host import PracticeHost
from opsctl.text import duration


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the tour: what it shows, its arguments, and how it has to end."""

    says: str
    argv: tuple[str, ...]
    ends: Exit = Exit.DONE


STEPS = (
    Step(
        "The source on the host is SGLang 0.5.9: its Kimi-K2.5 class cannot hand out the hidden states EAGLE-3 needs.\n"
        "Three delegating methods are missing. They are added, proved, and can be taken back.",
        ("patch", "sglang"),
    ),
    Step(
        "A drafter is put into service: checked, staged, switched, started, measured.",
        ("deploy", "drafter", "drafters/first", "--name", "eagle3"),
    ),
    Step(
        "A better one replaces it. Watch the acceptance length before and after.",
        ("deploy", "drafter", "drafters/good", "--name", "eagle3"),
    ),
    Step(
        "This one has tensor names that SGLang 0.5.9 skips in silence. It is found before anything is touched.",
        ("deploy", "drafter", "drafters/old-names", "--name", "eagle3"),
        Exit.FAILED,
    ),
    Step(
        "This one fits in every respect that can be read, and nothing it proposes is accepted. A functional test\n"
        "would pass. The gate on the measured acceptance length fails, and the previous drafter is put back.",
        ("deploy", "drafter", "drafters/silent", "--name", "eagle3"),
        Exit.ROLLED_BACK,
    ),
    Step("The server in service is the good one again:", ("server", "status")),
    Step("And the host remembers what was done to it:", ("history",)),
)


@dataclass(slots=True)
class Tour:
    host: PracticeHost
    surprises: list[str] = field(default_factory=list)

    def take(self, step: Step) -> None:
        """Show a command and run it; note an end that is not the one announced."""
        says = "# " + step.says.replace("\n", "\n# ")
        print(f"\n\033[1m{says}\033[0m" if sys.stdout.isatty() else f"\n{says}")
        print(f"$ opsctl {' '.join(step.argv)}", flush=True)
        # The command finds inventory.yaml as it would for a user: in the folder it is run in. Its own records stay
        # with the practice host.
        command = [sys.executable, "-m", "opsctl", *step.argv]
        env = {**os.environ, "OPSCTL_RECORDS": str(self.host.root / "records")}
        code = subprocess.run(command, cwd=self.host.root, env=env, check=False).returncode
        if code != step.ends:
            self.surprises.append(f"opsctl {' '.join(step.argv)} ended with {code} and not with {int(step.ends)}")
        elif code:
            print(f"(exit code {code}: {step.ends.name.lower().replace('_', ' ')}, as it should)")


def run(host: PracticeHost) -> Exit:
    """The whole tour. Its own exit code says whether every command ended as announced."""
    began = time.monotonic()
    print(f"A practice host is up on this machine, below {host.root}.")
    print("It stands in for a GPU host: an SSH server, a source tree, and a server that answers like SGLang.")
    tour = Tour(host)
    for step in STEPS:
        tour.take(step)
    print(f"\n{len(STEPS)} commands in {duration(time.monotonic() - began)}.")
    for surprise in tour.surprises:
        print(f"unexpected: {surprise}")
    found = "" if shutil.which("opsctl") else f" (opsctl is {Path(sys.executable).parent / 'opsctl'})"
    print(
        f"\nTry next{found}:\n"
        "  opsctl practice host         keeps such a host running for you to play with\n"
        "  opsctl init                  looks at a host of yours and writes an inventory for it\n"
        "  opsctl drafter check FOLDER  says whether a draft model fits, in a second\n"
        "  opsctl --help"
    )
    return Exit.BUG if tour.surprises else Exit.DONE
