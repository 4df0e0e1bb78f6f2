"""Read `nvidia-smi -q -x`, drivers 418 to 610, also when it breaks off.

The document is read as a stream: what was complete before a break is kept. Declarations that could make a small file
large or fetch another one are refused; the external DTD that every real file names is never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from xml.parsers import expat

from opsctl.errors import Unreadable
from opsctl.gpu.model import Gpu, Reading
from opsctl.gpu.read import fields

MAX_BYTES = 32 << 20
MAX_DEPTH = 24
_ROOT = "nvidia_smi_log"


def read(text: str) -> Reading:
    """Raises Unreadable for a hostile document and for one without a single complete value."""
    if len(text) > MAX_BYTES:
        raise Unreadable(f"nvidia-smi XML of {len(text)} characters: more than {MAX_BYTES}")
    builder = _Builder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.entity
    broken: str | None = None
    try:
        parser.Parse(text.lstrip("\ufeff \t\r\n").encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        broken = f"{expat.ErrorString(error.code)} at line {error.lineno}"
    if broken and not builder.head and not builder.gpus:
        raise Unreadable(f"not readable as nvidia-smi XML: {broken}")
    builder.finish_cut_gpu()
    head = builder.head
    attached = _count(head.get("attached_gpus"))
    gpus = builder.gpus
    if attached and not broken and len(gpus) < attached:  # some are left out: which numbers these have is not said
        gpus = [replace(gpu, ref=replace(gpu.ref, index=None)) for gpu in gpus]
    return Reading(
        source="xml",
        gpus=tuple(gpus),
        driver=fields.text(head.get("driver_version")) or fields.text(head.get("kmd_version")),
        cuda=fields.text(head.get("cuda_version")) or fields.text(head.get("cuda_umd_version")),
        attached=attached,
        truncated=broken,
    )


def _count(cell: str | None) -> int | None:
    number = fields.number(cell)
    return None if number is None else int(number)


@dataclass
class _Builder:
    """Collects path -> text for the head and for each GPU."""

    head: dict[str, str] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    bus_id: str | None = None
    cells: dict[str, str] | None = None
    processes: list[tuple[str, str, str, str]] | None = None
    process: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self.stack and name != _ROOT:
            raise Unreadable(f"XML, but not of nvidia-smi: it begins with <{name}>")
        if len(self.stack) >= MAX_DEPTH:
            raise Unreadable("XML nested too deeply for nvidia-smi")
        self.stack.append(name)
        self.text.clear()
        if self.stack == [_ROOT, "gpu"]:
            self.bus_id, self.cells, self.processes = attributes.get("id"), {}, None
        elif self._inside("processes"):
            self.processes = []
        elif self._inside("processes", "process_info"):
            self.process = {}

    def data(self, data: str) -> None:
        self.text.append(data)

    def end(self, name: str) -> None:
        said = "".join(self.text).strip()
        self.text.clear()
        if len(self.stack) >= 3 and self.cells is not None:
            path = self.stack[2:]
            if path[:2] == ["processes", "process_info"]:
                self._end_process(path, said)
            elif path[0] not in ("supported_clocks", "accounted_processes") and said:
                self.cells.setdefault("/".join(path), said)
        elif self.stack == [_ROOT, "gpu"]:
            self._finish()
        elif len(self.stack) == 2:
            self.head[name] = said
        self.stack.pop()

    def doctype(self, name: str, system: str | None, public: str | None, has_internal_subset: bool) -> None:
        if has_internal_subset:
            raise Unreadable("XML with declarations of its own: nvidia-smi writes none")

    def entity(self, *_: object) -> None:
        raise Unreadable("XML with entity declarations: nvidia-smi writes none")

    def finish_cut_gpu(self) -> None:
        if self.cells is not None:
            self._finish()

    def _inside(self, *names: str) -> bool:
        return self.stack == [_ROOT, "gpu", *names]

    def _end_process(self, path: list[str], said: str) -> None:
        if len(path) == 3:
            self.process[path[2]] = said
        elif self.processes is not None:
            p = self.process
            self.processes.append(
                (p.get("pid", ""), p.get("type", ""), p.get("process_name", ""), p.get("used_memory", ""))
            )

    def _finish(self) -> None:
        assert self.cells is not None
        listed = None if self.processes is None else fields.processes(self.processes)
        self.gpus.append(fields.gpu(self.cells, "xml", index=len(self.gpus), listed_as=self.bus_id, processes=listed))
        self.cells = None
