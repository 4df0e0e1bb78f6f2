"""Put tracebacks together again, line by line.

Several processes write to one log, so a traceback can be interrupted by other lines and by another traceback. Each open
one takes lines until its exception has come; then a link ("The above exception was the direct cause ...") may open it
again. `errors` of the result holds the exceptions of the chain with the root first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Optional

from opsctl.agent.logs.logpatterns import EXCEPTION, FRAME, LINK, TRACEBACK, problem

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Mark

MOST_ERRORS = 12
MOST_OPEN = 64


class _Trace:
    __slots__ = ("ended", "mark")

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.ended = False  # the exception of the section under way has come


class Traces:
    """The tracebacks under way; the last one is the one that lines are most likely of.

    Args:
        keep: takes the mark of a traceback when it begins; the mark is filled in as lines come.
        safe: makes a text fit to be kept: redacted, cut, decoded.
    """

    def __init__(self, keep: Callable[[Mark], None], safe: Callable[[bytes], str]) -> None:
        self._keep, self._safe = keep, safe
        self._open: List[_Trace] = []
        self._ended: Optional[_Trace] = None  # finished, but a link may still follow

    def begin(self, at: Optional[str], rank: str, head: bytes) -> None:
        """A new traceback, of a message that ended in `Traceback (most recent call last):`."""
        self.interrupted()
        mark: Mark = {
            "name": "exception",
            "at": at,
            "rank": rank or None,
            "head": self._safe(head)[:160],
            "errors": [],
            "kind": "",
            "where": None,
        }
        self._keep(mark)
        self._open = self._open[-MOST_OPEN:] + [_Trace(mark)]

    def line(self, text: bytes, at: Optional[str], head: bytes) -> bool:
        """Take a line without prefix. Whether it was part of a traceback."""
        text = text.rstrip()
        if text.endswith(TRACEBACK):
            before = text[: -len(TRACEBACK)].strip(b" :")
            if not self._goes_on(before):
                self.begin(at, _rank(before), head or before)
            return True
        if LINK.search(text):
            self._link()
            return True
        if not self._open:
            return False
        trace = self._open[-1]
        if trace.ended:
            return self._after(text)
        frame = FRAME.match(text)
        if frame:
            self._frame(trace.mark, frame.group(1), frame.group(2))
            return True
        if text[:1] not in (b" ", b"\t", b"|") and EXCEPTION.match(text):
            self._exception(trace, text)
            return True
        return not text or text[:1] in b" \t|"

    def interrupted(self) -> None:
        """A line with a prefix came: the messages of finished exceptions are over."""
        for trace in self._open:
            if trace.ended:
                self._ended = trace
        self._open = [t for t in self._open if not t.ended]

    def _goes_on(self, before: bytes) -> bool:
        """Whether a bare `Traceback` is the next section of a chain."""
        if not self._open or self._open[-1].ended or not (before == b"" or before.startswith(b"[rank")):
            return False
        mark = self._open[-1].mark
        return bool(mark["errors"]) or mark["where"] is None

    def _link(self) -> None:
        if self._open and self._open[-1].ended:
            self._open[-1].ended = False
        elif not self._open and self._ended is not None:
            self._ended.ended = False
            self._open, self._ended = [self._ended], None

    def _after(self, text: bytes) -> bool:
        """A line after an exception is the rest of its message, unless it tells of trouble of its own."""
        if text and problem(text) and not text.startswith(b" "):
            self.interrupted()
            return False
        return True

    def _frame(self, mark: Mark, path: bytes, line: bytes) -> None:
        at = path.rfind(b"/sglang/")
        place = "%s:%s" % (path[at + 1 :].decode("utf-8", "replace"), line.decode())
        if at >= 0 or mark["where"] is None or not mark["where"].startswith("sglang/"):
            mark["where"] = place

    def _exception(self, trace: _Trace, text: bytes) -> None:
        mark = trace.mark
        if len(mark["errors"]) < MOST_ERRORS:
            mark["errors"].append(self._safe(text))
            mark["kind"] = mark["kind"] or problem(text)
        trace.ended = True
        waiting = [t for t in self._open if not t.ended]
        if waiting:  # lines to come are more likely of one that still waits for its exception
            self._open = [t for t in self._open if t.ended] + waiting


def _rank(before: bytes) -> str:
    return (
        "TP" + before[5:-1].decode("ascii", "replace") if before.startswith(b"[rank") and before.endswith(b"]") else ""
    )
