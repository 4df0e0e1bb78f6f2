"""The words for how a drafter fares, and what one check says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from opsctl.drafter.versions import Version


class Verdict(Enum):
    """Ordered by what happens first: a drafter that stops at load never comes to serve garbage."""

    OK = "ok"
    NOTE = "note"
    NOT_JUDGED = "not-judged"
    DEGRADED = "degraded"
    SILENT_GARBAGE = "silent-garbage"
    CUDA_ERROR = "cuda-error"
    RUNTIME_ERROR = "runtime-error"
    LOAD_ERROR = "load-error"
    NEEDS_CONVERSION = "needs-conversion"
    UNSUPPORTED = "unsupported"

    @property
    def rank(self) -> int:
        return _ORDER[self]

    @property
    def serves(self) -> bool:
        """Whether the server comes up and answers."""
        return self.rank <= Verdict.SILENT_GARBAGE.rank


_ORDER = {verdict: rank for rank, verdict in enumerate(Verdict)}

SEEN = {
    Verdict.OK: "serves as trained",
    Verdict.NOTE: "serves as trained",
    Verdict.NOT_JUDGED: "not known: what decides it is not among what was read",
    Verdict.DEGRADED: "serves; accept length lower than it could be",
    Verdict.SILENT_GARBAGE: "serves, HTTP 200, correct text, no log line; accept len about 1.00, slower than without",
    Verdict.CUDA_ERROR: "device-side assert when it drafts; the server process is lost",
    Verdict.RUNTIME_ERROR: "loads, then fails at graph capture or at the first draft step",
    Verdict.LOAD_ERROR: "stops with an error before it is ready, often after the target was loaded",
    Verdict.NEEDS_CONVERSION: "SGLang cannot read this producer's layout as it is",
    Verdict.UNSUPPORTED: "this SGLang has no algorithm that runs this kind of draft model",
}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The worst of `verdicts`; ok when there are none."""
    return max(verdicts, key=lambda v: v.rank, default=Verdict.OK)


@dataclass(frozen=True, slots=True)
class Remark:
    """What one check says of a draft model; `drafter.findings` makes findings of it.

    Args:
        check: name of the check.
        verdict: what it does to a server.
        subject: the tensor, key or file it is about.
        detail: the evidence, in numbers.
        remedy: a command or a change; empty when there is nothing to do.
        versions: SGLang versions it holds for.
        in_outcome: False for what is wrong with the server and not with the drafter.
    """

    check: str
    verdict: Verdict
    subject: str
    detail: str
    remedy: str = ""
    versions: tuple[Version, ...] = ()
    in_outcome: bool = True
