"""The examples of docs/ci.md do what they say: the steps' own scripts are run, against a real sshd on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.errors import Exit
from tests.docs import pages
from tests.sshd import Sshd

BASH = shutil.which("bash")
CI = pages.ROOT / "docs/ci.md"
SHOWN = {block.kind.partition('"')[2].rstrip('"'): block.text for block in pages.blocks(CI) if "title=" in block.kind}
ACTION = yaml.safe_load((pages.ROOT / "action.yml").read_text())


class Job:
    """A folder as a CI job has it: the project checked out, the key in a secret, no known hosts and no terminal."""

    def __init__(self, folder: Path, sshd: Sshd) -> None:
        self.folder, self.key = folder, sshd.key_file.read_text()
        self.conf = folder / "on-the-host.conf"
        (folder / "playbooks").mkdir()
        (folder / "playbooks/tune.yaml").write_text(SHOWN["playbooks/tune.yaml"])
        (folder / "inventory.yaml").write_text(
            f"hosts:\n  box:\n    address: 127.0.0.1\n    port: {sshd.port}\n    user: {sshd.user}\n"
            f"    host_key: {sshd.host_key}\n    state_dir: {folder}/state\n"
            f"    vars: {{nccl_conf: {self.conf}, health: {{profile: {{gpus: 0}}}}}}\n"
        )
        # The job's opsctl is the one under test.
        (folder / "bin").mkdir()
        for name, line in (
            ("opsctl", f'exec {sys.executable} -m opsctl "$@"'),
            ("python", f'exec {sys.executable} "$@"'),
        ):
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / "bin" / name).chmod(0o755)

    def make_unforeseeable(self) -> None:
        """Add a task to the playbook of which check mode cannot tell what it would do."""
        with (self.folder / "playbooks/tune.yaml").open("a") as file:
            file.write("    - command: ls /\n")

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        assert BASH
        base = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder),
            "PYTHONPATH": str(pages.ROOT),
            "XDG_STATE_HOME": f"{self.folder}/xdg", "XDG_CACHE_HOME": f"{self.folder}/xdg",
        }  # fmt: skip
        return subprocess.run(
            [BASH, "-eo", "pipefail", "-c", script], cwd=self.folder, env={**base, **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture
def job(tmp_path: Path, sshd: Sshd) -> Job:
    return Job(tmp_path, sshd)


def test_the_action_installs_and_runs() -> None:
    install, run = ACTION["runs"]["steps"][1:]
    assert "pip install" in install["run"]
    assert "GITHUB_ACTION_PATH" in install["run"]
    assert "${{" not in run["run"], "an expression in a script can be anything; it comes by the environment"
    assert set(run["env"].values()) >= {"${{ inputs.args }}", "${{ inputs.ssh-key }}"}


def action(job: Job, args: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str], str]:
    """What the action's step does: how it ended, its outputs, its summary."""
    outputs, summary = job.folder / "outputs", job.folder / "summary.md"
    outputs.write_text("")
    summary.write_text("")
    step = ACTION["runs"]["steps"][-1]
    given = {"ARGS": args, "SSH_KEY": job.key, "OPSCTL_OUTPUT": step["env"]["OPSCTL_OUTPUT"]}
    done = job.run(step["run"], GITHUB_OUTPUT=str(outputs), GITHUB_STEP_SUMMARY=str(summary), **given)
    return done, dict(line.split("=", 1) for line in outputs.read_text().splitlines()), summary.read_text()


