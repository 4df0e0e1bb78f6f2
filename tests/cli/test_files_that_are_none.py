"""A pipe nobody writes to, or a device, in the place of a file: told with its path, whoever reads it, and at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl import localfiles, modules, patchfiles
from opsctl.agent.source import survey
from opsctl.agent.stage import receive, releases
from opsctl.drafter import compare
from opsctl.engine import connections, loader
from opsctl.errors import OpsctlError
from opsctl.gpu.read import bundle
from opsctl.modules.contract import Module
from opsctl.remote import login
from opsctl.remote.ssh_config import Hop
from opsctl.secret_sources import _from_file
from opsctl.sglang.probe.prompts import read_prompts
from opsctl.yaml_source import Place, read_yaml
from tests.modules.conftest import site
from tests.sshd import keygen


def observe(name: str, path: Path) -> Any:
    module = modules.get(name)
    assert isinstance(module, Module)
    return module.observe(module.args.model_validate({"src": path.name, "dest": "/x"}), site(project=path.parent))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


READERS: dict[str, Callable[[Path], Any]] = {
    "inventory, variables": read_yaml,
    "playbook": loader.load_playbook,
    "secret": lambda path: _from_file(path, Place("inventory.yaml", 1)),
    "prompts": read_prompts,
    "diff": patchfiles._diff,
    "health bundle": lambda path: list(bundle.members([path])),
    "table of drafter compare": lambda path: compare.read_table(str(path)),
    "template": lambda path: observe("template", path),
    "copy": lambda path: observe("copy", path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a pipe"), (device, "a device")])
def test_whoever_reads_it_says_what_it_is(tmp_path: Path, reader: str, make: Callable[[Path], None], what: str) -> None:
    make(tmp_path / "odd")
    raised: list[BaseException] = []

    def read() -> None:
        try:
            READERS[reader](tmp_path / "odd")
        except BaseException as error:  # noqa: BLE001  looked at below
            raised.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(120)  # without an end it would hang the tests
    assert not reading.is_alive()
    assert isinstance(raised[0], OpsctlError)
    assert what in raised[0].message
    assert str(tmp_path / "odd") in str(raised[0])


def test_a_key_or_certificate_that_is_none_is_passed_by_and_told(tmp_path: Path) -> None:
    for name in ("odd", "key.pub"):
        os.mkfifo(tmp_path / name)
    keygen(tmp_path / "key.real")
    (tmp_path / "key.real").rename(tmp_path / "key")
    hop = Hop("127.0.0.1", 22, "ops", "box", certificates=(str(tmp_path / "odd"),))
    tried: list[str] = []
    assert list(login._from_file(str(tmp_path / "odd"), hop, tried, named=True)) == []
    assert tried == [f"key {tmp_path / 'odd'} (unusable: it is a pipe, not a file)"]
    key = str(tmp_path / "key")
    assert [file for _, file, _ in login._from_file(key, hop, tried, named=True)] == [key]
    assert login._public_half(key) is None


def test_what_arrived_and_what_a_release_holds_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(receive.notes(str(tmp_path)))
    os.mkfifo(tmp_path / releases.BLOCKS)
    (tmp_path / releases.MANIFEST).write_text('{"digest": "", "files": {}}')
    assert receive.noted(str(tmp_path)) == []
    assert releases.blocks({"path": str(tmp_path), "files": {}}) == []


def test_hints_and_surveys_pass_it_by(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert survey._architecture(str(tmp_path / "config.json")) is None
    with pytest.raises(OSError, match="it is a pipe"):
        connections._digest(tmp_path / "config.json")


def test_what_a_shell_hands_over_is_read(tmp_path: Path) -> None:
    script = "from pathlib import Path; from opsctl.localfiles import read; print(read(Path('/dev/stdin'), piped=True))"
    ran = subprocess.run([sys.executable, "-c", script], input=b"hosts: all", capture_output=True, check=True)
    assert ran.stdout == b"b'hosts: all'\n"
    (tmp_path / "f").write_text("x")
    assert localfiles.read_text(tmp_path / "f") == "x"
