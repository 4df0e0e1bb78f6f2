"""What is found lying on a host, and what is not taken for it."""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.agent.source.survey import look
from opsctl.wire.protocol import Context


def executable(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def model(folder: Path, architecture: object) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))


def test_what_lies_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "sglang/python/sglang/srt").mkdir(parents=True)
    (home / "other/python").mkdir(parents=True)
    executable(home / "sglang/.venv/bin/python")
    (home / "sglang/.venv/lib/python3.11/site-packages/__editable___sglang_finder.py").parent.mkdir(parents=True)
    (home / "sglang/.venv/lib/python3.11/site-packages/__editable___sglang_finder.py").touch()
    executable(home / "empty-env/bin/python")
    model(home / "models/target", "KimiK25ForConditionalGeneration")
    model(home / "models/draft", "LlamaForCausalLMEagle3")
    model(home / "models/odd", 5)
    (home / "models/broken").mkdir()
    (home / "models/broken/config.json").write_text("{")
    (home / "models/again").symlink_to(home / "models/target")
    units = tmp_path / "units"
    units.mkdir()
    (units / "serve.service").write_text("[Service]\nExecStart=/v/bin/python -m \\\n  sglang.launch_server --port 1\n")
    (units / "other.service").write_text("[Unit]\nDescription=beside sglang\n[Service]\nExecStart=/bin/true\n")
    found = look(Context(), roots=[str(home)], units=[str(units)])
    assert found["checkouts"] == [str(home / "sglang")]
    assert found["environments"] == [str(home / "sglang/.venv")]
    assert [m["architecture"] for m in found["models"]] == ["KimiK25ForConditionalGeneration"]
    assert [u for u in found["units"] if not u["user"]] == [{"name": "serve.service", "user": False}]


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    found = look(Context(), roots=[str(tmp_path / "nowhere*")], units=[])
    assert (found["checkouts"], found["environments"], found["models"]) == ([], [], [])
