"""Odd places to be started in: one clear line, never a traceback, and a run that nobody listens to goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [
    # shell command, exit code, what is said
    ("opsctl run ok.yaml --limit ''", 2, "the host pattern is empty"),  # of a variable that was not set
    ("opsctl run ok.yaml --resume ../../x", 2, "cannot be the name of a run"),
    ("opsctl run ok.yaml -o jsonl | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}", 0, ""),
    ("opsctl run ok.yaml >/dev/full", 4, ""),
    ("opsctl history >/dev/full", 4, "cannot write: No space left on device"),
    ("opsctl run ok.yaml >&-", 0, ""),
    ("opsctl run ok.yaml 2>&- <&-", 0, "done ("),
    ("PYTHONIOENCODING=ascii opsctl run --help", 0, "Usage"),
    ("env -u HOME -u USER -u PATH $OPSCTL run ok.yaml", 0, "done ("),
    ("TERM=no-such COLUMNS=1 opsctl run ok.yaml", 0, "done ("),
    ("OPSCTL_RECORDS=/proc/nowhere opsctl run ok.yaml", 0, "done ("),
    ("mkdir gone; cd gone; rmdir ../gone; opsctl run ok.yaml", 2, "does not exist any more"),
    ("d=$(printf 'n\\xff'); mkdir $d; cp ok.yaml $d/p.yaml; opsctl run $d/p.yaml", 0, "done ("),
    ("printf '\\xff\\xfe\\0' > bad.yaml; opsctl run bad.yaml", 2, "bad.yaml"),
    ("head -c 20000 /dev/zero | tr '\\0' '[' > deep.yaml; opsctl run deep.yaml", 2, "deep.yaml"),
    ("mkdir empty; opsctl deploy drafter ok.yaml", 2, "ok.yaml"),
]


@pytest.mark.parametrize(("command", "code", "says"), CASES, ids=[case[0] for case in CASES])
def test_it_ends_as_it_should(tmp_path: Path, command: str, code: int, says: str) -> None:
    (tmp_path / "inventory.yaml").write_text(f"hosts:\n  a: {{connection: local, state_dir: {tmp_path}/state}}\n")
    (tmp_path / "ok.yaml").write_text("- name: p\n  hosts: all\n  tasks:\n    - debug: {msg: hello}\n")
    program = Path(sys.executable).with_name("opsctl")
    env = {**os.environ, "OPSCTL": str(program), "OPSCTL_RECORDS": str(tmp_path / "records")}
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, timeout=60, check=False)
    out = (done.stdout + done.stderr).decode(errors="replace")
    assert (done.returncode, says in out, "Traceback" in out) == (code, True, False), out
