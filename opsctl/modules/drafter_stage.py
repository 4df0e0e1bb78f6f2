"""Draft models brought to the host as releases."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from opsctl.drafter.chunks import Copy, Plan, Range
from opsctl.drafter.staging import RESERVE, Source, demand_unchanged, outline_source, read_source
from opsctl.errors import RemoteError, TaskFailed, Unreachable, UsageError
from opsctl.modules.contract import Change, Module, ModuleArgs, Progress, Site, passed_on
from opsctl.modules.fields import HostPath
from opsctl.text import duration, few, size
from opsctl.wire.calls.stage import (
    Held,
    Placed,
    Stage,
    Taken,
    stage_copy,
    stage_expect,
    stage_look,
    stage_place,
    stage_prepare,
    stage_prune,
    stage_remove,
    stage_resume,
)
from opsctl.wire.chunking import MADE, SHORT, has_release
from opsctl.wire.host import Host, Part
from opsctl.wire.protocol import Call, Reply

_AGAIN = "run it again: what has arrived is not sent twice"


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", value):
        raise ValueError("expected letters, digits, `_`, `.` and `-`, no dot first: it becomes a folder")
    return value


class DrafterStageArgs(ModuleArgs):
    path: str | None = Field(None, description="Folder of the draft model on the controller.")
    host_path: HostPath | None = Field(None, description="Folder of the draft model on the host, instead of `path`.")
    name: Annotated[str, AfterValidator(_name)] | None = Field(
        None, description="Name of the draft model on the host; by default that of the folder."
    )
    releases: HostPath | None = Field(
        None, description="Folder of all releases on the host; by default that of the host's sglang section."
    )
    keep: int = Field(
        3,
        ge=0,
        description="Earlier releases of this name that stay; one in service or that a rollback may need always does.",
    )
    follow_links: bool = Field(False, description="Take what links that leave the folder point at.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.path is None) == (self.host_path is None):
            raise ValueError("give either `path` or `host_path`")
        return self


class DrafterStage(Module[DrafterStageArgs]):
    """Bring a draft model to the host as a release: RELEASES/NAME/DIGEST, named by its content.

    What any release on the host has already is linked or copied there; the rest is sent over several channels, and a
    later run goes on where a lost connection left it. A release appears whole, verified byte by byte on the host, or
    not at all, and is never changed. The result gives `release`, its path; putting it into service is another task's
    business. Hidden files and folders inside the folder are left out.
    """

    name = "drafter_stage"
    args = DrafterStageArgs
    costly = True
    examples = """
- name: Bring the drafter to the host
  when: false
  drafter_stage: {path: ./my-drafter, name: k25-eagle3, keep: 2}
  register: staged
