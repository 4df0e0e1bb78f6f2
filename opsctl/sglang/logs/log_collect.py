"""Collect a log bundle from one host: survey, gather (redacted there), judge, pack.

What it says is made here, of parts that have been redacted already, or of answers that hold settings and source code
only: a summary of its log, the health of its host, causes, the state of its source.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from opsctl import __version__
from opsctl.errors import OpsctlError, RemoteError, Unreadable, UsageError
from opsctl.gpu.judge import judge
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted
from opsctl.inventory.model import SglangSettings
from opsctl.runname import meant
from opsctl.secret import Secret, revealed
from opsctl.sglang.logs import log_lines, log_parts, log_survey, timeline
from opsctl.text import one_line, printable, size
from opsctl.wire.calls.core import history_list
from opsctl.wire.calls.logs import Entry, Manifest, Part, Scan, collect_bundle, logfiles_look
from opsctl.wire.calls.server import Begun, startlog_of_run
from opsctl.wire.host import Host
from opsctl.wire.protocol import AgentError, Call, Reply
from opsctl.wire.redact import Redactor, known_values, mask

_LONGEST = 900.0  # seconds for everything a host gathers; each part has its own, shorter limit
_MOST_FAILED = 6  # parts that are named
_BEFORE_RUN = 300.0  # seconds of the log before a run that are of interest


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a bundle.

    Args:
        since: seconds back; None for the usual amount.
        run: a run of opsctl, whose journal is added.
        include, exclude: names or patterns of parts.
        more: also mask addresses, host names, serial numbers and UUIDs.
        keep_prompts: leave what users wrote.
        begun: where the server's log begins, for the start that the run made; see `startlog.mark`.
    """

    since: float | None = None
    run: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    more: bool = False
    keep_prompts: bool = False
    begun: Begun | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A host as the inventory has it. secrets: all it knows of this host; `settings`: its `sglang` section."""

    name: str
    settings: SglangSettings
    wanted: Wanted
    secrets: Sequence[Secret] = ()


@dataclass(frozen=True, slots=True)
class Collected:
    """A bundle that was written.

    Attributes:
        size: of the file, in bytes; `travelled`: bytes of parts that crossed the wire; `masked`: values masked there.
        failed: parts that failed, with the reason.
    """

    path: Path
    size: int
    travelled: int
    parts: int
    masked: int
    failed: Mapping[str, str]
    notes: tuple[str, ...]
    log: timeline.Summary | None = None

    def to_json(self) -> dict[str, Any]:
        error = self.log.first_error if self.log else None
        return {
            "path": str(self.path), "size": self.size, "travelled": self.travelled, "parts": self.parts,
            "masked": self.masked, "failed": dict(self.failed), "notes": list(self.notes),
            "first_error": error.document() if error else None,
        }  # fmt: skip


Tell = Callable[[str, float | None], None]


@dataclass(slots=True)
class _Job:
    host: Host
    source: Source
    wish: Wish
    tell: Tell
    notes: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)

    def learn(self) -> None:
        """Look up the host's own secrets. One that cannot be had is noted: it is masked by its form alone."""
        for secret in self.source.secrets:
            try:
                self.known.append(secret.reveal())
            except UsageError as error:
                self.notes.append(f"not masked by its value, only by its form: {error.message}")

    def gather(self, parts: list[Part], spool: Spool) -> Manifest:
        def take(data: Any, body: bytes) -> None:
            if "part" in data:
                spool.take(str(data["part"]), body)
            else:
                read = float(data["read"]) / 1e6
                self.tell(f"{data['done']} of {data['of']} parts, {read:.0f} MB read", data["done"] / data["of"])

        call = collect_bundle(
            parts,
            more=self.wish.more,
            hosts=[self.source.name],
            keep_prompts=self.wish.keep_prompts,
            body=self.sealed(),
        )
        return self.host.call(call, timeout=_LONGEST, on_progress=take).result

    def sealed(self) -> bytes:
        """The secrets as the body of a call that redacts."""
        return json.dumps(self.known).encode()

    def ask(self, call: Call[Any]) -> Reply[Any]:
        return self.host.call(call, timeout=120)

    def redacted(self, text: str) -> str:
        """What was made here, of texts from which the prompts are gone already."""
        return Redactor(self.known, more=self.wish.more, hosts=[self.source.name], keep_prompts=True).text(text)

    def derive(self, name: str, make: Callable[[], Iterator[tuple[str, str]]], spool: Spool) -> None:
        """Add what is made here. A failure is noted and fails nothing."""
        if not log_parts.wanted(name, self.wish.include, self.wish.exclude):
            return
        try:
            for made, text in make():
                if log_parts.wanted(made, self.wish.include, self.wish.exclude):
                    spool.add(made, self.redacted(text))
        except (OpsctlError, ValueError, KeyError, TypeError) as error:
            # Answers of hosts of any age are judged here; the bundle holds what they were made of.
            self.notes.append(self.redacted(f"{name}: {one_line(str(error)) or type(error).__name__}"))


