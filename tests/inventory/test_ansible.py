"""What Ansible's inventories mean here: shapes in which people have them, each with its hosts or what is said of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.errors import Exit, UsageError
from opsctl.inventory import InventoryHost, load
from opsctl.secret import Secret
from tests.commands import opsctl

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "ansible.yaml").read_text())


def written(case: dict[str, Any], folder: Path) -> Path:
    """The inventory of a case, with its other files."""
    for name, text in case["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    first: str = next(iter(case["files"]))
    return folder / first


@pytest.mark.parametrize("case", [c for c in CASES if "hosts" in c], ids=lambda c: c["name"])
def test_a_shape_means_what_it_means_to_ansible(
    tmp_path: Path, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHAPE_SECRET", "from-the-environment")
    inventory = load(written(case, tmp_path))
    assert list(inventory.hosts) == list(case["hosts"])
    for name, expected in case["hosts"].items():
        host = inventory.hosts[name]
        assert sorted(host.groups) == sorted(expected["groups"]), name
        variables = {key: host.variables[key] for key in expected.get("vars", {})}
        assert (name, variables) == (name, expected.get("vars", {}))
        for key, value in expected.get("connection", {}).items():
            assert (name, key, said(host, key, tmp_path)) == (name, key, value)
        for key, value in expected.get("sglang", {}).items():
            assert getattr(host.sglang, key) == value
        for key, words in expected.get("refused", {}).items():
            secret = host.variables.get(key) or getattr(host.settings, key)
            with pytest.raises(UsageError) as caught:
                secret.reveal()
            assert words in f"{caught.value} {caught.value.hint}"
        if "blocked" in expected:
            with pytest.raises(UsageError, match=expected["blocked"]):
                host.connection()
        else:
            assert host.connection().name == name
    told = "\n".join(inventory.notes)
    for words in case.get("told", ()):
        assert words in told
    if "told" not in case:
        assert not [note for note in inventory.notes if "cannot be reached" not in note]


def said(host: InventoryHost, key: str, folder: Path) -> Any:
    value = getattr(host.settings, key)
    match value:
        case Secret():
            return value.reveal()
        case list():
            return [said_of(one, folder) for one in value]
        case str():
            return said_of(value, folder)
    return value.connect if key == "timeouts" and value else value


def said_of(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON").replace(str(Path.cwd()), "HERE")


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c], ids=lambda c: c["name"])
def test_what_cannot_be_read_is_told_with_all_that_is_wrong(tmp_path: Path, case: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        load(written(case, tmp_path))
    told = "\n".join(f"{one} {one.hint}" for one in caught.value.all)
    for words in case["error"]:
        assert words in told
    assert "None" not in told.replace(" None", "")


def test_no_host_is_touched_where_one_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text(
        "here ansible_connection=local\na ansible_connection=docker\nb ansible_host='{{ nowhere }}'\n"
    )
    (tmp_path / "play.yaml").write_text(
        f"- hosts: here\n  tasks:\n    - file: {{path: {tmp_path}/made}}\n- hosts: all\n  tasks:\n    - debug: x\n"
    )
    for words in (["inventory", "check"], ["run", "play.yaml", "--yes"]):
        said = opsctl(*words, "-i", "hosts.ini", folder=tmp_path)
        assert said.code == Exit.USAGE
        assert "hosts.ini:2:1" in said.err
        assert "hosts.ini:3:1" in said.err
        assert "--host 'all:!a'" in said.err
    assert not (tmp_path / "made").exists()
    alone = opsctl("inventory", "check", "all:!a:!b", "-i", "hosts.ini", folder=tmp_path)
    assert (alone.code, "here: ok" in alone.out) == (Exit.DONE, True), alone.err
