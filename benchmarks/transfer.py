"""python -m benchmarks.transfer [--size MIB] [--rounds N] [--only near,far] [--cases first,tensors,blocks,same,resume]

A drafter brought to a host: scp, rsync and `drafter_stage`, in turns, with the same bytes. Every result is compared
with its source. `first`: nothing is there. `tensors`: one tensor of twenty changed. `blocks`: 5 % of blocks of 64 KiB
changed, all over the file; plain rsync and opsctl make a new file, `rsync --inplace` writes over the old one. `same`:
nothing changed. `resume`: opsctl was killed when half had arrived, of a first staging.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab import ADDRESS, FIRST_PORT, Lab, lab
from benchmarks.measure import PATH, Run, table
from benchmarks.peers import PLAYS

TENSORS = 20
BLOCK = 64 << 10
HALF = 0.5
FOLDERS = {"scp": "scp", "rsync": "rsync", "rsync --inplace": "inplace", "opsctl": "opsctl"}


@dataclass(frozen=True, slots=True)
class Bench:
    """One distance. `there`: where each contender keeps its copy on the host, which shares our file system."""

    lab: Lab
    where: str
    source: Path
    there: Path

    @property
    def memory(self) -> Path:
        """Where the controller remembers digests."""
        return self.lab.home / "opsctl"

    def scp(self) -> list[str | Path]:
        return ["scp", "-q", "-r", "-F", self.lab.ssh_config, self.source, f"{self.where}1:{self.there}/scp"]

    def rsync(self) -> list[str | Path]:
        ssh = f"ssh -F {self.lab.ssh_config}"
        return ["rsync", "-a", "-e", ssh, f"{self.source}/", f"{self.where}1:{self.there}/rsync/"]

    def rsync_inplace(self) -> list[str | Path]:
        """Over the only copy there is, which whoever serves from it would see: less work, and another result."""
        ssh = f"ssh -F {self.lab.ssh_config}"
        return ["rsync", "-a", "--inplace", "-e", ssh, f"{self.source}/", f"{self.where}1:{self.there}/inplace/"]

    def opsctl(self) -> list[str | Path]:
        inventory = self.lab.run / f"transfer-{self.where}.yaml"
        host_key = " ".join((self.lab.run / "keys" / "host.pub").read_text().split()[:2])
        host = {
            "address": ADDRESS[self.where],
            "port": FIRST_PORT,
            "user": "root",
            "key": str(self.lab.key),
            "host_key": host_key,
            "state_dir": str(self.there / "state"),
            "vars": {"releases": str(self.there / "opsctl")},
        }
        inventory.write_text(json.dumps({"hosts": {f"{self.where}1": host}}))
        play = PLAYS / "opsctl" / "stage.yaml"
        return [Path(sys.executable).with_name("opsctl"), "run", play, "-i", inventory, "-e", f"source={self.source}"]

    def command(self, argv: Sequence[str | Path]) -> subprocess.Popen[str]:
        env = {"PATH": PATH, "HOME": str(self.lab.home), "LANG": "C.UTF-8", "OPSCTL_STATE_DIR": str(self.memory)}
        return subprocess.Popen(
            self.lab.client(argv), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip

    def timed(self, name: str, argv: Sequence[str | Path]) -> Run:
        os.sync()
        before = os.times()
        began = time.perf_counter()
        process = self.command(argv)
        out, _ = process.communicate()
        wall = time.perf_counter() - began
        after = os.times()
        if process.returncode:
            raise SystemExit(f"{name} ended with {process.returncode}:\n{out[-2000:]}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Run(name, wall, cpu)

    def forget(self) -> None:
        """Nothing is there, and nobody remembers digests."""
        for name in (*FOLDERS.values(), "state"):
            shutil.rmtree(self.there / name, ignore_errors=True)
        for name in ("rsync", "inplace", "scp"):
            (self.there / name).mkdir(parents=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def demand_same(self, name: str) -> None:
        """Every byte arrived."""
        folder = self.there / FOLDERS[name]
        if name == "scp":
            folder = folder / self.source.name
        elif name == "opsctl":
            folder = newest(folder / "draft")
        for file in self.source.iterdir():
            if subprocess.run(["cmp", "-s", file, folder / file.name], check=False).returncode:
                raise SystemExit(f"{name}: {file.name} is not what it was")


def newest(folder: Path) -> Path:
    return max((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.stat().st_mtime)


def write_source(folder: Path, mib: int) -> None:
    """A safetensors file of twenty random tensors and its config."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    each = (mib << 20) // TENSORS
    entries = {
        f"t{n:02}.weight": {"dtype": "U8", "shape": [each], "data_offsets": [n * each, (n + 1) * each]}
        for n in range(TENSORS)
    }
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _ in range(TENSORS):
            file.write(os.urandom(each))


