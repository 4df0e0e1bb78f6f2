"""Every wait of a task ends with its time and with Ctrl-C, also where the host never answers."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl import modules
from opsctl.engine import execute
from opsctl.engine.events import TaskEnded, TaskStarted
from opsctl.errors import Exit
from opsctl.modules.contract import Action
from opsctl.modules.copy import IN_FRAME
from opsctl.remote import agent_client
from tests.drafter import build
from tests.engine.world import Project
from tests.remote import test_lying_host

# Where each action waits for the host. `assert` and `debug` ask it nothing.
ACTIONS = {
    "drafter_check": "{path: drafter}",
    "drafter_fetch": "{source: org/name, by: host}",
    "gpu_health": "{}",
    "http": "{url: 'http://127.0.0.1:PORT/', timeout: 10m}",
    "logs_collect": "{folder: logs}",
    "probe": "{port: PORT}",
    "raw": "{cmd: sleep 600, timeout: 10m}",
    "wait_for": "{path: /nowhere, timeout: 10m}",
}
TRANSFERS = {
    "copy": ("arrival", "{src: long, dest: OUT/long}"),
    "drafter_stage": ("stage.prepare,stage.resume,arrival", "{path: drafter, releases: OUT/releases}"),
}
CASES = {**{name: ("*", args) for name, args in ACTIONS.items()}, **TRANSFERS}


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agent_client, "GRACE", 0.5)  # these hosts never use what they are given
    monkeypatch.setattr(execute, "CLEANING_UP", 0.5)
    files = tmp_path / "files"
    files.mkdir()
    (files / "long").write_bytes(os.urandom(IN_FRAME + 1))
    build.torchspec().write(files / "drafter")
    return project


def silent(project: Project, calls: str) -> None:
    """Have these calls of the host `here` never be answered."""
    python = project.folder / "python"
    words = shlex.join([sys.executable, str(test_lying_host.LIAR), "0", f"silent:{calls}"])
    python.write_text(f'#!/bin/sh\nPYTHONPATH={test_lying_host.REPOSITORY} exec {words} "$@"\n')
    python.chmod(0o755)
    host = {"connection": "local", "python": str(python), "state_dir": str(project.folder / "state")}
    (project.folder / "inventory.yaml").write_text(json.dumps({"hosts": {"here": host}}))


def test_every_action_is_held_to_its_time() -> None:
    assert {name for name in modules.names() if isinstance(modules.get(name), Action)} == {*ACTIONS, "assert", "debug"}


@pytest.mark.parametrize("name", CASES)
def test_a_task_ends_with_its_time(project: Project, port: int, name: str) -> None:
    calls, args = CASES[name]
    silent(project, calls)
    ran = project.run(f"hosts: all\ntasks:\n  - {{name: t, timeout: 2s, {name}: {args.replace('PORT', str(port))}}}\n")
    (ended,) = ran.of(TaskEnded)
    assert ended.status == "failed"
    assert any(words in ended.summary for words in ("no answer within", "time is over", "no end within")), ended.summary
    assert ran.code is Exit.FAILED


@pytest.mark.parametrize("name", CASES)
def test_a_task_ends_with_ctrl_c(project: Project, port: int, name: str) -> None:
    calls, args = CASES[name]
    silent(project, calls)
    stop = threading.Event()

    def interrupt(event: object) -> None:
        if isinstance(event, TaskStarted):
            threading.Timer(1.0, stop.set).start()

    text = f"hosts: all\ntasks:\n  - {{name: t, {name}: {args.replace('PORT', str(port))}}}\n"
    assert project.run(text, stop=stop, seen=interrupt).code is Exit.INTERRUPTED