def collect(host: Host, source: Source, wish: Wish, target: Callable[[str], Path], tell: Tell) -> Collected:
    """Make one bundle. target: the file for a bundle of this name.

    Raises RemoteError, Unreachable; UsageError where the file cannot be written.
    """
    job = _Job(host, source, wish, tell)
    job.learn()
    tell("looking for the server", None)
    server = log_survey.survey(lambda call: host.call(call, timeout=60), source.settings, source.wanted, source=True)
    parts = log_parts.select(log_parts.parts(server, wish.since, wish.run, wish.begun), wish.include, wish.exclude)
    # The host masks what is its own. Secrets of other hosts are not told to it, but masked here.
    spool = Spool([part["name"] for part in parts], known_values([*job.known, *revealed()]))
    try:
        manifest = job.gather(parts, spool)
        tell("judging", None)
        log = _judge(job, server, spool)
        label = mask("host", source.name.encode()).decode() if wish.more else source.name
        name = f"logs-{re.sub(r'[^A-Za-z0-9_.-]+', '-', label).strip('-')}-{datetime.now():%Y%m%d-%H%M%S}"
        document = _manifest(manifest, job, label, spool.received)
        path = target(name)
        size = spool.pack(path, name, document)
        return Collected(
            path, size, spool.received, len(manifest["parts"]), sum(p["masked"] for p in manifest["parts"]),
            {p["name"]: _trouble(p) for p in manifest["parts"] if _trouble(p)}, tuple(job.notes), log,
        )  # fmt: skip
    finally:
        spool.close()


def _judge(job: _Job, server: log_parts.Server, spool: Spool) -> timeline.Summary | None:
    """Add what the parts say together. The timeline of the log, if there is a log."""
    logs = [path for name in ("server.log", "journal.log", "container.log") if (path := spool.path(name))]
    scan = timeline.scan_files(logs[:1]) if logs else None
    # A run that made no start explains itself by the one that serves.
    log = timeline.build(scan, current=job.wish.run is not None and job.wish.begun is None) if scan else None
    if log:
        job.derive("summary.json", lambda: summary(log), spool)
    if evidence := spool.text(log_parts.EVIDENCE):
        job.derive("health.json", lambda: health(job.source.name, evidence, job.source.wanted), spool)
    job.derive("diagnosis.json", lambda: diagnosis(job.ask, scan, server.port), spool)
    if source := server.source:
        job.derive("patches.json", lambda: patches(job.ask, source), spool)
    return log


def _manifest(told: Manifest, job: _Job, label: str, received: int) -> dict[str, Any]:
    return {
        "opsctl": __version__,
        "host": label,
        "made": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "since_seconds": job.wish.since,
        "run": job.wish.run,
        "redaction": {
            "where": "on the host, before anything travelled",
            "values_known": len(job.known),
            "prompts": "kept" if job.wish.keep_prompts else "masked",
            "identities": "masked" if job.wish.more else "kept",
        },
        "travelled": received,
        "cpu_seconds": told["cpu_seconds"],
        "notes": job.notes,
        "parts": told["parts"],
    }


