"""`opsctl server` and `opsctl probe --ab`: the whole life of a host's server, with the practice server over SSH."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.cli.main import run
from opsctl.errors import Exit
from opsctl.practice.host import PracticeHost, practice_host

PROMPT = '{"id": "one", "messages": [{"role": "user", "content": "Name three rivers."}]}\n'
KEY = "sk-practice-0123456789"


@pytest.fixture
def practice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PracticeHost]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "practice").mkdir()
    with practice_host(tmp_path / "practice") as host:
        yield host


class Operator:
    """Types commands about one host."""

    def __init__(self, host: PracticeHost, capsys: pytest.CaptureFixture[str]) -> None:
        self.host, self._capsys = host, capsys

    def types(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = run([*words, "--inventory", str(self.host.inventory), "--host", "practice"])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def status(self) -> list[dict[str, Any]]:
        code, out, _ = self.types("server", "status", "--json")
        assert code == Exit.DONE
        return [server for server in json.loads(out)["practice"] if server["ours"]]

    def edit(self, **settings: Any) -> None:
        """Change the host's sglang section."""
        inventory = yaml.safe_load(self.host.inventory.read_text())
        inventory["hosts"]["practice"]["sglang"].update(settings)
        self.host.inventory.write_text(yaml.safe_dump(inventory))

    @property
    def launch(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.host.inventory.read_text())
        return dict(found["hosts"]["practice"]["sglang"]["launch"])


@pytest.fixture
def operator(practice: PracticeHost, capsys: pytest.CaptureFixture[str]) -> Operator:
    found = Operator(practice, capsys)
    drafter = str(practice.drafter("good"))
    found.edit(launch=found.launch | {"speculative-draft-model-path": drafter})
    return found


def test_the_life_of_a_server(operator: Operator) -> None:
    code, _, err = operator.types("server", "wait")
    assert (code, f"no SGLang server runs on port {operator.host.port}" in err) == (Exit.FAILED, True)
    assert operator.types("server", "start")[0] == Exit.DONE
    (first,) = operator.status()
    assert first["ready"]
    assert first["commit"]
    assert first["draft_model"] == str(operator.host.drafter("good"))
    assert operator.types("server", "start")[0] == Exit.DONE
    assert [s["pid"] for s in operator.status()] == [first["pid"]]  # it ran already
    assert operator.types("server", "restart")[0] == Exit.DONE
    (second,) = operator.status()
    assert second["pid"] != first["pid"]
    code, out, _ = operator.types("server", "wait", "--json")
    assert (code, json.loads(out)["practice"]["phases"]) == (Exit.DONE, {})
    code, out, _ = operator.types("server", "stop")  # nobody to ask
    assert code == Exit.USAGE
    assert operator.types("server", "stop", "--yes")[0] == Exit.DONE
    assert operator.status() == []


def test_a_start_that_fails_says_why_and_leaves_nothing_behind(operator: Operator) -> None:
    operator.edit(launch=operator.launch | {"speculative-draft-model-path": str(operator.host.drafter("oom"))})
    code, out, err = operator.types("server", "start")
    assert code == Exit.ROLLED_BACK
    assert "CUDA out of memory" in out + err
    assert "lower --mem-fraction-static" in out + err
    assert operator.status() == []


def test_the_key_is_in_no_command_line(operator: Operator) -> None:
    operator.edit(api_key=KEY)
    assert operator.types("server", "start")[0] == Exit.DONE
    (found,) = operator.status()
    assert found["answers"]  # asked with the key of the inventory
    settings = found["argv"][found["argv"].index("--config") + 1]
    assert KEY in Path(settings).read_text()
    assert Path(settings).stat().st_mode & 0o077 == 0
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert KEY.encode() not in process.read_bytes()
        except OSError:
            continue
    launch = Path(settings).with_suffix(".sh").read_text()
    assert KEY not in launch


def test_where_nothing_serves_there_is_nothing_to_compare_with(operator: Operator, tmp_path: Path) -> None:
    play = tmp_path / "before.yaml"
    play.write_text("hosts: all\ntasks: [{name: before, probe: {if_serving: true}}]\n")
    code, out, _ = operator.types("run", str(play))
    assert code == Exit.DONE
    reason = f"no server answers: port {operator.host.port} of the host takes no connection"
    assert f"    nothing to compare with: {reason}\n" in out


def test_a_command_and_a_play_both_say_that_acceptance_is_simulated(operator: Operator, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    operator.edit(env={"SGLANG_SIMULATE_ACC_LEN": "3"})
    assert operator.types("server", "start")[0] == Exit.DONE
    for words in (("probe", "--prompts", str(prompts)), ("run", "probe", "-e", f"prompts={prompts}")):
        _, out, _ = operator.types(*words)
        assert "error: SGLANG_SIMULATE_ACC_LEN=3 is set for the process" in out


def test_a_comparison_restarts_measures_and_puts_back(operator: Operator, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    operator.types("server", "start")
    (before,) = operator.status()
    words = ("probe", "--prompts", str(prompts), "--max-tokens", "40", "--ab")
    code, _, err = operator.types(*words)
    assert (code, "twice" in err) == (Exit.USAGE, True)  # nobody to ask, so nothing was done
    assert [s["pid"] for s in operator.status()] == [before["pid"]]
    code, out, err = operator.types(*words, "--yes", "--json")
    assert code == Exit.DONE, err
    result = json.loads(out)
    assert result["accept_length"]["mean"] > 2
    assert result["break_even"] == pytest.approx(result["accept_length"]["mean"] / result["speedup"], rel=0.01)
    assert result["outputs_agree"] == [1, 1]
    (after,) = operator.status()
    assert (after["argv"], after["draft_model"], after["ready"]) == (before["argv"], before["draft_model"], True)
    assert operator.types("server", "start")[0] == Exit.DONE
    assert [s["pid"] for s in operator.status()] == [after["pid"]]  # as the inventory describes it
    code, out, _ = operator.types("history", "--json")
    ended = {past["playbook"]: past["outcome"] for past in json.loads(out)["runs"]}
    assert ended == {"start-server": "done", "probe --ab": "rolled-back"}  # nothing is left open


def test_a_comparison_takes_the_command_from_the_process_where_the_inventory_has_none(
    operator: Operator, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    operator.types("server", "start")
    (before,) = operator.status()
    operator.edit(launch=None)
    code, out, err = operator.types("probe", "--prompts", str(prompts), "--max-tokens", "40", "--ab", "--yes", "--json")
    assert code == Exit.DONE, err
    assert json.loads(out)["outputs_agree"] == [1, 1]
    (after,) = operator.status()
    assert (after["argv"], after["ready"]) == (before["argv"], True)


def test_a_comparison_that_fails_puts_back_too(operator: Operator, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    operator.types("server", "start")
    (before,) = operator.status()
    config = operator.host.home / "models" / "kimi-tiny" / "config.json"
    # Without a draft model the practice server acts out what the target names.
    config.write_text(json.dumps(json.loads(config.read_text()) | {"practice_scenario": "oom-while-loading"}))
    code, _, err = operator.types("probe", "--prompts", str(prompts), "--max-tokens", "8", "--ab", "--yes")
    assert code != Exit.DONE
    assert "put back" in err
    (after,) = operator.status()
    assert (after["argv"], after["ready"]) == (before["argv"], True)
