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
    assert list(found) == ["path", "format", "digest", "verdict", "outcome", "findings"]
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
        "! silent-garbage on every version asked",
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
