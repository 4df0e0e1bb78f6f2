"""Arguments nobody means are the user's mistake, told in a line."""

from __future__ import annotations

import sys

import pytest

from opsctl.cli.main import run

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["drafter", "check", ".", "--sglang", f"0.5.{LONG}"], 2),
        (["probe", "--url", "http://[::1"], 2),
        (["probe", "--url", "http://127.0.0.1:port"], 2),
    ],
)
def test_an_odd_argument(arguments: list[str], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) in (code, 5)  # 5: what is no version is taken for a host, and none has that name
    assert "Traceback" not in capfd.readouterr().err


def test_a_closed_stdin_has_nothing_to_redact(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["logs", "redact"]) == 2
    assert "stdin is closed" in capfd.readouterr().err
