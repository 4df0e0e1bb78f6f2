"""Read the text of `nvidia-smi -q`, drivers 418 to 610, by its indentation."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.gpu.model import Gpu, Reading
from opsctl.gpu.read import fields, words

MARK = "NVSMI LOG"
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_PAIR = re.compile(r"^(\s*)(\S.*?)\s*:(?:\s+(.*))?$")
_PAIR_SPACED = re.compile(r"^(\s*)(\S.*?)\s+:(?:\s+(.*))?$")
# A heading's cells, and everything below them, in order of appearance.
_Rows = list[tuple[str, str]]


def read(text: str) -> Reading:
    head: dict[str, str] = {}
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if opened := _GPU.match(line):
            blocks.append((opened[1], []))
        elif blocks:
            blocks[-1][1].append(line)
        elif pair := _PAIR.match(line):
            head.setdefault(pair[2].lower(), (pair[3] or "").strip())
    parsed = [_rows(lines) for _, lines in blocks]
    attached = words.number(head.get("attached gpus"))
    cut = _cut(parsed, attached)
    if cut and blocks and not text.endswith("\n"):
        # The last line may be half of one: "Used : 65" of "Used : 65720 MiB".
        parsed[-1] = _rows(blocks[-1][1][:-1])
    return Reading(
        source="text",
        gpus=tuple(_gpu(i, bus, rows) for i, ((bus, _), rows) in enumerate(zip(blocks, parsed, strict=True))),
        driver=_version(head.get("driver version") or head.get("kmd version")),
        cuda=_version(head.get("cuda version") or head.get("cuda umd version")),
        attached=None if attached is None else int(attached),
        truncated=cut,
    )


def _gpu(index: int, bus_id: str, rows: _Rows) -> Gpu:
    cells: dict[str, str] = {}
    for path, value in rows:
        cells.setdefault(path, value)
    told = any(path.split("/")[0] == "processes" for path, _ in rows)
    listed = fields.processes(_processes(rows)) if told else None
    return fields.gpu(cells, "text", index=index, listed_as=bus_id, processes=listed)


def _rows(lines: Iterable[str]) -> _Rows:
    """(path, value) per line, in order: lower case, levels joined by '/'. A heading is a row with an empty value."""
    rows: _Rows = []
    stack: list[tuple[int, str]] = []
    for line in lines:
        if not line.strip():
            continue
        pair = _PAIR_SPACED.match(line)
        indent = len(line) - len(line.lstrip())
        name = (pair[2] if pair else line.strip()).lower()
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, name))
        rows.append(("/".join(n for _, n in stack), (pair[3] or "").strip() if pair else ""))
    return rows


def _processes(rows: _Rows) -> list[tuple[str, str, str, str]]:
    found: list[dict[str, str]] = []
    for path, value in rows:
        top, _, rest = path.partition("/")
        if top != "processes" or not rest:
            continue
        name = rest.rpartition("/")[2]
        if name == "process id":
            found.append({"process id": value})
        elif found:
            found[-1].setdefault(name, value)
    return [(p["process id"], p.get("type", ""), p.get("name", ""), p.get("used gpu memory", "")) for p in found]


def _cut(blocks: list[_Rows], attached: float | None) -> str | None:
    """How it shows that the text breaks off: a full listing ends each GPU with its processes."""
    if not blocks:
        return "no GPU follows the heading" if attached else None
    names = {path.split("/")[0] for path, _ in blocks[-1]}
    if "product name" in names and "processes" not in names:
        return f"breaks off in GPU {len(blocks)} of {attached:.0f}" if attached else "breaks off"
    if attached and len(blocks) < attached:
        # Unlike XML, text has no end mark: this may be a cut between two GPUs.
        return f"ends after GPU {len(blocks)} of {attached:.0f}"
    return None


def _version(cell: str | None) -> str | None:
    """610 appends a remark in brackets to the number."""
    said = words.text(cell)
    return said.split()[0] if said else None
