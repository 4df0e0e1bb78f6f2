"""Run campaigns for as long as you like: `python -m tests.campaigns [NAME ...] [--count N] [--seed S]`."""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import tempfile
import traceback
from pathlib import Path

from tests.campaigns import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(campaign.names())}; all if none")
    parser.add_argument("--count", type=int, help="cases of each campaign; without it as many as CI runs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    unknown = set(given.names) - set(campaign.names())
    if unknown:
        parser.error(f"there is no campaign {', '.join(sorted(unknown))}")
    tally: dict[str, collections.Counter[str]] = {}
    with contextlib.suppress(KeyboardInterrupt):  # it has run for long enough
        for name in given.names or campaign.names():
            counts = tally.setdefault(name, collections.Counter())
            for case in campaign.chosen(name, given.count or campaign.load(name).SHORT, given.seed):
                with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
                    try:
                        case.hold(Path(folder))
                    except Exception as error:  # noqa: BLE001  whatever it is, this case did not hold
                        counts["did not hold"] += 1
                        print(f"{name}: {case.name}: {error}")
                        traceback.print_exc(limit=-3)
                    else:
                        counts["held"] += 1
    for name, counts in tally.items():
        print(f"{name}: {counts['held']} of {counts.total()} held")
    return 1 if any(counts["did not hold"] for counts in tally.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
