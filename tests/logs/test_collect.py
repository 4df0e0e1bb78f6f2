"""The host's side of `logs collect`, run in this process on a folder that stands for the host."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.clip import Clip
from opsctl.agent.collect import bundle
from opsctl.agent.protocol import Context
from opsctl.errors import UsageError
from opsctl.sglang.log_parts import Server, parts, select
from tests.logs.canaries import CANARIES
from tests.logs.test_redact import leaks


class Wire(Context):
    """Keeps what would cross the wire."""

    def __init__(self, secrets: list[str] | None = None) -> None:
        self.body = json.dumps(secrets or []).encode()
        self.files: dict[str, bytes] = defaultdict(bytes)
        self.ended: list[str] = []
        self.sent = 0

    def progress(self, data: Any, body: bytes = b"") -> None:
        self.files[data["part"]] += zlib.decompress(body)
        self.sent += len(body)
        if data["last"]:
            self.ended.append(data["part"])


def plant(root: Path) -> list[dict[str, Any]]:
    """A host with every canary in its log, its environment and its unit file."""
    text = "\n".join(canary.text for canary in CANARIES) + "\n"
    (root / "proc/77").mkdir(parents=True)
    (root / "proc/77/environ").write_text("HF_TOKEN=hf_" + "aB3" * 12 + "\0PATH=/bin\0")
    (root / "server.log").write_text(text)
    (root / "server.log.1.gz").write_bytes(gzip.compress(b"older\n" + text.encode()))
    return [
        {"name": "server.log", "logs": ["/server.log.1.gz", "/server.log"]},
        {"name": "environment.txt", "path": "/proc/77/environ", "nul": True},
        {
            "name": "unit.txt",
            "argv": [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", str(root / "server.log")],
        },
        {"name": "failing.txt", "argv": [sys.executable, "-c", "import sys; print('half'); sys.exit(3)"]},
        {"name": "missing.txt", "path": "/no/such"},
        {"name": "no-command.txt", "argv": ["no-such-command"]},
        {
            "name": "stuck.txt",
            "argv": [sys.executable, "-c", "print('first', flush=True); import time; time.sleep(60)"],
            "seconds": 1.0,
        },
    ]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wire, dict[str, dict[str, Any]]]:
    root = tmp_path_factory.mktemp("host")
    wire = Wire(["what the inventory knows"])
    (root / "notes").write_text("said: what the inventory knows\n")
    manifest = bundle(wire, [*plant(root), {"name": "notes.txt", "path": "/notes"}], root=str(root))
    return wire, {part["name"]: part for part in manifest["parts"]}


def test_no_canary_crosses_the_wire(collected: tuple[Wire, dict[str, dict[str, Any]]]) -> None:
    wire, manifest = collected
    everything = b"\n".join(wire.files.values()).decode("utf-8", "replace") + json.dumps(manifest)
    for canary in CANARIES:
        assert not leaks(canary, everything), canary.kind
    assert "aB3aB3" not in everything
    assert "what the inventory knows" not in everything
    assert manifest["server.log"]["masked"] >= 2 * len(CANARIES)


def test_the_manifest_says_how_each_part_went(collected: tuple[Wire, dict[str, dict[str, Any]]]) -> None:
    wire, manifest = collected
    assert manifest["unit.txt"]["exit"] == 0
    assert (manifest["failing.txt"]["exit"], wire.files["failing.txt"]) == (3, b"half\n")
    assert "no such log" in manifest["missing.txt"]["error"]
    assert manifest["no-command.txt"]["error"] == "no such command: no-such-command"
    assert (manifest["stuck.txt"]["error"], wire.files["stuck.txt"]) == ("time limit", b"first\n")
    assert not manifest["server.log"]["truncated"]
    assert sorted(wire.ended) == sorted(manifest)
    assert b"PATH=/bin\n" in wire.files["environment.txt"]


def test_a_long_log_is_cut_around_its_first_trouble(tmp_path: Path) -> None:
    line = b"[2026-02-08 03:12:44 TP0] Decode batch, #running-req: 1, gen throughput (token/s): 118.40, #queue-req: 0\n"
    trouble = b"[2026-02-08 03:12:45 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
    (tmp_path / "server.log").write_bytes(b"first line\n" + line * 200000 + trouble + line * 400000 + b"last line\n")
    wire = Wire()
    part = {"name": "server.log", "logs": ["/server.log"], "head": 1 << 16, "window": 1 << 16, "tail": 1 << 16}
    (entry,) = bundle(wire, [part], root=str(tmp_path))["parts"]
    kept = wire.files["server.log"]
    assert kept.startswith(b"first line\n")
    assert kept.endswith(b"last line\n")
    assert trouble in kept
    assert kept.count(b"[opsctl: ") == 2
    assert all(row == line.rstrip() for row in kept.split(trouble)[0].splitlines()[-100:])
    assert entry["truncated"]
    assert entry["bytes"] == (tmp_path / "server.log").stat().st_size
    assert len(kept) < 1 << 20


@given(
    st.integers(0, 3000),
    st.integers(1, 200),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(-1, 2900),
)
def test_a_clip_keeps_what_it_says_and_counts_what_it_leaves_out(
    size: int, step: int, head: int, window: int, tail: int, trouble: int
) -> None:
    lines = [b"line %05d" % i for i in range(size // 10)]
    if 0 <= trouble < len(lines):
        lines[trouble] = b"NVRM: Xid (PCI:0000:17:00): 79"
    text = b"".join(line + b"\n" for line in lines)
    clip = Clip(head, window, tail)
    for at in range(0, len(text), step):
        clip.feed(text[at : at + step])
    out = b"".join(clip.pieces())
    left_out = sum(int(part.split(b" ", 1)[0]) for part in out.split(b"[opsctl: ")[1:])
    notes = sum(
        len(b"\n[opsctl: %d bytes left out]\n" % int(part.split(b" ", 1)[0])) for part in out.split(b"[opsctl: ")[1:]
    )
    assert len(out) - notes + left_out == len(text)
    assert out.startswith(text[:head])
    if window and 0 <= trouble < len(lines):
        assert b"NVRM: Xid"[:window] in out


def test_parts_are_named_once_and_can_be_chosen() -> None:
    server = Server(
        unit="sglang", logs=("/var/log/sglang.log",), pids=(77, 78), python="/opt/venv/bin/python", source="/opt/sglang"
    )
    every = parts(server)
    names = [part["name"] for part in every]
    assert len(names) == len(set(names))
    assert [p["name"] for p in select(every, {"unit.txt", "gpus.xml"}, {"gpus.xml"})] == ["unit.txt"]
    with pytest.raises(UsageError, match=r"no part 'unit\.tx'") as error:
        select(every, {"unit.tx"}, set())
    assert "unit.txt" in str(error.value.hint)
