"""Counting accepted drafts, and what follows. Right values are worked out by hand in the comments."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.sglang.probe.acceptance import Counters, acceptance, by_position, rate, rate_in_log, read_counters
from opsctl.sglang.probe.probe_result import break_even, curve, in_words
from opsctl.sglang.releases.version import Version

# Six cycles of a drafter that is always right give 1 + 6 * 4 = 25 tokens; the limit of 24 cuts the last.
SIX_CYCLES = {"completion_tokens": 24, "spec_verify_ct": 6, "spec_accept_length": 4.0, "spec_accept_rate": 1.0}
BY_VERSION = {
    "0.5.6": {"spec_accept_token_num": 18, "spec_draft_token_num": 18},
    "0.5.9": {"spec_accept_token_num": 18, "spec_draft_token_num": 18, "spec_accept_histogram": [0, 0, 0, 6]},
    "0.5.11": {"spec_accepted_drafts": 18, "spec_proposed_drafts": 18, "spec_accept_histogram": [0, 0, 0, 6]},
    "0.5.12": {"spec_num_correct_drafts": 18, "spec_correct_drafts_histogram": [0, 0, 0, 6]},
}  # fmt: skip


@pytest.mark.parametrize("version", BY_VERSION)
def test_the_same_six_cycles_read_the_same_in_every_version(version: str) -> None:
    counters = read_counters(SIX_CYCLES | BY_VERSION[version])
    assert counters is not None
    found = acceptance([counters], num_steps=3)
    assert found is not None
    assert (found.length, found.exact, found.bias) == (4.0, True, 0.0)


@pytest.mark.parametrize("name", ["spec_accept_token_num", "spec_accepted_drafts", "spec_num_correct_drafts"])
def test_the_count_is_read_without_a_histogram(name: str) -> None:
    assert read_counters({"completion_tokens": 24, "spec_verify_ct": 6, name: 18}) == Counters(24, 6, 18)


def test_a_rate_alone_gives_the_count_where_it_is_per_draft_step() -> None:
    # 0.5.4 and 0.5.5: rate = accepted / (steps * num_steps) = 12 / (12 * 3)
    meta = {"completion_tokens": 24, "spec_verify_ct": 12, "spec_accept_rate": 1 / 3}
    assert read_counters(meta, num_steps=3) == Counters(24, 12, accepted=12)


def test_token_counts_alone_read_low_and_say_by_how_much() -> None:
    counters = read_counters({"completion_tokens": 24, "spec_verify_ct": 6})
    assert counters is not None
    found = acceptance([counters], num_steps=3)
    assert found is not None
    assert found.length == pytest.approx(23 / 6)  # 3.83
    assert not found.exact
    assert found.bias == pytest.approx(3 / 6)  # the last of six cycles may have lost up to three tokens
    assert found.length <= 4.0 <= found.length + found.bias


def test_a_dead_drafter_reads_one_and_not_more() -> None:
    # The server itself says 24/23 = 1.04 here.
    meta = {"completion_tokens": 24, "spec_verify_ct": 23, "spec_accept_length": 24 / 23}
    for extra in ({}, {"spec_accept_token_num": 0, "spec_accept_histogram": [23]}):
        counters = read_counters(meta | extra)
        assert counters is not None
        found = acceptance([counters], num_steps=3)
        assert found is not None
        assert found.length == 1.0
        assert found.none_accepted == bool(extra)  # only a count can say "not one"
        assert 1.0 < found.high <= 4.0  # 23 cycles cannot exclude a rare hit


def test_no_speculation_has_no_acceptance() -> None:
    assert read_counters({"completion_tokens": 24}) is None
    assert read_counters({"completion_tokens": 1, "spec_verify_ct": 0}) is None
    assert acceptance([], 3) is None


def test_requests_weigh_by_their_cycles() -> None:
    found = acceptance([Counters(0, 90, 90), Counters(0, 10, 30)], num_steps=3)
    assert found is not None
    assert found.length == pytest.approx(2.2)  # (90 + 30) / 100 + 1, not the mean of 2 and 4
    assert (found.least, found.most) == (2.0, 4.0)


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=4, max_size=4).filter(lambda h: sum(h) > 0), min_size=1, max_size=8)
)
def test_the_interval_holds_the_length_and_stays_possible(histograms: list[list[int]]) -> None:
    used = [Counters(0, sum(h), sum(n * c for n, c in enumerate(h)), tuple(h)) for h in histograms]
    found = acceptance(used, num_steps=3)
    assert found is not None
    assert 1.0 <= found.low <= found.length <= found.high <= 4.0
    assert found.low < found.high  # no number of cycles makes a length certain
    assert found.length == pytest.approx(1 + sum(by_position(found.histogram)))


def test_more_cycles_narrow_the_interval() -> None:
    few = acceptance([Counters(0, 20, 20, (10, 5, 0, 5))], 3)
    many = acceptance([Counters(0, 2000, 2000, (1000, 500, 0, 500))], 3)
    assert few
    assert many
    # Sample deviation 1.257 over 20 cycles: 1.96 * 1.257 / sqrt(20) = 0.551
    assert few.high - few.length == pytest.approx(0.551, abs=0.001)
    assert many.high - many.length == pytest.approx(0.0537, abs=0.0001)


@pytest.mark.parametrize(
    ("version", "length", "steps", "tokens", "shown"),
    [
        ("0.5.9", 1.0, 3, 4, 0.25),  # a dead drafter's floor
        ("0.5.9", 1.0, 4, 5, 0.20),
        ("0.5.10.post1", 4.0, 3, 4, 1.0),
        ("0.5.11", 1.0, 3, 4, 0.0),
        ("0.5.23", 2.0, 3, 4, 1 / 3),
        ("0.5.4", 2.0, 3, 8, 0.5),
    ],
)
def test_what_the_log_calls_accept_rate(version: str, length: float, steps: int, tokens: int, shown: float) -> None:
    release = Version.told(version)
    assert release
    meaning = rate_in_log(release)
    assert meaning
    assert meaning.of(length, steps, tokens) == pytest.approx(shown)


def test_one_definition_of_the_rate() -> None:
    found = acceptance([Counters(0, 12, 12)], 3)
    assert found
    assert rate(found, 4) == pytest.approx(1 / 3)
    assert rate(found, None) is None
    assert rate_in_log(Version(0, 5, 2)) is None


def test_versions() -> None:
    assert Version.told("0.5.10.post1") == Version(0, 5, 10, 1)
    assert Version(0, 5, 9) < Version(0, 5, 10) < Version(0, 5, 10, 1) < Version(0, 5, 11)
    for nothing in ("0.0.0.dev0", "0.5.9.dev12+g3207427", "", None, "3207427", "0.0.0"):
        assert Version.told(nothing) is None


def test_the_story_in_words() -> None:
    # 82 tok/s without speculation, 60 with; verifying takes 30 ms, which is 97 % of a cycle.
    found = break_even(length=1.85, tps=60, baseline_tps=82, cycle_ms=30 / 0.97)
    assert in_words(found, reference=3.2) == (
        "a cycle takes 30.9 ms, a token without speculation 12.2 ms: break-even at acceptance length 2.53; "
        "measured 1.85; at 3.2 this host would give 103 tok/s"
    )
    assert found.speedup == pytest.approx(60 / 82)


def test_break_even_from_observation_alone() -> None:
    # Worked example: 21.1 ms a cycle, 60 tok/s without: break-even 1.27, speed-up 2.53 at 3.2.
    found = break_even(length=1.0, tps=1000 / 21.1, baseline_tps=60)
    assert found.cycle_ms == pytest.approx(21.1)
    assert found.needed == pytest.approx(1.266, abs=0.001)
    points = curve(found, most=4.0)
    assert points[0] == (1.0, pytest.approx(found.speedup))
    assert points[-1][0] == 4.0
    crossing = [a for (a, s), (b, t) in itertools.pairwise(points) if s < 1 <= t]
    assert crossing
    assert crossing[0] <= found.needed <= crossing[0] + 0.125
