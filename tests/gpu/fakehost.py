"""A host made of files: /proc, /sys and stand-ins for its programs."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.agent.gpu import gather as agent
from opsctl.gpu.judge import judge
from opsctl.gpu.model import Evidence
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted
from opsctl.wire.protocol import Context


class FakeHost:
    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.bin.mkdir(parents=True)
        self.write("proc/cmdline", "root=/dev/sda1 iommu=off")
        self.write(
            "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  R\n"
        )
        self.write("sys/bus/pci/devices/.keep", "")
        self.program("journalctl", "echo '2026-01-01T00:00:00+0000 host kernel: usb 1-1: new device'")
        self.program("modinfo", "echo 580.105.08")

    def write(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def program(self, name: str, script: str) -> Path:
        target = self.bin / name
        target.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        target.chmod(0o755)
        return target

    def replay(self, text: str, code: int = 0) -> None:
        """nvidia-smi that says `text`, as the real one does, on stdout."""
        answer = self.bin / "answer"
        answer.write_text(text)
        self.program("nvidia-smi", f"cat '{answer}'; exit {code}")

    def device(self, bus_id: str, *, above: tuple[str, ...] = (), gpu: bool = True, **files: str | bytes) -> None:
        """A PCI device below the bridges `above`, topmost first."""
        path = Path("sys/devices/pci0000:00", *above, bus_id)
        values = {"vendor": "0x10de" if gpu else "0x1022", "class": "0x030200" if gpu else "0x060400", **files}
        for name, value in values.items():
            self.write(str(path / name), value)
        link = self.root / "sys/bus/pci/devices" / bus_id
        link.symlink_to(os.path.relpath(self.root / path, link.parent))

    def process(
        self,
        pid: int,
        comm: str,
        state: str = "S",
        *,
        ppid: int = 1,
        sid: int | None = None,
        ticks: int = 100,
        cmdline: str = "",
        cgroup: str = "/",
        fds: tuple[str, ...] = (),
        pending: str = "0",
    ) -> None:
        stat = [state, ppid, pid, sid or pid, *[0] * 15, ticks, 0]
        self.write(f"proc/{pid}/stat", f"{pid} ({comm}) " + " ".join(map(str, stat)))
        self.write(f"proc/{pid}/status", f"Uid:\t1000\t1000\t1000\t1000\nSigPnd:\t{pending}\nShdPnd:\t0\n")
        self.write(f"proc/{pid}/cmdline", cmdline.replace(" ", "\0") + "\0\0\0")
        self.write(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
        for number, target in enumerate(fds):
            link = self.root / f"proc/{pid}/fd/{number}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    def evidence(self, wanted: Wanted | None = None, limit: float = 20.0) -> Evidence:
        expected = wanted or Wanted()
        here = {"root": str(self.root), "path": str(self.bin), "limit": limit}
        found = agent.gather(Context(), **{**gathered.ask(expected).args, **here})
        return gathered.evidence(found, expected)

    def verdicts(self, wanted: Wanted | None = None, limit: float = 20.0) -> dict[str, str]:
        expected = wanted or Wanted()
        report = judge("host", self.evidence(expected, limit), expected.settings)
        ordered = sorted(report.results, key=lambda r: r.verdict.rank)
        return {r.check: r.verdict.value for r in ordered}
