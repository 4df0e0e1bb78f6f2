"""Read an SGLang server log: one pass, bounded memory, only what matters is kept.

Most lines of a long log are Decode, Prefill and access lines. They are told by twelve bytes behind the prefix and
never looked at singly; Decode lines are summed in bulk. What is left is matched against `log_patterns`.

    scanner = Scanner(); scanner.feed(block) ...; scanner.finish() -> plain data, see `Scanner.finish`

Marks are in the order of the log; texts in them are redacted. What they mean together (which start was ready, which
error came first) is judged by `opsctl.sglang.logs.timeline`.

Of Decode lines there are sums, and a series of buckets whose width grows as the log does (1 s at first), so that an
hour and a month both give at most `MOST` points.
"""

from __future__ import annotations

import calendar
from collections import Counter, deque
from typing import TYPE_CHECKING, Deque, Dict, Iterable, List, Optional, Tuple

from opsctl.wire import log_patterns as patterns
from opsctl.wire.log_lines import Learnt, Traces, unwrap
from opsctl.wire.log_patterns import ACCEPT, RATE, THROUGHPUT
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Mark, Scan

MOST_MARKS = 4000  # the first half and the last half of what there is
MOST_TEXT = 600
MOST_ARGS = 64 << 10
MOST_LINE = 4 << 20
_MOST_FRAMES = 3
_JUMP = 5  # seconds back that are not the jostling of several processes
_ROUTINE = {b"Prefill batc", b"Receive: obj", b"Receive Open", b"Finish: obj="}
_DECODE = b"Decode batch"
_PREFILL = b"Prefill batc"
_SAMPLES = (
    b"Decode batch",
    b"Prefill batch",
    b"Load weight end",
    b"KV Cache is allocated",
    b"Capture ",
    b"Init ",
    b"Engine startup timings",
)
_QUIET = (b"  ", b"\t", b"INFO:     1", b"Loading ", b"Multi-thread", b"Capturing")


