"""Source trees of real SGLang releases, from the wheels on the package index.

Wheels are kept in a cache, `OPSCTL_TEST_WHEELS` or below the user's cache folder. Tests that need one are
skipped with the reason where it can neither be found nor fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("OPSCTL_TEST_WHEELS") or Path.home() / ".cache" / "opsctl-test-wheels")

# What a checkout is judged by; the rest of a wheel is left in it.
_PARTS = ("srt/models/", "srt/model_executor/", "srt/speculative/", "srt/managers/", "srt/observability/")


@cache
def wheel(version: str) -> Path:
    """The wheel of a release, fetched where the cache does not have it."""
    found = sorted(CACHE.glob(f"sglang-{version}-*.whl"))
    return found[-1] if found else _fetch(version)


def _fetch(version: str) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # another test process may be fetching the same one
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        command += ["--retries", "1", "--timeout", "20", "--only-binary", ":all:", "--python-version", "3.11"]
        command += ["--platform", "manylinux_2_34_x86_64", "--platform", "any", f"sglang=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        for path in Path(folder).glob("*.whl"):
            return path.replace(CACHE / path.name)
    reason = (done.stderr.strip().splitlines() or ["pip gave no file"])[-1]
    pytest.skip(f"sglang {version} is not in {CACHE} and cannot be fetched: {reason}")


def checkout(version: str, folder: Path) -> Path:
    """The release's source in `folder`, laid out as in the repository."""
    with zipfile.ZipFile(wheel(version)) as archive:
        for name in archive.namelist():
            inside = name.removeprefix("sglang/")
            if name.startswith("sglang/") and name.endswith(".py") and (inside.startswith(_PARTS) or "/" not in inside):
                target = folder / "python" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, with an identity and no configuration of the user's."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), "-c", "user.name=Test", "-c", "user.email=test@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
