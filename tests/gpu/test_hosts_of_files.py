"""Which files of a capture belong to one host: by what is in them, then by where they lie."""

from __future__ import annotations

import json
import re
import tarfile
from itertools import count
from pathlib import Path

import pytest

from opsctl.agent.gpu import gather as agent
from opsctl.errors import Unreadable
from opsctl.gpu.judge import judge
from opsctl.gpu.read import bundle, capture, gathered
from opsctl.gpu.settings import Settings
from opsctl.gpu.wanted import Wanted
from opsctl.wire.protocol import Context
from tests.gpu.fakehost import FakeHost
from tests.gpu.judging import text_of

H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")
LOG = "[ 1.5] NVRM: Xid (PCI:0000:53:00): {}, pid=1, name=python3, Ch 8\n"


def of_host(number: int, text: str = H100) -> str:
    """The same kind of host with the GPUs in the same slots: only the UUIDs differ."""
    numbers = count()
    return re.sub(r"<uuid>[^<]*", lambda _: f"<uuid>GPU-{number:08x}-12ab-4321-abcd-{next(numbers):012x}", text)


def judged(*paths: Path) -> dict[str, str]:
    """host -> verdict of its kernel log."""
    found = capture.hosts(bundle.members(paths))
    return {Path(name).name: judge(name, e, Settings()).by_check["klog.xid"].verdict.value for name, e in found}


def test_hosts_of_one_kind_are_told_apart_and_keep_their_logs(tmp_path: Path) -> None:
    for number, xid in ((1, 13), (2, 79)):
        for folder in (tmp_path / f"n{number}", tmp_path):
            folder.mkdir(exist_ok=True)
            (folder / f"n{number}.xml").write_text(of_host(number))
            (folder / f"n{number}.log").write_text(LOG.format(xid))
        with tarfile.open(tmp_path / f"n{number}.tgz", "w:gz") as tar:
            tar.add(tmp_path / f"n{number}", "bundle")
    flat = [tmp_path / name for name in ("n1.xml", "n2.xml", "n1.log", "n2.log")]
    assert judged(*flat) == {"n1.xml": "warn", "n2.xml": "fail"}
    nested = [tmp_path / f"n{n}" / f"n{n}.{kind}" for n in (1, 2) for kind in ("xml", "log")]
    assert judged(*nested) == {"n1": "warn", "n2": "fail"}
    assert judged(tmp_path / "n1", tmp_path / "n2") == {"n1": "warn", "n2": "fail"}
    assert judged(tmp_path / "n1.tgz", tmp_path / "n2.tgz") == {"n1.tgz": "warn", "n2.tgz": "fail"}


def test_a_host_that_lost_a_gpu_is_still_that_host(tmp_path: Path) -> None:
    (tmp_path / "before.xml").write_text(of_host(1))
    (tmp_path / "after.xml").write_text(re.sub(r"(?s)<gpu id=.*?</gpu>", "", of_host(1), count=1))
    assert len(capture.hosts(bundle.members([tmp_path / "before.xml", tmp_path / "after.xml"]))) == 1


def test_the_log_of_a_later_boot_ends_what_a_rotated_one_tells(tmp_path: Path) -> None:
    front = "2026-06-2{}T10:00:00.5+00:00 n1 kernel: "
    (tmp_path / "kern.log.1").write_text(front.format(3) + LOG.format(79)[7:])
    (tmp_path / "kern.log").write_text(front.format(4) + "Linux version 6.8.0\n" + front.format(5) + "usb 1-1: new\n")
    assert judged(tmp_path / "kern.log", tmp_path / "kern.log.1") == {"kern.log.1": "pass"}


def test_what_a_bundle_of_logs_collect_holds_is_judged_whole(tmp_path: Path) -> None:
    """Its evidence is what the agent gathered; its other documents quote the log, and are not read as one."""
    host = FakeHost(tmp_path / "host")
    host.replay(H100.replace("<remapped_row_failure>No", "<remapped_row_failure>Yes", 1))
    host.program("journalctl", f"echo '{LOG.format(79).strip()}'")
    host.write("proc/sys/kernel/numa_balancing", "1")
    args = {**gathered.ask(Wanted()).args, "root": str(host.root), "path": str(host.bin)}
    found = agent.gather(Context(), **args)
    folder = tmp_path / "logs-n1"
    (folder / "proc").mkdir(parents=True)
    (folder / "health-evidence.json").write_text(json.dumps(found))
    (folder / "gpus.xml").write_text(found["smi"]["text"])
    (folder / "health.json").write_text(json.dumps({"kernel": [{"text": LOG.format(94)}]}, indent=1))
    ((_, evidence),) = capture.hosts(bundle.members([folder]))
    report = judge("n1", evidence, Settings())
    assert {c: report.by_check[c].verdict.value for c in ("ecc.rows", "klog.xid", "host.numa_balancing")} == {
        "ecc.rows": "fail", "klog.xid": "fail", "host.numa_balancing": "warn",
    }  # fmt: skip
    assert [e.xid for e in report.kernel] == [79]
    assert sum(r.check == "ecc.rows" for r in report.results) == 1


@pytest.mark.parametrize("spoilt", [{"smi": 7}, {"processes": [1]}, {"host": {"mounts": [{}]}}, {"klog": {"text": 5}}])
def test_damaged_evidence_is_refused(spoilt: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps({"smi": {}, "host": {}, "processes": [], **spoilt}))
    with pytest.raises(Unreadable):
        capture.hosts(bundle.members([tmp_path / "e.json"]))


def test_logs_of_hosts_with_different_names_are_told_apart(tmp_path: Path) -> None:
    def log(host: str, day: int, xid: int) -> str:
        return f"2026-06-2{day}T10:00:00.5+00:00 {host} kernel: " + LOG.format(xid)[7:]

    files = {"a.log": log("n1", 3, 13), "a.log.1": log("n1.example.com", 2, 13), "b.log": log("n2", 3, 79)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    logs = [tmp_path / name for name in files]
    assert judged(*logs) == {"a.log": "warn", "b.log": "fail"}
    # Whose the GPUs are is not said, unless the names of the files say so.
    (tmp_path / "gpus.xml").write_text(H100)
    assert judged(tmp_path / "gpus.xml", *logs) == {"gpus.xml": "skip", "a.log": "warn", "b.log": "fail"}
    (tmp_path / "b.xml").write_text(H100)
    assert judged(tmp_path / "b.xml", *logs) == {"b.xml": "fail", "a.log": "warn"}
