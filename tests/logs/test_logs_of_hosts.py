"""`opsctl logs` on hosts: summary where the log lies, one stream of several hosts, bundles from playbooks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.cli.main import run
from opsctl.errors import Unreadable
from opsctl.gpu.read.bundle import members as capture_members
from opsctl.gpu.read.capture import hosts as captured_hosts
from opsctl.gpu.wanted import Wanted
from opsctl.sglang.logs import log_collect
from opsctl.sglang.logs.log_collect import Spool
from tests.logs.test_canaries_of_a_host import members
from tests.sshd import Sshd, eventually

DATA = Path(__file__).parent.parent / "data"
START = "[2026-02-08 03:00:00] server_args=ServerArgs(model_path='/m', port=30000, tp_size=8)\n"
READY = "[2026-02-08 03:05:00] The server is fired up and ready to roll!\n"
DECODE = "[2026-02-08 03:0%d:00 TP0] Decode batch, #running-req: 1, #token: 9, accept len: 2.50, gen throughput (token/s): 80.00, #queue-req: 0\n"  # noqa: E501  a line of a log


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an inventory of two hosts, both this machine, each with a log of its own."""
    hosts = ""
    for name in ("one", "three"):
        (tmp_path / name).mkdir()
        log = tmp_path / name / "sglang.log"
        log.write_text("".join(DECODE % minute for minute in (6, 7)))
        (tmp_path / name / "sglang.log.1").write_text(START + READY)
        os.utime(tmp_path / name / "sglang.log.1", (1e9, 1e9))
        hosts += f"  {name}: {{connection: local, state_dir: {tmp_path}/state, sglang: {{log: {log}, port: 64999}}}}\n"
    (tmp_path / "inventory.yaml").write_text("hosts:\n" + hosts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "desk"))
    return tmp_path


def test_the_summary_of_a_host_goes_back_to_the_start_of_its_server(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "summary", "--json", "--report", "page.html"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["one", "three"]
    assert [start["ready_at"] for start in told["three"]["starts"]] == ["2026-02-08 03:05:00"]
    assert told["one"]["decode"]["accept_length"]["mean"] == 2.5
    page = (desk / "page.html").read_text()
    assert "2026-02-08 03:00:00" in page
    assert page.count("<polyline") == 4  # throughput and acceptance of two hosts


class Tail:
    """`opsctl logs tail` in a process of its own."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "opsctl", "logs", "tail", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            threading.Thread(target=lambda s=stream, to=lines: to.extend(iter(s.readline, "")), daemon=True).start()  # type: ignore[misc]  # lambda defaults

    def seen(self, line: str) -> bool:
        return bool(eventually(lambda: f"{line}\n" in self.out))

    def stop(self) -> int:
        self.process.send_signal(2)
        return self.process.wait(120)


@pytest.fixture
def tail() -> Iterator[type[Tail]]:
    made: list[Tail] = []

    class Made(Tail):
        def __init__(self, *words: str) -> None:
            super().__init__(*words)
            made.append(self)

    yield Made
    for one in made:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            assert stream
            stream.close()


def test_several_hosts_are_one_stream_of_what_is_wanted(desk: Path, tail: type[Tail]) -> None:
    stream = tail("--level", "error", "--grep", "memory|Xid")
    for name in ("one", "three"):
        with (desk / name / "sglang.log").open("a") as log:
            log.write(
                "[2026-02-08 03:08:00] fine\n[2026-02-08 03:08:01 TP1] CUDA out of memory\x1b[2J\nno memory: stack\n"
            )
            log.write("[2026-02-08 03:08:02] memory is fine\n[2026-02-08 03:08:03] ERROR: other\n")
    assert stream.seen("one   │ [2026-02-08 03:08:01 TP1] CUDA out of memory\\x1b[2J")
    assert stream.seen("three │ no memory: stack")
    assert stream.seen("one   │ no memory: stack")
    assert stream.stop() == 0
    assert len(stream.out) == 4
    assert "Traceback" not in "".join(stream.err)


def test_rotation_and_a_lost_connection_cost_no_line(
    tmp_path: Path, sshd: Sshd, state: Path, tail: type[Tail], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "sglang.log"
    log.write_text("line 1\nline 2\n")
    reach = f"address: 127.0.0.1, port: {sshd.port}, user: {sshd.user}, key: {sshd.key_file}, state_dir: {state}"
    (tmp_path / "inventory.yaml").write_text(
        f"hosts:\n  box: {{{reach}, known_hosts: {sshd.known_hosts}, sglang: {{log: {log}, port: 64999}}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    stream = tail("-n", "1")
    assert stream.seen("line 2")
    shutil.move(log, tmp_path / "sglang.log.1")
    log.write_text("line 3\n")
    assert stream.seen("line 3")
    sshd.drop()
    with log.open("a") as more:
        more.write("line 4\n")
    assert stream.seen("line 4")
    assert stream.stop() == 0
    assert stream.out == ["line 2\n", "line 3\n", "line 4\n"]
    assert re.search(r"^box: lost: .*\nbox: there again$", "".join(stream.err), re.MULTILINE)


def test_a_playbook_collects_a_bundle_of_each_host(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "collect-logs", "-e", "folder=kept"]) == 0
    bundles = sorted((desk / "kept").iterdir())
    assert [bundle.name.rsplit("-", 2)[0] for bundle in bundles] == ["logs-one", "logs-three"]
    kept = members(bundles[0])
    assert "accept len: 2.50" in kept["server.log"]
    assert json.loads(kept["summary.json"])["starts"]
    assert bundles[0].stat().st_mode & 0o077 == 0
    assert str(bundles[0].name) in capsys.readouterr().out


def test_health_judges_a_bundle_as_it_judged_the_host(tmp_path: Path) -> None:
    smi = next(iter(sorted((DATA / "gpu").rglob("*.xml")))).read_text()
    evidence = json.dumps({"smi": {"code": 0, "seconds": 1.0, "text": smi}, "host": {}})
    spool = Spool(["health-evidence.json"], lambda data: data)
    made = dict(log_collect.health("box", evidence, Wanted()))
    for name, text in made.items():
        spool.add(name, text)
    spool.pack(tmp_path / "b.tar.zst", "logs-box", {"parts": []})
    spool.close()
    ((_, found),) = captured_hosts(capture_members([tmp_path / "b.tar.zst"]))
    gpus = [gpu for reading in found.readings for gpu in reading.gpus]
    assert len(gpus) == smi.count("<gpu id=")
    assert json.loads(made["health.json"])["checks"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "not-asked-for"])
def test_only_what_was_asked_for_is_taken_from_a_host(name: str) -> None:
    spool = Spool(["server.log"], lambda data: data)
    with pytest.raises(Unreadable, match="not asked for"):
        spool.take(name, b"")
    spool.close()


def test_a_host_cannot_fill_the_disk_with_little(tmp_path: Path) -> None:
    import zlib

    spool = Spool(["server.log"], lambda data: data)
    with pytest.raises(Unreadable, match="more of"):
        spool.take("server.log", zlib.compress(b"\0" * (64 << 20)))
    spool.close()
