"""The files that opsctl ships: right by the schema, right by the loader, and never silently wrong after a slip."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from opsctl import patchfiles
from opsctl.cli.main import run as opsctl
from opsctl.engine import schema
from opsctl.engine.lint import lint
from opsctl.engine.loader import load_playbook
from opsctl.errors import Exit, UsageError
from opsctl.inventory import load
from opsctl.practice import host as practice_host
from opsctl.practice import models
from tests.docs.pages import ROOT
from tests.docs.test_pages import plain
from tests.mutation import mutated

PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yaml"))
INVENTORY = ROOT / "inventory.yaml"


def valid(value: Any, kind: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(kind).is_valid(value)


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_playbooks(path: Path) -> None:
    load_playbook(path)
    jsonschema.validate(plain(path), schema.playbook())
    assert [str(f.message) for f in lint(path, None)] == []
    assert path.read_text().startswith("# yaml-language-server: $schema=../docs/schema/playbook.schema.json\n")


def test_inventories(tmp_path: Path) -> None:
    practice = tmp_path / "inventory.yaml"
    words = {"root": "/p", "name": "p", "ssh_port": 22, "host_key": "SHA256:x", "home": "/p/host", "port": 1}
    practice.write_text(practice_host.INVENTORY.format(**words))
    for path in (INVENTORY, practice):
        assert load(path).select("all")
        jsonschema.validate(plain(path), schema.inventory())


# A line of a shipped file, and what a slip makes of it.
WRONG = [
    ("deploy-drafter.yaml", "  on_failure: rollback", "  on_failure: undo"),
    ("deploy-drafter.yaml", "  on_failure: rollback", "  on_failures: rollback"),
    ("deploy-drafter.yaml", "      gpu_health: {}", "      gpu_heath: {}"),
    ("deploy-drafter.yaml", "        if_serving: true", "        if_serve: true"),
    ("deploy-drafter.yaml", "      measure: accept_length", "      mesure: accept_length"),
    ("deploy-drafter.yaml", "      type: float", "      type: decimal"),
    ("deploy-drafter.yaml", "        state: started", "        state: running"),
    ("health.yaml", "  lock: false", "  lock: [1]"),
    ("pin-sglang.yaml", "        keep_local_changes:", "        keep_local_change:"),
    ("restart-server.yaml", "  serial: 1", "  serial: {a: 1}"),
    ("restart-server.yaml", "      supervise:", "      supervised:"),
    ("restart-server.yaml", "  tasks:", "  task:"),
]


@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_the_schema_finds_slips(name: str, old: str, new: str, tmp_path: Path) -> None:
    text = (ROOT / "playbooks" / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1))
    assert not valid(plain(path), schema.playbook())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    port: 22", "    port: 220000"),
        ("    user: root", "    usr: root"),
        ("      tp: 8 ", "      tp: eight "),
        ("      unit: sglang.service", "      units: sglang.service"),
        ("hosts:\n  # The", "host:\n  # The"),
        ("    connect: 10 ", "    conect: 10 "),
        ("    hosts: [k25]", "    hosts: {k25: 1}"),
    ],
)
def test_the_inventory_schema_finds_slips(old: str, new: str, tmp_path: Path) -> None:
    text = INVENTORY.read_text()
    assert old in text
    path = tmp_path / "inventory.yaml"
    path.write_text(text.replace(old, new, 1))
    assert not valid(plain(path), schema.inventory())


PATCH = """\
reason: MyVL does not pass the capture calls on
file: srt/models/my_vl.py
class: MyVL
functions:
  - code: |
      def get_embed_and_head(self): ...
    instead_of: |
      def get_embed_and_head(self): pass
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class:", "clas:"),
        ("file: srt/models/my_vl.py\n", ""),
        ("reason: MyVL does not pass the capture calls on", "reason: [1]"),
        ("  - code: |", "  - codes: |"),
        ("instead_of:", "instead-of:"),
        ("    instead_of: |\n      def get_embed_and_head(self): pass\n", "    instead_of: [1]\n"),
        (PATCH[PATCH.index("functions") :], "functions: []\n"),
    ],
)
def test_the_patch_schema_finds_slips_as_the_loader_does(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PATCH)
    assert valid(plain(path), schema.patch())
    assert patchfiles.read(tmp_path).states
    assert old in PATCH
    path.write_text(PATCH.replace(old, new, 1))
    assert not valid(plain(path), schema.patch())
    with pytest.raises(UsageError, match=r"mine\.yaml:"):
        patchfiles.read(tmp_path)


class Doorbell:
    """A host that only counts who comes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.rings = 0
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.rings += 1
            client.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def doorbell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafters") / "some"
    models.write_drafter(folder, seed=1, scenario="healthy")
    return folder


@pytest.mark.parametrize("seed", range(200))
def test_a_broken_playbook_is_told_where_and_touches_no_host(
    seed: int,
    doorbell: Doorbell,
    drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Two hundred slips in the shipped playbooks, given to the command line as a user would."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPSCTL_RECORDS", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    Path("inventory.yaml").write_text(
        f"hosts: {{bell: {{address: 127.0.0.1, port: {doorbell.port}, attempts: 1, host_key: 'SHA256:x', "
        "ssh_config: none, sglang: {checkout: /c, launch: {}, weights_root: /w}}}\n"
    )
    dice = random.Random(seed)
    path = PLAYBOOKS[seed % len(PLAYBOOKS)]
    Path("broken.yaml").write_text(mutated(path.read_text(), dice))
    before = doorbell.rings
    given = {"deploy-drafter": ["-e", f"drafter={drafter}"], "pin-sglang": ["-e", "commit=3207427"]}
    code = opsctl(["run", "broken.yaml", "--check", "--yes", *given.get(path.stem, [])])
    out, err = capfd.readouterr()
    assert code != Exit.BUG
    assert "Traceback" not in out + err
    if code == Exit.USAGE:
        assert "broken.yaml:" in err or "-e" in err, err
        assert doorbell.rings == before, "a host was touched"


@pytest.mark.parametrize("seed", range(60))
def test_a_broken_inventory_is_told_where(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text(mutated(INVENTORY.read_text(), random.Random(seed)))
    code = opsctl(["inventory", "list", "--vars"])
    out, err = capfd.readouterr()
    assert code in (Exit.DONE, Exit.USAGE)
    assert "Traceback" not in out + err
    if code == Exit.USAGE:
        assert "inventory.yaml:" in err, err
