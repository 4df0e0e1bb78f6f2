"""Timing whole commands: contenders take turns, so that a change of the machine's speed hits all of them alike."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lab import Lab
from benchmarks.peers import Contender

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds of wall time and of CPU of the command and its children."""

    name: str
    wall: float
    cpu: float


def take_turns(lab: Lab, contenders: Sequence[Contender], rounds: int) -> dict[str, list[Run]]:
    """Each contender once per round, in an order that moves on by one, after one round that is not counted."""
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds + 1):
        for i in range(len(contenders)):
            contender = contenders[(i + turn) % len(contenders)]
            _cold(lab)
            run = _time(lab, contender)
            if turn:
                runs[contender.name].append(run)
    return runs


def table(title: str, runs: dict[str, list[Run]], base: str) -> str:
    """Medians with the range, and each contender's time as a multiple of `base`."""
    medians = {name: statistics.median(run.wall for run in done) for name, done in runs.items()}
    lines = [title, f"  {'':24}{'wall s':>8}  {'min':>7} {'max':>7}  {'cpu s':>7}  {'x ' + base:>16}"]
    for name, done in runs.items():
        walls = [run.wall for run in done]
        cpu = statistics.median(run.cpu for run in done)
        ratio = medians[name] / medians[base]
        lines.append(
            f"  {name:24}{medians[name]:8.2f}  {min(walls):7.2f} {max(walls):7.2f}  {cpu:7.2f}  {ratio:15.2f}x"
        )
    return "\n".join(lines)


def _time(lab: Lab, contender: Contender) -> Run:
    env = {"PATH": PATH, "HOME": str(lab.home), "LANG": "C.UTF-8"} | contender.env
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        contender.argv,
        cwd=contender.cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{contender.name} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return Run(contender.name, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _cold(lab: Lab) -> None:
    """Close the multiplexing masters that Ansible leaves behind: every run starts without a connection."""
    sockets = lab.home / "cp"
    for socket in sockets.glob("*") if sockets.is_dir() else ():
        subprocess.run(
            ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "x"], stderr=subprocess.DEVNULL, check=False
        )
    shutil.rmtree(sockets, ignore_errors=True)
    os.sync()
