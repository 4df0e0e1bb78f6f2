"""What becomes of a deploy whose server does not come up, dies, or finds another one in its place."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.sshd import eventually
from tests.story.conftest import HERE, Story


def test_a_server_that_does_not_come_up_is_taken_back_at_once_with_its_own_reason(story: Story) -> None:
    """Its own: the second failure is not explained by the crash of the first, which stands in the same log."""
    for drafter, stall, says, foreign in (
        ("oom", "60s", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB", "stands still"),
        ("hangs", "4s", "the server stands still while", "OutOfMemoryError"),
    ):
        said = story.opsctl(*story.deploy(drafter, "-e", f"stall={stall}", "-e", "logs=true"))
        assert said.code == 7
        assert "the host has put everything back: " in said.out
        assert says in said.out
        assert foreign not in said.out
        assert ("first error in the log: " in said.out) == (drafter == "oom"), said.out
        assert "practice: undone: Serve" in said.out
        assert (story.settled(), story.note()) == ("one", "one")


def test_a_deploy_is_foretold_by_its_exit_code(story: Story) -> None:
    """--check --exit-code of `deploy-drafter`: 0 where it is in service, 3 where it is not, 14 where it may not be."""
    root = story.practice.root
    (root / "one.jsonl").write_text('{"prompt": "hello"}\n')
    shipped = (HERE / "playbooks/deploy-drafter.yaml").read_text()
    (root / "unforeseeable.yaml").write_text(shipped.replace("  tasks:\n", "  tasks:\n    - command: ls /\n", 1))
    given = ("-e", "name=eagle3", "-e", "accept_findings=[target-capture]", "-e", "prompts=one.jsonl")
    for playbook, drafter, code in (
        ("deploy-drafter", "one", 0),
        ("deploy-drafter", "two", 3),
        ("unforeseeable.yaml", "one", 14),
    ):
        words = ("run", playbook, "-e", f"drafter=drafters/{drafter}", *given, "--check", "--exit-code")
        said = story.opsctl(*words)
        assert said.code == code, said.out
    assert (story.settled(), story.note()) == ("one", "one")


def test_a_gate_that_does_not_hold_takes_everything_back_and_leaves_each_run_undoable(story: Story) -> None:
    good = story.opsctl(*story.deploy("two"))
    bad = story.opsctl(*story.deploy("three", "-e", "gate=0"))
    assert (good.code, bad.code) == (0, 7)
    assert (story.settled(), story.note()) == ("two", "two")
    undone = story.opsctl("rollback", "-y", good.run)  # of a server that the second run has started again
    assert undone.code == 0, undone.out
    assert (story.settled(), story.note()) == ("one", "one")


def test_a_server_of_somebody_else_is_left_alone_unless_it_is_to_be_adopted(story: Story) -> None:
    record = story.record()
    os.kill(record["pid"], signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{record['pid']}/cmdline").exists() or not _command(record["pid"]))
    release = Path(record["argv"][-1])
    home = story.practice.home
    with (home / "logs/other.log").open("wb") as log:
        other = subprocess.Popen(
            record["argv"], cwd=record["cwd"], start_new_session=True, env={**os.environ, "HOME": str(home)},
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        eventually(lambda: "fired up" in (home / "logs/other.log").read_text())
        refused = story.opsctl(*story.deploy("two"))
        assert refused.code == 7  # a file beside it had been changed
        assert f"a server that opsctl did not start holds port {story.practice.port} (pid {other.pid}" in refused.out
        assert "adopt: true" in refused.out
        assert other.poll() is None
        taken = story.opsctl(*story.deploy("two", "-e", "adopt=true"))
        assert (taken.code, story.settled()) == (0, "two"), taken.out
        other.wait(120)
        undone = story.opsctl("rollback", "-y", taken.run)
        assert undone.code == 0, undone.out
        assert str(release) in story.record()["argv"]
        assert story.record()["log"].endswith("other.log")
    finally:
        if other.poll() is None:
            other.kill()
        other.wait()


def test_after_a_reboot_in_the_middle_the_run_is_found_and_taken_back(story: Story) -> None:
    said = story.dying("kill", "hears SIGTERM", *story.deploy("slow"))
    for process in Path("/proc").glob("[0-9]*"):  # all that lives on the host goes, its supervisor too
        if int(process.name) != os.getpid() and f"HOME={story.practice.home}\0" in _environment(process):
            os.kill(int(process.name), signal.SIGKILL)
    eventually(story.free)
    told = story.opsctl("run", "other.yaml")
    assert f"{said.run} (play) never finished on this host" in told.out
    undone = story.opsctl("rollback", "-y", said.run)
    assert undone.code == 0, undone.out
    assert (story.settled(), story.note()) == ("one", "one")


def _environment(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
