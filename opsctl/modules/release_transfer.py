"""How a draft model travels: what of it is linked, copied and sent, while its digests may still be computed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from opsctl.drafter.chunks import Copy, Plan, Range
from opsctl.drafter.staging import Source, demand_unchanged
from opsctl.errors import RemoteError, Unreachable
from opsctl.modules.contract import Host, Progress
from opsctl.text import duration, size
from opsctl.wire.calls.stage import Held, stage_copy, stage_expect, stage_prepare, stage_resume

if TYPE_CHECKING:
    from opsctl.remote.host import RemoteHost

_AGAIN = "run it again: what has arrived is not sent twice"


class Where(NamedTuple):
    """A release on its way: the folder of all releases, the draft model's name, and what it is found again by."""

    root: str
    name: str
    key: str


def transfer(
    source: Source,
    whole: Callable[[Callable[[], bool]], Source],
    again: Callable[[], Source],
    have: Sequence[Held],
    where: Where,
    planned: Plan,
    similar: bytes | None,
) -> Callable[[Host, Progress], dict[str, int]]:
    """What brings the source to the host, and gives what of it was sent, as `amounts`.

    Args:
        whole: gives the source with its digests, until it is cancelled.
        again: looks at the source once more.
        similar: digests of blocks, to plan anew with what an interrupted run has left; None if there was none.
    """

    def bring(host: Host, progress: Progress) -> dict[str, int]:
        from opsctl.remote.parts import Part, Sending, is_far  # only where something is sent

        remote = cast("RemoteHost", host)
        with _goes_on(), Sending(remote, planned.sent, far=bool(planned.sent) and is_far(remote)) as sending:
            plan = planned
            if similar is not None:
                done = host.call(stage_resume(*where, files=source.files)).result
                plan = source.plan(have, similar, done)
            links, copies = _kept(plan, source)
            made = host.call(stage_prepare(*where, sizes=source.sizes, links=links)).result
            copying = []
            if copies:
                copying = remote.send([stage_copy(*where, copies=copies)], on_progress=_passed_on(progress))
            parts = [
                Part(f"{source.path}/{piece.file}", piece.file, piece.start, piece.end)
                for sent in plan.sends
                for piece in source.pieces(sent)
            ]
            began = time.monotonic()

            with _told(source, whole, host, where) as telling:

                def on_bytes(sent: int) -> None:
                    if telling.done():
                        telling.result()  # where it failed, sending is of no use
                    progress(*_rate(sent, plan.sent, time.monotonic() - began))

                if parts:
                    sending.send(made["partial"], parts, on_bytes)
                    demand_unchanged(source, again().stats)
                for pending in copying:
                    pending.wait()
        return amounts(source, plan)

    return bring


def amounts(source: Source, plan: Plan) -> dict[str, int]:
    """How many bytes are sent, need not be as the host has them, and there are."""
    return {"sent": plan.sent, "kept": source.size - plan.sent, "size": source.size}


@contextlib.contextmanager
def _goes_on() -> Iterator[None]:
    """Say with what went wrong on the host that nothing was for nothing."""
    try:
        yield
    except RemoteError as error:
        first = "free some space there" if error.kind == "no-space" else "put that right"
        error.hint = f"{first}, then {_AGAIN}"
        raise
    except Unreachable as error:
        error.hint = _AGAIN
        raise


@contextlib.contextmanager
def _told(
    source: Source, whole: Callable[[Callable[[], bool]], Source], host: Host, where: Where
) -> Iterator[Future[None]]:
    """Tell the host what the release is to hold, while that is sent: the source may have to be read for it."""
    stopped = threading.Event()

    def tell() -> None:
        read = whole(stopped.is_set)
        demand_unchanged(source, read.stats)
        host.call(stage_expect(*where, digest=read.digest, files=read.files))

    with ThreadPoolExecutor(1) as beside:
        telling = beside.submit(tell)
        try:
            yield telling
            telling.result()
        finally:
            stopped.set()


def _kept(planned: Plan, source: Source) -> tuple[list[list[str]], list[list[str | int]]]:
    """What is linked and what is copied on the host, as stage.prepare and stage.copy take it.

    The source itself may lie there. Others can change it, so it is copied from and not linked to.
    """
    links = [[f"{link.release}/{link.source}", link.target] for link in planned.links if link.release != source.path]
    whole = [
        Copy(link.release, Range(link.source, 0, link.size), Range(link.target, 0, link.size))
        for link in planned.links
        if link.release == source.path
    ]
    pieces = [copy.part(piece) for copy in (*whole, *planned.copies) for piece in source.pieces(copy.target)]
    return links, [[f"{one.release}/{one.source.file}", one.source.start, *one.target] for one in pieces]


def _rate(sent: int, total: int, seconds: float) -> tuple[str, float]:
    """How far it is, how fast, and how long it will take; the first second says little about that."""
    text = f"{size(sent)} of {size(total)}"
    if seconds >= 1 and sent not in (0, total):
        rate = sent / seconds
        text += f", {size(rate)}/s, {duration((total - sent) / rate)} left"
    return text, sent / total


def _passed_on(progress: Progress) -> Callable[[Any, bytes], None]:
    def passed(data: Any, body: bytes) -> None:
        progress(str(data.get("text", "")), data.get("fraction"))

    return passed
