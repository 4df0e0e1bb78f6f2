"""Kills at any moment of a deploy or play: the host is as before or as after it, or the next command says what is left.

Operator, agent and supervisor are killed, alone and together, at the N-th protocol frame of the operator's program.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from opsctl.errors import Exit
from tests.campaigns._bare_host import Bare, bare_host, run_of
from tests.campaigns._host_in_service import in_service
from tests.campaigns.campaign import Case
from tests.sshd import eventually

SHORT = 2  # a play and a deploy
WHO = ("kill", "kill agent", "kill supervisor", "kill both", "kill all")
FRAMES = 60  # in a deploy, about
FRAMES_OF_A_PLAY = 65
NOT_IN_A_PLAY = ("kill supervisor",)

BEFORE = """
- hosts: all
  tasks:
    - copy: {dest: BOX/old, content: "before\\n", mode: "0640"}
    - copy: {dest: BOX/gone, content: "thrown away\\n"}
    - file: {path: BOX/first, state: directory}
    - file: {path: BOX/second, state: absent}
    - file: {path: BOX/new, state: absent}
    - file: {path: BOX/marked, state: absent}
    - file: {path: BOX/folder, state: absent}
    - file: {path: BOX/link, state: link, target: first}
    - process: {name: server, argv: [sleep, "1001"], log: BOX.log}
"""
PLAY = """
- name: play
  hosts: all
  tasks:
    - copy: {dest: BOX/new, content: "made\\n"}
    - template: {src: text.j2, dest: BOX/old, mode: "0600"}
    - file: {path: BOX/gone, state: absent}
    - file: {path: BOX/folder/within, state: directory}
    - file: {path: BOX/link, state: link, target: second}
    - process: {name: server, argv: [sleep, "1002"], log: BOX.log, stop_wait: 5}
    - command: {cmd: touch BOX/marked, creates: BOX/marked, undo: rm -f BOX/marked}
    - file: {path: BOX/second, state: directory}
"""


def cases(rng: random.Random) -> Iterator[Case]:
    while True:
        who = rng.choice([one for one in WHO if one not in NOT_IN_A_PLAY])
        frame = rng.randint(1, FRAMES_OF_A_PLAY)
        going_on = rng.random() < 0.5
        yield Case(
            f"a play, {who} at frame {frame}, then {'going on' if going_on else 'back'}",
            partial(_hold_play, who, frame, going_on),
        )
        who, frame = rng.choice(WHO), rng.randint(1, FRAMES)
        yield Case(f"a deploy, {who} at frame {frame}", partial(_hold_deploy, who, frame))


def _hold_play(who: str, frame: int, going_on: bool, folder: Path) -> None:
    bare = bare_host()
    bare.write("before.yaml", BEFORE)
    bare.write("play.yaml", PLAY)
    bare.write("text.j2", "after on {{ inventory_hostname }}\n")
    prepared = bare.opsctl("run", "before.yaml")
    assert prepared.code == 0, prepared.out
    before = _look(bare)
    said = bare.dying(who, f"frame {frame}", "run", "play.yaml")
    run = run_of(said)
    assert said.code != Exit.USAGE, said.out
    eventually(bare.free)
    told = bare.opsctl("run", "other.yaml")
    assert told.code == 0, f"{said.out}\n{told.out}"
    if run and f"run {run} (play) never finished on this host" in told.out:
        ended = bare.opsctl(*(("run", "play.yaml", "--resume", run) if going_on else ("rollback", run, "--yes")))
        assert ended.code == 0, f"{said.out}\n{ended.out}"
        assert (_look(bare) == before) is not going_on, f"{said.out}\n{ended.out}"
    if _look(bare) != before:
        again = bare.opsctl("run", "play.yaml", "--check", "--exit-code")
        assert again.code == 0, f"neither as before nor as after it:\n{said.out}\n{again.out}"


def _look(bare: Bare) -> object:
    """What the host is like, as far as the play changes it."""
    kinds = {path.name: (path.lstat().st_mode, path.is_symlink() and path.readlink()) for path in bare.box.rglob("*")}
    return bare.files(), kinds, _served(bare)


def _served(bare: Bare) -> list[str]:
    """The arguments of the processes that write into the log, in the order of their start."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "fd/1").resolve() == (bare.folder / "box.log").resolve():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def _hold_deploy(who: str, frame: int, folder: Path) -> None:
    with in_service() as story:
        deploy = story.deploy("two", "-e", "confirm_within=1s")
        said = story.ended(story.start("tests.story.dying", who, f"frame {frame}", *deploy))
        run = re.search(r"^run ([\w-]+): ", said.out, re.M)
        eventually(story.free)
        told = story.opsctl("run", "other.yaml")
        assert told.code == 0, f"{said.out}\n{told.out}"
        if run and f"run {run[1]} (play) never finished on this host" in told.out:
            undone = story.opsctl("rollback", run[1], "--yes")
            assert undone.code == 0, f"{said.out}\n{undone.out}"
            assert (story.settled(), story.note()) == ("one", "one"), f"{said.out}\n{undone.out}"
        else:
            assert (story.settled(), story.note()) in (("one", "one"), ("two", "two")), f"{said.out}\n{told.out}"
