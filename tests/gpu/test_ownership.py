"""Whose is it? Only proof counts: names, pids and other people's servers never do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.agent.gpu import clean, process_table
from opsctl.gpu import cleaning
from opsctl.gpu.cleaning import File, judge
from opsctl.gpu.model import Evidence, Host, Unit
from opsctl.gpu.ownership import Class, ProcessEntry, ProcessTable, ServerRecord, classify, removable
from opsctl.gpu.read.gathered import _records
from opsctl.wire.protocol import Context

UNIT = ServerRecord("llm.service", cgroup="/system.slice/llm.service", main_pid=400)
SESSION = ServerRecord("server", main_pid=400, sid=400, uid=1000, ticks=90, boot_id="now")
WORKER = ProcessEntry(
    500, 1, 400, 1000, "S", 100, "sglang::schedul", cmdline="sglang::scheduler_TP0", age=500, holds_gpu=True,
    cgroup="/system.slice/llm.service",
)  # fmt: skip
MAIN = ProcessEntry(400, 1, 400, 1000, "S", 90, "python3", cgroup="/system.slice/llm.service")


def _class(process: ProcessEntry, *others: ProcessEntry, record: ServerRecord = UNIT, boot: str = "now") -> Class:
    found = classify(ProcessTable((process, *others), boot, records=(record,)))
    return next(o.klass for o in found if o.pid == process.pid)


@pytest.mark.parametrize(
    ("process", "others", "record", "boot", "klass"),
    [
        (WORKER, (MAIN,), UNIT, "now", Class.OWN_LIVE),
        (WORKER, (), UNIT, "now", Class.OWN_ORPHAN),
        # A unit that is being started or stopped has no main process, and systemd is at work on it.
        (WORKER, (), replace(UNIT, main_pid=None, managed=True), "now", Class.OWN_LIVE),
        # The same name elsewhere is somebody else's.
        (replace(WORKER, cgroup="/system.slice/other.service"), (), UNIT, "now", Class.FOREIGN),
        (replace(WORKER, cgroup="/system.slice/llm.service-2"), (), UNIT, "now", Class.FOREIGN),
        (replace(WORKER, cgroup="/"), (), replace(UNIT, cgroup="/"), "now", Class.FOREIGN),
        (replace(WORKER, cgroup="/"), (MAIN,), SESSION, "now", Class.OWN_LIVE),
        (replace(WORKER, cgroup="/"), (), SESSION, "now", Class.OWN_ORPHAN),
        # The record's pid is another process now, which leads a session of the same number: nothing in it is ours.
        (replace(MAIN, cgroup="/", ticks=95, comm="sglang::schedul"), (), SESSION, "now", Class.FOREIGN),
        (replace(WORKER, cgroup="/"), (replace(MAIN, ticks=95),), SESSION, "now", Class.FOREIGN),
        # The session number is in use again: older process, other user, other boot.
        (replace(WORKER, cgroup="/", ticks=80), (), SESSION, "now", Class.FOREIGN),
        (replace(WORKER, cgroup="/", uid=1001), (), SESSION, "now", Class.FOREIGN),
        (replace(WORKER, cgroup="/"), (), SESSION, "another", Class.FOREIGN),
        (replace(WORKER, state="Z"), (MAIN,), UNIT, "now", Class.ZOMBIE),
        (replace(WORKER, state="D", stays_in_d=True), (MAIN,), UNIT, "now", Class.STUCK),
        (replace(WORKER, state="D"), (MAIN,), UNIT, "now", Class.OWN_LIVE),
        (replace(WORKER, state="R", kill_pending=True), (), UNIT, "now", Class.STUCK),
    ],
)  # fmt: skip
def test_class(
    process: ProcessEntry, others: tuple[ProcessEntry, ...], record: ServerRecord, boot: str, klass: Class
) -> None:
    assert _class(process, *others, record=record, boot=boot) is klass


@pytest.mark.parametrize(
    ("active", "sub", "managed"),
    [
        ("activating", "start-pre", True), ("deactivating", "stop-sigterm", True), ("active", "running", True),
        ("activating", "auto-restart", False), ("failed", "failed", False), ("inactive", "dead", False),
    ],
)  # fmt: skip
def test_a_unit_that_systemd_is_at_work_on_is_left_to_it(active: str, sub: str, managed: bool) -> None:
    (record,) = _records(
        Host(unit=Unit("llm.service", active, sub, control_group="/system.slice/llm.service")), None, ()
    )
    assert record.managed is managed


def test_only_own_orphans_may_be_ended() -> None:
    foreign = replace(WORKER, pid=600, cgroup="/user.slice")
    found = classify(ProcessTable((WORKER, foreign), records=(UNIT,), gpu_pids=((700, 1024.0),)))
    assert [o.pid for o in removable(found)] == [500]
    assert {o.pid: o.klass for o in found}[700] is Class.INVISIBLE


@pytest.mark.parametrize(
    ("file", "removed"),
    [
        (File("/dev/shm/nccl-abc123", "shm", 1000, 64, 50.0, in_use=False), True),
        (File("/tmp/tmpab12cd34", "tmp", 1000, 0, 50.0, socket=True, in_use=False), True),
        (File("/dev/shm/nccl-abc123", "shm", 1000, 64, 50.0, in_use=True), False),
        (File("/dev/shm/nccl-abc123", "shm", 1000, 64, 50.0, in_use=None), False),
        (File("/dev/shm/nccl-abc123", "shm", 1001, 64, 50.0, in_use=False), False),
        (File("/dev/shm/nccl-abc123", "shm", 1000, 64, 150.0, in_use=False), False),
        (File("/tmp/tmpab12cd34", "tmp", 1000, 0, 50.0, socket=False, in_use=False), False),
        (File("/dev/shm/someone-elses", "shm", 1000, 0, 50.0, in_use=False), False),
    ],
)
def test_file(file: File, removed: bool) -> None:
    found = judge([file], server_uids=frozenset({1000}), before=100.0)
    assert any(f.removable for f in found) is removed


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that ignores SIGTERM, and says when it does."""
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def _listed(pid: int) -> dict[str, object]:
    found = process_table.look("/", pid)
    assert found is not None
    return {name: found[name] for name in ("pid", "ticks", "sid", "cgroup", "uid")}


