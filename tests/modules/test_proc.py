"""Commands on the host: limits, outputs, and that nothing is left running."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.process import commands, pids
from opsctl.wire.protocol import AgentError, Context
from tests.sshd import eventually


class Watched(Context):
    def __init__(self, body: bytes = b"", cancel: bool = False) -> None:
        self.body = body
        self.heard: list[tuple[Any, bytes]] = []
        self.groups: list[int] = []
        self.cancel = cancel

    def progress(self, data: Any, body: bytes = b"") -> None:
        self.heard.append((data, body))

    def cancelled(self) -> bool:
        return self.cancel

    def started(self, group: int) -> None:
        self.groups.append(group)


def gone(group: int) -> bool:
    """Whether no process of the group is left; the kernel may need a moment to take one that was killed."""
    return bool(eventually(lambda: not any(process.group == group for process in pids.session(group))))


def test_arguments_are_never_seen_by_a_shell(tmp_path: Path) -> None:
    word = "$(touch hacked) `id` ; *"
    result = commands.run(Context(), ["printf", "%s", word], cwd=str(tmp_path))
    assert result["stdout"] == word
    assert os.listdir(tmp_path) == []


def test_standard_input_is_the_body_or_nothing() -> None:
    assert commands.run(Watched(b"a" * 300_000), ["wc", "-c"])["stdout"].strip() == "300000"
    assert commands.run(Context(), ["cat"])["stdout"] == ""


def test_a_command_may_end_without_reading_its_input() -> None:
    assert commands.run(Watched(b"a" * 300_000), ["true"])["code"] == 0


def test_input_goes_on_when_the_outputs_are_closed(tmp_path: Path) -> None:
    script = f"exec >&- 2>&-; cat > {tmp_path}/got"
    commands.run(Watched(b"x" * 300_000), script, timeout=20)
    assert (tmp_path / "got").stat().st_size == 300_000


def test_secret_environment_comes_in_the_body_and_not_in_the_arguments() -> None:
    secret = json.dumps({"env": {"TOKEN": "hunter2"}}).encode()
    result = commands.run(
        Watched(secret + b"input"), 'echo "$TOKEN$PLAIN"; cat', env={"PLAIN": "x"}, sealed=len(secret)
    )
    assert result["stdout"] == "hunter2x\ninput"


def test_much_output_on_both_streams_neither_blocks_nor_fills_memory() -> None:
    text = "import sys; [(sys.stdout.write('o'*1000), sys.stderr.write('e'*1000)) for _ in range(4000)]; print('END')"
    result = commands.run(Context(), [sys.executable, "-c", text], keep_output=2000)
    assert result["stdout"].startswith("o" * 1000)
    assert result["stdout"].endswith("END\n")
    assert "bytes left out" in result["stderr"]
    assert len(result["stdout"]) < 2100
    assert result["dropped"] == 8_000_004 - 4000


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"timeout": 0.3}, "time limit of 0.3 s"), ({"timeout": 60, "idle": 0.3}, "no output for 0.3 s")],
)
def test_limits_stop_the_command_and_its_children_and_keep_what_it_said(limits: dict[str, Any], message: str) -> None:
    call = Watched()
    with pytest.raises(AgentError, match=message) as caught:
        commands.run(call, "echo so far; (trap '' TERM; sleep 600) & sleep 600", **limits)
    assert caught.value.kind == "timeout"
    assert caught.value.fields["stdout"] == "so far\n"
    assert [gone(group) for group in call.groups] == [True]


def test_cancelling_stops_it() -> None:
    call = Watched(cancel=True)
    with pytest.raises(AgentError, match="cancelled"):
        commands.run(call, ["sleep", "600"])
    assert [gone(group) for group in call.groups] == [True]


def test_a_child_left_behind_does_not_hold_the_answer(tmp_path: Path) -> None:
    call = Watched()
    result = commands.run(call, "echo done; sleep 600 &", timeout=100)
    assert (result["code"], result["stdout"]) == (0, "done\n")
    os.killpg(call.groups[0], 9)


def test_output_is_sent_on_as_it_comes() -> None:
    call = Watched()
    commands.run(call, "echo one; echo two >&2", live=True)
    assert sorted((data["stream"], body) for data, body in call.heard) == [("err", b"two\n"), ("out", b"one\n")]


def test_an_unwanted_exit_code_is_told_with_the_last_line() -> None:
    with pytest.raises(AgentError, match="exit code 3: no such model") as caught:
        commands.run(Context(), "echo before >&2; echo 'no such model' >&2; exit 3", ok=[0])
    assert caught.value.fields["code"] == 3
    with pytest.raises(AgentError, match="killed by SIGKILL"):
        commands.run(Context(), "kill -9 $$", ok=[0])
    assert commands.run(Context(), "exit 3")["code"] == 3


@pytest.mark.parametrize(
    ("argv", "cwd", "kind", "message"),
    [
        (["no-such-program"], None, "not-found", "there is no program no-such-program"),
        (["/etc/passwd"], None, "permission", "may not be executed"),
        (["true"], "/no/such/folder", "not-found", "there is no folder /no/such/folder"),
        ([], None, "invalid", "not a command"),
    ],
)
def test_what_cannot_be_run(argv: list[str], cwd: str | None, kind: str, message: str) -> None:
    with pytest.raises(AgentError, match=message) as caught:
        commands.run(Context(), argv, cwd=cwd)
    assert caught.value.kind == kind


def test_bytes_that_are_no_text_arrive_readable() -> None:
    assert commands.run(Context(), ["printf", r"\377ok"])["stdout"] == r"\xffok"
