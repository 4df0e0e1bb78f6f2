"""How much is taken of what a server answers: it may be broken, or hostile. The agent and the controller ask here."""

from __future__ import annotations

import json
import math
import time
from typing import Any, Dict, List, Optional, Tuple

from opsctl.wire.protocol import AgentError

ANSWER = 16 << 20  # bytes of an answer that is read whole: the token ids of a million tokens are 8 MB of JSON
LISTING = 32 << 20  # bytes of a repository's listing or index: the largest checkpoints' have less than 10
OVERHEAD = 1 << 20  # bytes beside the content: 100 headers, the borders of chunks, `100 Continue`
EVENT = 16 << 20  # bytes of one event of a stream, which may hold all of the answer so far
STREAM = 1 << 30  # bytes of a streamed answer: each event repeats what came before, 4096 tokens make 200 MB
FILES = 4096  # files of a checkpoint: the largest have less than 1000
SECONDS = 60.0  # for an answer that is read whole, however slowly its bytes come
GENERATION = 1800.0  # seconds for a generated answer: it may wait 600 for its turn
RATE = 64 << 10  # bytes in a second of a download, on average: at less, 1 GB takes five hours
REDIRECTS = 5
DEPTH = 64  # levels of JSON: what servers and hubs tell has less than 10
FRAME = 16 << 20  # bytes of the header of a frame with an error or progress: all output that a call keeps is 2 MiB
MESSAGE = 4000  # characters of what a host says went wrong
NEWS = 64 << 20  # bytes of progress that came and nobody has taken
STORY = 64 << 20  # bytes of the headers of all progress of a call: a day of five a second is 43 MB
NEEDS = 256  # modules that an agent asks for: there are less than 100
DIGITS = 20  # of a whole number: a counter of 64 bits has so many


class Meter:
    """What may still come of one answer, in bytes and in time.

    Args:
        what: is asked, for errors.
        most: bytes of its content, of which the borders of chunks may be some more.
        seconds: for all of it.
        gap: seconds without a byte.
    """

    def __init__(self, what: str, most: int, seconds: float, gap: Optional[float] = None) -> None:
        self._what, self._most, self._seconds, self._gap = what, most, seconds, gap
        self._came, self._content, self._end, self._in_head = 0, 0, now() + seconds, True

    def content(self, count: int = 0) -> None:
        """Note that the headers have come, and so many bytes of the content.

        Raises AgentError too-much where the borders of its chunks outweigh it: each costs more than it brings.
        """
        self._in_head = False
        self._content += count
        if count and self._came > self._content + OVERHEAD + self._content // 8:
            raise too_much(self._what + ": borders of chunks", OVERHEAD)

    def wait(self) -> float:
        """Seconds to wait for the next bytes. Raises AgentError timeout where all of the time has passed."""
        left = self._end - now()
        if left <= 0:
            raise AgentError("timeout", "%s: not complete after %g s: not read further" % (self._what, self._seconds))
        return left if self._gap is None else min(left, self._gap)

    def took(self, count: int) -> None:
        """Note bytes that came. Raises AgentError too-much."""
        self._came += count
        if self._in_head and self._came > OVERHEAD:
            raise too_much(self._what + ": headers", OVERHEAD)
        if self._came > self._most + OVERHEAD + self._most // 8:
            raise too_much(self._what, self._most)


def now() -> float:
    """The clock of all limits in time, in seconds of any origin."""
    return time.monotonic()


def too_much(what: str, most: int) -> AgentError:
    size = "%d MiB" % (most >> 20) if most >= 1 << 20 else "%d bytes" % most
    return AgentError("too-much", "%s: more than %s came: not read further" % (what, size))


def read_json(data: bytes) -> Any:
    """A value from a server. Raises ValueError, in words: it is no JSON, or such as nobody sends in good faith."""
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_int=_whole,
            parse_constant=_finite,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError("it is not JSON: %s" % error) from None
    except UnicodeDecodeError:
        raise ValueError("it is not JSON: not UTF-8") from None
    level = [value]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError("it is nested more than %d levels deep" % DEPTH)


def _inside(value: Any) -> List[Any]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError("the key %r is in it twice" % key[:100])
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("%s is no number" % text[:40])
    return value


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError("a whole number of %d digits" % len(text))
    return int(text)
