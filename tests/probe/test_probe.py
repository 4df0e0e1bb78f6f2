"""`opsctl probe` as a user runs it, against a server that answers in the shapes of each version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from probe_standin import NAMES, Shape, serving

from opsctl.cli.main import run
from opsctl.errors import Exit
from opsctl.wire import limits
from tests.campaigns.http import answering, dripping, head

TWO = '{"id": "a", "input_ids": [40, 44]}\n{"id": "b", "workload": "code", "prompt": "def f():"}\n'
Probe = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Probe:
    """Runs `opsctl probe --json` with two prompts; gives the exit code and the object (or stderr, on an error)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OPSCTL_API_KEY", raising=False)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(TWO)

    def go(url: str, *more: str) -> tuple[int, dict[str, Any]]:
        code = run(["probe", "--url", url, "--prompts", str(prompts), "--max-tokens", "24", "--json", *more])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out else {"stderr": told.err}

    return go


def ids(result: dict[str, Any]) -> set[str]:
    return {f["id"] for f in result["findings"]}


@pytest.mark.parametrize("version", NAMES)
def test_every_version_gives_the_same_figures(probe: Probe, version: str) -> None:
    # Cycles of 3, 0, 1, 0 accepted drafts bring 4 + 1 + 2 + 1 tokens; 24 tokens are 1 + 8 + 8 + 7 (4, 1, 2): 11 cycles.
    with serving(Shape(version=version, cycles=(3, 0, 1, 0))) as url:
        code, result = probe(url)
    assert code == Exit.DONE
    told = result["accept_length"]
    counted = version != "0.5.3"
    assert told["mean"] == pytest.approx(1 + 12 / 11 if counted else 23 / 11, abs=1e-4)
    assert result["verify_steps"] == 22
    assert told["exact"] == counted
    assert ("derived-length" in ids(result)) == (not counted)
    if version not in ("0.5.3", "0.5.5", "0.5.6"):
        assert told["histogram"] == [10, 6, 0, 6]
        assert told["by_position"] == [pytest.approx(12 / 22, abs=1e-4), *[pytest.approx(6 / 22, abs=1e-4)] * 2]
    assert result["server"] == {
        "version": version,
        "commit": None,  # of an address nothing but what the server says is known
        "draft_digest": None,
        "simulated": False,
        "tp": 8,
        "quantization": None,
        "attention_backend": None,
        "algorithm": "EAGLE3",
        "steps": 3,
        "topk": 1,
        "draft_tokens": 4,
        "model": "/srv/models/target",
        "draft_model": "/srv/models/drafter",
        "own_accept_length": None,
    }


def test_the_warm_up_is_sent_and_not_counted(probe: Probe) -> None:
    shape = Shape()
    with serving(shape) as url:
        _, result = probe(url)
    assert [r["sampling_params"]["max_new_tokens"] for r in shape.asked] == [8, 24, 24]
    assert result["requests"] == 2
    assert all(r["sampling_params"]["temperature"] == 0 for r in shape.asked)


def test_levels_and_temperature(probe: Probe) -> None:
    shape = Shape()
    with serving(shape) as url:
        _, result = probe(url, "--concurrency", "1,4", "--temperature", "0.6")
    assert list(result["throughput"]) == ["1", "4"]
    assert result["sampled"]["temperature"] == 0.6
    assert result["sampled"]["accept_length"]["mean"] == 4.0
    # warm-up, two at one, four at four, two at 0.6
    assert [r["sampling_params"]["temperature"] for r in shape.asked] == [0] * 7 + [0.6] * 2


def test_a_dead_drafter(probe: Probe) -> None:
    with serving(Shape(cycles=(0,))) as url:
        _, result = probe(url)
    assert result["accept_length"]["mean"] == 1.0
    assert result["accept_rate"] == 0.0
    assert result["accept_rate_in_log"] == 0.25  # what 0.5.9 logs, and what misleads
    assert {"nothing-accepted", "rate-in-log"} <= ids(result)


