"""Facts of this very machine, and of one where parts hang or fail."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from opsctl.agent.core import facts
from opsctl.agent.files.if_readable import names_in, text_of
from tests.modules.conftest import InProcess, Play


def test_what_is_known_of_this_machine(play: Play) -> None:
    known = play.run("facts")
    assert known["changed"] is False
    assert known["missing"] == {}
    assert known["kernel"]["release"] == os.uname().release
    assert known["memory"]["total"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert known["cpu"]["count"] == len(os.sched_getaffinity(0))
    assert known["host"]["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert known["user"]["uid"] == os.geteuid()


def test_a_part_that_hangs_and_one_that_fails_cost_only_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def broken() -> None:
        raise ValueError("nonsense in /proc")

    monkeypatch.setitem(facts.PARTS, "disks", never.wait)
    monkeypatch.setitem(facts.PARTS, "numa", broken)
    known = facts.gather(InProcess(), ["disks", "numa", "os"], limit=0.2)
    never.set()
    assert known["missing"] == {"disks": "no answer in 0.2 s", "numa": "ValueError: nonsense in /proc"}
    assert "os" in known


def test_settings_of_the_kernel_are_read_and_long_files_whole(tmp_path: Path) -> None:
    """The kernel refuses to give a setting to whoever asks for many bytes at a time."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert text_of(str(boot)) == boot.read_text()
    (tmp_path / "long").write_text("ä line\n" * 100_000)
    assert text_of(str(tmp_path / "long")) == "ä line\n" * 100_000
    assert (text_of(str(tmp_path / "none")), names_in(str(tmp_path / "none"))) == ("", [])


def test_network_mounts_are_listed_and_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = (
        "server:/export /mnt/dead nfs4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\nfile\\040x /mnt/a\\040b fuse.sshfs rw 0 0\n"
    )
    monkeypatch.setattr(facts, "text_of", lambda path: mounts if path == "/proc/self/mounts" else "")
    asked: list[str] = []
    statvfs = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: (asked.append(path), statvfs(path))[1])
    disks = facts.gather(InProcess(), ["disks"])["disks"]
    assert asked == ["/"]
    assert [(disk["path"], disk["type"], "total" in disk) for disk in disks] == [
        ("/", "ext4", True),
        ("/mnt/a b", "fuse.sshfs", False),
        ("/mnt/dead", "nfs4", False),
    ]


@pytest.mark.parametrize(
    ("script", "reason", "gpus"),
    [
        ("sleep 600", "nvidia-smi gave no answer in 0.3 s", 0),
        ("echo NVIDIA-SMI has failed because; exit 9", "exit code 9: NVIDIA-SMI has failed because", 0),
        ("echo '0, GPU-1, 00000000:17:00.0, NVIDIA H200, 570.1, 143771'", None, 1),
    ],
)
def test_nvidia_smi_in_all_its_moods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str | None, gpus: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(facts, "SMI_LIMIT", 0.3 if "sleep" in script else 30)
    found = facts.gather(InProcess(), ["gpu"], limit=60)["gpu"]
    assert len(found["gpus"]) == gpus
    assert reason in found["nvidia_smi"] if reason else "nvidia_smi" not in found