class Scanner:
    """Reads one log, in blocks of any size."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._redactor = Redactor(secrets)
        self._learnt = Learnt()
        self._hung: Optional[Mark] = None  # the watchdog's line, while a dump of its stack follows
        self._dumping = False
        self._stack: List[bytes] = []
        self._rest = b""
        self._decode = DecodeStats()
        self._first: List[Mark] = []
        self._last: Deque[Mark] = deque(maxlen=MOST_MARKS // 2)
        self._traces = Traces(self._keep, lambda text: self._safe(text, MOST_TEXT))
        self._ranks: Dict[str, Tuple[int, str, bytes]] = {}  # count of lines; time and text of the last
        self._samples: Dict[str, str] = {}
        self._stamp = b""  # of the last line that had one
        self._first_stamp = b""
        self._routine: Optional[bytes] = None  # the last routine line, newer than _stamp
        self._before = b""  # of the line before the one under way
        self._head = b""  # message of the last prefixed line
        self.bytes = self.lines = self.marks = self._sequences = 0

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\n")
        if end < 0:
            self._rest = data[:MOST_LINE]
            return
        self._rest = data[end + 1 :][:MOST_LINE]
        self._take(data[:end].split(b"\n"))
        self.bytes += end + 1

    def finish(self) -> Scan:
        """What was seen, as wire/calls/logs.py tells it."""
        offset = self.bytes
        if self._rest:
            self._take([self._rest])
        self._note_routine()
        kept = self._first + list(self._last)
        return {
            "marks": kept,
            "dropped_marks": self.marks - len(kept),
            "decode": self._decode.result(),
            "sequences": self._sequences,
            "samples": self._samples,
            "ranks": {
                rank: {"lines": lines, "last_at": at, "last": self._safe(last, 160)}
                for rank, (lines, at, last) in self._ranks.items()
            },
            "first_at": self._first_stamp.decode("ascii", "replace") or None,
            "last_at": self._stamp.decode("ascii", "replace") or None,
            "lines": self.lines,
            "bytes": offset,
        }

    def _take(self, lines: List[bytes]) -> None:
        self.lines += len(lines)
        decodes: List[bytes] = []
        prefills: List[bytes] = []
        routine, prefixes = self._routine, self._learnt.prefixes
        for line in lines:
            at = line.find(b"] ", 20, 64)
            key = line[at + 2 : at + 14]
            if key == _DECODE and line[0] == 91 and not prefixes:
                decodes.append(line)
                routine = line
            elif (key in _ROUTINE and line[0] == 91 and not prefixes) or (
                key[:10] == b"INFO:     " and key[10:11].isdigit()
            ):
                routine = line
                if key == _PREFILL:
                    prefills.append(line)
            elif line:
                self._routine = routine
                self._other(line)
                routine = self._routine
        self._routine = routine
        self._sequences += _new(b"\n".join(prefills))
        if decodes:
            self._learnt.stamped = self._learnt.stamped or not prefixes
            if "Decode batch" not in self._samples:
                self._samples["Decode batch"] = decodes[0][:MOST_TEXT].decode("utf-8", "replace")
            self._decode.add(decodes)
            self._see_jump(decodes[0])

    def _other(self, line: bytes) -> None:
        """A line that is not routine as it stands: unwrap it, then look at each line inside."""
        if line.startswith(_QUIET) and b"\r" not in line and b"\x1b" not in line:
            self._bare(line, b"")
            return
        for entry in unwrap(line, self._learnt):
            found = patterns.PREFIX.match(entry.text)
            if found:
                self._prefixed(found.group(1), found.group(2).strip(), entry.text[found.end() :], entry.text)
            else:
                self._bare(entry.text, entry.at)

    def _prefixed(self, stamp: bytes, rank: bytes, message: bytes, line: bytes) -> None:
        self._note_routine()
        self._before = self._stamp
        self._tick(stamp)
        key = message[:12]
        if key == _DECODE:
            self._decode.add([line])
            self._sample(message)
            return
        if key == _PREFILL:
            self._sequences += _new(message)
        if key in _ROUTINE or (key[:6] == b"INFO: " and message[6:].lstrip()[:1].isdigit()):
            self._sample(message)
            return
        self._traces.interrupted()
        self._dumping = bool(patterns.DUMP.match(message))
        if rank:
            self._see_rank(rank, stamp, message)
        if message.rstrip().endswith(patterns.TRACEBACK):
            head = message.rstrip()[: -len(patterns.TRACEBACK)].strip(b" :")
            self._traces.begin(_text(stamp), rank.decode(), head)
            self._head = b""
            return
        self._head = message
        self._message(message, stamp, rank)

    def _bare(self, text: bytes, at: bytes) -> None:
        """A line without prefix: part of a traceback, or of what another program says."""
        if text[:4] in patterns.BY_HEAD and self._known(text, at, b""):
            return
        if self._dumped(text):
            return
        head, self._head = self._head, b"" if text.strip() else self._head
        if not self._traces.line(text, self._at(at), head):
            self._message(text, at, b"")

    def _message(self, message: bytes, stamp: bytes, rank: bytes) -> None:
        self._sample(message)
        if self._known(message, stamp, rank) or not patterns.GATE.search(message):
            return
        watchdog = patterns.MARKS["watchdog"].pattern.match(message)
        if watchdog:
            self._hung = self._mark("watchdog", stamp, rank, watchdog.groupdict())
            return
        kind = patterns.problem(message)
        if kind:
            self._mark("problem", stamp, rank, {"kind": kind.encode(), "text": message})

    def _known(self, message: bytes, stamp: bytes, rank: bytes) -> bool:
        for mark in patterns.BY_HEAD.get(message[:4], ()):
            found = mark.pattern.match(message)
            if found:
                kept = self._mark(mark.name, stamp, rank, found.groupdict())
                if mark.name == "watchdog":
                    self._hung = kept
                return True
        return False

    def _dumped(self, text: bytes) -> bool:
        """Take a frame of the stack that py-spy dumped of a process that hangs; the innermost few are where it is."""
        if self._hung is None or not self._dumping:
            return False
        frame = patterns.STACK.match(text)
        if frame and len(self._stack) < _MOST_FRAMES:
            self._stack.append(frame.group(1))
            self._hung["where"] = self._safe(b" < ".join(self._stack), MOST_TEXT)
        return frame is not None

    def _mark(self, name: str, stamp: bytes, rank: bytes, fields: Dict[str, Optional[bytes]]) -> Mark:
        mark: Mark = {"name": name, "at": self._at(stamp), "rank": rank.decode() or None}
        for key, value in fields.items():
            if value is not None:  # the groups of the patterns are the fields of a mark
                mark[key] = self._safe(value, MOST_ARGS if key == "args" else MOST_TEXT)  # type: ignore[literal-required]
        if not stamp:
            mark["loose"] = True  # no time of its own
        if name == "start":
            mark["before"] = _text(self._before) or None
        self._keep(mark)
        return mark

    def _keep(self, mark: Mark) -> None:
        self.marks += 1
        if len(self._first) < MOST_MARKS // 2:
            self._first.append(mark)
        else:
            self._last.append(mark)

    def _safe(self, value: bytes, limit: int) -> str:
        redactor = self._redactor
        clean = redactor.feed(value.replace(b"\n", b" ") + b"\n")
        return clean.decode("utf-8", "replace").rstrip("\n")[:limit]

    def _see_rank(self, rank: bytes, stamp: bytes, message: bytes) -> None:
        name = rank.decode()
        if name in self._ranks or len(self._ranks) < 1024:
            lines = self._ranks[name][0] if name in self._ranks else 0
            self._ranks[name] = (lines + 1, _text(stamp), message[:MOST_TEXT])

    def _sample(self, message: bytes) -> None:
        for start in _SAMPLES:
            if message.startswith(start):
                self._samples.setdefault(start.decode().strip(), self._safe(message, MOST_TEXT))

    def _at(self, stamp: bytes) -> Optional[str]:
        if not stamp:
            self._note_routine()
        return _text(stamp or self._stamp) or None

    def _note_routine(self) -> None:
        """Take the time of the last routine line."""
        line, self._routine = self._routine, None
        if line is not None:
            found = patterns.PREFIX.match(line)
            if found:
                self._tick(found.group(1))

    def _tick(self, stamp: bytes) -> None:
        if stamp < self._stamp:
            self._jumped(stamp)
        self._stamp = stamp
        if not self._first_stamp:
            self._first_stamp = stamp

    def _see_jump(self, line: bytes) -> None:
        found = patterns.PREFIX.match(line)
        if found and not self._first_stamp:
            self._first_stamp = found.group(1)

    def _jumped(self, stamp: bytes) -> None:
        before, after = seconds(self._stamp), seconds(stamp)
        if before is not None and after is not None and before - after > _JUMP:
            self._keep({"name": "clock_jump", "at": _text(stamp), "rank": None, "seconds": after - before})


def _new(prefills: bytes) -> int:
    """Sequences that Prefill lines say began; one whose prompt is taken in parts is counted for each."""
    return sum(map(int, patterns.NEW.findall(prefills)))


def _text(stamp: bytes) -> str:
    return stamp.decode("ascii", "replace").replace(",", ".")


if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Bucket as Bucketed
    from opsctl.wire.calls.logs import Decode
    from opsctl.wire.calls.logs import Sum as Summed

MOST = 720
# Seconds of a bucket, and the part of a line that has the time in this coarseness: the second, the minute, ten minutes,
# the hour. Lines of one moment in it are worked on together.
_WIDTHS = (
    (1, slice(1, 20)),
    (10, slice(1, 20)),
    (60, slice(1, 17)),
    (600, slice(1, 16)),
    (3600, slice(1, 14)),
    (4 * 3600, slice(1, 14)),
    (24 * 3600, slice(1, 14)),
    (7 * 24 * 3600, slice(1, 14)),
    (53 * 7 * 24 * 3600, slice(1, 14)),
    (10**13, slice(1, 14)),
)


def seconds(stamp: bytes) -> Optional[int]:
    """Seconds of b'YYYY-mm-dd HH[:MM[:SS]]', as if it were UTC: only differences mean anything."""
    try:
        return calendar.timegm(
            (
                int(stamp[0:4]),
                int(stamp[5:7]),
                int(stamp[8:10]),
                int(stamp[11:13]),
                int(stamp[14:16]),
                int(stamp[17:19] or 0),
                0,
                0,
                0,
            )
        )
    except ValueError:
        return None


class Sum:
    """Count, sum, least, greatest and last of a stream of numbers."""

    __slots__ = ("count", "last", "least", "most", "total")

    def __init__(self) -> None:
        self.count, self.total, self.least, self.most, self.last = 0, 0.0, 0.0, 0.0, 0.0

    def add(self, numbers: List[float]) -> None:
        if not numbers:
            return
        low, high = min(numbers), max(numbers)
        self.least = low if not self.count else min(self.least, low)
        self.most = high if not self.count else max(self.most, high)
        self.count += len(numbers)
        self.total += sum(numbers)
        self.last = numbers[-1]

    def add_texts(self, texts: List[bytes]) -> None:
        """Numbers that repeat a lot: each is converted once."""
        if texts:
            counts = {float(text): count for text, count in Counter(texts).items()}
            self.join(Sum.of(counts, last=float(texts[-1])))

    @classmethod
    def of(cls, counts: Dict[float, int], last: float) -> "Sum":
        found = cls()
        found.count, found.last = sum(counts.values()), last
        found.least, found.most = min(counts), max(counts)
        found.total = sum(number * count for number, count in counts.items())
        return found

    def join(self, other: "Sum") -> None:
        if other.count:
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most) if self.count else other.most
            self.count += other.count
            self.total += other.total
            self.last = other.last

    def result(self) -> Optional[Summed]:
        if not self.count:
            return None
        return {
            "count": self.count,
            "mean": round(self.total / self.count, 4),
            "min": self.least,
            "max": self.most,
            "last": self.last,
        }


class Bucket:
    """The Decode lines of one stretch of time."""

    __slots__ = ("accept", "throughput")

    def __init__(self) -> None:
        self.accept, self.throughput = Sum(), Sum()


class DecodeStats:
    """Takes Decode lines that begin with the SGLang prefix."""

    def __init__(self) -> None:
        self.lines = 0
        self.accept, self.throughput = Sum(), Sum()
        self.last_rate: Optional[float] = None
        self.last_accept_at = ""  # the time of the last line with an acceptance, as it stands there
        self._width = 0  # index into _WIDTHS
        self._buckets: Dict[int, Bucket] = {}

    def add(self, lines: List[bytes]) -> None:
        key = _WIDTHS[self._width][1]
        first = 0
        while first < len(lines):
            end = _run_end(lines, first, key)
            self._add_run(lines[first:end], seconds(lines[first][key]))
            first = end

    def _add_run(self, lines: List[bytes], at: Optional[int]) -> None:
        """Lines of one moment, in the coarseness of the series."""
        text = b"\n".join(lines)
        throughput, accept = Sum(), Sum()
        throughput.add(list(map(float, THROUGHPUT.findall(text))))
        if not throughput.count:
            return
        accept.add_texts(ACCEPT.findall(text))
        self.lines += throughput.count
        self.throughput.join(throughput)
        self.accept.join(accept)
        if accept.count:
            rates = RATE.findall(lines[-1])
            self.last_accept_at = lines[-1][1:20].decode("ascii", "replace")
            self.last_rate = float(rates[0]) if rates else self.last_rate
        if at is not None:
            self._into_bucket(at, accept, throughput)

    def _into_bucket(self, at: int, accept: Sum, throughput: Sum) -> None:
        key = at // _WIDTHS[self._width][0]
        if key not in self._buckets:
            if len(self._buckets) >= MOST:
                self._widen()
                self._into_bucket(at, accept, throughput)
                return
            self._buckets[key] = Bucket()
        bucket = self._buckets[key]
        bucket.accept.join(accept)
        bucket.throughput.join(throughput)

    def _widen(self) -> None:
        old = _WIDTHS[self._width][0]
        self._width += 1
        wide: Dict[int, Bucket] = {}
        for key, bucket in self._buckets.items():
            joined = wide.setdefault(key * old // _WIDTHS[self._width][0], Bucket())
            joined.accept.join(bucket.accept)
            joined.throughput.join(bucket.throughput)
        self._buckets = wide

    def result(self) -> Decode:
        width = _WIDTHS[self._width][0]
        series: List[Bucketed] = [
            {
                "at": key * width,
                "lines": bucket.throughput.count,
                "accept": round(bucket.accept.total / bucket.accept.count, 3) if bucket.accept.count else None,
                "throughput": round(bucket.throughput.total / bucket.throughput.count, 2),
            }
            for key, bucket in sorted(self._buckets.items())
        ]
        return {
            "lines": self.lines,
            "accept_length": self.accept.result(),
            "last_accept_rate": self.last_rate,
            "last_accept_at": self.last_accept_at or None,
            "throughput": self.throughput.result(),
            "bucket_seconds": width,
            "series": series,
        }


def _run_end(lines: List[bytes], first: int, key: slice) -> int:
    """Where the run of lines with the time of `lines[first]` ends; times hardly ever go back, so by bisection."""
    value, size = lines[first][key], 1
    while first + size < len(lines) and lines[first + size][key] == value:
        size *= 2
    low, high = first + size // 2, min(first + size, len(lines))
    while low + 1 < high:
        middle = (low + high) // 2
        if lines[middle][key] == value:
            low = middle
        else:
            high = middle
    return max(high, first + 1) if low == first + size // 2 and lines[low][key] != value else low + 1
