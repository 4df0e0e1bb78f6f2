"""A Python for hosts that send frames no agent of ours sends: `python -m tests.campaigns._agent_that_lies MODE ...`.

Every call is answered in the same way, by the function of that name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, count, repeat

from opsctl.wire.protocol import LENGTHS, MAX_BODY, MAX_HEADER, read_frame

COMMANDS = "\x1b]0;owned\x07\n::error::no\n  ::add-mask::a\n##vso[task.x]\rsection_start:1:a\x1b[0K"


def raw(header: bytes, body: bytes = b"", more: int = 0) -> bytes:
    """A frame whose body is said to have `more` bytes than come."""
    return LENGTHS.pack(len(header), len(body) + more) + header + body


def said(body: bytes = b"", **header: object) -> bytes:
    return raw(json.dumps(header).encode(), body)


def failed(n: int, message: str, **more: object) -> bytes:
    return said(id=n, error={"kind": "failed", "message": message, **more})


MODES = {
    "a header over its limit": lambda n: [LENGTHS.pack(MAX_HEADER + 1, 0), b"{"],
    "a body over its limit": lambda n: [LENGTHS.pack(20, MAX_BODY + 1), b"{"],
    "all bits set": lambda n: [b"\xff" * 64],
    "a frame that ends early": lambda n: [raw(b'{"id": %d, "result": {}}' % n, b"abc", more=1 << 20), None],
    "half a header": lambda n: [LENGTHS.pack(4000, 0), b'{"id"', None],
    "progress without end": lambda n: repeat(said(id=n, progress={"text": "x" * (1 << 20)})),
    "begun without end": lambda n: repeat(said(id=n, progress={"begun": ["y" * (1 << 20)], "waited": 1})),
    "progress of 30 MB": lambda n: repeat(said(id=n, progress={"text": "x" * 30_000_000})),
    "bodies of progress without end": lambda n: repeat(said(b"z" * (8 << 20), id=n, progress=1, fill="x" * (1 << 22))),
    "an error of 30 MB": lambda n: [failed(n, "x" * 30_000_000)],
    "a name of 5 MB": lambda n: [failed(n, "y" * 5_000_000, path="/" + "n" * 5_000_000)],
    "a holder of 5 MB": lambda n: [
        said(id=n, error={"kind": "locked", "message": "l", "holder": {"who": "w" * 5_000_000}})
    ],
    "not JSON": lambda n: [raw(b"{bad")],
    "not an object": lambda n: [raw(b"[1]")],
    "nested deeply": lambda n: [raw(b'{"id": %d, "result": ' % n + b"[" * 200_000 + b"]" * 200_000 + b"}")],
    "nested 70 levels": lambda n: [raw(b'{"id": %d, "result": ' % n + b'{"a":' * 70 + b"1" + b"}" * 71)],
    "a call never made": lambda n: [said(id=n + 1000, result={})],
    "a call that is no number": lambda n: [said(id=[True, "1"], result={})],
    "a call that is true": lambda n: [said(id=True, result={})],
    "answered twice": lambda n: [failed(n, "once"), failed(n, "twice")] * 3,
    "neither result nor error": lambda n: [said(id=n)],
    "an error that is a text": lambda n: [said(id=n, error="no")],
    "modules without end": lambda n: (said(need=f"m{i}") for i in count()),
    "a path for a module": lambda n: [said(need="../../../etc/passwd")],
    "a list for a module": lambda n: [said(need=[["gpu"]])],
    "NaN": lambda n: [raw(b'{"id": %d, "result": {"size": NaN}}' % n)],
    "1e999": lambda n: [raw(b'{"id": %d, "result": {"size": 1e999}}' % n)],
    "a number of 5000 digits": lambda n: [raw(b'{"id": %d, "result": ' % n + b"9" * 5000 + b"}")],
    "a key twice": lambda n: [raw(b'{"id": %d, "result": {"a": 1, "a": 2}}' % n)],
    "a body nobody asked for": lambda n: [said(b"b" * MAX_BODY, id=n, result={})],
    "commands in an error": lambda n: [failed(n, COMMANDS, path=COMMANDS)],
    "commands in progress": lambda n: [said(id=n, progress={"text": COMMANDS}), failed(n, "over")],
    "output of a login script": lambda n: [b"Welcome to box!\n" + COMMANDS.encode() * 10],
    "pongs without end": lambda n: repeat(said(pong=0) * 1000),
    "not UTF-8": lambda n: [raw(b'{"id": %d, "result": "\xff\xfe"}' % n)],
}


def frames(mode: str, number: int) -> Iterator[bytes | None]:
    pieces: Iterable[bytes | None] = MODES[mode](number)  # type: ignore[assignment,no-untyped-call]
    return iter(chain(pieces))


def main() -> None:
    size = re.search(r"i\.read\((\d+)\)", " ".join(sys.argv))
    assert size
    sys.stdin.buffer.read(int(size[1]))
    while received := read_frame(sys.stdin.buffer):
        header, _ = received
        if "call" not in header:
            continue
        for piece in frames(sys.argv[1], header["id"]):
            if piece is None:
                return
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