def test_a_good_drafter_is_not_accused(probe: Probe) -> None:
    with serving(Shape(version="0.5.23")) as url:
        _, result = probe(url)
    assert ids(result) == {"too-few-steps"}


def test_simulated_acceptance(probe: Probe) -> None:
    with serving(Shape(token=lambda n: 100 if n else 31)) as url:
        _, result = probe(url)
    assert "simulated-acceptance" in ids(result)
    with serving(Shape(token=lambda n: 101)) as url:  # a model that only repeats itself does not simulate
        _, result = probe(url)
    assert "simulated-acceptance" not in ids(result)


def test_without_metrics(probe: Probe) -> None:
    with serving(Shape(metrics=False)) as url:
        _, result = probe(url)
    assert "metrics-disabled" in ids(result)


@pytest.mark.parametrize(
    "shape", [Shape(running=2), Shape(others=30), Shape(version="0.5.23", running=1)], ids=["load", "tokens", "loads"]
)
def test_a_busy_server(probe: Probe, shape: Shape) -> None:
    with serving(shape) as url:
        _, result = probe(url)
    assert "busy" in ids(result)


def test_an_authenticated_server(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Shape(api_key="sk-very-secret")) as url:
        code, told = probe(url)
        assert code == Exit.UNREACHABLE
        assert "API key" in told["stderr"]
        assert "OPSCTL_API_KEY" in told["stderr"]
        monkeypatch.setenv("OPSCTL_API_KEY", "sk-very-secret")
        code, result = probe(url)
    assert code == Exit.DONE
    assert "authenticated" in ids(result)
    kept = [p.read_text() for p in (tmp_path / "state").rglob("*.json")]
    assert kept
    assert not any("sk-very-secret" in text for text in [json.dumps(result), *kept])


def test_no_speculation_serves_as_baseline(probe: Probe) -> None:
    with serving(Shape(cycles=None)) as url:
        _, plain = probe(url)
    assert plain["accept_length"] is None
    assert plain["verify_steps"] == 0
    assert "no-speculation" in ids(plain)
    with serving(Shape()) as url:
        _, result = probe(url, "--baseline", plain["run"])
    assert result["baseline"] == plain["throughput"]["1"]["per_request"]
    assert result["outputs_agree"] == [2, 2]
    with serving(Shape(token=lambda n: 300 + n)) as url:
        _, result = probe(url, "--baseline", plain["run"])
    assert result["outputs_agree"] == [0, 2]
    assert "outputs-differ" in ids(result)


def test_baseline_as_a_number(probe: Probe) -> None:
    with serving(Shape()) as url:
        _, result = probe(url, "--baseline", "900000")
    per_request = result["throughput"]["1"]["per_request"]
    assert result["speedup"] == pytest.approx(per_request / 900000, abs=1e-4)
    assert result["break_even"] == pytest.approx(4.0 * 900000 / per_request, rel=1e-3)


