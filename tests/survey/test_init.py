"""`opsctl init`, as a newcomer meets it: in an empty folder, against the practice host and a real sshd."""

from __future__ import annotations

import os
import pty
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from opsctl.errors import Exit
from opsctl.inventory import load
from opsctl.practice.host import PracticeHost
from tests.commands import Said, opsctl
from tests.sshd import Sshd, eventually

Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "project"
    folder.mkdir()
    return partial(opsctl, folder=folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project"


def reach(practice: PracticeHost) -> list[str]:
    host = yaml.safe_load(practice.inventory.read_text())["hosts"]["practice"]
    return ["--host", "practice@127.0.0.1", "--port", str(host["port"]), "--key", host["key"],
            "--host-key", host["host_key"], "--server-port", str(practice.port), "--name", "box"]  # fmt: skip


def commands(out: str) -> list[list[str]]:
    """The commands under `Next:`."""
    lines = out.partition("Next:\n")[2].splitlines()
    return [line.partition("#")[0].split()[1:] for line in lines]


def test_before_anything_runs(practice: PracticeHost, run: Run, project: Path) -> None:
    said = run("init", *reach(practice))
    assert said.code == Exit.DONE, said.err
    s = load(project / "inventory.yaml").select("box")[0].sglang
    home = str(practice.home)
    assert (s.checkout, s.environment) == (f"{home}/sglang", f"{home}/venv")
    assert (s.model_path, s.weights_root) == (f"{home}/models/kimi-tiny", f"{home}/drafters")
    assert s.port == practice.port
    first, second, *_ = commands(said.out)
    assert [first, second] == [["inventory", "check"], ["health"]]
    assert run(*first).code == Exit.DONE
    assert run(*second).code in (Exit.DONE, Exit.DEGRADED)  # it may warn of this machine's memory
    assert run("lint", *map(str, project.glob("playbooks/[!d]*.yaml"))).code == Exit.DONE
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=s.checkout, capture_output=True, text=True, check=True)
    planned = run("run", "pin-sglang", "--check", "--exit-code")
    assert planned.code == Exit.DONE, planned.out + planned.err
    assert head.stdout.strip() in (project / "playbooks/pin-sglang.yaml").read_text()