def _trouble(part: Entry) -> str:
    if part["error"]:
        return one_line(part["error"])
    fine = (0, None, *log_parts.FINE.get(part["name"], ()))
    return "" if part["exit"] in fine else f"exit code {part['exit']}"


def of_run(wish: Wish, host: Host) -> Wish:
    """The wish with the run's whole name, and from a little before its begin on. Raises UsageError if there is none.

    The log of the server begins at the start that the run has made, if it made one: an older crash explains nothing.
    """
    if wish.run is None:
        return wish
    runs = host.call(history_list(100), timeout=60).result["runs"]
    run = meant(wish.run, [str(one["run"]) for one in runs], "on this host")
    begun = next(one["begun"] for one in runs if one["run"] == run)
    now = host.call(logfiles_look(), timeout=60).result["now"]
    start = host.call(startlog_of_run(run), timeout=60).result
    return replace(wish, run=run, since=max(0.0, float(now) - float(begun)) + _BEFORE_RUN, begun=start)


def told(host: str, made: Collected) -> Iterator[str]:
    """What a bundle is, in words."""
    yield f"{host}: {made.path}"
    yield f"  {size(made.size)}, {made.parts} parts, {size(made.travelled)} travelled, {made.masked} values masked"
    if made.failed:
        told = [f"{name} ({why})" for name, why in list(made.failed.items())[:_MOST_FAILED]]
        more = f", and {len(made.failed) - _MOST_FAILED} more" if len(made.failed) > _MOST_FAILED else ""
        yield f"  not there: {', '.join(told)}{more}"
    for note in made.notes:
        yield f"  note: {one_line(note)}"
    error = made.log.first_error if made.log else None
    if error:
        yield f"  first error in the log: {error.at or '?'}: {one_line(error.message, 160)}"
        if error.cause:
            yield f"    → {one_line(error.cause, 200)}"


AskHost = Callable[[Call[Any]], Reply[Any]]


def summary(found: timeline.Summary) -> Iterator[tuple[str, str]]:
    """The timeline, for programs and for people."""
    yield "summary.json", _json(timeline.document(found))
    yield "summary.txt", "\n".join(printable(line) for line in log_lines.lines(found)) + "\n"


