# ruff: noqa: E501  log lines stay in one piece
"""How far a starting server has come, told from its log as it grows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.server.readiness import Readiness
from tests.logs.releases import WORDINGS, Wording, log

DATA = Path(__file__).parent.parent / "data" / "logs"


def phases(events: list[dict[str, object]]) -> list[tuple[object, object]]:
    seen: list[tuple[object, object]] = []
    for event in events:
        step = (event["phase"], event["draft"])
        if not seen or seen[-1] != step:
            seen.append(step)
    return seen


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda w: w.release)
def test_every_release_walks_through_the_phases(wording: Wording) -> None:
    readiness = Readiness()
    events = readiness.feed(log(wording, flags=True).encode())
    assert phases(events) == [
        ("launch", False),
        ("init_distributed", False),
        ("load_weights", False),
        ("memory_pool", False),
        ("capture_graphs", False),
        ("load_weights", True),
        ("memory_pool", True),
        ("capture_graphs", True),
        ("warmup", True),
        ("ready", True),
    ]
    assert {(e["done"], e["total"]) for e in events if e["total"]} == {(32, 64), (1, 3)}
    assert readiness.ready
    assert readiness.state["at"] == "2026-02-08 03:12:45"


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_small_reads_end_in_the_same_state(sizes: list[int]) -> None:
    data = log(WORDINGS[4], ranks=2, flags=True).encode()
    readiness, at, i, events = Readiness(), 0, 0, []
    while at < len(data):
        events += readiness.feed(data[at : at + sizes[i % len(sizes)]])
        at += sizes[i % len(sizes)]
        i += 1
    whole = Readiness()
    assert phases(events) == phases(whole.feed(data))
    assert readiness.state == whole.state


def test_a_bar_is_seen_before_its_line_ends() -> None:
    readiness = Readiness()
    readiness.feed(b"[2026-02-08 03:00:14 TP0] Load weight begin. avail mem=94.20 GB\n")
    readiness.feed(b"\rLoading safetensors checkpoint shards:  12% Completed | 8/64 [00:10<01:10,  2.19s/it]\r")
    assert (readiness.state["phase"], readiness.state["done"], readiness.state["total"]) == ("load_weights", 8, 64)


def test_a_line_full_of_percent_signs_does_not_hold_it_up() -> None:
    readiness = Readiness()
    readiness.feed(b"[2026-02-08 03:00:14 TP0] Load weight begin. avail mem=94.20 GB\n")
    readiness.feed(b"1% " * 20_000 + b"\n" + b"shards:  50% Completed | 32/64 [00:10<01:10,  2.19s/it]\n")
    assert (readiness.state["done"], readiness.state["total"]) == (32, 64)


@pytest.mark.parametrize(
    ("name", "kind"), [("0.5.9-k25-good-stock", "missing_method"), ("0.5.23-llama-absolute-d2t", "index_out_of_range")]
)
def test_a_real_crash_gives_its_first_error(name: str, kind: str) -> None:
    readiness = Readiness()
    readiness.feed((DATA / f"{name}.log").read_bytes())
    assert readiness.failed
    assert readiness.error is not None
    assert readiness.error["kind"] == kind


@pytest.mark.parametrize("soft", [True, False])
def test_only_a_watchdog_that_kills_is_a_failure(soft: bool) -> None:
    readiness = Readiness()
    readiness.feed(
        f"[2026-02-08 03:20:00 TP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft={soft})\n".encode()
    )
    assert readiness.failed is not soft


@pytest.mark.parametrize("name", ["0.5.9-llama-good", "0.5.23-llama-good", "0.5.23-llama-none"])
def test_a_real_start_gets_ready(name: str) -> None:
    text = (DATA / f"{name}.log").read_bytes()
    readiness = Readiness()
    readiness.feed(text[: text.index(b"SIGTERM received")])
    assert readiness.ready
    assert readiness.error is None


def test_a_process_that_ends_without_a_word_fails_with_what_it_said_last() -> None:
    readiness = Readiness()
    readiness.feed(
        b"Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nModuleNotFoundError: No module named 'sgl_kernel'\n"
    )
    assert not readiness.failed
    (event,) = readiness.close()
    assert event["error"] == {
        "kind": "exception",
        "message": "ModuleNotFoundError: No module named 'sgl_kernel'",
        "rank": None,
        "at": None,
    }


def test_a_stall_is_told_once_and_memory_that_grows_is_a_sign_of_life() -> None:
    readiness = Readiness(now=0.0, stall_after=180.0)
    readiness.feed(b"[2026-02-08 03:00:10 TP0] Init torch distributed begin.\n", now=5.0)
    assert readiness.tick(100.0, memory=1.0) == []
    assert readiness.tick(250.0, memory=2.0) == []
    assert readiness.tick(400.0, memory=2.0) == []
    (stalled,) = readiness.tick(430.0, memory=2.0)
    assert (stalled["phase"], stalled["stalled"]) == ("init_distributed", 180.0)
    assert readiness.tick(500.0, memory=2.0) == []


def test_a_restart_in_the_same_log_begins_anew() -> None:
    crashed = (DATA / "0.5.9-k25-good-stock.log").read_bytes()
    readiness = Readiness()
    readiness.feed(crashed + crashed)
    assert readiness.state["starts"] == 2
    readiness.feed(log(WORDINGS[4], flags=True).encode())
    assert readiness.ready
    assert readiness.error is None
