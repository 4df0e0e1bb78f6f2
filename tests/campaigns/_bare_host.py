"""A host with nothing but a real sshd and a box of files, made once, and operators in processes of their own."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.core import file_locks
from tests.campaigns.damages import tree
from tests.sshd import Sshd
from tests.story.conftest import HERE, Said

INVENTORY = """
hosts:
  box: {{address: 127.0.0.1, port: {port}, user: {user}, ssh_config: none, key: {key}, known_hosts: [{known}],
        state_dir: {state}, sglang: {{port: 1}}}}
"""


@dataclass(frozen=True)
class Bare:
    """The host and the operators' project, in one folder."""

    folder: Path
    sshd: Sshd

    @property
    def box(self) -> Path:
        return self.folder / "box"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace("BOX", str(self.box)))

    def opsctl(self, *words: str, module: tuple[str, ...] = ("opsctl",)) -> Said:
        """A command, in a process of its own, in the folder of the inventory."""
        env = {**os.environ, "OPSCTL_RECORDS": str(self.folder / "records"), "PYTHONPATH": str(HERE),
               "DYING_STATE": str(self.state)}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", *module, *words], cwd=self.folder, env=env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stdout, done.stdout
        return Said(done.returncode, done.stdout)

    def dying(self, who: str, when: str, *words: str) -> Said:
        """opsctl to whom something is done at a moment, if that comes; see tests/story/dying.py."""
        return self.opsctl(who, when, *words, module=("tests.story.dying",))

    def free(self) -> bool:
        """Whether nobody holds the host, nor works on a run."""
        runs = (self.state / "runs").glob("*/lock")
        return not any(file_locks.is_locked(str(file)) for file in (self.state / "locks/host", *runs))

    def stop_processes(self) -> None:
        """End what the `process` tasks of plays have started."""
        for record in (self.state / "processes").glob("*.json"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(json.loads(record.read_text())["pid"], signal.SIGKILL)

    def files(self) -> dict[str, bytes]:
        """What is in the box."""
        return tree(self.box)


def run_of(said: Said) -> str | None:
    """The name of the run that a command began, if it did."""
    found = re.search(r"^run ([\w-]+): ", said.out, re.M)
    return found[1] if found else None


@functools.cache
def bare_host() -> Bare:
    """The one of this process, which ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-bare-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "ssh").mkdir()
    sshd = Sshd(folder / "ssh")
    sshd.start()
    atexit.register(sshd.stop)
    bare = Bare(folder, sshd)
    atexit.register(bare.stop_processes)
    bare.box.mkdir()
    (folder / "inventory.yaml").write_text(
        INVENTORY.format(port=sshd.port, user=sshd.user, key=sshd.key_file, known=sshd.known_hosts, state=bare.state)
    )
    bare.write("other.yaml", "- name: other\n  hosts: all\n  tasks:\n    - debug: {msg: hello}\n")
    return bare