def health(host: str, evidence: str, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """evidence: the answer of gpu.gather, as collected. Raises ValueError if it has been cut."""
    found = json.loads(evidence)
    report = judge(host, gathered.evidence(found, wanted), wanted.settings)
    yield "health.json", _json(report.as_json())
    told = str((found.get("smi") or {}).get("text", ""))
    if "<?xml" in told:
        yield "gpus.xml", told


def diagnosis(ask: AskHost, log: Scan | None, port: int | None) -> Iterator[tuple[str, str]]:
    """The drafter's check and what else bears on acceptance. log: the scan of it.

    The log is not read again, which takes long, and the server is not asked: it would answer with its keys.
    """
    from opsctl.sglang.diagnosis import gather
    from opsctl.sglang.diagnosis.causes import CAUSES
    from opsctl.sglang.diagnosis.hypotheses import diagnose, to_json
    from opsctl.sglang.diagnosis.seen import evidence

    def connect(port: int) -> Any:
        raise RemoteError("not asked, since it would answer with its keys")

    def one(call: Call[Any]) -> Reply[Any] | Exception:
        if call.name == "serverlog.scan":
            return Reply(log) if log is not None else RemoteError("the log was not collected")
        try:
            return ask(call)
        except (OpsctlError, AgentError) as error:
            return error

    asked = gather.Asked(port, log="collected", usual_port=port)
    seen = gather.look(lambda calls: [one(call) for call in calls], connect, asked)
    faults = [asdict(fault) for fault in seen.faults or ()]
    document = {"drafter_check": None if seen.faults is None else faults, "notes": list(seen.notes)}
    yield "diagnosis.json", _json(document | to_json(diagnose(evidence(seen), CAUSES)))


def patches(ask: AskHost, source: str) -> Iterator[tuple[str, str]]:
    """How the source tree stands to every known patch."""
    from opsctl.sglang.patches import patchset
    from opsctl.sglang.source.tree import load

    chosen = patchset.select()
    tree = load(ask, source, patchset.classes(chosen), patchset.files(chosen))
    yield "patches.json", _json(patchset.plan(tree, chosen).report.to_json())


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"


MOST_PIECE = 16 << 20  # bytes of one unpacked piece; the agent sends one of them per MiB read
MOST_PART = 256 << 20
_LEVEL = 9


class Spool:
    """The parts of one bundle while they come in, in a folder of their own that goes with the object.

    Args:
        names: the parts that were asked for; nothing else is taken from the host.
        hide: what this side still has to mask; gets whole lines.
    """

    def __init__(self, names: Collection[str], hide: Callable[[bytes], bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="opsctl-logs-")
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._sizes = dict.fromkeys(names, 0)
        self._hide = hide
        self.received = 0  # bytes, as they travelled

    def take(self, name: str, packed: bytes) -> None:
        """A piece from the host. Raises Unreadable for what no host of ours would send."""
        if name not in self._numbers:
            raise Unreadable(f"the host sent a part that was not asked for: {name!r}")
        opened = zlib.decompressobj()
        try:
            data = opened.decompress(packed, MOST_PIECE)
        except zlib.error as error:
            raise Unreadable(f"the host sent a damaged piece of {name}: {error}") from None
        self._sizes[name] += len(data)
        if opened.unconsumed_tail or self._sizes[name] > MOST_PART:
            raise Unreadable(f"the host sent more of {name} than a part may have")
        self.received += len(packed)
        self._append(name, data)

    def add(self, name: str, text: str) -> None:
        """A part that was made here."""
        self._numbers.setdefault(name, len(self._numbers))
        self._append(name, text.encode("utf-8", "surrogateescape"))

    def path(self, name: str) -> Path | None:
        """Where a part lies, None if nothing of it came."""
        path = self._place(name) if name in self._numbers else None
        return path if path and path.exists() else None

    def text(self, name: str) -> str | None:
        path = self.path(name)
        return path.read_text("utf-8", "replace") if path else None

    def pack(self, target: Path, folder: str, manifest: Mapping[str, Any]) -> int:
        """Write everything as `target`, all in `folder`; readable by its owner alone. Its size. Raises UsageError."""
        import zstandard

        document = json.dumps(manifest, indent=2, ensure_ascii=False).encode("utf-8", "replace")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with (
                os.fdopen(handle, "wb") as file,
                zstandard.ZstdCompressor(_LEVEL).stream_writer(file) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                _member(archive, f"{folder}/manifest.json", io.BytesIO(self._hide(document)), None)
                for name in self._numbers:
                    if path := self.path(name):
                        with path.open("rb") as source:
                            _member(archive, f"{folder}/{name}", source, path.stat().st_size)
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UsageError(f"cannot write {target}: {error.strerror}", hint="name another place with -o") from None
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return target.stat().st_size

    def close(self) -> None:
        self._folder.cleanup()

    def _append(self, name: str, data: bytes) -> None:
        if data:
            with self._place(name).open("ab") as file:
                file.write(self._hide(data))

    def _place(self, name: str) -> Path:
        return Path(self._folder.name) / f"{self._numbers[name]}"


def _member(archive: tarfile.TarFile, name: str, source: Any, size: int | None) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(source.getvalue()) if size is None else size
    entry.mtime, entry.mode = int(time.time()), 0o600
    archive.addfile(entry, source)
