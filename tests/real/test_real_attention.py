"""What stands in for two kernels gives what they give: without that no acceptance length here would mean anything."""

from __future__ import annotations

import subprocess

import pytest
from kit import environment, server


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_attention_in_plain_torch_is_that_of_the_release(version: str) -> None:
    argv = [environment.python(version), server.KIT / "compare_attention.py"]
    done = subprocess.run(argv, env=server.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line.split("\t") for line in done.stdout.splitlines()]
    assert [case[0] for case in told] == ["extend"] * 5 + ["decode"] * 3
    assert all(float(case[-1]) < 1e-5 for case in told), done.stdout
