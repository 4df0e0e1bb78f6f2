"""Evidence from files, told apart by their content: outputs of nvidia-smi, lspci, kernel logs, /proc files, bundles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from opsctl.errors import Unreadable
from opsctl.gpu.model import Evidence, Host, KernelLog, Reading
from opsctl.gpu.read import (
    gathered,
    hosttext,
    klog,
    lspci,
    smi_errors,
    smi_links,
    smi_text,
    smi_xml,
)
from opsctl.gpu.read.bundle import Member
from opsctl.gpu.wanted import Wanted

if TYPE_CHECKING:
    from opsctl.wire.calls.gpu import Gathered

_SECTION = re.compile(r"^#{20,}\n# (?P<part>[^\n]*?) :: [^\n]*\n(?:# \$[^\n]*\n)?#{20,}\n", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # a terminal's colours and underlines, pasted along
_XML = re.compile(r"<\?xml|<!DOCTYPE nvidia_smi_log|<nvidia_smi_log")
_XML_END = "</nvidia_smi_log>"
_NO_NUMBER = re.compile(r"\d{1000}")  # nothing here counts so far, and Python refuses to
_LONGEST_HEADER = 16384  # all columns that nvidia-smi knows take a third of it
_Read = tuple[Member, Evidence]
_PREFERRED = ("xml", "text", "csv", "table", "list")


def read(text: str, name: str) -> Evidence | None:
    """What `text` says about a host; None when it is nothing we know. An empty file is empty evidence.

    Raises Unreadable for XML that is hostile or without a single value, and for numbers nobody writes.
    """
    text = _ANSI.sub("", text.removeprefix("\ufeff")).replace("\r\n", "\n").replace("\r", "\n")
    if _NO_NUMBER.search(text):
        raise Unreadable("a number of more than a thousand digits", where=name or None)
    text = _unquoted(text)
    start = text.lstrip()
    if not start:
        return Evidence()
    if start.startswith(("<?xml", "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log")):
        return _with_xml(text, 0)
    if _SECTION.search(text):
        return _sections(text)
    if start[0] in "[{":
        return _document(start, name)
    if (among := _XML.search(text)) and "<nvidia_smi_log" in text:
        return _with_xml(text, among.start())
    return _plain(text)


def _unquoted(text: str) -> str:
    """Without the margin that a paste has in all its lines: blanks, or the `>` of a quotation."""
    lines = [line for line in text.splitlines() if line.strip()]
    margin = re.match(r"[ \t]*(?:> ?)*[ \t]*", lines[0])[0] if lines else ""  # type: ignore[index]
    bare = margin.rstrip()
    if not margin or not all(line.startswith(margin) or line.rstrip() == bare for line in lines):
        return text
    return "\n".join(line.removeprefix(margin) if line.strip() != bare else "" for line in text.splitlines()) + "\n"


def _document(text: str, name: str) -> Evidence | None:
    """JSON: what the agent gathered, or runs of nvidia-smi. Other documents may quote a log, and are none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _plain(text)  # "[12.5] a kernel line", or many records
    if isinstance(value, dict) and {"smi", "host", "processes"} <= set(value):
        try:
            return gathered.evidence(cast("Gathered", value), Wanted())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unreadable(f"not a whole answer of gpu.gather: {error}", where=name or None) from error
    if (diagnostics := hosttext.diagnostics(text)) is not None:
        return Evidence(host=Host(**diagnostics))
    if isinstance(value, dict) and "MESSAGE" in value:
        return _plain(text)
    runs = smi_errors.recorded_runs(value)
    return None if runs is None else Evidence(smi_errors=runs)


def _with_xml(text: str, start: int) -> Evidence:
    """The answer, and what a terminal or nvidia-smi's own warnings put before and after it."""
    _, mark, after = text[start:].partition(_XML_END)
    answer = Evidence(readings=(smi_xml.read(text[start : len(text) - len(after)] if mark else text[start:]),))
    around = [read(part, "") for part in (text[:start], after) if part.strip()]
    return merged([answer, *(e for e in around if e)])


