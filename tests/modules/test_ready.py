# ruff: noqa: E501  log lines stay in one piece
"""Waiting for a server: what is told on the way, and what it says when it fails."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from opsctl.agent.process.wait import Watch
from opsctl.agent.server import ready, startlog
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess
from tests.modules.test_wait import free_port

LOADING = b"""[2026-02-08 03:00:10] server_args=ServerArgs(model_path='/m', mem_fraction_static=0.88, tp_size=8)
[2026-02-08 03:00:14 TP0] Init torch distributed begin.
[2026-02-08 03:00:18 TP0] Load weight begin. avail mem=94.20 GB
"""
BAR = b"\rLoading safetensors checkpoint shards:  12% Completed | 8/64 [00:10<01:10,  2.19s/it]\r"


def test_a_shard_count_is_told_before_the_line_ends() -> None:
    start = ready.Start(180.0, 0.0)
    assert start.read(LOADING, 1.0) == ["starting workers", "loading weights"]
    start.read(BAR, 2.0)
    assert start.told(12.4, "").startswith("loading weights 8/64 (12 s): Loading safetensors")
    assert start.share == 8 / 64


def test_our_own_questions_are_no_sign_of_life() -> None:
    start = ready.Start(180.0, 0.0)
    start.read(LOADING, 1.0)
    question = (
        b'[2026-02-08 03:02:10] INFO:     127.0.0.1:50122 - "GET /health_generate HTTP/1.1" 503 Service Unavailable\n'
    )
    for second in range(2, 182):
        start.read(question, float(second))
        if second == 10:
            start.look(float(second), 5, "the log")
    with pytest.raises(
        AgentError,
        match=r"stands still while loading weights: nothing new in the log, no growth of GPU memory for 180 s; its last line: .*Load weight begin",
    ):
        start.look(190.0, 5, "the log")  # memory was first seen at 10


def test_a_hang_between_the_cards_is_told_as_one() -> None:
    start = ready.Start(180.0, 0.0)
    start.read(b"[2026-02-08 03:00:14 TP0] Init torch distributed begin.\n", 1.0)
    with pytest.raises(AgentError, match=r"starting workers.*NCCL_P2P_DISABLE=1"):
        start.look(200.0, None, "the log")


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 3 has a total capacity of 94.97 GiB of which 1.12 GiB is free."


@pytest.mark.parametrize(
    ("message", "phase", "draft", "fraction", "says"),
    [
        (OOM, "memory_pool", False, 0.9, "from 0.90 to 0.86"),  # (2.25 - 1.12) / 94.97 + 0.02, rounded up
        (OOM, "load_weights", True, 0.9, "from 0.90 to 0.86"),  # the draft model comes when the pool is made
        (OOM, "load_weights", False, 0.9, "the weights do not fit"),
        ("CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has a total capacity of 95.00 GiB of which 440.00 MiB is free", "capture_graphs", False, 0.85, "from 0.85 to 0.82"),
        ("CUDA out of memory", "capture_graphs", False, 0.85, "from 0.85 to 0.80"),
        ("CUDA out of memory", "capture_graphs", False, None, "by 0.05"),
    ],
)  # fmt: skip
def test_the_fraction_to_lower(message: str, phase: str, draft: bool, fraction: float | None, says: str) -> None:
    assert says in ready.advice("cuda_out_of_memory", message, phase, draft, fraction)


def test_the_first_error_is_told_not_the_last() -> None:
    start = ready.Start(180.0, 0.0)
    text = LOADING + (
        b"[2026-02-08 03:00:20 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        b'  File "/x/model_runner.py", line 622, in initialize\n'
        b"AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'\n\n"
        b"[2026-02-08 03:00:21] Received sigquit from a child process. It usually means the child failed.\n"
        b"RuntimeError: cancelled\n"
    )
    with pytest.raises(
        AgentError, match=r"gave up while loading weights: AttributeError: .*\(TP3\); `opsctl patch sglang`"
    ):
        start.read(text, 1.0)


def test_a_port_that_is_taken() -> None:
    start = ready.Start(180.0, 0.0)
    with pytest.raises(AgentError, match=r"address already in use.*`opsctl server status`"):
        start.read(
            LOADING
            + b"[2026-02-08 03:00:40] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use\n",
            1.0,
        )


def test_a_server_that_dies_and_comes_back_without_a_word() -> None:
    start = ready.Start(180.0, 0.0)
    start.read(LOADING + LOADING, 1.0)
    with pytest.raises(AgentError, match=r"started 3 times in this wait: a crash loop"):
        start.read(LOADING, 2.0)


SYSTEMCTL = """#!/bin/sh
cat "$(dirname "$0")/state"
"""
JOURNALCTL = f"""#!{sys.executable}
import sys, time
with open(__file__ + ".asked", "w") as asked:
    asked.write(" ".join(sys.argv[1:]))
