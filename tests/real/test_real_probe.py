"""`opsctl probe` and `diagnose` against real servers.

What probe reports is what the server counted; diagnose names the planted fault, and none for the sound drafter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit import faults, server

from opsctl.cli.main import run
from opsctl.errors import Exit

# Multiples of four: what targets and drafters were trained on. The second makes it a measurement of two requests.
PROMPTS = '{"id": "a", "input_ids": [40, 44, 48, 52]}\n{"id": "b", "input_ids": [8, 12, 16]}\n'
CHAT = '{"messages": [{"role": "user", "content": "Hi"}]}\n'
TOKENS = 16


@dataclass(frozen=True)
class Variant:
    """low, high: acceptance length that a server can show with it. cause: what diagnose must say."""

    version: str
    fault: str
    low: float
    high: float
    cause: str | None


VARIANTS = [
    Variant("0.5.9", "good", 4.0, 4.0, None),
    Variant("0.5.9", "no-lm-head", 1.0, 1.0, "lm-head-missing"),
    Variant("0.5.9", "no-aux", 1.0, 1.3, "aux-disabled"),
    Variant("0.5.9", "half-copied", 1.2, 2.3, "drafter-degraded"),
    Variant("0.5.23", "layers0", 4.0, 4.0, None),  # both names are taken from 0.5.12 on
    Variant("0.5.23", "no-lm-head", 1.0, 1.0, "lm-head-missing"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.version}-{v.fault}")
def test_probe_counts_as_the_server_and_diagnose_names_the_fault(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    drafter = faults.make(variant.fault, server.MODELS / "drafter-llama", tmp_path / "drafter")
    argv = server.command(variant.version, "llama", drafter, server.free_port())
    with server.serving(argv, server.environ(), tmp_path / "server.log") as running:
        code, result = probe(running.url, tmp_path, capsys)
        assert code == Exit.DONE
        diagnosed, told = diagnose(capsys, "--port", str(running.port), "--probe", result["run"])
        own, counted = own_counts(running.log), counters(running.url)
        _, unmeasured = diagnose(capsys, "--port", str(running.port))  # sends a request of its own
        chat = probe(running.url, tmp_path, capsys, "--max-tokens", "2", prompts=CHAT)[1] if accepts(variant) else None
    accept = result["accept_length"]
    assert variant.low <= accept["mean"] <= variant.high
    assert accept["exact"]
    # Every cycle brings a token beside the accepted ones; each answer's first token comes before them, and the limit
    # may cut its last cycle.
    produced = sum((accepted + 1) * count for accepted, count in enumerate(accept["histogram"]))
    assert accept["mean"] == pytest.approx(produced / accept["verify_steps"], abs=1e-4)
    assert 2 * (TOKENS - 1) <= produced <= 2 * (TOKENS - 1 + 3)
    assert sum(accept["histogram"]) == accept["verify_steps"]
    assert accept["mean"] == pytest.approx(counted, abs=0.005)
    assert result["server"]["version"] == variant.version
    # The server's own log, every fourth cycle, warm-up included: it counts a cut cycle as short.
    assert own == pytest.approx(accept["mean"], abs=0.45)
    assert ("nothing-accepted" in {f["id"] for f in result["findings"]}) == (accept["mean"] < 1.05)

    assert told["cause"] == variant.cause
    assert diagnosed == (Exit.DEGRADED if variant.cause else Exit.DONE)
    assert bool(told["remedy"]) == bool(variant.cause)
    assert [h["id"] for h in told["hypotheses"] if h["verdict"] == "confirmed"] == (
        [variant.cause] if variant.cause else []
    )
    assert unmeasured["cause"] == variant.cause  # from the server's own average, without a probe
    if chat is not None:
        # 0.5.23 renders chat messages itself; for 0.5.9 the model's folder does.
        assert chat["templated"] == ("checkpoint" if variant.version == "0.5.9" else "server")


def test_the_wrong_flag_is_named_after_ordinary_requests_and_no_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sound draft model of EAGLE-3 under EAGLE, by the server's own figures after one request and after four."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    argv = server.command(
        *("0.5.9", "llama", server.MODELS / "drafter-llama", server.free_port()), ("--speculative-algorithm", "EAGLE")
    )
    with server.serving(argv, server.environ(), tmp_path / "server.log") as running:
        for requests in (1, 3):
            counted = [server.ask(running.url, [40, 44, 48, 52], 48) for _ in range(requests)]
            code, told = diagnose(capsys, "--port", str(running.port), "--no-requests")
            assert (code, told["cause"], told["measured"]["source"]) == (10, "algorithm-not-eagle3", "server")
    # The first lines of the log say what was accepted, 1.00 or a chance hit more: no first token is counted in them.
    steps = sum(meta["spec_verify_ct"] for meta in counted)
    accepted = sum(meta["spec_accept_token_num"] for meta in counted)
    assert told["measured"]["low"] <= 1 + accepted / steps <= told["measured"]["high"]
    assert re.findall(r"accept len: ([\d.]+)", running.log.read_text())[0] == "1.00"


def test_simulated_acceptance_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    argv = server.command("0.5.23", "llama", server.MODELS / "drafter-llama", server.free_port())
    env = server.environ() | {"SGLANG_SIMULATE_ACC_LEN": "3"}
    with server.serving(argv, env, tmp_path / "server.log") as running:
        code, result = probe(running.url, tmp_path, capsys)
        _, told = diagnose(capsys, "--port", str(running.port))
    assert code == Exit.DONE
    assert "simulated-acceptance" in {f["id"] for f in result["findings"]}  # from its answers
    assert told["cause"] == "simulated-acceptance"  # from its environment


def test_a_drafter_that_kills_the_scheduler_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    drafter = faults.make("absolute-d2t", server.MODELS / "drafter-llama", tmp_path / "drafter")
    argv = server.command("0.5.9", "llama", drafter, server.free_port())
    with server.serving(argv, server.environ(), tmp_path / "server.log") as running:
        code, told = probe(running.url, tmp_path, capsys)
    assert code in (Exit.FAILED, Exit.UNREACHABLE)
    assert "scheduler" in told["stderr"] or "no server" in told["stderr"]
    assert "IndexError" in running.log.read_text(errors="replace")
    _, found = diagnose(capsys, "--log", str(running.log), "--port", str(running.port))
    assert found["cause"] == "d2t-crash"


def test_a_target_without_the_methods_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = server.MODELS / "drafter-k25"
    argv = server.command("0.5.9", "k25", drafter, server.free_port())
    log = tmp_path / "server.log"
    with pytest.raises(server.DidNotStart), server.serving(argv, server.environ(), log):
        pass
    _, found = diagnose(capsys, "--log", str(log), "--port", argv[argv.index("--port") + 1])
    assert found["cause"] == "target-methods-missing"
    assert found["remedy"] == "opsctl patch sglang"


def diagnose(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["diagnose", "--here", "--json", *more])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else {"stderr": told.err}


def probe(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str, prompts: str = PROMPTS
) -> tuple[int, dict[str, Any]]:
    file = folder / "prompts.jsonl"
    file.write_text(prompts)
    capsys.readouterr()
    code = run(["probe", "--url", url, "--prompts", str(file), "--max-tokens", str(TOKENS), "--json", *more])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else {"stderr": told.err}


def accepts(variant: Variant) -> bool:
    return variant.cause is None


def counters(url: str) -> float:
    """The acceptance length by the counters in the server's own answers to the same prompts."""
    accepted = steps = 0
    for line in PROMPTS.splitlines():
        meta = server.ask(url, json.loads(line)["input_ids"], TOKENS)
        accepted += meta.get("spec_accept_token_num", meta.get("spec_num_correct_drafts", 0))
        steps += meta["spec_verify_ct"]
    return 1 + accepted / steps


def own_counts(log: Path) -> float:
    """The mean `accept len` of the decode lines."""
    found = [float(n) for n in re.findall(r"accept len: ([\d.]+)", log.read_text(errors="replace"))]
    return sum(found) / len(found)