def test_gates(probe: Probe) -> None:
    with serving(Shape(cycles=(1,))) as url:
        code, result = probe(url, "--gate", "accept_length>=3.0", "--gate", "accept_length <= 2")
        assert code == Exit.GATE
        assert [g["holds"] for g in result["gates"]] == [False, True]
        code, _ = probe(url, "--gate", "accept_length>=2.0", "--gate", "tps@1>0")
        assert code == Exit.DONE
        code, _ = probe(url, "--gate", "speedup>=1")  # never measured: a gate that is not shown to hold fails
        assert code == Exit.GATE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gate", "accept_lenght>=3"], "did you mean 'accept_length'?"),
        (["--gate", "accept_length=3"], "not a gate"),
        (["--gate", "accept_length@4>=3"], "not measured by concurrency"),
        (["--concurrency", "1,x"], "1,4,16"),
        (["--baseline", "20200101T000000000"], "no probe result"),
        (["--url", "127.0.0.1:30000"], "not an address"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(probe: Probe, arguments: list[str], said: str) -> None:
    shape = Shape()
    with serving(shape) as url:
        code, told = probe(url, *arguments)
    assert code == Exit.USAGE
    assert said in told["stderr"]
    assert not shape.asked


def test_a_server_that_dies_is_not_a_result(probe: Probe) -> None:
    with serving(Shape(dies=True)) as url:
        code, told = probe(url)
    assert code == Exit.FAILED
    assert "broke off" in told["stderr"]
    assert "opsctl diagnose" in told["stderr"]


def test_a_server_that_has_served_nothing_yet(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.sglang.server.api._PATIENCE", 0.2)
    with serving(Shape(asleep=True)) as url:
        code, result = probe(url)
    assert code == Exit.DONE
    assert result["accept_length"]["mean"] == 4.0


def test_nobody_there(probe: Probe) -> None:
    with serving(Shape()) as url:
        pass
    code, told = probe(url)
    assert code == Exit.UNREACHABLE
    assert "no server answers" in told["stderr"]


def test_prompts_that_do_not_fit_are_left_out(probe: Probe, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(TWO + json.dumps({"id": "huge", "prompt": "x" * 500}) + "\n")
    with serving(Shape(longest_prompt=100)) as url:
        code, result = probe(url, "--prompts", str(mixed))
    assert code == Exit.DONE
    assert "prompts-refused" in ids(result)
    assert sorted(result["outputs"]) == ["a", "b"]


def test_token_ids_only(probe: Probe) -> None:
    with serving(Shape(skip_tokenizer_init=True)) as url:
        code, told = probe(url)
    assert code == Exit.USAGE
    assert "input_ids" in told["stderr"]


def test_compare(probe: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Shape(cycles=(0,))) as url:
        _, bad = probe(url)
    with serving(Shape()) as url:
        _, good = probe(url)
    assert run(["probe", "compare", bad["run"], good["run"], "--json"]) == Exit.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["acceptance length"] == {"a": 1.0, "b": 4.0, "clear": True}


def test_the_report_is_one_page_without_the_server_s_markup(probe: Probe, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with serving(Shape(cycles=(1,), drafter="/srv/<script>alert(1)</script>")) as url:
        code, result = probe(url, "--report", str(page), "--baseline", "900000", "--concurrency", "1,2")
    assert code == Exit.DONE
    text = page.read_text()
    assert "<script" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    for expected in ("2.00", "Speed-up by acceptance length", "at a position", "&lt;script&gt;"):
        assert expected in text
    assert result["findings"][0]["message"].split(":")[0] in text


def test_a_result_that_cannot_be_kept_is_still_told(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with serving(Shape()) as url:
        code, result = probe(url)
    assert code == Exit.DONE
    assert (result["accept_length"]["mean"], result["run"]) == (4.0, None)


def test_human_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(TWO)
    with serving(Shape(cycles=(0,))) as url:
        assert run(["probe", "--url", url, "--prompts", str(prompts), "--max-tokens", "24", "--baseline", "82"]) == 0
    out = capsys.readouterr().out
    assert "acceptance length  1.00" in out
    assert "break-even at acceptance length" in out
    assert "→ `opsctl diagnose` says which" in out


def test_counters_that_went_back_are_told(probe: Probe) -> None:
    with serving(Shape(generated=5_000_000, others=-1_000_000)) as url:  # as after a start in between
        code, result = probe(url)
    assert code == Exit.DONE
    assert "counters-went-back" in ids(result)


def test_a_stream_in_tiny_chunks_is_left_early(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OVERHEAD", 128 << 10)
    drops = dripping(head("Transfer-Encoding: chunked", kind="text/event-stream"), b"1\r\n \r\n")
    with answering(lambda path: drops, "/generate") as port:
        code, told = probe(f"http://127.0.0.1:{port}")
    assert code == Exit.FAILED
    assert "/generate: borders of chunks: more than 131072 bytes came" in told["stderr"]


def test_what_comes_between_two_events_is_no_more_than_one(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT", 1 << 20)
    comments = dripping(head(kind="text/event-stream"), b": still here\n" * 4096)
    with answering(lambda path: comments, "/generate") as port:
        code, told = probe(f"http://127.0.0.1:{port}")
    assert code == Exit.FAILED
    assert "/generate: one event: more than 1 MiB came" in told["stderr"]
