"""Draft models brought to the host as releases."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from opsctl.agent.stage.releases import SHORT, has
from opsctl.agent.stage.retention import MADE
from opsctl.drafter.staging import RESERVE, Source, outline_source, read_source
from opsctl.errors import TaskFailed, UsageError
from opsctl.modules.contract import Change, Module, ModuleArgs, Site
from opsctl.modules.fields import HostPath
from opsctl.modules.release_transfer import Where, amounts, transfer
from opsctl.text import few, size
from opsctl.wire.calls.stage import Held, Placed, Stage, stage_look, stage_place, stage_prune, stage_remove
from opsctl.wire.protocol import Call, Reply


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
        if has(found["there"], source.digest):
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
        there = has(found["there"], source.digest)
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
