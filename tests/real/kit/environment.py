"""The virtual environments with a real SGLang in them, made once and kept.

Run as a program it makes all of them, side by side.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KIT = Path(__file__).resolve().parent
VERSIONS = ("0.5.9", "0.5.23")


def venv(version: str) -> Path:
    """The environment for `version`, made now if it is not there: about two minutes and 3 GB each.

    They lie in $OPSCTL_SGLANG_VENVS, by default ~/.cache/opsctl. Raises RuntimeError when pip brings a CUDA build of
    torch (several GB that a CPU cannot use): point pip at an index that has the CPU build.
    """
    home = Path(os.environ.get("OPSCTL_SGLANG_VENVS") or Path.home() / ".cache" / "opsctl")
    home.mkdir(parents=True, exist_ok=True)
    place = home / f"venv-{version}"
    with (home / f".venv-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs must not build the same one
        if not _ready(place, version):
            _make(place, version)
    return place


def python(version: str) -> Path:
    return venv(version) / "bin" / "python"


def packages(version: str) -> Path:
    """The folder that holds the `sglang` package of `version`."""
    return next((venv(version) / "lib").glob("python3*/site-packages"))


def _ready(place: Path, version: str) -> bool:
    return any(place.glob(f"lib/python3*/site-packages/sglang-{version}.dist-info/RECORD"))


def _make(place: Path, version: str) -> None:
    interpreter = "python3.11"  # the pins were resolved for it
    if sys.version_info[:2] == (3, 11):
        interpreter = sys.executable
    subprocess.run([interpreter, "-m", "venv", "--clear", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--no-compile"]  # a fraction of it is ever imported, and compiled then
    # torch first: a wrong build is noticed before anything else is fetched.
    pins = KIT / f"constraints-{version}.txt"
    torch = next(line for line in pins.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, torch], check=True)
    shown = subprocess.run(
        [
            str(place / "bin" / "python"),
            "-W",
            "ignore",
            "-c",
            "import importlib.metadata as m; print(m.version('torch'))",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    if not shown.stdout.strip().endswith("+cpu"):
        raise RuntimeError(
            f"pip brought torch {shown.stdout.strip()}: let it find the CPU build, whose version ends in +cpu"
        )
    subprocess.run([*pip, "-r", str(pins)], check=True)


if __name__ == "__main__":
    with ThreadPoolExecutor() as pool:
        for made in pool.map(venv, VERSIONS):
            print(made)