def test_the_github_workflow(job: Job) -> None:
    steps = yaml.safe_load(SHOWN[".github/workflows/hosts.yaml"])["jobs"]["hosts"]["steps"]
    lint, plan, change, health = [step["with"]["args"] for step in steps if "with" in step]
    assert set(steps[1]["with"]) <= set(ACTION["inputs"])
    assert action(job, lint)[0].returncode == 0
    done, outputs, _ = action(job, plan)
    assert (done.returncode, outputs) == (0, {"exit-code": "3", "changes": "true"}), done.stdout + done.stderr
    assert not job.conf.exists()
    done, outputs, summary = action(job, change)
    assert (done.returncode, outputs) == (0, {"exit-code": "0"}), done.stdout + done.stderr
    assert job.conf.read_text() == "NCCL_DEBUG=WARN\n"
    assert "| box |" in summary
    assert ET.parse(job.folder / "tune.xml").getroot().findall(".//testcase")
    done, outputs, _ = action(job, plan)
    assert (done.returncode, outputs) == (0, {"exit-code": "0", "changes": "false"})
    job.make_unforeseeable()
    done, outputs, _ = action(job, plan)
    assert (done.returncode, outputs) == (0, {"exit-code": "14", "changes": "unknown"}), done.stdout + done.stderr
    goes_on = next(step["if"] for step in steps if "if" in step)
    assert goes_on.endswith("steps.plan.outputs.changes != 'false'"), "what may change is to be changed"
    done, outputs, summary = action(job, health)
    assert int(outputs["exit-code"]) == done.returncode
    assert done.returncode in (Exit.DONE, Exit.DEGRADED, Exit.UNFIT)  # as fit as the machine that runs the tests
    assert "## opsctl health: " in summary
    assert ET.parse(job.folder / "health.xml").getroot().findall(".//testcase[@classname='box']")
    assert "KEY" not in done.stdout


def test_the_action_passes_failures_on(job: Job) -> None:
    done, outputs, _ = action(job, "run tune -e 'x=$(touch owned)'")
    assert (done.returncode, outputs) == (Exit.USAGE, {"exit-code": "2"})
    assert not (job.folder / "owned").exists()
    done, outputs, _ = action(job, "run no-such --check --exit-code")
    assert (done.returncode, outputs) == (Exit.USAGE, {"exit-code": "2", "changes": "unknown"})
    (job.folder / "playbooks/tune.yaml").write_text("- hosts: all\n  tasks:\n    - command: 'false'\n")
    done, outputs, summary = action(job, "run tune")
    assert (done.returncode, outputs["exit-code"]) == (Exit.FAILED, "4")
    assert "::error file=playbooks/tune.yaml,line=3" in done.stdout
    assert "box" in summary
    (job.folder / "playbooks/tune.yaml").write_text("- hosts: all\n  vars: {unused: 1}\n  tasks: [{debug: x}]\n")
    done, outputs, _ = action(job, "lint playbooks/tune.yaml")
    assert (done.returncode, outputs) == (Exit.CHANGES, {"exit-code": "3"})


def test_the_gitlab_pipeline(job: Job) -> None:
    pipeline: dict[str, Any] = yaml.safe_load(SHOWN[".gitlab-ci.yml"])
    install, *before = pipeline["default"]["before_script"]
    assert "pip install" in install
    variables = {**pipeline["variables"], "GPU_HOST_KEY": job.key}

    def run(name: str) -> subprocess.CompletedProcess[str]:
        end = "trap 'ssh-agent -k > /dev/null' EXIT"
        return job.run("\n".join([*before, end, *pipeline[name]["script"]]), **variables)

    assert run("lint").returncode == 0
    assert json.loads((job.folder / "gl-code-quality-report.json").read_text()) == []
    warned = pipeline["plan"]["allow_failure"]["exit_codes"]
    assert sorted(warned) == [Exit.CHANGES, Exit.UNKNOWN]
    assert run("plan").returncode == Exit.CHANGES
    assert not job.conf.exists()
    done = run("change")
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.conf.exists()
    artifacts = pipeline["change"]["artifacts"]
    for file in [*artifacts["paths"], *artifacts["reports"].values()]:
        assert (job.folder / file).is_file(), file
    assert run("plan").returncode == 0
    job.make_unforeseeable()
    assert run("plan").returncode == Exit.UNKNOWN


def test_the_hook_names_a_command_that_takes_files(job: Job) -> None:
    (hook,) = yaml.safe_load((pages.ROOT / ".pre-commit-hooks.yaml").read_text())
    shown = yaml.safe_load(SHOWN[".pre-commit-config.yaml"])
    assert [h["id"] for h in shown["repos"][0]["hooks"]] == [hook["id"]]
    assert job.run(f"{hook['entry']} playbooks/tune.yaml").returncode == 0
    (job.folder / "playbooks/tune.yaml").write_text("- hosts: all\n  taks: []\n")
    done = job.run(f"{hook['entry']} playbooks/tune.yaml")
    assert done.returncode == Exit.USAGE
    assert "playbooks/tune.yaml:2:3" in done.stdout + done.stderr
