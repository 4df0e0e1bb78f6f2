"""Commands of opsctl in this process: starting one costs more than most of what a test asks of it."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from opsctl.cli.main import run


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def opsctl(*words: str, folder: Path, **environment: str) -> Said:
    """Run a command to its end, started in `folder`, with nobody to ask."""
    out, err = io.StringIO(), io.StringIO()
    with open(os.devnull, encoding="utf-8") as nobody, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.stdin", nobody)
        for name, value in environment.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(words))
    return Said(code, out.getvalue(), err.getvalue())
