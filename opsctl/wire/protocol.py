"""What crosses the wire, the same on both ends.

A frame is two big-endian u32 lengths, a JSON header and a binary body:

    controller -> host   {"id": 7, "call": "filelook.read", "args": {...}}             body: what the call takes
                         {"id": 8, "call": ..., "after": [7]}                       starts when call 7 has ended
                         {"load": [["gpu", 9120], ...]}                             body: source of agent modules, with
                                                                                    their lengths, compressed as one
                         {"secrets": ["...", ...]}                                  masked in all that is written
                         {"cancel": 7}
                         {"ping": 1}                                                answered at once with {"pong": 1}
    host -> controller   {"id": 7, "progress": {...}}                               any number, body allowed
                         {"id": 7, "result": ...}                                   once, body allowed
                         {"id": 7, "error": {"kind": ..., "message": ..., ...}}     instead of a result
                         {"need": "gpu"}                                            answered with a `load`, null: none

Answers come in any order. A call is `<agent module>.<function>`; functions are registered in the module's `CALLS`:

    def read(call: Context, path: str, limit: int = 0):
        return Reply({"size": n}, data)          # or any JSON value, when there is no body

    CALLS = {"read": read}
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, Dict, FrozenSet, Generic, Optional, Tuple, TypeVar

R = TypeVar("R")

LENGTHS = struct.Struct(">II")
MAX_HEADER = 64 << 20
MAX_BODY = 64 << 20


class Call(Generic[R]):
    """One thing asked of the agent, whose reply has a result of type R: data, planned, journaled and compared."""

    __slots__ = ("args", "body", "name")

    def __init__(self, name: str, args: Optional[Dict[str, Any]] = None, body: bytes = b"") -> None:
        self.name, self.args, self.body = name, args or {}, body

    def with_args(self, **more: Any) -> Call[R]:
        """The same call with further or other arguments."""
        return Call(self.name, dict(self.args, **more), self.body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and (self.name, self.args, self.body) == (other.name, other.args, other.body)

    __hash__ = None  # type: ignore[assignment]  # its arguments are a dict

    def __repr__(self) -> str:
        return "Call(%r, %r%s)" % (self.name, self.args, ", %d bytes" % len(self.body) if self.body else "")


class Reply(Generic[R]):
    """What a call gives: a JSON value of type R and, where the call has one, a body."""

    __slots__ = ("body", "result")

    def __init__(self, result: R, body: bytes = b"") -> None:
        self.result, self.body = result, body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reply) and (self.result, self.body) == (other.result, other.body)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Reply(%r%s)" % (self.result, ", %d bytes" % len(self.body) if self.body else "")


class AgentError(Exception):
    """A call that failed, in words the controller can act on.

    kind: not-found | permission | no-space | read-only | exists | conflict | timeout | busy | invalid | missing-tool |
    locked | lost | unsafe | damaged | failed. Other fields (path, errno, holder, ...) say what about.
    """

    def __init__(self, kind: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fields = fields


class Context:
    """What a call sees of its caller. This one serves calls made in the same process, without a wire."""

    body: bytes = b""
    blobs: Optional[str] = None  # folder where a journaled call keeps before-images; None outside a journal
    known: FrozenSet[str] = frozenset()  # names of what this call's step is known to have kept there, when it is undone
    undoing: bool = False  # taking something back: it goes on where the disk is full

    def progress(self, data: Any, body: bytes = b"") -> None:
        """Tell the caller how far the call has come."""

    def cancelled(self) -> bool:
        """Whether the caller has given up on this call."""
        return False

    def kept(self, name: str) -> None:
        """What a journaled call needs to be taken back lies under this name among its blobs, on disk."""

    def started(self, group: int) -> None:
        """A process group was started for this call: it is killed when the controller goes away."""

    def ended(self, group: int) -> None:
        """That process group has ended, or is meant to outlive the connection."""


class ProtocolError(Exception):
    """The peer does not speak this protocol."""


def frame(header: Dict[str, Any], body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return frame_head(header, len(body)) + body


def frame_head(header: Dict[str, Any], length: int) -> bytes:
    """What comes before the body of a frame, which has `length` bytes."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return LENGTHS.pack(len(head), length) + head


def read_frame(stream: BinaryIO) -> Optional[Tuple[Dict[str, Any], bytes]]:
    """The next frame of `stream`, None at a clean end. Raises ProtocolError, EOFError inside a frame."""
    lengths = _exactly(stream, LENGTHS.size, may_end=True)
    if lengths is None:
        return None
    head_length, body_length = LENGTHS.unpack(lengths)
    if head_length > MAX_HEADER or body_length > MAX_BODY:
        raise ProtocolError("frame of %d + %d bytes" % (head_length, body_length))
    try:
        header = json.loads(_exactly(stream, head_length) or b"")
    except ValueError:
        raise ProtocolError("frame header is not JSON") from None
    if not isinstance(header, dict):
        raise ProtocolError("frame header is not an object")
    return header, _exactly(stream, body_length) or b""


def _exactly(stream: BinaryIO, count: int, may_end: bool = False) -> Optional[bytes]:
    parts = []
    missing = count
    while missing:
        part = stream.read(missing)
        if not part:
            if may_end and missing == count:
                return None
            raise EOFError("stream ended %d bytes early" % missing)
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