def _plain(text: str) -> Evidence | None:
    if smi_links.MARK.search(text):  # it names the GPUs as -L does
        return Evidence(host=Host(links=smi_links.read(text)))
    refused = smi_errors.read(text)
    reading = _reading(text)
    if reading or refused:
        log = klog.read(text)
        kernel = log if log.events else None  # pasted into the same file
        return Evidence(readings=(reading,) if reading else (), smi_errors=refused, kernel=kernel)
    if lspci.HEADER.search(text) and not klog.looks_like(text):
        return Evidence(pci=lspci.read(text))
    if smi_text.uninformative(text):
        return Evidence()
    fields = hosttext.recognise(text)
    if fields is not None:
        return Evidence(host=Host(**fields))
    if klog.looks_like(text):
        return Evidence(kernel=klog.read(text))
    return None


def _reading(text: str) -> Reading | None:
    if smi_text.MARK in text:
        return smi_text.read(text)
    if smi_text.TABLE.search(text):
        return smi_text.read_table(text)
    first = next((line for line in text.splitlines() if line.strip()), "")[:_LONGEST_HEADER]
    return smi_text.read_csv(text) if smi_text.header(first) else smi_text.read_list(text)


def _sections(text: str) -> Evidence:
    """A capture of several calls, in parts such as idle and load: of each part the fullest reading counts."""
    heads = list(_SECTION.finditer(text))
    ends = [h.start() for h in heads[1:]] + [len(text)]
    parts: dict[str, list[Evidence]] = {}
    for head, end in zip(heads, ends, strict=True):
        found = read(text[head.end() : end], head["part"])
        if found is not None and (found.readings or found.smi_errors):
            parts.setdefault(head["part"], []).append(found)
    readings = []
    for part, found_in in parts.items():
        of_part = [r for e in found_in for r in e.readings if r.gpus]
        if of_part:
            readings.append(replace(min(of_part, key=lambda r: _PREFERRED.index(r.source)), part=part))
    errors = tuple(error for found_in in parts.values() for e in found_in for error in e.smi_errors)
    return Evidence(readings=tuple(readings), smi_errors=errors)


def hosts(members: Iterable[Member]) -> list[tuple[str, Evidence]]:
    """The hosts that the files are about, with a name for each.

    Files are taken to be of one host unless they list different GPUs, or are logs of hosts with different names. A
    file that tells neither then goes with its neighbours: those in its folder, or of its name (n7.xml, n7.log).
    Raises Unreadable when none of them is anything we know.
    """
    found: list[tuple[Member, Evidence]] = []
    unknown: list[Member] = []
    for member in members:
        evidence = read(member.text, member.name)
        if evidence is None:
            unknown.append(member)
        else:
            found.append((member, evidence))
    named = [m for m in unknown if not m.packed]
    if named:
        hint = (
            "known: nvidia-smi -q -x, -q, its table, --query-gpu CSV with header, kernel logs, lspci, "
            "bundles of `opsctl logs collect`"
        )
        raise Unreadable("nothing in it is known to say something about a GPU host", where=named[0].name, hint=hint)
    if not found:
        raise Unreadable("no file in it says anything about a GPU host", where=unknown[0].name if unknown else None)
    listing = _by_gpus(found)
    lone = [one for one in found if not _listed(one[1])]
    logs = _by_host(lone)
    if len(listing) <= 1 and len(logs) <= 1:
        return [(", ".join(dict.fromkeys(m.origin for m, _ in found)), merged(e for _, e in found))]
    groups = [list(group) for group in listing]
    for log, near in zip(logs, _nearest(logs, listing), strict=True):
        _join(groups, near, log)
    for one in lone:
        if _host_name(one) is None:
            _join(groups, _near(one[0], groups), [one])
    return [(_name(group, groups), merged(e for _, e in group)) for group in groups]


def _by_gpus(found: Iterable[_Read]) -> list[list[_Read]]:
    """The files that list GPUs, those about the same GPUs together."""
    groups: list[list[_Read]] = []
    for member, evidence in found:
        gpus = _listed(evidence)
        if not gpus:
            continue
        same = next((g for g in groups if any(_same_host(gpus, _listed(e)) for _, e in g)), None)
        if same is None:
            groups.append([(member, evidence)])
        else:
            same.append((member, evidence))
    return groups


def _by_host(lone: Iterable[_Read]) -> list[list[_Read]]:
    """The files whose lines carry the name of a host, those of one host together."""
    named: dict[str, list[_Read]] = {}
    for one in lone:
        if name := _host_name(one):
            named.setdefault(name, []).append(one)
    return list(named.values())


def _host_name(one: _Read) -> str | None:
    """Without its domain, which some programs write and some do not."""
    name = one[1].kernel.host if one[1].kernel else None
    if name is None or name[:1].isdigit():
        return name
    return name.lower().partition(".")[0]