"""

    def observe(self, args: DrafterStageArgs, site: Site) -> Sequence[Call[Any]]:
        root, name = _releases(args, site), _named(args)
        if args.host_path is not None:
            return (stage_look(root, name, source=args.host_path, follow_links=args.follow_links, old=args.keep),)
        source = _local(args, site, outline_source)
        return (stage_look(root, name, source.key, source.digest, old=args.keep),)

    def plan(self, args: DrafterStageArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        found: Stage = seen[0].result
        source = _source(args, found, site)
        if has_release(found["there"], source.digest):
            return None
        name = source.digest[:SHORT]
        have = _have(found)
        planned = source.plan(have, seen[0].body, found["arrived"])
        arrived = sum(end - start for _, start, end in found["arrived"])
        needed = planned.written + arrived - (0 if found["foreign"] else found["partial"])
        if needed + RESERVE > found["free"]:
            hint = "remove releases that are not in service, or keep fewer (keep)"
            if found["foreign"]:
                hint += f", or remove {found['foreign']}, which an interrupted staging of other files has left"
            raise TaskFailed(f"{found['top']}: {size(needed)} are needed, {size(found['free'])} are free", hint=hint)
        travels = size(planned.sent) if planned.sent else "nothing"
        again = " again, it was changed" if name in found["there"] else ""
        target = f"as {found['top']}/{name}" if name else f"into {found['top']}"
        summary = f"stage {size(source.size)} {target}{again}: {travels} to send"
        if planned.kept:
            summary += f", {size(planned.kept)} are there"
        if arrived:
            summary += f"; goes on with {size(arrived)} that an earlier run has left"
        elif found["partial"]:
            summary += f", less if most of the {size(found['partial'])} that an earlier run has left is the same"
        for path in found["damaged"]:
            summary += f"; {path} does not say any more what it holds, so nothing is taken from it"
        outdated = [path for path in found["outdated"] if path != f"{found['top']}/{name}"]
        if outdated:
            summary += f"; when the run has ended well, remove {few([posixpath.basename(path) for path in outdated])}"
        where = Where(_releases(args, site), _named(args), source.key)
        place = stage_place(*where, keep_as=MADE)
        prune = (stage_prune(where.root, where.name, outdated),) if outdated else ()
        similar = seen[0].body if found["partial"] else None

        def whole(cancelled: Callable[[], bool]) -> Source:
            return source if source.digest else _read(args, site, cancelled)

        def looked_at_again() -> Source:
            return _local(args, site, outline_source)

        bring = transfer(source, whole, looked_at_again, have, where, planned, similar)
        return Change(
            summary,
            (place,),
            (stage_remove(MADE),),
            transfer=bring,
            values=amounts(source, planned),
            after=prune,
            makes=frozenset((found["top"],)),
        )

    def result(
        self, args: DrafterStageArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        if done is not None:
            placed: Placed = done[0].result
            return {"release": placed["release"], "digest": placed["digest"]}
        found: Stage = seen[0].result
        source = _source(args, found, site)
        there = has_release(found["there"], source.digest)
        nothing = {"sent": 0, "kept": source.size, "size": source.size} if there else {}
        return {"release": f"{found['top']}/{source.digest[:SHORT]}", "digest": source.digest, **nothing}


def _releases(args: DrafterStageArgs, site: Site) -> str:
    found = args.releases or site.sglang.release_root
    if not found:
        raise UsageError(
            f"{site.host}: the inventory does not say where releases go",
            hint="set `weights_root` (or `releases`) in its sglang section, or give `releases` to the task",
        )
    return found


def _named(args: DrafterStageArgs) -> str:
    if args.name is not None:
        return args.name
    path = (args.host_path or os.path.abspath(str(args.path))).rstrip("/")
    try:
        return _name(posixpath.basename(path))
    except ValueError as error:
        raise UsageError(f"{posixpath.basename(path)!r} cannot name the release: {error}", hint="give `name`") from None


def _local(args: DrafterStageArgs, site: Site, read: Callable[..., Source], **more: Any) -> Source:
    return read(site.find("files", str(args.path)), follow_links=args.follow_links, **more)


def _read(args: DrafterStageArgs, site: Site, cancelled: Callable[[], bool] = lambda: False) -> Source:
    return _local(args, site, read_source, cancelled=lambda: cancelled() or site.cancelled())


def _source(args: DrafterStageArgs, found: Stage, site: Site) -> Source:
    """What is to be staged: read, unless the host has nothing to compare it with; then it is read while it is sent."""
    if found["source"] is not None:
        return Source.of(found["source"])
    compared = found["have"] or found["there"] or (found["partial"] and not found["noted"])
    return _read(args, site) if compared or site.check else _local(args, site, outline_source)


def _have(found: Stage) -> list[Held]:
    """Folders of the host to take from: earlier releases, then the source itself where it lies there."""
    source = found["source"]
    return [*found["have"], *([] if source is None else [Held(path=source["path"], files=source["files"])])]


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
        with _goes_on(), host.sending(planned.sent) as sending:
            plan = planned
            if similar is not None:
                done = host.call(stage_resume(*where, files=source.files)).result
                plan = source.plan(have, similar, done)
            links, copies = _kept(plan, source)
            made = host.call(stage_prepare(*where, sizes=source.sizes, links=links)).result
            asked = [stage_copy(*where, copies=copies)] if copies else []
            copying = host.send(asked, on_progress=passed_on(progress))
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


def _kept(planned: Plan, source: Source) -> tuple[list[list[str]], list[Taken]]:
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
    return links, [(f"{one.release}/{one.source.file}", one.source.start, *one.target) for one in pieces]


def _rate(sent: int, total: int, seconds: float) -> tuple[str, float]:
    """How far it is, how fast, and how long it will take; the first second says little about that."""
    text = f"{size(sent)} of {size(total)}"
    if seconds >= 1 and sent not in (0, total):
        rate = sent / seconds
        text += f", {size(rate)}/s, {duration((total - sent) / rate)} left"
    return text, sent / total
