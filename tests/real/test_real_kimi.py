"""The story on a real server, by commands alone: a stock 0.5.9 dies with KimiK25 and serves once it is patched; then a
fault of a draft model, of a flag and of the source is each named for what it is.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import environment, faults, server

from opsctl.cli.main import run
from opsctl.errors import Exit
from tests.sglang_source.releases import git
from tests.sshd import Sshd

VERSION = "0.5.9"
PROMPT = [40, 44, 48, 52]  # multiples of four are what the target was trained on
TOKENS = 9
GOOD = server.MODELS / "drafter-k25"
WORKER = "python/sglang/srt/speculative/eagle_worker.py"
OWN_HEAD = "self.draft_model_runner.model.set_embed(embed)"
_ENVIRONMENT = (
    *("PYTHONPATH", "SGLANG_USE_CPU_ENGINE", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"),
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
)


class Kimi:
    """A host behind sshd with a checkout of the release, whose server is started and stopped by opsctl."""

    def __init__(self, folder: Path, sshd: Sshd, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.sshd, self._capsys = folder, sshd, capsys
        self.port, self.inventory = server.free_port(), folder / "inventory.yaml"
        self.checkout = folder / "checkout"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(environment.packages(VERSION) / "sglang", self.checkout / "python" / "sglang", ignore=ignored)
        (self.checkout / ".gitignore").write_text("__pycache__/\n")
        for words in (("init", "-q"), ("add", "--all", "--force"), ("commit", "-qm", VERSION)):
            git(self.checkout, *words)
        (folder / "prompts.jsonl").write_text(json.dumps({"id": "a", "input_ids": PROMPT}) + "\n")

    def describes(self, drafter: Path, *more: str) -> None:
        """Write the inventory: the server's command has this draft model, and these words at its end."""
        env = server.environ(self.checkout / "python")
        sglang = {
            **{"checkout": str(self.checkout), "python": str(environment.python(VERSION)), "port": self.port},
            **{"launch": server.command(VERSION, "k25", drafter, self.port, more), "log": str(self.folder / "log")},
            **{"env": {name: env[name] for name in _ENVIRONMENT}},
        }
        sshd = self.sshd
        host = {
            **{"address": "127.0.0.1", "port": sshd.port, "user": sshd.user, "key": str(sshd.key_file)},
            **{"host_key": str(sshd.host_key), "ssh_config": "none", "state_dir": str(self.folder / "state")},
        }
        self.inventory.write_text(json.dumps({"hosts": {"box": {**host, "sglang": sglang}}}))

    def types(self, *words: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = run([*words, "-i", str(self.inventory)])
        told = self._capsys.readouterr()
        return code, told.out if "--json" in words else told.out + told.err

    def measured(self) -> float:
        """The acceptance length by opsctl, which is what the server itself counts."""
        words = ("--prompts", str(self.folder / "prompts.jsonl"), "--max-tokens", str(TOKENS))
        code, told = self.types("probe", *words, "--json")
        assert code == Exit.DONE
        length: float = json.loads(told)["accept_length"]["mean"]
        assert length == pytest.approx(self._counted(), abs=0.005)
        return length

    def diagnosed(self) -> tuple[str | None, str | None]:
        """The one cause, and its remedy."""
        _, told = self.types("diagnose", "--json")
        found: dict[str, Any] = json.loads(told)
        confirmed = [h["id"] for h in found["hypotheses"] if h["verdict"] == "confirmed"]
        assert confirmed == ([found["cause"]] if found["cause"] else [])
        return found["cause"], found["remedy"]

    def _counted(self) -> float:
        meta = server.ask(f"http://127.0.0.1:{self.port}", PROMPT, TOKENS)
        return float(1 + meta["spec_accept_token_num"] / meta["spec_verify_ct"])


@pytest.fixture
def kimi(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Kimi]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "operator"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = Kimi(tmp_path, sshd, capsys)
    yield found
    found.types("server", "stop", "--yes", "--stop-wait", "5s")


def test_kimi_serves_once_it_is_patched_and_each_fault_is_named(kimi: Kimi) -> None:
    # A flag that this release does not have is named by the source, before anything is started.
    kimi.describes(GOOD, "--speculative-num-stepz", "3")
    code, told = kimi.types("server", "start")
    assert (code, "did you mean --speculative-num-steps?" in told) == (Exit.FAILED, True)

    kimi.describes(GOOD)
    code, told = kimi.types("server", "start")
    assert code == Exit.ROLLED_BACK
    assert "'KimiK25ForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'" in told
    assert kimi.diagnosed() == ("target-methods-missing", "opsctl patch sglang")

    # One patch only: with all of them the server itself refuses what is silent below, see test_patch_real.
    code, told = kimi.types("patch", "sglang", "kimi-k25-eagle3", "--restart")
    assert code == Exit.DONE, told
    assert kimi.measured() == 4.0
    assert kimi.diagnosed() == (None, None)

    kimi.describes(faults.make("layers0", GOOD, kimi.folder / "layers0"))
    assert kimi.types("server", "start")[0] == Exit.DONE
    assert kimi.measured() < 2.5
    assert kimi.diagnosed()[0] == "names-not-loaded"

    kimi.describes(GOOD, "--speculative-algorithm", "EAGLE")
    assert kimi.types("server", "start")[0] == Exit.DONE
    assert kimi.measured() < 1.3
    assert kimi.diagnosed()[0] == "algorithm-not-eagle3"

    worker = kimi.checkout / WORKER
    text = worker.read_text()
    assert text.count(OWN_HEAD) == 1
    worker.write_text(text.replace(OWN_HEAD, "self.draft_model_runner.model.set_embed_and_head(embed, head)"))
    kimi.describes(GOOD)
    assert kimi.types("server", "restart")[0] == Exit.DONE
    assert kimi.measured() < 1.3
    cause, remedy = kimi.diagnosed()
    assert cause == "head-overwritten"
    assert remedy is not None
    _, mend, between, restart, _ = remedy.split("`")
    assert (between, restart) == (" on the host, then ", "opsctl patch sglang --restart")
    subprocess.run(shlex.split(mend), check=True)
    code, told = kimi.types("patch", "sglang", "--restart")
    assert code == Exit.DONE, told
    assert worker.read_text() == text
    assert kimi.measured() == 4.0
    assert kimi.diagnosed() == (None, None)
