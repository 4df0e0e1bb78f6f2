"""`opsctl logs collect` over a real sshd, from a host full of secrets: none of them gets anywhere."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zstandard

from opsctl.cli.main import run
from opsctl.remote.agent_client import AgentClient
from opsctl.remote.host import connect
from opsctl.wire.protocol import Call
from tests.logs.canaries import CANARIES, Canary
from tests.logs.test_redact import detected, leaks
from tests.sshd import Sshd, eventually

# Secrets whose form tells nothing: only the inventory knows them.
OWN = {"OPS_A": "correct horse battery staple", "OPS_B": "aardvark-7", "OPS_C": "Zwölf Boxkämpfer jagen"}
OF_ANOTHER_HOST = "sesame-of-the-other-host"
ARGUMENT = Canary("flag of the running server", "q7Kd02mVbe41xRt9", "")
ENVIRONMENT = {
    "HF_TOKEN": "hf_" + "Qz7" * 12,
    "SGLANG_API_KEY": "e9f1c0ffee77aa55",
    "DB_PASSWORD": "tr0ub4dor&3",
    "WANDB_API_KEY": "0a1b2c3d" * 5,
    "https_proxy": "http://ops:pr0xyPassw0rd@proxy.example:3128",
}
IN_SOURCE = Canary("key in a changed source file", "hf_" + "sRc" * 12, "")
IN_JOURNAL = Canary("secret in the journal of runs", "j0urnal5ecret99", "")

TOOL = """#!/bin/sh
cat {planted}
"""
SERVER = """
import sys, time
print("server_args=ServerArgs(model_path='/m', api_key='%s', port=30000)" % sys.argv[-1], flush=True)
time.sleep(600)
"""


@dataclass
class Wire:
    """What crossed it, in both directions, unpacked."""

    came: list[str] = field(default_factory=list)
    went: list[str] = field(default_factory=list)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A tap on the client's side: every frame that comes and all that is written."""
    seen = Wire()
    deliver, write = AgentClient._deliver, AgentClient._write

    def delivered(self: AgentClient, header: dict[str, Any], length: int, body: bytes) -> None:
        opened = body
        if body[:1] == b"\x78":  # zlib
            opened = zlib.decompress(body)
        seen.came.append(json.dumps(header, ensure_ascii=False) + opened.decode("utf-8", "replace"))
        deliver(self, header, length, body)

    def written(self: AgentClient, data: bytes) -> None:
        seen.went.append(data.decode("utf-8", "replace"))
        write(self, data)

    monkeypatch.setattr(AgentClient, "_deliver", delivered)
    monkeypatch.setattr(AgentClient, "_write", written)
    return seen


