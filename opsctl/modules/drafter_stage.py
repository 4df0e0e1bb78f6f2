"""Draft models brought to the host as releases."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

from pydantic import AfterValidator, Field, model_validator

from opsctl.agent.protocol import Call, Reply
from opsctl.drafter.chunks import Copy, Plan, Range
from opsctl.drafter.staging import RESERVE, Source, demand_unchanged, read_source
from opsctl.errors import TaskFailed, UsageError
from opsctl.modules.contract import Change, Host, Module, ModuleArgs, Progress, Site
from opsctl.modules.fields import HostPath
from opsctl.text import duration, size

if TYPE_CHECKING:
    from opsctl.remote.host import RemoteHost

KEEP = "release"


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
    keep: int = Field(3, ge=0, description="Earlier releases of this name that stay; one in service always does.")
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
    examples = """
- name: Bring the drafter to the host
  when: false
  drafter_stage: {path: ./my-drafter, name: k25-eagle3, keep: 2}
  register: staged
"""

    def observe(self, args: DrafterStageArgs, site: Site) -> Sequence[Call]:
        where = {"root": _releases(args, site), "name": _named(args)}
        if args.host_path is not None:
            return (Call("stage.look", {**where, "source": args.host_path, "follow_links": args.follow_links}),)
        return (Call("stage.look", {**where, "digest": _local(args, site).digest}),)

    def plan(self, args: DrafterStageArgs, seen: Sequence[Reply], site: Site) -> Change | None:
        found = seen[0].result
        if found["state"] == "whole":
            return None
        source = _local(args, site) if found["source"] is None else Source.of(found["source"])
        have = _have(found, source)
        planned = source.plan(have, seen[0].body)
        where = {"root": _releases(args, site), "name": _named(args), "digest": source.digest}
        needed = planned.written - found["partial"]
        if needed + RESERVE > found["free"]:
            raise TaskFailed(
                f"{posixpath.dirname(found['release'])}: {size(needed)} are needed, {size(found['free'])} are free",
                hint="remove releases that are not in service, or keep fewer (keep)",
            )
        travels = size(planned.sent) if planned.sent else "nothing"
        again = " again, it was changed" if found["state"] == "changed" else ""
        summary = f"stage {size(source.size)} as {found['release']}{again}: {travels} to send"
        if planned.kept:
            summary += f", {size(planned.kept)} are there"
        for path in found["damaged"]:
            summary += f"; {path} does not say any more what it holds, so nothing is taken from it"
        old = args.keep
        place = Call("stage.place", {**where, "files": source.files, "old": old, "keep_as": KEEP})
        undo = Call("stage.remove", {"keep_as": KEEP})
        transfer = _transfer(source, have, where, planned, seen[0].body if found["partial"] else None)
        values = {"sent": planned.sent, "kept": planned.kept, "size": source.size}
        return Change(summary, (place,), (undo,), transfer=transfer, values=values)

    def result(self, args: DrafterStageArgs, seen: Sequence[Reply], done: Sequence[Reply] | None) -> dict[str, Any]:
        found = seen[0].result
        nothing = {"sent": 0, "kept": found["size"], "size": found["size"]} if found["state"] == "whole" else {}
        return {"release": found["release"], "digest": found["digest"], **nothing}


def _releases(args: DrafterStageArgs, site: Site) -> str:
    settings: Mapping[str, Any] = site.variables.get("sglang") or {}
    root = settings.get("weights_root")
    found = args.releases or settings.get("releases") or (f"{root.rstrip('/')}/releases" if root else None)
    if not found:
        raise UsageError(
            f"{site.host}: the inventory does not say where releases go",
            hint="set `weights_root` (or `releases`) in its sglang section, or give `releases` to the task",
        )
    return str(found)


def _named(args: DrafterStageArgs) -> str:
    if args.name is not None:
        return args.name
    path = (args.host_path or os.path.abspath(str(args.path))).rstrip("/")
    try:
        return _name(posixpath.basename(path))
    except ValueError as error:
        raise UsageError(f"{posixpath.basename(path)!r} cannot name the release: {error}", hint="give `name`") from None


def _local(args: DrafterStageArgs, site: Site) -> Source:
    return read_source(site.find("files", str(args.path)), follow_links=args.follow_links)


def _have(found: Mapping[str, Any], source: Source) -> list[Mapping[str, Any]]:
    """Folders of the host to take from: earlier releases, then the source itself where it lies there."""
    own = [{"path": source.path, "files": source.files, "borrowed": True}] if found["source"] is not None else []
    return [*found["have"], *own]


def _transfer(
    source: Source,
    have: Sequence[Mapping[str, Any]],
    where: Mapping[str, Any],
    planned: Plan,
    similar: bytes | None,
) -> Callable[[Host, Progress], None]:
    """`similar`: digests of blocks, to plan anew with what an interrupted run has left; None if there was none."""

    def transfer(host: Host, progress: Progress) -> None:
        from opsctl.remote.parts import Part, is_far, send_parts  # only where something is sent

        remote = cast("RemoteHost", host)
        plan = planned
        if similar is not None:
            done = host.call(Call("stage.resume", {**where, "files": source.files})).result
            plan = source.plan(have, similar, done)
        borrowed = {one["path"] for one in have if one.get("borrowed")}
        links, copies = _kept(plan, source, borrowed)
        folder = host.call(Call("stage.prepare", {**where, "sizes": source.sizes, "links": links})).result["partial"]
        far = is_far(remote)
        copying = []
        if copies:
            copy = Call("stage.copy", {**where, "copies": copies})
            copying = remote.send([copy], on_progress=_passed_on(progress))
        parts = [
            Part(f"{source.path}/{piece.file}", piece.file, piece.start, piece.end)
            for sent in plan.sends
            for piece in source.pieces(sent)
        ]
        began = time.monotonic()

        def told(sent: int) -> None:
            progress(_rate(sent, plan.sent, time.monotonic() - began), sent / plan.sent)

        if parts:
            send_parts(remote, folder, parts, far=far, on_bytes=told)
            demand_unchanged(source)
        for pending in copying:
            pending.wait()

    return transfer


def _kept(planned: Plan, source: Source, borrowed: Set[str]) -> tuple[list[list[str]], list[list[Any]]]:
    """What is linked and what is copied on the host, as stage.prepare and stage.copy take it.

    A folder that is not ours can be changed by others, so it is copied from and not linked to.
    """
    links = [[f"{link.release}/{link.source}", link.target] for link in planned.links if link.release not in borrowed]
    whole = [
        Copy(link.release, Range(link.source, 0, link.size), Range(link.target, 0, link.size))
        for link in planned.links
        if link.release in borrowed
    ]
    pieces = [copy.part(piece) for copy in (*whole, *planned.copies) for piece in source.pieces(copy.target)]
    return links, [[f"{one.release}/{one.source.file}", one.source.start, *one.target] for one in pieces]


def _rate(sent: int, total: int, seconds: float) -> str:
    """How far it is, how fast, and how long it will take; the first second says little about that."""
    text = f"{size(sent)} of {size(total)}"
    if seconds < 1 or sent in (0, total):
        return text
    rate = sent / seconds
    return f"{text}, {size(rate)}/s, {duration((total - sent) / rate)} left"


def _passed_on(progress: Progress) -> Callable[[Any, bytes], None]:
    def passed(data: Any, body: bytes) -> None:
        progress(str(data.get("text", "")), data.get("fraction"))

    return passed