sys.stdout.write("[2026-02-08 03:00:14 TP0] Init torch distributed begin.\\n")
sys.stdout.flush()
time.sleep(600)
"""


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state").write_text("ActiveState=active\nSubState=running\nNRestarts=1\nInvocationID=cafe\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_unit_without_a_log_file_is_followed_in_the_journal(systemd: Path) -> None:
    call = InProcess()
    heard = threading.Event()
    told: list[str] = []

    def progress(data: dict[str, str], body: bytes = b"") -> None:
        told.append(data["text"])
        if "starting workers" in data["text"]:
            heard.set()

    call.progress = progress  # type: ignore[assignment,method-assign]
    call.cancelled = heard.is_set  # type: ignore[method-assign]
    with pytest.raises(AgentError, match=r"cancelled"):
        ready.wait(call, free_port(), alive={"unit": "sglang.service", "user": True}, timeout=30)
    assert "Init torch distributed begin." in told[-1]
    asked = (systemd / "journalctl.asked").read_text()
    assert "--follow" in asked
    assert asked.endswith("--user _SYSTEMD_INVOCATION_ID=cafe + USER_INVOCATION_ID=cafe")  # this start alone


def test_a_unit_that_systemd_starts_again_and_again(systemd: Path) -> None:
    watch = Watch({"unit": "sglang.service"})
    watch.look(InProcess())
    (systemd / "state").write_text("ActiveState=active\nSubState=running\nNRestarts=2\n")
    watch._next = 0.0
    with pytest.raises(AgentError, match=r"started again by systemd, 2 times so far: a crash loop"):
        watch.look(InProcess())
    (systemd / "state").write_text("ActiveState=activating\nSubState=auto-restart\nNRestarts=1\nResult=exit-code\n")
    again = Watch({"unit": "sglang.service"})
    with pytest.raises(AgentError, match=r"activating \(exit-code\)"):
        again.look(InProcess())


CRASH = b"[2026-02-08 03:00:20] Scheduler hit an exception: Traceback (most recent call last):\n%s\n\n" + (
    b"[2026-02-08 03:00:21] Received sigquit from a child process. It usually means the child failed.\n"
)


@pytest.mark.parametrize("rotated", ["", "moved", "truncated"])
def test_a_failed_start_is_not_explained_by_an_older_crash(rotated: str, tmp_path: Path) -> None:
    """Nor are words missed that came between the start and the wait, also when the log was rotated in between."""
    log, call = tmp_path / "sglang.log", InProcess(blobs=tmp_path / "step")
    log.write_bytes(LOADING + CRASH % OOM.encode())
    startlog.mark(call, str(log))
    if rotated == "moved":
        log.rename(tmp_path / "sglang.log.1")
    with log.open("wb" if rotated == "truncated" else "ab") as stream:
        stream.write(LOADING + CRASH % b"KeyError: 'draft_model'")
    with pytest.raises(AgentError, match="KeyError") as caught:
        ready.wait(call, free_port(), log=str(log), begun=startlog.KEEP, timeout=60)
    assert "OutOfMemory" not in caught.value.message


def test_without_log_and_journal_only_health_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert startlog.source(InProcess(), None, None, {"container": "x"}).name == ""
