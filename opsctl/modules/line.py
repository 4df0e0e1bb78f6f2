"""Single lines of text files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl.errors import TaskFailed
from opsctl.modules.contract import Change, Module, Site
from opsctl.modules.fields import HostPath, Pattern, Text, reveal
from opsctl.modules.paths import Placed, holds_secret, look, place, refuse
from opsctl.secret import Secret
from opsctl.wire.calls.files import State
from opsctl.wire.protocol import Call, Reply

LIMIT = 8 << 20  # bytes; longer files are not edited by line


class LineArgs(Placed):
    path: HostPath = Field(description="The file on the host.")
    line: Text | None = Field(None, description="The line, whole and literal, without its end.")
    match: Pattern | None = Field(
        None,
        description="Regular expression: the one line it is found in is replaced (or, if absent, all are removed).",
    )
    state: Literal["present", "absent"] = "present"
    after: Pattern | None = Field(None, description="A new line goes after the last line this is found in.")
    before: Pattern | None = Field(None, description="A new line goes before the first line this is found in.")
    create: bool = Field(False, description="Make the file if it is missing.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state == "present" and self.line is None:
            raise ValueError("`line` is missing")
        if self.state == "absent" and (self.line is None) == (self.match is None):
            raise ValueError("`state: absent` takes either `line` or `match`")
        if self.after is not None and self.before is not None:
            raise ValueError("`after` and `before` exclude each other")
        text = reveal(self.line) if self.line is not None else ""
        if "\n" in text or "\r" in text:
            raise ValueError("`line` is one line; use `copy` or `template` for more")
        return self


class Line(Module[LineArgs]):
    """Have exactly one literal line in a text file, or none.

    `line` is compared as a whole and literally; only `match`, `after` and `before` are regular expressions. Line ends
    (LF or CRLF) and everything else in the file stay as they are.
    """

    name = "line"
    programs = frozenset({"sed"})
    args = LineArgs
    examples = """
- name: Locked memory for NCCL
  line: {path: "{{ scratch }}/limits.conf", line: "* - memlock unlimited", match: '\\bmemlock\\b', create: true}
- name: No debug switch
  line: {path: "{{ scratch }}/limits.conf", match: "^DEBUG=", state: absent}
"""

    def observe(self, args: LineArgs, site: Site) -> Sequence[Call[Any]]:
        return (look(args.path, args.follow, LIMIT, args.whom()),)

    def plan(self, args: LineArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        now: State = seen[0].result
        if now["kind"] == "absent" and args.state == "absent":
            return None
        if now["kind"] == "absent" and not args.create:
            raise TaskFailed(f"{args.path} does not exist", hint="say `create: true` if it is to be made")
        if now["kind"] not in ("absent", "file"):
            raise refuse(args.path, now, "file")
        if now.get("planted"):
            raise TaskFailed(f"{args.path} may be a hard link to a file of somebody else: it is not edited")
        if now["kind"] == "file" and not now.get("content"):
            raise TaskFailed(f"{args.path} is longer than {LIMIT >> 20} MiB, too long to edit by line")
        # Bytes that are no UTF-8 pass through unchanged.
        text = seen[0].body.decode("utf-8", "surrogateescape")
        edited = edit(text, args)
        secret = isinstance(args.line, Secret) or holds_secret(text)
        if edited == text and now["kind"] == "file" and not args.wrong(now):
            return None
        return place(args.path, edited.encode("utf-8", "surrogateescape"), seen[0], args, site, secret)


def edit(text: str, args: LineArgs) -> str:
    """`text` with the line as asked for. Raises TaskFailed where that is ambiguous."""
    lines = re.split(r"(?<=\n)", text)
    if lines[-1] == "":
        lines.pop()
    bare = [line.rstrip("\r\n") for line in lines]
    wanted = reveal(args.line) if args.line is not None else None
    if args.state == "absent":
        doomed = _found(args.match, bare) if args.match else [i for i, b in enumerate(bare) if b == wanted]
        return "".join(line for i, line in enumerate(lines) if i not in set(doomed))
    assert wanted is not None
    if wanted in bare:
        return text
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    matches = _found(args.match, bare) if args.match else []
    if len(matches) > 1:
        where = ", ".join(str(i + 1) for i in matches[:5])
        raise TaskFailed(
            f"{len(matches)} lines of {args.path} match {args.match!r}: {where}", hint="make it match one line"
        )
    if matches:
        old = lines[matches[0]]
        lines[matches[0]] = wanted + old[len(old.rstrip("\r\n")) :]
        return "".join(lines)
    at = _place(args, bare)
    if at > 0 and not lines[at - 1].endswith("\n"):
        lines[at - 1] += end
    lines.insert(at, wanted + end)
    return "".join(lines)


def _place(args: LineArgs, bare: Sequence[str]) -> int:
    anchor = args.after or args.before
    if anchor is None:
        return len(bare)
    found = _found(anchor, bare)
    if not found:
        side = "after" if args.after else "before"
        raise TaskFailed(f"no line of {args.path} matches `{side}: {anchor}`")
    return found[-1] + 1 if args.after else found[0]


def _found(pattern: str, lines: Sequence[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if re.search(pattern, line)]
