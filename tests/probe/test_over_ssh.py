"""`opsctl probe --host` and `diagnose --host`: a server on a host's loopback, reached through SSH alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from opsctl.cli.main import run
from opsctl.errors import Exit
from opsctl.practice.host import PracticeHost, practice_host
from tests.sshd import eventually

ONE = '{"id": "one", "messages": [{"role": "user", "content": "Name three rivers."}]}\n'


@pytest.fixture(scope="module")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PracticeHost]:
    with practice_host(tmp_path_factory.mktemp("practice")) as host:
        yield host


@contextmanager
def served(host: PracticeHost, drafter: str) -> Iterator[None]:
    (host.home / "logs").mkdir(exist_ok=True)
    with (host.home / "logs" / "sglang.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(str(host.home / "venv/bin/python"), "-m", "sglang.launch_server"),
                *("--model-path", str(host.home / "models/kimi-tiny"), "--port", str(host.port)),
                *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(host.drafter(drafter))),
                *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
                *("--speculative-num-draft-tokens", "4", "--enable-metrics"),
            ],
            stdout=log,
            stderr=log,
            cwd=host.home,
        )
    try:

        def answers() -> bool:
            assert process.poll() is None
            try:
                return httpx.get(f"http://127.0.0.1:{host.port}/health", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        eventually(answers)
        yield
    finally:
        process.terminate()
        process.wait(120)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run([*arguments, "--json"])
    told = capsys.readouterr()
    assert told.out, told.err
    return code, json.loads(told.out)


def test_probe_and_diagnose_through_the_connection(
    practice: PracticeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(ONE)
    at = ("--inventory", str(practice.inventory), "--host", "practice")
    with served(practice, "good"):
        code, result = command(capsys, "probe", *at, "--prompts", str(prompts), "--max-tokens", "40")
        assert code == Exit.DONE
        assert result["target"] == "practice"
        assert result["accept_length"]["mean"] > 2
        code, told = command(capsys, "diagnose", *at, "--probe", result["run"])
        assert (code, told["cause"]) == (Exit.DONE, None)
        assert not told["notes"]
        code, found = command(capsys, "server", "status", *at)
        assert code == Exit.DONE
        (one,) = [s for s in found["practice"] if s["port"] == practice.port]
        assert one["answers"]
        assert one["draft_model"] == str(practice.drafter("good"))
        assert one["package"] == str(practice.home / "sglang" / "python" / "sglang")
        assert one["old_code"] is False
