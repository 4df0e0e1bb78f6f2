"""What was measured is kept, told again, and is what later measurements are judged by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.practice.host import PracticeHost, practice_host
from opsctl.sglang.probe import ledger
from tests.commands import Said, opsctl

Kept = dict[str, Any]


def measured(length: float, **said: Any) -> Kept:
    """A result as a probe leaves it, as far as the ledger looks at it."""
    server = {"version": "0.5.9", "steps": 3, "topk": 1, "draft_tokens": 4, "model": "/srv/kimi", "commit": "aaa",
              "draft_model": "/srv/d", "draft_digest": "quick-sha256:1111"}  # fmt: skip
    result = {"when": "2026-11-30T08:00:00+00:00", "target": "k25", "server": server, "findings": [], "gates": [],
              "plan": {"prompts": "cafe", "max_tokens": 64, "concurrency": 1},
              "accept_length": {"mean": length, "ci95": [length - 0.1, length + 0.1]},
              "throughput": {"1": {"per_request": 82.0}}}  # fmt: skip
    for key, value in said.items():
        place = server if key in server or key in ("simulated", "tp") else result
        place[key] = value
    return result


def entry(length: float, run: str = "now", outcome: str = "measured", **said: Any) -> ledger.Entry:
    found = ledger.entry({**measured(length, **said), "outcome": outcome}, run)
    assert found is not None
    return found


NOW = entry(2.0, when="2026-12-01T08:00:00+00:00", draft_digest="quick-sha256:2222")


@pytest.mark.parametrize(
    ("kept", "best"),
    [
        ([], None),
        ([entry(3.3, "a")], "a"),
        ([entry(3.3, "a", "done"), entry(3.0, "b", when="2026-11-30T09:00:00+00:00")], "a"),  # a deploy was judged
        ([entry(3.3, "a", "done"), entry(2.9, "b", "done", when="2026-11-30T09:00:00+00:00")], "b"),  # the last one
        ([entry(3.3, "a", "rolled-back"), entry(2.9, "b", "failed")], None),
        ([entry(3.3, "a", "done", target="other"), entry(2.9, "b")], "b"),  # this host before others
        ([entry(3.3, "a", "done", target="other")], "a"),
        ([entry(1.0, "a", "done")], None),
        ([entry(1.15, "a", "done")], None),  # its bound is 1.05
        ([entry(3.3, "a", findings=[{"severity": "error"}])], None),
        ([entry(3.3, "a", gates=[{"gate": "accept_length>=4", "holds": False}])], None),
        ([entry(3.3, "a", simulated=True)], None),
        ([entry(3.3, "a", steps=5)], None),  # more tokens are drafted at a time
        ([entry(3.3, "a", plan={"prompts": "beef", "max_tokens": 64, "concurrency": 1})], None),
        ([entry(3.3, "a", plan={"prompts": "cafe", "max_tokens": 128, "concurrency": 1})], None),
        ([entry(3.3, "a", model="/srv/qwen")], None),
        ([entry(3.3, "a", model="/data/models/kimi")], "a"),
        ([entry(3.3, "a", model=None)], None),
    ],
)
def test_a_new_drafter_is_judged_by_the_last_good_one(kept: list[ledger.Entry], best: str | None) -> None:
    found = ledger.last_good(NOW, kept)
    assert (found.run if found else None) == best


def test_the_margin_is_a_tenth() -> None:
    assert entry(3.3).at_least == pytest.approx(2.97)


@pytest.mark.parametrize(
    ("now", "fell", "words"),
    [
        (entry(1.9, when="2026-12-01T00:00:00+00:00", version="0.5.23", commit="bbb"), True,
         ["SGLang 0.5.9 → 0.5.23", "commit aaa → bbb"]),
        (entry(3.25, when="2026-12-01T00:00:00+00:00", version="0.5.23"), False, ["SGLang 0.5.9 → 0.5.23"]),
        (entry(3.05, when="2026-12-01T00:00:00+00:00"), False, []),  # apart, but by less than the margin
        (entry(1.9, when="2026-12-01T00:00:00+00:00", plan=None), None, ["prompts or length of answers"]),
        (entry(1.9, when="2026-12-01T00:00:00+00:00", target="b3", steps=5), None,
         ["host k25 → b3", "steps 3 → 5"]),
    ],
)  # fmt: skip
def test_the_same_draft_model_is_compared_with_what_it_read_before(
    now: ledger.Entry, fell: bool | None, words: list[str]
) -> None:
    before = [entry(3.3, "best"), entry(2.8, "worse"), entry(3.9, "another", draft_digest="quick-sha256:3333")]
    found = ledger.earlier(now, before)
    assert found is not None
    assert (found.entry.run, found.fell, list(found.differences)) == ("best", fell, words)


def test_a_draft_model_that_is_not_known_is_compared_with_nothing() -> None:
    assert ledger.earlier(entry(1.9, draft_digest=None, when="2026-12-01T00:00:00+00:00"),
                          [entry(3.3, "a", draft_digest=None)]) is None  # fmt: skip


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "opsctl" / "probes" / "k25"


def test_what_is_no_result_is_told_and_hides_no_other(state: Path) -> None:
    ledger.keep(measured(3.3), "k25")
    for name, text in {
        "20260101T000000000": "{", "20260101T000000001": "[" * 100_000, "20260101T000000002": "[1]",
        "20260101T000000003": json.dumps({**measured(3.3), "plan": 7}), "20260101T000000004": " " * (2 << 20),
        "20260101T000000005": json.dumps({**measured(3.3), "when": "yesterday"}),
        "20260101T000000006": json.dumps(measured(float("nan"))),
    }.items():  # fmt: skip
        (state / f"{name}.json").write_text(text)
    (state / "20260101T000000007.json").mkdir()
    (state / "20260101T000000008.json").symlink_to("nowhere")
    found, unread = ledger.entries()
    assert [one.accept_length.mean for one in found] == [3.3]
    assert len(unread) == 9


def test_results_of_an_older_opsctl_are_compared_with_nothing(state: Path) -> None:
    old = measured(3.3)
    del old["plan"], old["when"]
    name = ledger.keep(old, "k25")
    assert ledger.entries() == ([], [])
    assert ledger.load(name)["accept_length"]["mean"] == 3.3


def test_two_that_keep_at_once_lose_nothing(state: Path) -> None:
    program = (
        "import json, sys\nfrom opsctl.sglang.probe import ledger\n"
        "for _ in range(40): ledger.keep(json.loads(sys.argv[1]), 'k25')"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, json.dumps(measured(3.3))]) for _ in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert len(ledger.entries()[0]) == 120
    assert len(list(state.iterdir())) == 120


@pytest.fixture
def practice(tmp_path: Path) -> Iterator[PracticeHost]:
    (tmp_path / "practice").mkdir()
    with practice_host(tmp_path / "practice") as host:
        yield host


def test_a_deploy_is_held_to_what_was_good_before(practice: PracticeHost, tmp_path: Path) -> None:
    def says(*words: str) -> Said:
        return opsctl(*words, folder=practice.root, XDG_STATE_HOME=str(tmp_path / "state"),
                      OPSCTL_RECORDS=str(tmp_path / "records"))  # fmt: skip

    def deploys(name: str) -> Said:
        return says("deploy", "drafter", f"drafters/{name}", "--name", "eagle3", "--max-tokens", "24")

    assert says("patch", "sglang", "-y").code == 0
    first = deploys("good")
    assert first.code == 0, first.out + first.err
    assert "the ledger has no good measurement like this one: at least 1.5 counts as accepted" in first.out
    weaker = deploys("weak")  # would pass if 1.5 were enough
    assert weaker.code == 7, weaker.out + weaker.err
    kept = json.loads(says("probe", "list", "--json").out)["entries"]
    assert [(one["target"], one["outcome"], one["good"]) for one in kept] == [
        ("practice", "rolled-back", False), ("practice", "measured", True), ("practice", "done", True)
    ]  # fmt: skip
    good, refused = kept[2]["accept_length"]["mean"], kept[0]["accept_length"]["mean"]
    assert refused > 1.5
    assert f"last good of practice: {good:.2f}" in weaker.out
    held = re.search(r"accept_length ([\d.]+) < ([\d.]+)", weaker.out)
    assert held, weaker.out
    assert (float(held[1]), float(held[2])) == pytest.approx((refused, 0.9 * good), rel=0.01)
    told = json.loads(says("diagnose", "--json").out)
    assert told["earlier"]["length"] == good
    assert told["earlier"]["fell"] is None  # it was asked something else
    assert deploys("silent").code == 7
    asked = says("deploy", "drafter", "drafters/weak", "--name", "eagle3", "--max-tokens", "24", "--min-accept-length",
                 "1.5")  # fmt: skip
    assert asked.code == 0, asked.out + asked.err
