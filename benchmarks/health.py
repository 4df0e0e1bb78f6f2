"""python -m benchmarks.health [--rounds N]: one host, ten and a hundred, each with a stand-in nvidia-smi of 1.5 s.

The hosts are this machine through `connection: local`: no network is measured, and what the agents do costs this
machine what it would cost the hosts. So the controller's own processor time is told apart from theirs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CAPTURE = Path(__file__).parent.parent / "tests/data/gpu/k8s-test-infra/hardware/qx-h100.xml"
_PYTHON = Path(sys.executable).resolve()
SECONDS = 1.5  # nvidia-smi -q -x on a host with eight GPUs and persistence mode
_CLIENT = """
import resource, sys
from opsctl.cli.main import run

*words, file = sys.argv[1:]
run(words)
used = resource.getrusage(resource.RUSAGE_SELF)
with open(file, "w") as out:
    print(used.ru_utime + used.ru_stime, file=out)
"""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds: as the user waits, and of the controller's own processor time."""

    wall: float
    cpu: float


def once(folder: Path, hosts: int) -> Took:
    inventory, spent = folder / f"{hosts}.yaml", folder / "cpu"
    health = f"{{programs: [{folder / 'bin'}], profile: {{gpus: 8}}}}"
    # Not the python3 of PATH: a version manager's wrapper script takes more than all that the agent does.
    host = f"{{connection: local, python: {_PYTHON}, vars: {{health: {health}}}}}"
    lines = [f"  n{i}: {host}\n" for i in range(hosts)]
    inventory.write_text("hosts:\n" + "".join(lines))
    words = ["health", "-i", str(inventory), "--json", "--only", "driver,smi,gpu,ecc,klog"]
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", _CLIENT, *words, str(spent)], env=env, stdout=subprocess.DEVNULL, check=False)
    return Took(time.monotonic() - began, float(spent.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nsleep {SECONDS}\ncat '{CAPTURE}'\n")
        program.chmod(0o755)
        found = {hosts: [once(folder, hosts) for _ in range(rounds)] for hosts in (1, 10, 100)}
    print(f"{'hosts':>5}  {'wall s':>7}  {'CPU s':>6}  {'CPU s per host':>14}")
    for hosts, runs in found.items():
        wall, cpu = (statistics.median(getattr(run, what) for run in runs) for what in ("wall", "cpu"))
        print(f"{hosts:>5}  {wall:>7.2f}  {cpu:>6.2f}  {cpu / hosts:>14.3f}")
    ten, hundred = (statistics.median(run.wall for run in found[hosts]) for hosts in (10, 100))
    print(f"100 hosts take {hundred / ten:.1f} times as long as 10")


if __name__ == "__main__":
    main()