@pytest.fixture
def infested(tmp_path: Path, sshd: Sshd, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host with secrets everywhere, and the folder in which the operator works."""
    host, desk = tmp_path / "host", tmp_path / "desk"
    text = "\n".join([*(c.text for c in CANARIES), *OWN.values(), f"mirror of {OF_ANOTHER_HOST} done"]) + "\n"
    log = host / "logs/sglang.log"
    for folder in (log.parent, host / "bin", host / "sglang/python/sglang", desk):
        folder.mkdir(parents=True)
    (host / "planted").write_text(text)
    (host / "logs/sglang.log.1").write_text("an older file\n" + text)
    log.write_text(text)
    tools(host)
    source_tree(host / "sglang")
    with log.open("a") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", "--port", "30000", "--api-key", ARGUMENT.secret],
            cwd=host / "sglang/python",
            env={**os.environ, **ENVIRONMENT},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    eventually(lambda: ARGUMENT.secret in log.read_text())
    with connect(sshd.spec(state_dir=str(state))) as remote:
        meta = {"playbook": "p.yaml", "vars": {"api_key": IN_JOURNAL.secret}}
        remote.call(Call("journal.begin", {"run": "r-1", "meta": meta}))
        remote.call(
            Call("journal.finish", {"run": "r-1", "outcome": "failed", "why": f"--api-key {IN_JOURNAL.secret}"})
        )
    (desk / "inventory.yaml").write_text(inventory(host, sshd, state))
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPS_OTHER", OF_ANOTHER_HOST)
    monkeypatch.setenv("XDG_STATE_HOME", str(desk / "state"))
    monkeypatch.chdir(desk)
    yield desk
    server.kill()
    server.wait()


def tools(host: Path) -> None:
    """Programs of a GPU host that say all they know."""
    for name in ("systemctl", "journalctl", "nvidia-smi", "docker"):
        (host / "bin" / name).write_text(TOOL.format(planted=host / "planted"))
        (host / "bin" / name).chmod(0o755)
    (host / "bin/python").write_text(f'#!/bin/sh\nPATH={host}/bin:$PATH exec {sys.executable} "$@"\n')
    (host / "bin/python").chmod(0o755)


def source_tree(tree: Path) -> None:
    (tree / "python/sglang/__init__.py").write_text('__version__ = "0.5.9"\n')
    (tree / "python/sglang/launch_server.py").write_text(SERVER)
    git = ["git", "-C", str(tree), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Tree"]):
        subprocess.run([*git, *words], check=True)
    (tree / "python/sglang/__init__.py").write_text(f'__version__ = "0.5.9"\nTOKEN = "{IN_SOURCE.secret}"\n')


def inventory(host: Path, sshd: Sshd, state: Path) -> str:
    reach = {
        "address": "127.0.0.1",
        "port": sshd.port,
        "user": sshd.user,
        "key": str(sshd.key_file),
        "known_hosts": str(sshd.known_hosts),
        "state_dir": str(state),
        "python": str(host / "bin/python"),
    }
    served = f"""    sglang:
      unit: sglang.service
      container: sgl
      log: {host}/logs/sglang.log
      checkout: {host}/sglang
      api_key: !env OPS_A
      env: {{QUIET: !env OPS_B}}
    vars: {{pin: !env OPS_C}}
"""
    said = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in reach.items())
    other = "  other:\n    address: 127.0.0.1\n    password: !env OPS_OTHER\n"
    return f"hosts:\n  box:\n{said}{served}{other}"


def everything(folder: Path) -> str:
    """The text of every file below a folder, and of what is packed in bundles."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "inventory.yaml"]
    return "\n".join(opened(f) if f.name.endswith(".zst") else f.read_text("utf-8", "replace") for f in files)


def opened(bundle: Path) -> str:
    return "\n".join(f"{name}\n{text}" for name, text in members(bundle).items())


def members(bundle: Path) -> dict[str, str]:
    with bundle.open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {m.name.split("/", 1)[1]: archive.extractfile(m).read().decode("utf-8", "replace") for m in archive}  # type: ignore[union-attr]  # all are files


def leaking(text: str) -> list[str]:
    made_up = [*CANARIES, ARGUMENT, IN_SOURCE, IN_JOURNAL]
    names = [f"{c.kind} {leaks(c, text)[:2]}" for c in made_up if leaks(c, text)]
    values = [*OWN.values(), *(v.rpartition(":")[2].split("@")[0] if "://" in v else v for v in ENVIRONMENT.values())]
    proxy = "pr0xyPassw0rd"
    return names + [v for v in [*values, proxy] if v != "3128" and v in text]


def test_no_secret_gets_anywhere(infested: Path, wire: Wire, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", "collect", "--host", "box", "-o", "bundle.tar.zst"]) == 0
    out, err = capsys.readouterr()
    kept = members(infested / "bundle.tar.zst")
    for place, text in {
        "the bundle": "\n".join(kept.values()),
        "the terminal": out + err,
        "files here": everything(infested),
        "the wire": "\n".join(wire.came),
    }.items():
        assert leaking(text) == [], place
    assert OF_ANOTHER_HOST not in everything(infested)
    assert OF_ANOTHER_HOST not in "\n".join(wire.went)
    manifest = json.loads(kept["manifest.json"])
    parts = {part["name"]: part for part in manifest["parts"]}
    assert parts["server.log"]["masked"] >= 2 * len(CANARIES)
    # Everything is there, so that what was not found was really masked and not missing.
    for name in ("unit.txt", "journal.log", "container.log", "kernel.log", "gpu-links.txt"):
        assert parts[name]["masked"] >= len(CANARIES), name
    assert "\n-m\nsglang.launch_server\n--port\n30000\n--api-key\n[REDACTED/" in kept["command-line.txt"]
    assert "HF_TOKEN=[REDACTED/" in kept["environment.txt"]
    assert '+TOKEN = "[REDACTED/' in kept["source-changes.diff"]
    assert '"api_key": "***"' in kept["runs.json"]
    assert "an older file" in kept["server.log"]


def test_an_independent_detector_finds_nothing_in_the_bundle(infested: Path) -> None:
    assert run(["logs", "collect", "--host", "box", "-o", "bundle.tar.zst"]) == 0
    kept = members(infested / "bundle.tar.zst")
    found = {name: detected(text) for name, text in kept.items()}
    assert {name: secrets for name, secrets in found.items() if secrets} == {}


def test_more_redaction_also_hides_who_and_where(infested: Path, wire: Wire) -> None:
    host = infested.parent / "host"
    with (host / "logs/sglang.log").open("a") as log:
        log.write("from 10.20.30.40 on gpu7.internal, GPU-8f3c1d2e-5b6a-4c7d-9e0f-1a2b3c4d5e6f, box says\n")
    assert (
        run(["logs", "collect", "--host", "box", "--redact", "more", "--include", "server.log", "-o", "b.tar.zst"]) == 0
    )
    text = opened(infested / "b.tar.zst")
    for identity in ("10.20.30.40", "gpu7.internal", "8f3c1d2e-5b6a", '"box"', " box says"):
        assert identity not in text + "\n".join(wire.came), identity


def test_tail_masks_on_the_host_too(infested: Path, wire: Wire, capsys: pytest.CaptureFixture[str]) -> None:
    log = infested.parent / "host/logs/sglang.log"
    with log.open("a") as file:
        file.write("\n".join(c.text for c in CANARIES) + "\nthe end\n")
    command = [sys.executable, "-m", "opsctl", "logs", "tail", "--host", "box", "-n", "10000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stdout
            seen = []
            for line in tail.stdout:
                seen.append(line)
                if line == "the end\n":
                    break
            tail.send_signal(2)
            assert tail.wait(120) == 0
            assert tail.stderr
            assert leaking("".join(seen) + tail.stderr.read()) == []
        finally:
            tail.kill()
    assert len(seen) > len(CANARIES)
