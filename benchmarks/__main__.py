"""python -m benchmarks [noop] [--rounds N] [--only near1,far1,far10]"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks import measure, peers
from benchmarks.lab import lab


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="?", default="noop", choices=["noop"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="near1,far1,far10", help="distance and number of hosts")
    args = parser.parse_args()
    if os.geteuid():
        raise SystemExit("the benchmarks make network namespaces: run them as root")
    run = Path(os.environ.get("OPSCTL_BENCH_DIR", "/var/tmp/opsctl-bench"))
    peers.install(run)
    with lab(run) as built:
        for case in args.only.split(","):
            where, hosts = case.rstrip("0123456789"), int(case.lstrip("abcdefghijklmnopqrstuvwxyz"))
            runs = measure.take_turns(built, peers.noop(built, where, hosts), args.rounds)
            print(measure.table(f"20 converged tasks, {hosts} host(s), {where}", runs, "ssh HOST true"), flush=True)


if __name__ == "__main__":
    main()
