"""Hosts that send frames which no agent of ours sends, to every command that asks a host.

A mode holds where the command ends with words and a documented exit code, without a traceback, in bounded memory, and
nothing of what the host says drives a terminal or a CI system.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from opsctl.errors import Exit
from tests.campaigns import _agent_that_lies
from tests.campaigns.campaign import Case
from tests.campaigns.http import DOCUMENTED, REPOSITORY, asking

SHORT = 4
MOST_MEMORY = 900 << 20  # bytes: a frame may have 64 MiB of JSON and 64 MiB of body, of which there is a copy at a time
PLAY = """\
hosts: all
tasks:
  - {name: copy, copy: {dest: /nowhere/a, content: "one\\n"}}
  - {name: command, command: {cmd: cat /nowhere/a}}
"""
COMMANDS = (
    *("run play.yaml -y", "run play.yaml -y -o github", "run play.yaml --check -o gitlab", "history --host here"),
    *("rollback -y --host here", "inventory check", "health", "server status", "logs summary"),
)


def hold(folder: Path, mode: str, command: str) -> None:
    python = folder / "python"
    words = shlex.join([sys.executable, "-m", "tests.campaigns._agent_that_lies", mode])
    python.write_text(f'#!/bin/sh\ncd {REPOSITORY}; PYTHONPATH=. exec {words} "$@"\n')
    python.chmod(0o755)
    host = {"connection": "local", "python": str(python), "state_dir": str(folder / "state"), "sglang": {"port": 39999}}
    (folder / "inventory.yaml").write_text(json.dumps({"hosts": {"here": host}}))
    (folder / "play.yaml").write_text(PLAY)
    first, *rest = (str(folder / word) if word == "play.yaml" else word for word in command.split())
    ended = asking(folder, 0, "opsctl", first, *rest, "--inventory", str(folder / "inventory.yaml"))
    said = f"exit {ended.code}, {ended.memory >> 20} MiB: {ended.out[-600:]}{ended.err[-600:]}"
    assert ended.code in DOCUMENTED - {Exit.DONE, Exit.USAGE}, said
    assert "Traceback" not in ended.out + ended.err, said
    assert "here" in ended.out + ended.err, said  # which host it is
    assert len(ended.out + ended.err) < 100_000, said[:2000]
    assert "\r" not in ended.out + ended.err, said
    if "gitlab" not in command:  # whose own commands have it
        assert "\x1b" not in ended.out + ended.err, said
    known = r"^\s*::(?!group::|endgroup::|error title=|error file=|stop-commands::|[0-9a-f]{64}::)"
    assert not re.search(known, ended.out + ended.err, re.M), said
    assert "##vso[" not in ended.out + ended.err, said
    assert ended.memory < MOST_MEMORY, said


def cases(rng: random.Random) -> Iterator[Case]:
    """Every mode at every command, in an order that `rng` draws; then again."""
    every = [(mode, command) for mode in _agent_that_lies.MODES for command in COMMANDS]
    while True:
        rng.shuffle(every)
        for mode, command in every:
            yield Case(f"{mode}, {command}", partial(hold, mode=mode, command=command))
