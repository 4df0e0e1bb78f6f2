"""Mutated playbooks, inventories and values: each is valid, or told with a place, and no host is touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from opsctl.engine.lint import lint
from opsctl.engine.options import Options, parse_given
from opsctl.engine.run import plan
from opsctl.errors import UsageError
from opsctl.inventory import load
from opsctl.text import printable
from tests.campaigns.campaign import Case

SHORT = 30

PLAY = b"""\
- hosts: here
  params: {size: {type: int, default: 3}, mode: {choices: [fast, slow], default: fast}}
  vars: {base: /tmp/x, target: "{{ base }}/{{ mode }}"}
  on_failure: rollback
  timeout: 10m
  tasks:
    - {name: folder, file: {path: "{{ target }}", state: directory, mode: "0755"}}
    - {command: {cmd: echo hi, read_only: true}, register: said, retries: 2, delay: 1s}
    - {debug: "{{ said.stdout }}", when: said.code == 0, loop: [1, 2]}
  gates: [{that: size >= 1}]
"""
HOSTS = b"hosts: {here: {connection: local, port: 22, vars: {a: 1, b: [x, z]}}}\ngroups: {g: {hosts: [here]}}\n"
BOMB = b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (c, c, c - 1, c - 1) for c in range(98, 122))
ODD = (
    b"",
    b"# only a comment\n",
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf",
    b"\x00" * 99,
    b"[" * 5000,
    b"{a: " * 5000,
    b"9" * 9999,
    b"%YAML 9\n---\n",
    b"--- a\n--- b\n",
    b"&a [*a]",
    b"<<: 5",
    b"? {a: b}\n: c",
    b"\x1b[2J",
    BOMB,
    b"- !!python/object:os.x",
)
WORDS = (
    "yes",
    "~",
    "1e999",
    "-1",
    "{}",
    "[]",
    "9" * 400,
    "{{ [1]*10**9 }}",
    "'{{ 9**(9**9) }}'",
    '"\\u202e"',
    "!env",
    "&x *x",
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    kind, place = rng.randrange(9), rng.randrange(len(data))
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + rng.randbytes(rng.randint(1, 9)) + data[place:]
    if kind == 3:
        return data.replace(b"\n", b"\r\n")[: rng.randint(1, 2 * len(data))]
    if kind == 4:
        return b"\xef\xbb\xbf" + data if rng.random() < 0.5 else data.decode().encode("utf-16")
    if kind == 5:
        return rng.choice(ODD)
    if kind == 6:
        return data[:place] + rng.choice(ODD) + data[place:]
    word = rng.choice(WORDS).encode()
    colons = [i for i, c in enumerate(data) if c == 58]
    at = rng.choice(colons) + 1
    ends = [data.find(c, at + 1) for c in (b",", b"}", b"\n") if data.find(c, at + 1) > 0]
    return data[:at] + b" " + word + data[min(ends, default=at) :]


def hold(play: bytes, hosts: bytes, given: str, folder: Path) -> None:
    (folder / "play.yaml").write_bytes(play)
    (folder / "inventory.yaml").write_bytes(hosts)
    for found in lint(folder / "play.yaml", None):
        assert found.place.file
    try:
        options = Options(playbook=str(folder / "play.yaml"), given=parse_given([given] if given else []))
        plan(options, load(folder / "inventory.yaml"))
    except UsageError as error:
        said = error
    else:
        return
    told = f"{said.where or ''} {said.message}"
    assert said.message
    assert any(place in told for place in ("play.yaml", "inventory.yaml", "-e ")), f"no place: {said}"
    assert printable(str(said)) == str(said)


def cases(rng: random.Random) -> Iterator[Case]:
    number = 0
    while True:
        number += 1
        play, hosts, given = PLAY, HOSTS, ""
        what = rng.choice(("playbook", "inventory", "value"))
        if what == "playbook":
            play = mutated(PLAY, rng)
        elif what == "inventory":
            hosts = mutated(HOSTS, rng)
        else:
            given = f"{rng.choice(('size', 'mode', 'base', 'nobody', ''))}={rng.choice(WORDS)}"
        attempt: Callable[[Path], None] = partial(hold, play, hosts, given)
        yield Case(f"{what} {number}", attempt)