def test_another_users_file_is_listed_and_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "dev/shm"
    shared.mkdir(parents=True)
    (shared / "psm_theirs").touch()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    found = cleaning.findings(Evidence(), clean.files(Context(), root=str(tmp_path)), 4242)
    assert [(f.file.uid, f.removable) for f in found.files] == [(owner, False)]


def test_removal_ends_what_was_listed(sleeper: subprocess.Popen[bytes]) -> None:
    (told,) = clean.remove(Context(), [_listed(sleeper.pid)], [], patience=0.3)["done"]
    assert told["done"]
    assert sleeper.wait() == -signal.SIGKILL


@pytest.mark.parametrize("changed", [{"ticks": 1}, {"sid": 1}, {"cgroup": "/elsewhere"}, {"uid": 4242}])
def test_removal_spares_a_pid_that_means_another_process(
    sleeper: subprocess.Popen[bytes], changed: dict[str, object]
) -> None:
    clean.remove(Context(), [{**_listed(sleeper.pid), **changed}], [], patience=0.3)
    assert sleeper.poll() is None


def test_removal_of_files(tmp_path: Path) -> None:
    """A socket that is listened on stays, a dead one goes, one that was replaced since stays."""
    live, dead, replaced = (str(tmp_path / f"tmp{name}0000") for name in ("live", "dead", "repl"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(live)
        listening.listen()
        for path in (dead, replaced):
            with socket.socket(socket.AF_UNIX) as ended:
                ended.bind(path)
        listed = {f["path"]: f for f in clean.files(Context(), temporary=str(tmp_path))["files"]}
        assert listed[live]["in_use"] is True
        os.utime(replaced, (1, 1))
        done = clean.remove(Context(), [], [listed[p] for p in (live, dead, replaced)])["done"]
    assert [item["done"] for item in done] == [False, True, False]
    assert os.path.exists(live)
    assert not os.path.exists(dead)
    assert os.path.exists(replaced)
