"""`opsctl diagnose` on this machine: a process that looks like a server, its HTTP side, and real drafters on disk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from probe_standin import Shape, serving

from opsctl import this_machine
from opsctl.agent.server import servers
from opsctl.cli.main import run
from opsctl.errors import Exit, UsageError
from opsctl.sglang.diagnosis import gather
from opsctl.sglang.diagnosis.causes import CAUSES
from opsctl.sglang.diagnosis.hypotheses import diagnose as walk
from opsctl.sglang.diagnosis.seen import evidence
from opsctl.wire.protocol import Context
from tests.drafter import build

KIT = Path(__file__).parents[1] / "real"
sys.path.insert(0, str(KIT))
from kit import faults  # noqa: E402  the faults of the tier with a real server, on the same models

MODELS = KIT / "kit" / "models"
Diagnose = Callable[..., tuple[int, dict[str, Any]]]


@contextmanager
def process(folder: Path, *flags: str, simulated: str | None = None) -> Iterator[int]:
    """A process that looks like a server: its module is there, and waits. It works in the folder."""
    package = folder / "tree" / "sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()\n")
    env = os.environ | {"PYTHONPATH": str(package.parent), "HF_TOKEN": "hf_secret", "SGLANG_TEST_KEY": "sk-secret"}
    if simulated:
        env["SGLANG_SIMULATE_ACC_LEN"] = simulated
    log = folder / "server.log"
    with log.open("wb") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *flags],
            stdin=subprocess.PIPE, stdout=out, env=env, cwd=folder,
        )  # fmt: skip
    try:
        while not log.read_bytes():
            assert started.poll() is None
        yield started.pid
    finally:
        assert started.stdin
        started.stdin.close()
        started.wait(120)


@pytest.fixture
def diagnose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Diagnose:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def go(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run(["diagnose", "--here", "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return go


@pytest.mark.parametrize(
    ("fault", "cycles", "cause"),
    [
        ("good", (3, 2, 1), None),
        ("layers0", (1, 0, 1), "names-not-loaded"),
        ("no-lm-head", (0,), "lm-head-missing"),
        ("no-aux", (0, 0, 0, 0, 1), "aux-disabled"),
        ("dead-head", (0,), "drafter-garbage"),
        ("no-lm-head", (1,), None),  # what would give 1.00 exactly is no explanation of 2.00
    ],
)
def test_the_planted_fault_is_named(
    diagnose: Diagnose,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    cycles: tuple[int, ...],
    cause: str | None,
) -> None:
    drafter = faults.make(fault, MODELS / "drafter-llama", tmp_path / "drafter")
    shape = Shape(version="0.5.9", cycles=cycles, model=str(MODELS / "target-llama"), drafter=str(drafter))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"input_ids": [40, 44]}\n')
    with serving(shape) as url, process(tmp_path, "--port", url.rpartition(":")[2]):
        run(["probe", "--url", url, "--prompts", str(prompts), "--max-tokens", "40", "--json"])
        measured = json.loads(capsys.readouterr().out)["run"]
        code, told = diagnose("--port", url.rpartition(":")[2], "--probe", measured)
    assert told["cause"] == cause
    assert code == (Exit.DEGRADED if cause else Exit.DONE if fault == "good" else Exit.UNKNOWN)


def test_it_measures_for_itself_unless_told_not_to(diagnose: Diagnose, tmp_path: Path) -> None:
    """A sound EAGLE-3 draft model under the flag of EAGLE, whatever the server was asked before."""
    drafter = faults.make("good", MODELS / "drafter-llama", tmp_path / "drafter")
    shape = Shape(cycles=(0,), algorithm="EAGLE", model=str(MODELS / "target-llama"), drafter=str(drafter))
    with serving(shape) as url, process(tmp_path, "--port", url.rpartition(":")[2]):
        code, told = diagnose("--port", url.rpartition(":")[2])
        assert (code, told["cause"], told["measured"]["source"]) == (10, "algorithm-not-eagle3", "request")
        assert told["measured"]["none_accepted"]
        sent = len(shape.asked)
        _, told = diagnose("--port", url.rpartition(":")[2], "--no-requests")
    assert (sent, len(shape.asked), told["measured"]) == (1, 1, None)


EAGLE2 = {"fc.weight": [64, 128], "layers.0.self_attn.q_proj.weight": [64, 64]}
NEXTN = {"model.layers.0.eh_proj.weight": [64, 128]}


@pytest.mark.parametrize(
    ("named", "shapes", "algorithm", "cause"),
    [
        ("LlamaForCausalLMEagle", EAGLE2, "EAGLE", None),
        ("DeepseekV3ForCausalLMNextN", NEXTN, "NEXTN", None),
        ("DeepseekV3ForCausalLMNextN", NEXTN, "EAGLE", None),
        ("DeepseekV3ForCausalLMNextN", NEXTN, "STANDALONE", "algorithm-not-eagle3"),
    ],
)
def test_a_draft_model_of_another_kind_is_not_held_to_eagle3(
    diagnose: Diagnose, tmp_path: Path, named: str, shapes: dict[str, list[int]], algorithm: str, cause: str | None
) -> None:
    """Where the flag is right for it, it is not the cause, though nothing is accepted."""
    made, rng = build.specforge(), random.Random(1)
    made.config["architectures"] = [named]
    made.tensors = {name: build.weight(rng, shape) for name, shape in shapes.items()}
    shape = Shape(cycles=(0,), algorithm=algorithm, drafter=str(made.write(tmp_path / "drafter")))
    with serving(shape) as url, process(tmp_path, "--port", url.rpartition(":")[2]):
        _, told = diagnose("--port", url.rpartition(":")[2])
    assert told["cause"] == cause


@pytest.mark.parametrize("named", ["Glm4MoeForCausalLM", "Qwen3NextForCausalLM"])
def test_a_target_that_drafts_for_itself_stops_no_server(diagnose: Diagnose, tmp_path: Path, named: str) -> None:
    """The server names the target's folder as the draft model's; only some models say in config.json what they have."""
    config = build.target(build.Dims()) | {"architectures": [named]}
    if named.startswith("Glm"):
        config["num_nextn_predict_layers"] = 1
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    weights = {f"model.layers.0.experts.{i}.weight": build.Raw("U8", [8], b"weights!") for i in range(4097)}
    build.write_safetensors(model / "model.safetensors", weights)
    shape = Shape(cycles=(0,), algorithm="EAGLE", model=str(model), drafter=str(model))
    with serving(shape) as url, process(tmp_path, "--port", url.rpartition(":")[2]):
        _, told = diagnose("--port", url.rpartition(":")[2])
    assert told["cause"] is None
    assert any("whole model" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("said", "note"),
    [
        ("./weights/drafter", None),
        ("weights/drafter", None),  # looks like a hub's name, and is a folder there
        ("lmsys/drafter", "drafter: lmsys/drafter is no folder of the host, so it was not read; --drafter names one"),
    ],
)
def test_a_relative_path_is_read_from_the_folder_of_the_server(
    diagnose: Diagnose, capsys: pytest.CaptureFixture[str], tmp_path: Path, said: str, note: str | None
) -> None:
    faults.make("good", MODELS / "drafter-llama", tmp_path / "weights" / "drafter")  # of 4 heads: not for tp 8
    with serving(Shape(version="0.5.9", model=str(MODELS / "target-llama"), drafter=said)) as url:
        port = url.rpartition(":")[2]
        with process(tmp_path, "--port", port, "--speculative-draft-model-path", said):
            _, told = diagnose("--port", port, "--no-requests")
            run(["server", "status", "--here", "--json"])
    found = json.loads(capsys.readouterr().out)["this machine"]
    (shown,) = (one["draft_model"] for one in found if one["port"] == int(port))
    assert shown == (str(tmp_path / "weights" / "drafter") if note is None else said)
    assert told["cause"] == ("drafter-stops-server" if note is None else None)
    assert [text for text in told["notes"] if text.startswith("drafter:")] == ([note] if note else [])


def test_what_is_named_here_is_relative_to_the_folder_one_is_in(
    diagnose: Diagnose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.make("good", MODELS / "drafter-llama", tmp_path / "drafter")
    (tmp_path / "target").symlink_to(MODELS / "target-llama")
    (tmp_path / "server.log").symlink_to(KIT.parent / "data" / "logs" / "0.5.9-llama-good.log")
    monkeypatch.chdir(tmp_path)
    named = ("--target", "./target", "--drafter", "drafter", "--log", "server.log")
    _, told = diagnose("--port", "31994", *named)
    assert [text for text in told["notes"] if not text.startswith("server:")] == []
    monkeypatch.chdir(tmp_path / "drafter")
    _, told = diagnose("--port", "31994", *named)
    missing = [text for text in told["notes"] if not text.startswith("server:")]
    assert len(missing) == 3
    assert all(str(tmp_path / "drafter") in text for text in missing)


def test_simulated_acceptance_is_seen_in_the_environment(diagnose: Diagnose, tmp_path: Path) -> None:
    with serving(Shape(version="0.5.9")) as url:
        port = url.rpartition(":")[2]
        with process(tmp_path, "--port", port, simulated="3.2"):
            _, told = diagnose("--port", port)
    assert told["cause"] == "simulated-acceptance"


def test_old_code(diagnose: Diagnose, tmp_path: Path) -> None:
    model = tmp_path / "tree" / "sglang" / "srt" / "models" / "kimi_k25.py"
    model.parent.mkdir(parents=True)
    model.write_text("")
    with serving(Shape(version="0.5.9")) as url:
        port = url.rpartition(":")[2]
        with process(tmp_path, "--port", port) as pid:
            seen = next(s for s in servers.find(Context(), locate=True) if s["pid"] == pid)
            assert seen["package"] == str(tmp_path / "tree" / "sglang")
            os.utime(model, (seen["started"] + 60, seen["started"] + 60))
            _, told = diagnose("--port", port)
    old = next(h for h in told["hypotheses"] if h["id"] == "old-code")
    assert "before its source was last changed" in old["seen"]


def test_what_is_told_of_a_process(tmp_path: Path) -> None:
    with process(tmp_path, "--port", "31999", "--api-key", "sk-live-9", "--admin-api-key=sk-live-8") as pid:
        found = next(s for s in servers.find(Context()) if s["pid"] == pid)
    assert found["log"] == str(tmp_path / "server.log")
    assert found["python"] == sys.executable
    assert found["environment"]["PYTHONPATH"] == str(tmp_path / "tree")
    told = json.dumps(found)
    assert not any(secret in told for secret in ("sk-live-9", "sk-live-8", "hf_secret", "sk-secret"))


def test_several_servers_are_not_guessed_between() -> None:
    two = [{"argv": ["sglang", "serve", "--port", port]} for port in ("30000", "30001")]
    with pytest.raises(UsageError) as caught:
        gather.choose(two, None)
    assert caught.value.hint == "name one by --port: 30000, 30001"
    assert gather.choose(two, 30001) is two[1]
    assert gather.choose([], None) is None


def test_a_server_of_others_is_not_taken_for_the_one_that_died(tmp_path: Path) -> None:
    log = KIT.parent / "data" / "logs" / "0.5.9-k25-good-stock.log"
    asked = gather.Asked(usual_port=31997, usual_log=str(log))
    with process(tmp_path, "--port", "31998"):
        seen = gather.look(this_machine.outcomes, lambda port: pytest.fail(f"asked the server on {port}"), asked)
    assert seen.process is None
    cause = walk(evidence(seen), CAUSES).cause
    assert cause is not None
    assert cause.id == "target-methods-missing"


@pytest.mark.parametrize(("restarted", "seen"), [(False, "1.3 to about 2"), (True, None)])
def test_what_was_logged_before_the_last_start_is_not_of_this_server(
    diagnose: Diagnose, tmp_path: Path, restarted: bool, seen: str | None
) -> None:
    good, worse = (
        (KIT.parent / "data" / "logs" / f"0.5.9-llama-{name}.log").read_text() for name in ("good", "layers0")
    )
    log = tmp_path / "shared.log"
    begun = [line for line in good.splitlines()[:40] if "Decode batch" not in line]
    log.write_text(worse + "\n".join(begun).replace("2026-11-29", "2026-11-30") * restarted)
    with process(tmp_path, "--port", "31995"):
        _, told = diagnose("--port", "31995", "--log", str(log))
    assert seen is None or seen in told["symptom"]
    assert bool(told["measured"]) == bool(seen)


def test_where_nothing_is_there_is_nothing_to_diagnose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with process(tmp_path, "--port", "31996"):
        assert run(["diagnose", "--here", "--port", "9"]) == Exit.UNREACHABLE
    assert "no server answers on port 9" in capsys.readouterr().err
