"""Kills at any moment of a deploy: the host is in the old or in the new state, or the next command says what is left.

Operator, agent and supervisor are killed, alone and together, at the N-th protocol frame of the operator's program.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.campaigns._host_in_service import in_service
from tests.campaigns.campaign import Case
from tests.sshd import eventually

SHORT = 1
WHO = ("kill", "kill agent", "kill supervisor", "kill both", "kill all")
FRAMES = 60  # in a deploy, about


def cases(rng: random.Random) -> Iterator[Case]:
    while True:
        who, frame = rng.choice(WHO), rng.randint(1, FRAMES)
        yield Case(f"{who} at frame {frame}", partial(_hold, who, frame))


def _hold(who: str, frame: int, folder: Path) -> None:
    with in_service() as story:
        deploy = story.deploy("two", "-e", "confirm_within=1s")
        said = story.ended(story.start("tests.story.dying", who, f"frame {frame}", *deploy))
        run = re.search(r"^run ([\w-]+): ", said.out, re.M)
        eventually(story.free, 60)
        told = story.opsctl("run", "other.yaml")
        assert told.code == 0, f"{said.out}\n{told.out}"
        if run and f"run {run[1]} (play) never finished on this host" in told.out:
            undone = story.opsctl("rollback", run[1], "--yes")
            assert undone.code == 0, f"{said.out}\n{undone.out}"
            assert (story.settled(), story.note()) == ("one", "one"), f"{said.out}\n{undone.out}"
        else:
            assert (story.settled(), story.note()) in (("one", "one"), ("two", "two")), f"{said.out}\n{told.out}"
