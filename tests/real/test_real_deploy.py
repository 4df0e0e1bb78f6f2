"""The whole deploy against a real SGLang, over SSH: a good drafter goes into service, a bad one is taken back."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit import faults, server

from opsctl.cli.main import run
from opsctl.errors import Exit
from tests.sshd import Sshd

KEY = "sk-real-0123456789"
TOKENS = 16  # of each answer
PROMPT = '{"id": "a", "input_ids": [40, 44, 48, 52]}\n'


class Box:
    """A host behind sshd whose inventory names a real server."""

    def __init__(self, folder: Path, sshd: Sshd, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.port, self.log = server.free_port(), folder / "server.log"
        self.inventory = folder / "inventory.yaml"
        (folder / "prompts.jsonl").write_text(PROMPT)
        env = {key: value for key, value in server.environ().items() if key in _ENVIRONMENT}
        settings = {
            **{"port": self.port, "launch": server.command("0.5.9", "llama", None, self.port, _SPECULATE)},
            **{"model_path": str(server.MODELS / "target-llama"), "weights_root": str(folder / "weights")},
            **{"env": env, "log": str(self.log), "python": str(server.environment.python("0.5.9")), "api_key": KEY},
        }
        (folder / "weights").mkdir()
        host = {
            **{"address": "127.0.0.1", "port": sshd.port, "user": sshd.user, "key": str(sshd.key_file)},
            **{"known_hosts": str(sshd.known_hosts), "ssh_config": "none", "state_dir": str(folder / "state")},
            "vars": {"health": {"profile": {"gpus": 0}}},
        }
        self.inventory.write_text(yaml.safe_dump({"hosts": {"box": {**host, "sglang": settings}}}))

    def types(self, *words: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = run([*words, "--inventory", str(self.inventory), "--host", "box"])
        told = self._capsys.readouterr()
        return code, told.out + told.err

    def deploy(self, drafter: Path) -> tuple[int, str]:
        params = {"drafter": drafter, "prompts": self.folder / "prompts.jsonl", "max_tokens": TOKENS}
        words = [word for name, value in params.items() for word in ("-e", f"{name}={value}")]
        return self.types("run", "deploy-drafter", *words, "-e", "ready_timeout=6m")

    def served(self) -> str:
        """The draft model that the server itself names."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/get_server_info", headers={"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            info: dict[str, Any] = json.load(answer)
        return str(info["speculative_draft_model_path"])


def without_launch(inventory: dict[str, Any]) -> dict[str, Any]:
    del inventory["hosts"]["box"]["sglang"]["launch"]
    return inventory


_ENVIRONMENT = (
    "PYTHONPATH",
    "SGLANG_USE_CPU_ENGINE",
    "TRITON_INTERPRET",
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)
_SPECULATE = [
    *("--attention-backend", "triton", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
]


@pytest.fixture
def box(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Box]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "operator"))
    monkeypatch.chdir(tmp_path)  # a failed deploy keeps the logs below the folder it was started in
    found = Box(tmp_path, sshd, capsys)
    yield found
    found.types("server", "stop", "--yes", "--stop-wait", "10s")


def test_a_good_drafter_serves_and_a_bad_one_is_taken_back(box: Box) -> None:
    good = faults.make("good", server.MODELS / "drafter-llama", box.folder / "good")
    bad = faults.make("scrambled", server.MODELS / "drafter-llama", box.folder / "bad")
    code, told = box.deploy(good)
    assert code == Exit.DONE, told
    assert "acceptance length 4.00" in told
    first = box.served()
    assert first.startswith(str(box.folder / "weights" / "releases" / "good"))
    assert KEY not in told

    code, told = box.types("server", "status", "--json")
    (found,) = [s for s in json.loads(told)["box"] if s["ours"]]
    assert (found["ready"], found["draft_model"], found["version"]) == (True, first, "0.5.9")
    assert KEY not in " ".join(found["argv"])

    # Against its own speed without speculation, by the command of the process: the inventory has none for a while.
    described = box.inventory.read_text()
    box.inventory.write_text(yaml.safe_dump(without_launch(yaml.safe_load(described))))
    measure = (
        "--prompts",
        str(box.folder / "prompts.jsonl"),
        "--max-tokens",
        str(TOKENS),
        "--gate",
        "accept_length>=3.9",
    )
    code, told = box.types("probe", "--ab", "--yes", "--json", *measure)
    assert code == Exit.DONE, told
    result = json.loads(told[told.index("{") : told.rindex("}") + 1])
    assert result["accept_length"]["mean"] == 4.0
    assert result["outputs_agree"] == [1, 1]
    assert result["break_even"] == pytest.approx(4 / result["speedup"], rel=0.01)
    assert "authenticated" in {f["id"] for f in result["findings"]}
    assert KEY not in told
    assert box.served() == first
    _, told = box.types("server", "status", "--json")
    (again,) = [s for s in json.loads(told)["box"] if s["ours"]]
    assert (again["argv"], again["ready"]) == (found["argv"], True)
    box.inventory.write_text(described)

    code, told = box.deploy(bad)
    assert code == Exit.ROLLED_BACK, told
    assert "acceptance length 1.0" in told
    assert box.served() == first
    _, told = box.types("server", "status", "--json")
    (back,) = [s for s in json.loads(told)["box"] if s["ours"]]
    assert (back["ready"], back["argv"]) == (True, found["argv"])
    assert back["pid"] != found["pid"]

    code, told = box.types("diagnose", "--json")
    assert json.loads(told)["cause"] is None
