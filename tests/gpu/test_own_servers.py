"""Whose a process is, where opsctl itself started it: its record on the host is the proof."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from opsctl.agent.gpu import gather
from opsctl.agent.process import process
from opsctl.gpu import ownership
from opsctl.gpu.ownership import Class
from opsctl.gpu.read.gathered import evidence
from opsctl.gpu.wanted import Wanted
from opsctl.wire.protocol import Context
from tests.sshd import eventually

PARENT = "sleep 600 & echo $! > {child}; sleep 600"


def classes() -> dict[int, tuple[Class, str | None]]:
    table = evidence(gather.gather(Context(), keep="nothing", limit=1.0, path="/nowhere"), Wanted()).table
    assert table is not None
    return {owned.pid: (owned.klass, owned.server) for owned in ownership.classify(table)}


def test_what_opsctl_started_is_its_own_and_an_orphan_of_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    child = tmp_path / "child"
    command = ["/bin/sh", "-c", PARENT.format(child=child)]
    started = process.start(Context(), "sglang-30000", command, str(tmp_path / "log"))
    try:
        eventually(lambda: child.exists() and child.read_text().strip() != "")
        worker = int(child.read_text())
        found = classes()
        assert found[started["pid"]] == (Class.OWN_LIVE, "sglang-30000")
        assert found[worker] == (Class.OWN_LIVE, "sglang-30000")
        os.kill(started["pid"], signal.SIGKILL)
        eventually(lambda: process.status(Context(), "sglang-30000")["state"] == "orphans")
        assert classes()[worker] == (Class.OWN_ORPHAN, "sglang-30000")
        monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "other"))
        assert worker not in classes()  # without the record nothing says that it is ours
    finally:
        monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
        process.stop(Context(), "sglang-30000", wait=5)
