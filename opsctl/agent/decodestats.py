"""Acceptance and throughput out of Decode lines, in bounded memory.

Sums over all lines, and a series of buckets whose width grows as the log does (1 s at first), so that an hour and a
month both give at most `MOST` points.
"""

from __future__ import annotations

import calendar
from itertools import groupby
from typing import Any, Dict, List, Optional

from opsctl.agent.logpatterns import ACCEPT, RATE, THROUGHPUT

MOST = 720
_WIDTHS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600, 53 * 7 * 24 * 3600, 10**13)


def seconds(stamp: bytes) -> Optional[int]:
    """Seconds of b'YYYY-mm-dd HH:MM[:SS]', as if it were UTC: only differences mean anything."""
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

    def join(self, other: "Sum") -> None:
        if other.count:
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most) if self.count else other.most
            self.count += other.count
            self.total += other.total
            self.last = other.last

    def result(self) -> Optional[Dict[str, Any]]:
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

    __slots__ = ("accept", "lines", "throughput")

    def __init__(self) -> None:
        self.lines, self.accept, self.throughput = 0, Sum(), Sum()


class DecodeStats:
    """Takes Decode lines that begin with the SGLang prefix."""

    def __init__(self) -> None:
        self.lines = 0
        self.accept, self.rate, self.throughput = Sum(), Sum(), Sum()
        self._width = 0  # index into _WIDTHS
        self._buckets: Dict[int, Bucket] = {}

    def add(self, lines: List[bytes]) -> None:
        fine = _WIDTHS[self._width] < 60
        for stamp, run in groupby(lines, key=_second if fine else _minute):
            text = b"\n".join(run)
            throughput = list(map(float, THROUGHPUT.findall(text)))
            if not throughput:
                continue
            accept = list(map(float, ACCEPT.findall(text)))
            self.lines += len(throughput)
            self.throughput.add(throughput)
            self.accept.add(accept)
            if accept:
                self.rate.add(list(map(float, RATE.findall(text))))
            at = seconds(stamp)
            if at is not None:
                self._into_bucket(at, accept, throughput)

    def _into_bucket(self, at: int, accept: List[float], throughput: List[float]) -> None:
        width = _WIDTHS[self._width]
        bucket = self._buckets.get(at // width)
        if bucket is None:
            bucket = self._buckets[at // width] = Bucket()
            if len(self._buckets) > MOST:
                self._widen()
                self._into_bucket(at, accept, throughput)
                return
        bucket.lines += len(throughput)
        bucket.accept.add(accept)
        bucket.throughput.add(throughput)

    def _widen(self) -> None:
        old = _WIDTHS[self._width]
        self._width += 1
        wide: Dict[int, Bucket] = {}
        for key, bucket in self._buckets.items():
            joined = wide.setdefault(key * old // _WIDTHS[self._width], Bucket())
            joined.lines += bucket.lines
            joined.accept.join(bucket.accept)
            joined.throughput.join(bucket.throughput)
        self._buckets = wide
        if len(wide) > MOST:
            self._widen()

    def result(self) -> Dict[str, Any]:
        width = _WIDTHS[self._width]
        series = [
            {
                "at": key * width,
                "lines": bucket.lines,
                "accept": round(bucket.accept.total / bucket.accept.count, 3) if bucket.accept.count else None,
                "throughput": round(bucket.throughput.total / bucket.throughput.count, 2),
            }
            for key, bucket in sorted(self._buckets.items())
            if bucket.lines
        ]
        return {
            "lines": self.lines,
            "accept_length": self.accept.result(),
            "accept_rate": self.rate.result(),
            "throughput": self.throughput.result(),
            "bucket_seconds": width,
            "series": series,
        }


def _second(line: bytes) -> bytes:
    return line[1:20]


def _minute(line: bytes) -> bytes:
    return line[1:17]
