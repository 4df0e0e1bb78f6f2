"""What runs on the host runs on Python 3.8, where one is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsctl
from opsctl.remote.host import connect
from opsctl.remote.spec import ConnectionSpec
from opsctl.wire.protocol import Call
from tests.remote.steps import RUN, begin, tree, writing

PACKAGE = Path(opsctl.__file__).parent


def pythons() -> Iterator[str]:
    """Where a Python 3.8 may be: on the path, or among those of pyenv."""
    yield from filter(None, [shutil.which("python3.8")])
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, root.glob("versions/3.8.*/bin/python3.8"))


@pytest.fixture(scope="module")
def python() -> str:
    for each in pythons():
        if subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return each
    pytest.skip("there is no Python 3.8 on this machine")


def test_every_module_that_a_host_may_get_loads(python: str) -> None:
    """Imports rather than only compiles: what an annotation or a default says is looked at then."""
    files = [path for room in ("agent", "wire") for path in sorted((PACKAGE / room).rglob("*.py"))]
    files = [path for path in files if path.parent != PACKAGE / "wire" / "calls"]  # stays on this side
    names = [".".join(("opsctl", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in files]
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    done = subprocess.run(
        [python, "-B", "-S", "-W", "error", "-c", script, *[n.removesuffix(".__init__") for n in names]],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_agent_changes_a_host_and_takes_it_back(python: str, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    with connect(ConnectionSpec("here", "local", python=python, state_dir=str(tmp_path / "state"))) as host:
        process = host.call(Call("proc.run", {"argv": "readlink /proc/$PPID/exe"}))
        assert "python3.8" in str(process.result)
        host.call(begin())
        host.call(writing(box / "a", b"new", 1))
        assert tree(box) == {"a": b"new"}
        host.call(Call("journal.rollback", {"run": RUN}))
        assert tree(box) == {}