@pytest.fixture
def by_hand(practice: PracticeHost, request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that somebody started in the home of the practice host, with further arguments; its process id."""
    argv = ["venv/bin/python", "-m", "sglang.launch_server",
            "--model-path", "models/kimi-tiny", "--port", str(practice.port), "--tp", "8",
            "--trust-remote-code", *getattr(request, "param", ())]  # fmt: skip
    environment = {"HOME": str(practice.home), "PATH": os.environ["PATH"], "NCCL_DEBUG": "WARN",
                   "PYTHONPATH": "models:/opt"}  # fmt: skip
    with open(practice.home / "logs/by-hand.log", "wb") as log:
        process = subprocess.Popen(
            argv, cwd=practice.home, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    eventually(lambda: b"launch_server" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "by_hand", [("--api-key", "tell-nobody", "--speculative-draft-model-path=models/kimi-tiny")], indirect=True
)
def test_what_runs_says_where_things_are(practice: PracticeHost, by_hand: int, run: Run, project: Path) -> None:
    said = run("init", *reach(practice))
    assert said.code == Exit.DONE, said.err
    assert f"pid {by_hand}, a plain process" in said.out
    s = load(project / "inventory.yaml").select("box")[0].sglang
    assert (s.model_path, s.weights_root) == (f"{practice.home}/models/kimi-tiny", f"{practice.home}/models")
    assert (s.log, s.tp, s.env["NCCL_DEBUG"]) == (f"{practice.home}/logs/by-hand.log", 8, "WARN")
    assert (s.environment, s.env["PYTHONPATH"]) == (f"{practice.home}/venv", f"{practice.home}/models:/opt")
    assert s.checkout == f"{practice.home}/sglang"
    everything = said.out + said.err + "".join(p.read_text() for p in project.rglob("*.yaml"))
    assert "tell-nobody" not in everything
    assert "!env BOX_API_KEY" in everything


@pytest.mark.parametrize(
    "by_hand",
    [(
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path=../drafters/good",
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    )],
    indirect=True,
)  # fmt: skip
def test_a_server_started_by_hand_is_taken_over_and_given_back(
    practice: PracticeHost, by_hand: int, run: Run, project: Path
) -> None:
    ready = f"http://127.0.0.1:{practice.port}/health"
    eventually(lambda: answers(ready))
    assert run("init", *reach(practice)).code == Exit.DONE
    launch = load(project / "inventory.yaml").select("box")[0].sglang.launch
    assert isinstance(launch, dict)
    assert launch["speculative-draft-model-path"] == str(practice.drafter("good"))
    assert "a server that opsctl did not start holds port" in run("server", "restart").out
    told = run("server", "restart", "--adopt", "--check").out
    assert f"stop pid {by_hand} of {pwd.getpwuid(os.getuid()).pw_name}, since " in told
    restarted = run("server", "restart", "--adopt")
    assert restarted.code == Exit.DONE, restarted.out + restarted.err
    assert not Path(f"/proc/{by_hand}/exe").exists()
    assert answers(ready)
    undone = run("rollback", "--yes")
    assert undone.code == Exit.DONE, undone.out + undone.err
    assert answers(ready)
    assert "adopt" not in run("server", "stop", "--yes").err


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_a_second_host_is_added_and_nothing_else_overwritten(practice: PracticeHost, run: Run, project: Path) -> None:
    mine = "# mine\nhosts:\n  first:\n    address: 192.0.2.1 # the rack's own\n"
    (project / "inventory.yaml").write_text(mine)
    (project / "playbooks").mkdir()
    (project / "playbooks/health.yaml").write_text("- hosts: first\n")
    said = run("init", *reach(practice))
    assert said.code == Exit.DONE, said.err
    assert "added box to inventory.yaml" in said.out
    assert "kept playbooks/health.yaml, which was here already: say `hosts: servers`" in said.err
    assert (project / "inventory.yaml").read_text().startswith(mine)
    assert (project / "playbooks/health.yaml").read_text() == "- hosts: first\n"
    inventory = load(project / "inventory.yaml")
    assert (list(inventory.hosts), inventory.groups) == (["first", "box"], {"servers": ("box",)})
    again = run("init", *reach(practice)[:-1], "other")
    assert again.code == Exit.DONE, again.err
    assert load(project / "inventory.yaml").groups == {"servers": ("box", "other")}
    assert "health.yaml" in again.err
    assert "probe.yaml" in again.err
    assert "probe.yaml, which was here already:" not in again.err
    before = (project / "inventory.yaml").read_text()
    assert "there is a host 'box' already" in run("init", *reach(practice)).err
    (project / "inventory.yaml").write_text("all: {hosts: {a: }}\n")
    assert "opsctl inventory import" in run("init", *reach(practice)).err
    assert before.count("health:") == 2


def test_an_unknown_key_is_shown_and_not_trusted(practice: PracticeHost, run: Run, project: Path) -> None:
    words = reach(practice)
    at = words.index("--host-key")
    said = run("init", *words[:at], *words[at + 2 :], "--yes")
    assert said.code == Exit.UNREACHABLE
    assert "SHA256:" in said.err
    assert list(project.iterdir()) == []


def test_a_person_is_asked_about_the_key(practice: PracticeHost, project: Path) -> None:
    words = reach(practice)
    at = words.index("--host-key")
    project.mkdir()
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "opsctl", "init", *words[:at], *words[at + 2 :]],
        cwd=project, stdin=there, stdout=there, stderr=there, start_new_session=True,
    )  # fmt: skip
    os.close(there)
    shown = b""
    deadline = time.monotonic() + 30
    while b"Trust it?" not in shown and time.monotonic() < deadline:
        shown += os.read(here, 4096)
    os.write(here, b"n\n")
    assert process.wait(120) == Exit.INTERRUPTED
    os.close(here)
    assert b"SHA256:" in shown
    assert list(project.iterdir()) == []


def test_a_real_sshd(sshd: Sshd, run: Run, project: Path) -> None:
    said = run("init", "--host", f"{sshd.user}@127.0.0.1", "--port", str(sshd.port), "--key", str(sshd.key_file),
               "--host-key", str(sshd.host_key), "--server-port", "1", "--name", "box")  # fmt: skip
    assert said.code == Exit.DONE, said.err
    assert run("inventory", "check").code == Exit.DONE


def test_this_machine(run: Run, project: Path) -> None:
    assert run("init", "--local", "--server-port", "1", "--name", "here").code == Exit.DONE
    assert load(project / "inventory.yaml").select("here")[0].settings.connection == "local"
    assert run("inventory", "check").code == Exit.DONE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--host"),
        (["--host", "a b"], "'a b'"),
        (["--local", "--host", "x"], "--local"),
        (["--host", "x", "--key", "/nowhere/key"], "/nowhere/key"),
        (["--local", "--name", "all"], "'all'"),
    ],
)
def test_mistakes(run: Run, project: Path, words: list[str], told: str) -> None:
    said = run("init", *words, "--server-port", "1")
    assert said.code == Exit.USAGE
    assert told in said.err
    assert list(project.iterdir()) == []
