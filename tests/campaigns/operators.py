"""Two or three operators at once: what each has been told is so, nobody's change is lost or mixed with another's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.campaigns._host_in_service import in_service
from tests.campaigns.campaign import Case
from tests.sshd import eventually
from tests.story.conftest import Story

SHORT = 1
TOLD = (0, 6)  # done, or refused as somebody else is at work


def cases(rng: random.Random) -> Iterator[Case]:
    while True:
        drafters = rng.sample(["one", "two", "three"], 2)
        how = rng.choice([_deploys, _waiting, _rollback])
        yield Case(f"{how.__name__[1:]}: {', '.join(drafters)}", partial(_hold, how, drafters))


def _hold(how: object, drafters: list[str], folder: Path) -> None:
    with in_service() as story:
        assert callable(how)
        how(story, drafters)
        eventually(story.free)
        assert story.opsctl("run", "other.yaml").code == 0
        story.opsctl(*story.deploy("one"), "--lock-wait", "60s")


def _deploys(story: Story, drafters: list[str]) -> None:
    """All at once: some are refused; the last one that was not is in service, whole."""
    said = [story.start("opsctl", *story.deploy(name)) for name in drafters]
    ended = [story.ended(process) for process in said]
    assert {one.code for one in ended} <= {*TOLD}, [one.out for one in ended]
    done = {name for name, one in zip(drafters, ended, strict=True) if one.code == 0}
    assert done, [one.out for one in ended]
    served = story.settled()
    assert served in done
    assert story.note() == served


def _waiting(story: Story, drafters: list[str]) -> None:
    """One after the other, and a third one who changes something else: all of it is there in the end."""
    beside = story.practice.home / "beside"
    play = story.practice.root / "beside.yaml"
    play.write_text(f"- name: beside\n  hosts: all\n  tasks:\n    - copy: {{dest: {beside}, content: theirs}}\n")
    words = [story.deploy(name, "--lock-wait", "80s") for name in drafters] + [
        ("run", "beside.yaml", "--lock-wait", "80s")
    ]
    ended = [story.ended(process, 180) for process in [story.start("opsctl", *one) for one in words]]
    assert [one.code for one in ended] == [0, 0, 0], [one.out for one in ended]
    served = story.settled()
    assert served in drafters
    assert (story.note(), beside.read_text()) == (served, "theirs")
    beside.unlink()


def _rollback(story: Story, drafters: list[str]) -> None:
    """A rollback while somebody deploys: refused, or done before or after it; never half of each."""
    before = story.opsctl(*story.deploy(drafters[0]))
    assert before.code == 0, before.out
    deploying = story.start("opsctl", *story.deploy(drafters[1]))
    undone, done = story.opsctl("rollback", before.run, "--yes"), story.ended(deploying)
    assert undone.code in (*TOLD, 13), undone.out  # 13: what the deploy had put in its place by then is left alone
    assert done.code in (*TOLD, 7, 8), done.out  # 7, 8: what the rollback has changed was seen, nothing overwritten
    eventually(story.free)
    served = story.settled()
    assert served in ("one", *drafters)
    if done.code == 0 and undone.code != 0:
        assert (served, story.note()) == (drafters[1], drafters[1]), f"{undone.out}\n{done.out}"
