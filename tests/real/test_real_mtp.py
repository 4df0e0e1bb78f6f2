"""`opsctl diagnose` against real servers whose target drafts by a layer of its own: sound, it is cleared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit import nextn, server

from opsctl.cli.main import run
from opsctl.errors import Exit

FLAGS = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")


@dataclass(frozen=True)
class Variant:
    """cause: what diagnose must say. low, high: acceptance length that a server can show."""

    version: str
    algorithm: str
    fault: str
    low: float
    high: float
    cause: str | None


VARIANTS = [
    Variant("0.5.9", "NEXTN", "good", 4.0, 4.0, None),
    Variant("0.5.23", "EAGLE", "good", 4.0, 4.0, None),
    Variant("0.5.9", "EAGLE", "nextn-lost", 1.0, 1.3, "draft-layers-missing"),
    Variant("0.5.23", "NEXTN", "nextn-lost", 1.0, 1.3, "draft-layers-missing"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.version}-{v.algorithm}-{v.fault}")
def test_a_layer_of_the_targets_own_is_named_or_cleared(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    argv = command(variant.version, variant.algorithm, nextn.make(variant.fault, tmp_path / "model"))
    with server.serving(argv, server.environ(), tmp_path / "server.log") as running:
        if variant.fault == "good":
            code, told = diagnose(capsys, "--port", str(running.port))
        else:  # which is slow: each token takes a step of its own
            server.ask(running.url, [40, 44, 48, 52], 16)
            code, told = diagnose(capsys, "--port", str(running.port), "--no-requests")
    assert variant.low <= told["measured"]["length"] <= variant.high
    assert told["cause"] == variant.cause
    confirmed = [h["id"] for h in told["hypotheses"] if h["verdict"] == "confirmed"]
    assert confirmed == ([variant.cause] if variant.cause else [])
    sound = Exit.DONE if variant.fault == "good" else Exit.UNKNOWN
    assert code == (Exit.DEGRADED if variant.cause else sound)


def test_a_layer_of_the_targets_own_under_eagle3_is_the_flags_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = command("0.5.9", "EAGLE3", nextn.make("good", tmp_path / "model"))
    log = tmp_path / "server.log"
    with pytest.raises(server.DidNotStart), server.serving(argv, server.environ(), log):
        pass
    _, told = diagnose(capsys, "--log", str(log), "--port", argv[argv.index("--port") + 1])
    assert told["cause"] == "algorithm-not-eagle3"


def command(version: str, algorithm: str, model: Path) -> list[str]:
    more = ("--model-path", str(model), "--speculative-algorithm", algorithm, *FLAGS)
    return server.command(version, "k25", None, server.free_port(), more)


def diagnose(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["diagnose", "--here", "--json", *more])
    return code, json.loads(capsys.readouterr().out)
