"""`opsctl drafter check` from the outside: the machine interface, exit codes, and what people read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.cli.main import run
from tests.drafter import build
from tests.drafter.build import Drafter


def folders(tmp_path: Path, made: Drafter) -> list[str]:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(build.multimodal(made.target)))
    return [str(made.write(tmp_path / "drafter")), "--target", str(target)]


def test_machine_interface(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = folders(tmp_path, build.modelopt(layers0=True))
    code = run(["drafter", "check", *where, "--sglang", "0.5.10,0.5.12", "--tp", "8", "--json"])
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert list(found) == ["path", "format", "kind", "digest", "verdict", "outcome", "findings"]
    assert found["path"] == where[0]
    assert found["format"] == "modelopt>=0.42"
    assert found["verdict"] == "silent-garbage"
    assert found["outcome"] == {"0.5.10": "silent-garbage", "0.5.12": "ok"}
    worst = found["findings"][0]
    assert list(worst) == ["check", "verdict", "subject", "detail", "versions", "remedy"]
    assert (worst["check"], worst["versions"]) == ("tensor-names", ["0.5.10"])
    assert (code, err) == (10, "")


@pytest.mark.parametrize(
    ("make", "arguments", "code"),
    [
        (build.specforge, ["--sglang", "0.5.12"], 0),
        (build.specforge, ["--sglang", "0.5.9"], 11),  # the target cannot capture there
        (build.specforge, ["--sglang", "0.5.12", "--context-length", "999999"], 11),
        (build.specforge, ["--sglang", "0.5.12", "--tp", "16"], 11),
        (build.specforge, ["--sglang", "zero"], 2),
        (build.specforge, ["--sglang", "main"], 2),
        (build.specforge, ["--sglang", "3207427"], 2),
        (build.specforge, ["--sglang", ","], 2),
    ],
)
def test_exit_codes(make: object, arguments: list[str], code: int, tmp_path: Path) -> None:
    assert run(["drafter", "check", *folders(tmp_path, make()), *arguments]) == code  # type: ignore[operator]


@pytest.mark.parametrize("what", ["nothing", "a file", "target"])
def test_wrong_path_is_a_usage_error(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = build.specforge().write(tmp_path / "d")
    arguments = {
        "nothing": [str(tmp_path / "nowhere")],
        "a file": [str(folder / "config.json")],
        "target": [str(folder), "--target", str(tmp_path)],
    }[what]
    assert run(["drafter", "check", *arguments]) == 2
    err = capfd.readouterr().err
    assert "→" in err
    assert "Traceback" not in err


def test_people_read_verdict_evidence_effect_and_remedy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = build.specforge()
    del made.config["head_dim"]
    run(["drafter", "check", *folders(tmp_path, made), "--sglang", "0.5.12,0.5.23"])
    text = " ".join(capfd.readouterr().out.split())
    for part in (
        "! silent-garbage on every version checked",
        "HTTP 200",
        "midlayer.self_attn.q_proj.weight",
        "[96, 96] in the file, [48, 96] by config.json",
        '→ "head_dim": 12',
        "the server captures the output of layers [1, 29, 57]",
        "offset (certain)",
    ):
        assert part in text


def test_what_was_not_compared_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = build.specforge().write(tmp_path / "d")
    assert run(["drafter", "check", str(folder)]) == 0
    assert "were not compared" in " ".join(capfd.readouterr().out.split())


def test_full_read_finds_what_samples_miss(tmp_path: Path) -> None:
    made = build.torchspec(build.Dims(hidden=256, vocab=4096, intermediate=1024, aux=12, head_dim=64))
    made.config["num_aux_hidden_states"] = 12
    fc = bytearray(made.tensors["fc.weight"].data)
    spot = len(fc) // 15 & ~1  # between two samples
    fc[spot : spot + 2] = b"\xc0\x7f"
    made.tensors["fc.weight"].data = bytes(fc)
    folder = str(made.write(tmp_path / "d"))
    assert run(["drafter", "check", folder, "--sglang", "0.5.12"]) == 0
    assert run(["drafter", "check", folder, "--sglang", "0.5.12", "--full"]) == 10


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that is this machine, with SGLang 0.5.12 as far as it is read."""
    build.checkout(tmp_path, "0.5.12")
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    file = tmp_path / "inventory.yaml"
    where = {"checkout": tmp_path / "sglang", "model_path": tmp_path / "target", "weights_root": tmp_path / "weights"}
    lines = [f"        {key}: {value}" for key, value in where.items()]
    launch = ["        tp: 2", "        launch: {speculative-algorithm: EAGLE3}"]
    head = ["hosts:", "    k25:", "      connection: local", "      sglang:"]
    file.write_text("\n".join([*head, *lines, *launch]) + "\n")
    return file


