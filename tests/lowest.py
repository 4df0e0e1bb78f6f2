"""Constraints for pip that hold every direct dependency at its lower bound: python -m tests.lowest"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirement: str) -> str:
    """Returns `name==bound` for a requirement `name>=bound,...`. Raises ValueError where it has no lower bound."""
    found = re.match(r"([A-Za-z0-9._-]+)>=([0-9.]+)", requirement)
    if not found:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound")
    return "{}=={}".format(*found.groups())


if __name__ == "__main__":
    for each in tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]:
        print(lowest(each))
