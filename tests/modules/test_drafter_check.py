"""A drafter checked against a host: what counts is what the host's own source, settings and target are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl import modules
from opsctl.drafter.versions import KNOWN
from opsctl.inventory import SglangSettings
from opsctl.modules.contract import Action, Outcome
from opsctl.remote.host import RemoteHost
from opsctl.sglang.diagnosis import drafting
from opsctl.wire.protocol import Reply
from tests.drafter.build import Dims, Drafter, checkout, multimodal, specforge, target
from tests.modules.conftest import site


def settings(top: Path, version: str = "0.5.9", captures: bool = True, **more: Any) -> dict[str, Any]:
    model = top / "target"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(multimodal(target(Dims()))))
    launch = {"speculative-algorithm": "EAGLE3", **more.pop("launch", {})}
    found = {"checkout": checkout(top, version, captures), "model_path": str(model), "tp": 2, "launch": launch}
    return {**found, **more}


def check(host: RemoteHost, sglang: dict[str, Any], **args: Any) -> Outcome:
    action = modules.get("drafter_check")
    assert isinstance(action, Action)
    at = site({"sglang": sglang}, project=Path("/"))
    return action.run(action.args.model_validate(args), host, at, lambda text, fraction: None)


def sound() -> Drafter:
    built = specforge()
    built.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 29, 57], "use_aux_hidden_state": True}
    return built


def test_a_drafter_that_fits_passes_and_says_what_is_captured(local_host: RemoteHost, tmp_path: Path) -> None:
    found = check(local_host, settings(tmp_path), path=str(sound().write(tmp_path / "d")))
    assert found.failed is None
    assert found.values["outcome"] == {"0.5.9": "ok"}
    text = "\n".join(found.details)
    assert "output of layers [1, 29, 57]" in text
    assert "hands capture to self.language_model" in text
    assert "EAGLE3, tp 2" in text


@pytest.mark.parametrize(("version", "captures"), [("0.5.12", False), ("0.5.9", True)])
def test_the_source_decides_what_the_target_can_and_not_its_version(
    local_host: RemoteHost, tmp_path: Path, version: str, captures: bool
) -> None:
    found = check(local_host, settings(tmp_path, version, captures), path=str(sound().write(tmp_path / "d")))
    blocked = any(f["check"] == "target-capture" for f in found.values["findings"])
    assert blocked is not captures
    assert (found.failed is None) is captures


def test_a_tree_newer_than_every_release_is_said_to_be_that(local_host: RemoteHost, tmp_path: Path) -> None:
    found = check(local_host, settings(tmp_path, "0.5.99"), path=str(sound().write(tmp_path / "d")))
    assert found.failed is None
    text = "\n".join(found.details)
    assert "newer than 0.5.23, the newest release that was read" in text
    assert "capture are judged by its source" in text
    assert "output of layers [1, 29, 57]" in text


def test_a_fault_fails_with_its_remedy_unless_it_is_accepted(local_host: RemoteHost, tmp_path: Path) -> None:
    faulty = sound()
    faulty.rename("midlayer.", "layers.0.")
    path, host = str(faulty.write(tmp_path / "d")), settings(tmp_path)
    found = check(local_host, host, path=path)
    assert found.failed is not None
    assert found.failed.startswith("silent-garbage [tensor-names] layers.0.*")
    assert "rename layers.0. to midlayer." in str(found.hint)
    accepted = check(local_host, host, path=path, accept=["tensor-names", "tensor-missing"])
    assert accepted.failed is None
    mistyped = check(local_host, host, path=path, accept=["tensor-name"])
    assert mistyped.failed is not None
    assert any("did you mean 'tensor-names'" in line for line in mistyped.lines)


def test_launch_settings_are_those_of_the_host(local_host: RemoteHost, tmp_path: Path) -> None:
    launch = {"context-length": 262144, "tp": 16}
    host = settings(tmp_path, launch=launch)
    found = check(local_host, host, path=str(sound().write(tmp_path / "d")), accept=[])
    assert {"context-length", "tp-division"} <= {f["check"] for f in found.values["findings"]}
    host["env"] = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert "load-error" not in {
        f["verdict"]
        for f in check(local_host, host, path=str(tmp_path / "d")).values["findings"]
        if f["check"] == "context-length"
    }


def test_a_folder_of_the_host_is_judged_where_it_lies(host: RemoteHost, tmp_path: Path) -> None:
    path = str(sound().write(tmp_path / "d"))
    here = check(host, settings(tmp_path), path=path)
    there = check(host, settings(tmp_path / "again"), host_path=path)
    assert there.failed is None
    assert there.values["digest"] == here.values["digest"]


def test_what_cannot_be_found_out_is_said() -> None:
    met = drafting.meet(lambda calls: [Reply([]) for _ in calls], SglangSettings())  # no server runs
    text = "\n".join(met.unknown)
    assert "the target: no model_path" in text
    assert "every version is judged" in text
    assert met.versions == KNOWN