def test_a_drafter_on_a_host_is_judged_for_that_host(
    tmp_path: Path, inventory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, *_ = folders(tmp_path, build.specforge())
    found = []
    for where in (
        ["k25:" + path],
        [path, "--host", "k25"],
        [path, "--sglang", "k25", "--target", f"k25:{tmp_path}/target"],
    ):
        assert run(["drafter", "check", *where, "--inventory", str(inventory), "--json"]) == 0
        found.append(json.loads(capfd.readouterr().out))
    assert found[0]["outcome"] == {"0.5.12": "ok"}
    assert "launch: EAGLE3, tp 2" in found[0]["host"]["seen"]
    assert all({**one, "path": ""} == {**found[0], "path": ""} for one in found)


def test_a_remedy_for_a_drafter_on_a_host_is_a_command_for_this_machine(
    tmp_path: Path, inventory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, *_ = folders(tmp_path, build.speculators())

    def remedies(*words: str) -> set[str]:
        run(["drafter", "check", *words, "--inventory", str(inventory), "--json"])
        told = {finding["remedy"] for finding in json.loads(capfd.readouterr().out)["findings"]}
        return {remedy for remedy in told if remedy.startswith("opsctl drafter convert")}

    assert remedies(path, "--host", "k25") == {f"opsctl drafter convert {path} NEW"}
    copied = f"where COPY is a copy on this machine of {path}"
    assert remedies(f"k25:{path}") == {f"opsctl drafter convert COPY NEW, {copied}"}
    assert run(["drafter", "convert", f"k25:{path}", str(tmp_path / "new")]) == 2
    assert "copy it here first" in capfd.readouterr().err


def test_options_win_over_what_the_host_says(
    tmp_path: Path, inventory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, *_ = folders(tmp_path, build.specforge())
    given = ["--inventory", str(inventory), "--host", "k25", "--json"]
    assert run(["drafter", "check", path, *given, "--tp", "16"]) == 11
    assert "tp-division" in {f["check"] for f in json.loads(capfd.readouterr().out)["findings"]}
    assert run(["drafter", "check", path, *given, "--sglang", "0.5.9"]) == 11
    assert list(json.loads(capfd.readouterr().out)["outcome"]) == ["0.5.9"]


@pytest.mark.parametrize(
    ("path", "told"),
    [("k25:/nowhere", "no such folder"), ("k26:/x", "no host or group is named 'k26'"), ("k25:here", "absolute path")],
)
def test_a_wrong_place_is_a_usage_error(
    tmp_path: Path, inventory: Path, capfd: pytest.CaptureFixture[str], path: str, told: str
) -> None:
    assert run(["drafter", "check", path, "--inventory", str(inventory)]) == 2
    assert told in capfd.readouterr().err


def test_stage_refuses_what_does_not_fit_unless_the_finding_is_named(
    tmp_path: Path, inventory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, *_ = folders(tmp_path, build.specforge())
    (tmp_path / "drafter/model-extra.safetensors").write_bytes(b"")
    stage = ["drafter", "stage", "k25:" + path, "--inventory", str(inventory), "--name", "draft"]
    assert run(stage) != 0
    assert not (tmp_path / "weights").exists()
    (tmp_path / "drafter/model-extra.safetensors").unlink()
    made = build.specforge()
    made.config["max_position_embeddings"] = 1024
    made.write(tmp_path / "drafter")
    assert run(stage) == 4
    assert run([*stage, "--force", "context-length"]) == 0
    (release,) = (tmp_path / "weights/releases/draft").iterdir()
    assert (release / "model.safetensors").read_bytes() == (tmp_path / "drafter/model.safetensors").read_bytes()


def test_a_size_that_nobody_has_said_is_no_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = str(build.specforge(build.Dims(heads=28, kv_heads=4, head_dim=2, intermediate=96)).write(tmp_path / "d"))
    for said, code, verdict in (([], 0, "note"), (["--tp", "8"], 11, "load-error"), (["--tp", "4"], 0, None)):
        assert run(["drafter", "check", folder, "--sglang", "0.5.9", "--json", *said]) == code
        found = json.loads(capfd.readouterr().out)["findings"]
        assert {one["check"]: one["verdict"] for one in found}.get("tp-division") == verdict
