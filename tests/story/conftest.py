"""A host in service and operators in processes of their own, for what happens when one of them goes away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import file_locks
from opsctl.practice import models
from opsctl.practice.host import PracticeHost, practice_host
from tests import commands
from tests.sshd import eventually

HERE = Path(__file__).parents[2]

# The shipped deploy without its checks and measurements, so that there is time for many of them.
PLAY = """
- name: Put a draft model into service
  hosts: all
  on_failure: rollback
  params:
    drafter: {type: folder}
    gate: {type: float, default: 1}
    confirm_within: {type: duration, default: 60s}
    stall: {type: duration, default: 30s}
    adopt: {type: bool, default: false}
    logs: {type: bool, default: false}
  tasks:
    - name: A file beside it
      copy: {dest: "{{ sglang.weights_root }}/note", content: "{{ drafter | basename }}\\n"}
    - name: Stage
      drafter_stage: {path: "{{ drafter }}", name: eagle3}
      register: staged
    - name: Serve
      sglang_server:
        state: started
        drafter: "{{ staged.release }}"
        ready_timeout: 60s
        stop_wait: 10
        stall: "{{ stall }}"
        adopt: "{{ adopt }}"
      supervise: {confirm_within: "{{ confirm_within }}"}
    - name: Does it answer?
      http: {url: "http://127.0.0.1:{{ sglang.port }}/get_server_info"}
  rescue:
    - name: Keep the logs
      when: logs
      logs_collect: {folder: logs, run: "{{ run_id }}", include: [server.log, diagnosis.json]}
  gates:
    - {name: Good, that: "gate > 0"}
"""


@dataclass
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str

    @property
    def run(self) -> str:
        """The name of the run it made."""
        found = re.search(r"^run ([\w-]+): ", self.out, re.M)
        assert found, self.out
        return found[1]


@dataclass
class Story:
    """The host, and operators who work on it."""

    practice: PracticeHost
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.practice.home / ".local/state/opsctl"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a program of the operator's, in the folder of the inventory."""
        env = {**os.environ, "OPSCTL_RECORDS": str(self.practice.root / "records"), "PYTHONPATH": str(HERE),
               "DYING_STATE": str(self.state)}  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=self.practice.root, env=env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def ended(self, process: subprocess.Popen[str], seconds: float = 90) -> Said:
        out, _ = process.communicate(timeout=seconds)
        assert "Traceback" not in out, out
        return Said(process.returncode, out)

    def opsctl(self, *args: str) -> Said:
        """Run a command to its end. In this process: nothing happens to this operator."""
        said = commands.opsctl(*args, folder=self.practice.root, OPSCTL_RECORDS=str(self.practice.root / "records"))
        out = said.out + said.err
        assert "Traceback" not in out, out
        return Said(said.code, out)

    def dying(self, action: str, when: str, *args: str) -> Said:
        """opsctl to whom `action` is done at a moment; see dying.py."""
        said = self.ended(self.start("tests.story.dying", action, when, *args))
        assert f"({action}: {when})" in said.out, f"the moment did not come:\n{said.out}"
        return said

    def deploy(self, drafter: str, *more: str) -> tuple[str, ...]:
        return ("run", "play.yaml", "-e", f"drafter=drafters/{drafter}", *more)

    def free(self) -> bool:
        """Whether nobody holds the host, nor works on a run."""
        runs = list((self.state / "runs").iterdir())
        files = [self.state / "locks/host", *(run / name for run in runs for name in ("lock", "supervisor.lock"))]
        return not any(file_locks.is_locked(str(file)) for file in files)

    def settled(self) -> str:
        """Wait until the host is left alone; the drafter it then serves, once all that is said about it agrees."""
        eventually(self.free)
        return self.served()

    def served(self) -> str:
        """The draft model in service, asserted to be whole: process, answer, link and launch file are of one mind."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.practice.port}/get_server_info", timeout=10) as answer:
            release = Path(json.load(answer)["speculative_draft_model_path"])
        assert os.readlink(release.parent / "current") == release.name
        assert str(release) in (self.practice.home / f"logs/launch-{self.practice.port}.sh").read_text()
        record = self.record()
        assert str(release) in record["argv"]
        assert str(release) in Path(f"/proc/{record['pid']}/cmdline").read_text()
        return next(
            folder.name
            for folder in (self.practice.root / "drafters").iterdir()
            if (folder / "model.safetensors").read_bytes() == (release / "model.safetensors").read_bytes()
        )

    def as_before(self) -> bool:
        """Whether `one` is in service, whole, and nobody at work: as each test begins."""
        try:
            return (self.settled(), self.note()) == ("one", "one")
        except (
            AssertionError,
            OSError,
            StopIteration,
        ):  # nothing is in service yet, or a test has failed in the middle
            return False

    def note(self) -> str:
        return (self.practice.home / "drafters/note").read_text().strip()

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / f"processes/sglang-{self.practice.port}.json").read_text())
        return found


@contextlib.contextmanager
def host_with_drafters(folder: Path) -> Iterator[PracticeHost]:
    """A practice host with drafters that are quickly in service, `one`, `two` and `three`, and one that is not."""
    with practice_host(folder) as host:
        for seed, name in enumerate(("one", "two", "three"), start=100):
            models.write_drafter(host.root / "drafters" / name, seed=seed, scenario="quick")
        models.write_drafter(host.root / "drafters" / "slow", seed=99, scenario="healthy")
        (host.root / "play.yaml").write_text(PLAY)
        (host.root / "other.yaml").write_text("- name: other\n  hosts: all\n  tasks:\n    - debug: {msg: hello}\n")
        yield host


@contextlib.contextmanager
def serving_one(host: PracticeHost) -> Iterator[Story]:
    """The host, serving drafter `one`, and nobody at work."""
    story = Story(host)
    if not story.as_before():
        said = story.opsctl(*story.deploy("one"), "--lock-wait", "60s")
        assert said.code == 0, said.out
        assert (story.settled(), story.note()) == ("one", "one")
    yield story
    for process in story.running:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="package")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PracticeHost]:
    with host_with_drafters(tmp_path_factory.mktemp("story")) as host:
        yield host


@pytest.fixture
def story(host: PracticeHost) -> Iterator[Story]:
    with serving_one(host) as story:
        yield story
