"""Evidence from files, told apart by their content: outputs of nvidia-smi, lspci, kernel logs, /proc files, bundles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from opsctl.errors import Unreadable
from opsctl.gpu import hosttext, klog, lspci, smi_csv, smi_errors, smi_list, smi_table, smi_text, smi_xml
from opsctl.gpu.bundle import Member
from opsctl.gpu.model import Evidence, Host, KernelLog, Reading

_SECTION = re.compile(r"^#{20,}\n# (?P<part>[^\n]*?) :: [^\n]*\n(?:# \$[^\n]*\n)?#{20,}\n", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # a terminal's colours and underlines, pasted along
_XML = re.compile(r"<\?xml|<!DOCTYPE nvidia_smi_log|<nvidia_smi_log")
_XML_END = "</nvidia_smi_log>"
_NO_NUMBER = re.compile(r"\d{1000}")  # nothing here counts so far, and Python refuses to
_LONGEST_HEADER = 16384  # all columns that nvidia-smi knows take a third of it
_PREFERRED = ("xml", "text", "csv", "table", "list")


def read(text: str, name: str) -> Evidence | None:
    """What `text` says about a host; None when it is nothing we know. An empty file is empty evidence.

    Raises Unreadable for XML that is hostile or without a single value, and for numbers nobody writes.
    """
    text = _ANSI.sub("", text.removeprefix("\ufeff")).replace("\r\n", "\n").replace("\r", "\n")
    if _NO_NUMBER.search(text):
        raise Unreadable("a number of more than a thousand digits", where=name or None)
    start = text.lstrip()
    if not start:
        return Evidence()
    if start.startswith(("<?xml", "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log")):
        return _with_xml(text, 0)
    if _SECTION.search(text):
        return _sections(text)
    if (among := _XML.search(text)) and "<nvidia_smi_log" in text:
        return _with_xml(text, among.start())
    runs = smi_errors.recorded_runs(text) if start[0] in "[{" else None
    if runs is not None:
        return Evidence(smi_errors=runs)
    return _plain(text)


def _with_xml(text: str, start: int) -> Evidence:
    """The answer, and what a terminal or nvidia-smi's own warnings put before and after it."""
    _, mark, after = text[start:].partition(_XML_END)
    answer = Evidence(readings=(smi_xml.read(text[start : len(text) - len(after)] if mark else text[start:]),))
    around = [read(part, "") for part in (text[:start], after) if part.strip()]
    return merged([answer, *(e for e in around if e)])


def _plain(text: str) -> Evidence | None:
    refused = smi_errors.read(text)
    reading = _reading(text)
    if reading or refused:
        log = klog.read(text)
        kernel = log if log.events else None  # pasted into the same file
        return Evidence(readings=(reading,) if reading else (), smi_errors=refused, kernel=kernel)
    if lspci.HEADER.search(text) and not klog.looks_like(text):
        return Evidence(pci=lspci.read(text))
    if smi_list.uninformative(text):
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
    if smi_table.MARK.search(text):
        return smi_table.read(text)
    first = next((line for line in text.splitlines() if line.strip()), "")[:_LONGEST_HEADER]
    return smi_csv.read(text) if smi_csv.header(first) else smi_list.read(text)


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

    Files are taken to be of one host unless they list different GPUs: then each folder, or each file, is one.
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
    identities = {identity for _, e in found if (identity := _identity(e))}
    if len(identities) <= 1:
        return [(", ".join(dict.fromkeys(m.origin for m, _ in found)), merged(e for _, e in found))]
    groups: dict[str, list[Evidence]] = {}
    for member, evidence in found:
        groups.setdefault(member.folder if member.packed else member.name, []).append(evidence)
    return [(name, merged(group)) for name, group in groups.items()]


def _identity(evidence: Evidence) -> frozenset[str]:
    """What tells hosts apart: the GPUs' bus ids with their UUIDs."""
    return frozenset(f"{g.ref.bus_id}".lower()[-12:] for r in evidence.readings for g in r.gpus)


def merged(evidence: Iterable[Evidence]) -> Evidence:
    """Several files about one host as one; of two that answer the same, the later counts."""
    whole = Evidence()
    for one in evidence:
        whole = Evidence(
            readings=whole.readings + one.readings,
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
    return KernelLog(
        events=tuple(dict.fromkeys(first.events + second.events)),
        lines=first.lines + second.lines,
        earlier_boots=first.earlier_boots + second.earlier_boots,
        suppressed=first.suppressed + second.suppressed,
    )
