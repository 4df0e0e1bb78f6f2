"""Acceptance and throughput out of Decode lines, in bounded memory.

Sums over all lines, and a series of buckets whose width grows as the log does (1 s at first), so that an hour and a
month both give at most `MOST` points.
"""

from __future__ import annotations

import calendar
from collections import Counter
from typing import TYPE_CHECKING, Dict, List, Optional

from opsctl.agent.logs.logpatterns import ACCEPT, RATE, THROUGHPUT

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