def change_tensor(file: Path) -> None:
    size = file.stat().st_size // TENSORS
    overwrite(file, [(random.randrange(TENSORS - 1) * size + size // 2, size // 2)])


def change_blocks(file: Path) -> None:
    blocks = file.stat().st_size // BLOCK
    overwrite(file, [(n * BLOCK, BLOCK) for n in random.sample(range(1, blocks), blocks // 20)])


def overwrite(file: Path, parts: Sequence[tuple[int, int]]) -> None:
    with file.open("r+b") as stream:
        for start, length in parts:
            stream.seek(start)
            stream.write(os.urandom(length))


def first(bench: Bench, rounds: int) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    contenders = {"scp": bench.scp, "rsync": bench.rsync, "opsctl": bench.opsctl}
    for turn in range(rounds):
        order = list(contenders)[turn % 3 :] + list(contenders)[: turn % 3]
        for name in order:
            bench.forget()
            runs.setdefault(name, []).append(bench.timed(name, contenders[name]()))
            bench.demand_same(name)
    return runs


def again(change: Callable[[Path], None]) -> Callable[[Bench, int], dict[str, list[Run]]]:
    """rsync and opsctl after a change of the source. Both make a new file; `--inplace` writes over the old one."""

    def case(bench: Bench, rounds: int) -> dict[str, list[Run]]:
        runs: dict[str, list[Run]] = {}
        contenders = {"rsync": bench.rsync, "rsync --inplace": bench.rsync_inplace, "opsctl": bench.opsctl}
        bench.forget()
        for name, argv in contenders.items():
            bench.timed(name, argv())
        for turn in range(rounds):
            change(bench.source / "model.safetensors")
            for name in sorted(contenders, reverse=bool(turn % 2)):
                runs.setdefault(name, []).append(bench.timed(name, contenders[name]()))
                bench.demand_same(name)
        return runs

    return case


def resume(bench: Bench, rounds: int) -> dict[str, list[Run]]:
    """A whole first staging, and one that goes on where a killed first one left it."""
    runs: dict[str, list[Run]] = {"whole": [], "resumed": []}
    for _ in range(rounds):
        bench.forget()
        runs["whole"].append(bench.timed("whole", bench.opsctl()))
        bench.forget()
        process = bench.command(bench.opsctl())
        wanted = HALF * (bench.source / "model.safetensors").stat().st_size
        while arrived(bench.there / "opsctl") < wanted:
            if process.poll() is not None:
                raise SystemExit("it ended before half had arrived")
            time.sleep(0.02)
        os.killpg(process.pid, 9)
        process.communicate()
        runs["resumed"].append(bench.timed("resumed", bench.opsctl()))
        bench.demand_same("opsctl")
    return runs


def arrived(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("draft/.partial-*/*"))


CASES: dict[str, tuple[Callable[[Bench, int], dict[str, list[Run]]], str]] = {
    "first": (first, "scp"),
    "tensors": (again(change_tensor), "rsync"),
    "blocks": (again(change_blocks), "rsync"),
    "same": (again(lambda file: None), "rsync"),
    "resume": (resume, "whole"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="near,far")
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    if os.geteuid():
        raise SystemExit("the benchmarks make network namespaces: run them as root")
    run = Path(os.environ.get("OPSCTL_BENCH_DIR", "/dev/shm/opsctl-bench"))
    with lab(run) as built:
        for where in args.only.split(","):
            for name in args.cases.split(","):
                bench = Bench(built, where, run / "source", run / "there")
                write_source(bench.source, args.size)
                case, base = CASES[name]
                print(table(f"{name}, {args.size} MiB, {where}", case(bench, args.rounds), base), flush=True)
        shutil.rmtree(run / "source", ignore_errors=True)
        shutil.rmtree(run / "there", ignore_errors=True)


if __name__ == "__main__":
    main()