def _join(groups: list[list[_Read]], number: int | None, files: list[_Read]) -> None:
    if number is None:
        groups.append(files)
    else:
        groups[number] += files


def _nearest(logs: Sequence[Sequence[_Read]], listing: Sequence[Sequence[_Read]]) -> list[int | None]:
    """For the logs of each host the GPUs they lie next to. Of two hosts that do, neither is meant, unless by name."""
    near = [_near(log[0][0], listing) for log in logs]
    stems = [{_stem(_path(m)) for m, _ in group} for group in listing]
    return [
        n if n is None or near.count(n) == 1 or any(_stem(_path(m)) in stems[n] for m, _ in log) else None
        for n, log in zip(near, logs, strict=True)
    ]


def _listed(evidence: Evidence) -> dict[str, str | None]:
    """Bus id -> UUID of the GPUs in it. Masked captures carry a placeholder of zeros, which is no UUID."""
    return {
        str(g.ref.bus_id).lower()[-12:]: g.ref.uuid
        if len(set((g.ref.uuid or "").lower().removeprefix("gpu-"))) > 3
        else None
        for r in evidence.readings
        for g in r.gpus
    }


def _same_host(some: Mapping[str, str | None], others: Mapping[str, str | None]) -> bool:
    """By UUID where both tell it: hosts of one kind have their GPUs in the same slots."""
    mine, theirs = set(some.values()) - {None}, set(others.values()) - {None}
    if mine and theirs:
        return bool(mine & theirs)
    return set(some) == set(others)


def _near(member: Member, groups: Sequence[Sequence[_Read]]) -> int | None:
    """The one group that has a file in the nearest folder where any has, or of the same name."""
    path = _path(member)
    for folder in path.parents:
        near = {i for i, group in enumerate(groups) if any(folder in _path(m).parents for m, _ in group)}
        if len(near) > 1:
            near = {i for i in near if any(_stem(_path(m)) == _stem(path) for m, _ in groups[i])}
        if near:
            return near.pop() if len(near) == 1 else None
    return None


def _path(member: Member) -> PurePath:
    return PurePath(member.origin, member.name) if member.packed else PurePath(member.name)


def _stem(path: PurePath) -> str:
    return path.name.partition(".")[0]


def _name(group: Sequence[_Read], groups: Sequence[Sequence[_Read]]) -> str:
    """The folder that holds nothing else, else the first file."""
    path = _path(group[0][0])
    for folder in reversed(path.parents[:-1]):
        holders = [g for g in groups if any(folder in _path(m).parents for m, _ in g)]
        if holders == [group]:
            return str(folder) if len(group) > 1 or group[0][0].packed else str(path)
    return str(path)


def merged(evidence: Iterable[Evidence]) -> Evidence:
    """Several files about one host as one; of two that answer the same, the later counts."""
    whole = Evidence()
    for one in evidence:
        whole = Evidence(
            readings=tuple(dict.fromkeys(whole.readings + one.readings)),
            smi_errors=tuple(dict.fromkeys(whole.smi_errors + one.smi_errors)),
            smi_run=one.smi_run or whole.smi_run,
            kernel=_logs(whole.kernel, one.kernel),
            pci=one.pci if one.pci is not None else whole.pci,
            table=one.table or whole.table,
            host=replace(whole.host, **dict(_said(one.host))),
        )
    return whole


def _said(host: Host) -> Iterator[tuple[str, Any]]:
    empty = Host()
    for name in Host.__dataclass_fields__:
        value = getattr(host, name)
        if value != getattr(empty, name):
            yield name, value


def _logs(first: KernelLog | None, second: KernelLog | None) -> KernelLog | None:
    if first is None or second is None:
        return second or first
    # Of a log and its rotated predecessor the younger one knows when the host booted last.
    booted = max(first.booted or 0.0, second.booted or 0.0)
    events = dict.fromkeys(first.events + second.events)
    kept = tuple(e for e in events if not (e.seconds and klog.ABSOLUTE < e.seconds < booted))
    return KernelLog(
        events=kept,
        lines=first.lines + second.lines,
        earlier_boots=first.earlier_boots + second.earlier_boots + len(events) - len(kept),
        suppressed=first.suppressed + second.suppressed,
        host=first.host or second.host,
        booted=booted or None,
    )
