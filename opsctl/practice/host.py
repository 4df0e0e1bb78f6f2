"""The practice host: what a GPU host with a served model looks like, below one folder, without the GPUs.

ROOT/inventory.yaml       how to reach it
ROOT/drafters/            draft models on the operator's side, good and bad
ROOT/host/                home of the practice host: the only place it writes to
    sglang/               source checkout, a git repository
    venv/                 interpreter that serves; sees the checkout as an editable install would
    models/kimi-tiny/     the target model
    drafters/             releases of draft models
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from opsctl.localfiles import shipped
from opsctl.practice import models
from opsctl.practice.ssh_server import PracticeSSH

NAME = "practice"
TREE = shipped("practice-tree")  # data, not a package: the sglang in it is importable on the practice host alone

# What the drafters on the operator's side are, and how the practice server acts when it is started with each.
DRAFTERS = {
    "first": "healthy",
    "good": "strong",
    "silent": "zero-acceptance",  # fits in every respect that can be read; accepts nothing
    "dies": "dies-after-ready",
    "oom": "oom-while-loading",
    "hangs": "hangs-while-loading",
    "weak": "weak",  # accepts, and less than the others
}

INVENTORY = """\
# A practice host on this machine. Everything it does stays below {root}.
hosts:
  {name}:
    address: 127.0.0.1
    port: {ssh_port}
    user: practice
    key: {root}/key
    host_key: {host_key}
    vars:
      health:
        profile: {{gpus: 0}} # a host for practice: nothing to check there
    sglang:
      checkout: {home}/sglang
      environment: {home}/venv
      model_path: {home}/models/kimi-tiny
      port: {port}
      tp: 8
      weights_root: {home}/drafters
      log: {home}/logs/sglang.log
      launch:
        trust-remote-code: true
        enable-metrics: true
        speculative-algorithm: EAGLE3
        speculative-num-steps: 3
        speculative-eagle-topk: 1
        speculative-num-draft-tokens: 4
"""


@dataclass(frozen=True, slots=True)
class PracticeHost:
    root: Path
    home: Path
    port: int  # where its SGLang listens

    @property
    def inventory(self) -> Path:
        return self.root / "inventory.yaml"

    def drafter(self, name: str) -> Path:
        return self.root / "drafters" / name


@contextlib.contextmanager
def practice_host(root: Path) -> Iterator[PracticeHost]:
    """Build the host below `root`, an empty folder, and serve SSH until the end. What it started is stopped then."""
    root = root.resolve()
    home = root / "host"
    port = _free_port()
    _build(root, home)
    host_key, user_key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    user_key.write_private_key_file(str(root / "key"))
    ssh = PracticeSSH(host_key, user_key, home, _environment(home))
    public = f"{host_key.get_name()} {host_key.get_base64()}"
    text = INVENTORY.format(root=root, home=home, name=NAME, ssh_port=ssh.port, port=port, host_key=public)
    (root / "inventory.yaml").write_text(text)
    try:
        yield PracticeHost(root, home, port)
    finally:
        ssh.close()
        _stop_everything(home)


def _build(root: Path, home: Path) -> None:
    for folder in (home / "logs", home / "tmp", home / "drafters", root / "drafters"):
        folder.mkdir(parents=True)
    shutil.copytree(TREE, home / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["-c", "user.name=practice", "-c", "user.email=practice@localhost", "commit", "--quiet", "-m", "Practice tree"],
    ):
        subprocess.run(["git", *command], cwd=home / "sglang", check=True, env=_environment(home))
    venv.create(home / "venv", symlinks=True, with_pip=False)
    site = next((home / "venv" / "lib").glob("python3*/site-packages"))
    (site / "sglang.pth").write_text(f"{home}/sglang/python\n")
    models.write_target(home / "models" / "kimi-tiny")
    for seed, (name, scenario) in enumerate(DRAFTERS.items()):
        models.write_drafter(root / "drafters" / name, seed=seed, scenario=scenario)
    models.write_drafter(
        root / "drafters" / "old-names",
        seed=len(DRAFTERS),
        scenario="zero-acceptance",
        rename=lambda tensor: tensor.replace("midlayer.", "layers.0."),
    )


def _environment(home: Path) -> dict[str, str]:
    """Environment of every command on the host: nothing of the operator's own."""
    return {
        "HOME": str(home),
        "USER": "practice",
        "LOGNAME": "practice",
        "PATH": f"{home}/venv/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": str(home / "tmp"),
        "OPSCTL_STATE_DIR": str(home / ".local/state/opsctl"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def _stop_everything(home: Path) -> None:
    """End the processes of the practice host: those whose home it is, told by their environment."""
    mark = f"HOME={home}\0".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
            if mark in (entry / "environ").read_bytes() + b"\0":
                os.kill(int(entry.name), 9)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
