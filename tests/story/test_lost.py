"""An operator who goes away at any moment of a deploy leaves the old or the new release in service, whole."""

from __future__ import annotations

import getpass
import os
import re
import signal

import pytest

from opsctl.agent.core import file_locks
from tests.sshd import eventually
from tests.story.conftest import Story
from tests.story.dying import holders

# Around every write of the journal, and within the change.
EARLY = ("before journal.begin",)  # the lock is held, nothing is begun
PLAIN = ("after journal.begin", "after journal.apply", "after journal.checkpoint")
SUPERVISED = ("after supervise.start", "hears SIGTERM", "after http.request")
CONFIRMED = ("before journal.finish",)
DONE = ("after journal.finish",)


@pytest.mark.parametrize("moment", [*EARLY, *PLAIN, *SUPERVISED, *CONFIRMED, *DONE])
def test_the_operator_is_killed(story: Story, moment: str) -> None:
    said = story.dying("kill", moment, *story.deploy("two", "-e", "confirm_within=1s"))
    assert said.code == -9
    new = moment in CONFIRMED + DONE
    assert story.settled() == ("two" if new else "one")
    told, undone = story.opsctl("run", "other.yaml"), story.opsctl("rollback", "-y", said.run)
    assert told.code == 0
    if moment in EARLY:
        assert said.run not in told.out
        assert "it changed nothing" in undone.out
    elif moment in SUPERVISED:
        assert f"{said.run} (play), was not confirmed in time" in told.out
        assert "nothing left to undo" in undone.out
    elif moment not in DONE:
        assert f"{said.run} (play) never finished on this host" in told.out
        assert f"opsctl rollback {said.run}, or opsctl run play.yaml --resume {said.run}" in told.out
        assert "everything is undone" in undone.out
    assert undone.code == 0
    assert (story.settled(), story.note()) == ("one", "one")


def test_how_to_go_on_is_told_with_what_works_here(story: Story) -> None:
    """Where another operator has the playbook under another name, or not at all."""
    said = story.dying("kill", "after journal.apply", *story.deploy("two"))
    play, theirs = story.practice.root / "play.yaml", story.practice.root / "theirs.yaml"
    play.rename(theirs)
    try:
        told = story.opsctl("run", "other.yaml")
        assert re.search(rf"opsctl run play.yaml --resume {said.run} where \S+@\S+ began it, as its playbook", told.out)
        told = story.opsctl("run", "theirs.yaml", "-e", "drafter=drafters/two", "-e", "gate=-1")
        assert f"or opsctl run theirs.yaml --resume {said.run}\n" in told.out
        play.write_text("- name: another one\n  hosts: all\n  tasks: []\n")
        assert "as its playbook is not here" in story.opsctl("run", "other.yaml").out
    finally:
        theirs.rename(play)
    undone = story.opsctl("rollback", "-y", said.run)
    assert undone.code == 0, undone.out
    assert (story.settled(), story.note()) == ("one", "one")


@pytest.mark.parametrize(
    "moment", ["hears SIGTERM", "after http.request", "before supervise.confirm", "after supervise.confirm",
               "before journal.finish"],
)  # fmt: skip
def test_a_connection_lost_once_the_host_is_at_it_is_made_again(story: Story, moment: str) -> None:
    said = story.dying("cut", moment, *story.deploy("two"))
    assert said.code == 0, said.out
    assert (story.settled(), story.note()) == ("two", "two")
    assert f"{said.run}" not in story.opsctl("run", "other.yaml").out  # nothing was left open


@pytest.mark.parametrize("moment", ["before journal.begin", "after journal.apply", "before supervise.start"])
def test_a_connection_lost_in_a_plain_change_ends_the_run_with_what_can_be_done(story: Story, moment: str) -> None:
    said = story.dying("cut", moment, *story.deploy("two"))
    assert said.code == 5
    assert story.settled() == "one"
    if moment != "before journal.begin":
        assert f"opsctl run play.yaml --resume {said.run}, or opsctl rollback {said.run}" in said.out
        assert story.opsctl("rollback", "-y", said.run).code == 0
        assert story.note() == "one"


@pytest.mark.parametrize(
    "moment", ["answer journal.apply", "before supervise.start", "after supervise.start", "after http.request",
               "answer supervise.confirm"]
)  # fmt: skip
def test_a_run_whose_operator_was_killed_is_resumed(story: Story, moment: str) -> None:
    said = story.dying("kill", moment, *story.deploy("two"))
    again = story.opsctl(*story.deploy("two", "--resume", said.run))
    assert again.code == 0, again.out
    assert (story.settled(), story.note()) == ("two", "two")
    assert said.run not in story.opsctl("run", "other.yaml").out


def test_what_waits_for_an_operator_who_is_gone_can_be_taken_back_at_once(story: Story) -> None:
    said = story.dying("kill", "after http.request", *story.deploy("two"))
    refused = story.opsctl("run", "other.yaml")
    assert refused.code == 6
    assert f"for run {said.run}" in refused.out
    assert "its operator is gone" in refused.out
    assert f"opsctl rollback {said.run} takes it back now" in refused.out
    assert "waits to be confirmed, its operator is gone" in story.opsctl("history", "--host", "practice").out
    undone = story.opsctl("rollback", "-y", said.run)
    assert (undone.code, story.settled(), story.note()) == (0, "one", "one"), undone.out


@pytest.mark.parametrize(
    ("action", "moment"),
    [
        ("stop", "after journal.apply"),
        ("stop", "hears SIGTERM"),
        ("stop", "answer supervise.start"),
        ("stop", "after http.request"),
        ("stop twice", "after supervise.start"),
    ],
)
def test_ctrl_c(story: Story, action: str, moment: str) -> None:
    said = story.dying(action, moment, *story.deploy("two", "-e", "confirm_within=4s"))
    assert said.code == 130
    assert "stopping what is in progress" in said.out
    assert story.settled() in ("one", "two")
    if "stopped at once" in said.out:
        assert "opsctl history" in said.out
    else:
        assert "practice: INTERRUPTED" in said.out or "practice: ROLLED BACK" in said.out or "practice: ok" in said.out
    if "practice: ROLLED BACK" in said.out:
        assert (story.settled(), story.note()) == ("one", "one")
    assert story.opsctl("run", "other.yaml").code == 0  # no lock is left


def test_a_second_operator_is_told_who_is_there_and_can_wait(story: Story) -> None:
    first = story.start("opsctl", *story.deploy("slow"))
    eventually(lambda: not story.free() or first.poll() is not None)
    assert first.poll() is None
    refused = story.opsctl("run", "other.yaml")
    waiting = story.start("opsctl", "run", "other.yaml", "--lock-wait", "60s")
    waited, done = story.ended(waiting), story.ended(first)
    assert refused.code == 6
    assert f"for run {done.run} since " in refused.out
    assert f"{getpass.getuser()}@" in refused.out
    assert "--lock-wait" in refused.out
    assert (done.code, waited.code) == (0, 0), waited.out
    assert story.settled() == "slow"


def test_a_deploy_under_way_is_taken_back_by_a_second_operator_only_by_force(story: Story) -> None:
    first = story.start("opsctl", *story.deploy("hangs", "-e", "stall=60s"))
    locks = (story.state / "runs").glob
    eventually(
        lambda: first.poll() is not None or any(file_locks.is_locked(str(at)) for at in locks("*/supervisor.lock"))
    )
    assert first.poll() is None
    refused, forced = story.opsctl("rollback", "-y"), story.opsctl("rollback", "-y", "--force")
    assert refused.code == 6
    assert f"{getpass.getuser()}@" in refused.out
    assert "--force" in refused.out
    done = story.ended(first)
    assert (forced.code, done.code) == (0, 7), forced.out + done.out
    assert (story.settled(), story.note()) == ("one", "one")


def test_what_a_killed_operator_and_a_killed_supervisor_leave_is_told_by_the_next_command(story: Story) -> None:
    """It is as it was at that moment, until somebody undoes it or goes on with it: a run does neither silently."""
    said = story.dying("kill", "answer supervise.start", *story.deploy("two"))
    events = story.state / "runs" / said.run / "supervisor.lock"
    [supervisor] = holders(events)
    os.kill(supervisor, signal.SIGKILL)
    assert story.settled() == "two"
    offered = f"opsctl rollback {said.run}, or opsctl run play.yaml --resume {said.run}"
    for words in (["server", "status"], ["health"], ["run", "other.yaml"]):
        told = story.opsctl(*words).out
        assert f"run {said.run} (play) never finished on this host" in told, words
        assert offered in told, words
    assert (story.settled(), story.note()) == ("two", "two")
    assert story.opsctl("rollback", "-y", said.run).code == 0
    assert (story.settled(), story.note()) == ("one", "one")
