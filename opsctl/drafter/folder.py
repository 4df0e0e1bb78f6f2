"""A checkpoint folder as the checks see it: files, config, tensors, mapping tables, samples."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opsctl import this_machine
from opsctl.drafter.settings import Settings, of_drafter
from opsctl.errors import OpsctlError, RemoteError, UsageError
from opsctl.wire.calls import checkpoint
from opsctl.wire.calls.checkpoint import checkpoint_config, checkpoint_gather
from opsctl.wire.protocol import AgentError, Call, Reply

Reader = Callable[[Call[Any]], Reply[Any]]
QUANTIZATION = "hf_quant_config.json"  # ModelOpt's; read where config.json says nothing of quantisation


class Tensor(NamedTuple):
    """One tensor of one file: its bytes are file[start:end]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int


class Sample(NamedTuple):
    """What was read of a tensor's payload."""

    blocks: int
    zero_blocks: int
    nonfinite_blocks: int
    size: int


class Rows(NamedTuple):
    """Rows of a matrix that were read, how many of them are like another, and some such pairs."""

    read: int
    alike: int
    pairs: tuple[tuple[int, int], ...]


class File(NamedTuple):
    name: str
    kind: str
    size: int
    mtime: int
    inode: int
    link: str | None
    outside: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file could not be read. `code`: one word, as wire.calls.checkpoint.Problem has it."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Container:
    """One weight file."""

    file: str
    tensors: tuple[Tensor, ...]
    samples: Mapping[str, Sample]
    problem: Problem | None
    rows: Mapping[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folder:
    """A gathered folder. Raw config and index may be missing, with a problem that says why."""

    path: str
    files: tuple[File, ...]
    raw_config: Mapping[str, Any] | None
    config_problem: Problem | None
    weight_map: Mapping[str, str] | None
    index_problem: Problem | None
    containers: tuple[Container, ...]
    tables: Mapping[tuple[str, str], bytes]
    full: bool
    digest: str
    duplicate_keys: tuple[str, ...] = field(default=())
    raw_quantization: Mapping[str, Any] | None = None
    quantization_problem: Problem | None = None
    follow_links: bool = False
    there: bool = False  # on a host, not on this machine

    @property
    def pickled(self) -> bool:
        """Whether the weights the server would take are pickles."""
        return any(not c.file.endswith(".safetensors") for c in self.containers)

    @property
    def oversized(self) -> bool:
        """Whether it holds more than was read: a whole model has more tensors than any draft model."""
        return any(c.problem is not None and c.problem.code == "count" for c in self.containers)

    def loaded(self) -> tuple[Container, ...]:
        """The weight files a server loads, in its order: those the index names, else all (weight_utils.py)."""
        if self.weight_map is None or self.pickled:
            files = [c.file for c in self.containers]
            # Mistral's habit: the same weights once more in one file, which the server leaves out.
            mistral = (
                len(files) == 2 and files[0] == "consolidated.safetensors" and files[1].endswith("model.safetensors")
            )
            return self.containers[1:] if mistral else self.containers
        named = set(self.weight_map.values())
        return tuple(c for c in self.containers if c.file in named)

    def missing_shards(self) -> tuple[str, ...]:
        have = {f.name for f in self.files}
        return tuple(sorted(set((self.weight_map or {}).values()) - have))

    @property
    def settings(self) -> Settings | None:
        """The config, a speculators one lifted to the flat layout."""
        return None if self.raw_config is None else of_drafter(self.raw_config)

    @property
    def convert_command(self) -> str:
        """The command that makes this folder loadable by SGLang."""
        return convert_command(self.path, there=self.there)

    @property
    def speculators(self) -> bool:
        return self.raw_config is not None and Settings(self.raw_config).speculators


def convert_command(path: str, *, there: bool) -> str:
    """The command that makes a folder loadable by SGLang. It is for this machine: a host's has to be brought here."""
    if there:
        return f"opsctl drafter convert COPY NEW, where COPY is a copy on this machine of {path}"
    return f"opsctl drafter convert {shlex.quote(path)} NEW"


def open_folder(
    path: str, read: Reader = this_machine.call, *, full: bool = False, follow_links: bool = False, there: bool = False
) -> Folder:
    """Gather the folder at `path`. Raises UsageError when there is none, RemoteError from a host.

    there: `read` reads from a host, not from this machine.
    """
    try:
        reply = read(checkpoint_gather(path, full, follow_links))
    except AgentError as error:
        raise _explained(error, path) from None
    result: checkpoint.Gathered = reply.result
    body = reply.body
    containers = tuple(_container(raw) for raw in result["containers"])
    raw_config, config_problem, repeated = _object(result["config"])
    raw_index, index_problem, _ = _object(result["index"], strict=True)
    raw_quantization, quantization_problem, _ = _object(result["quantization"])
    weight_map = None
    if raw_index is not None:
        weight_map, index_problem = _weight_map(raw_index)
    return Folder(
        path=path,
        files=tuple(map(_file, result["files"])),
        raw_config=raw_config,
        config_problem=config_problem,
        weight_map=weight_map,
        index_problem=index_problem if result["index"]["present"] else None,
        containers=containers,
        tables={(t["file"], t["name"]): body[t["offset"] : t["offset"] + t["length"]] for t in result["tables"]},
        full=result["full"],
        digest=f"quick-sha256:{result['digest']}",
        duplicate_keys=repeated,
        raw_quantization=raw_quantization,
        quantization_problem=quantization_problem if result["quantization"]["present"] else None,
        follow_links=follow_links,
        there=there,
    )


def read_config(path: str, read: Reader = this_machine.call) -> Settings:
    """The config.json of a target folder; its weights, hundreds of gigabytes, are left alone. Raises UsageError."""
    try:
        reply = read(checkpoint_config(path))
    except AgentError as error:
        raise _explained(error, path) from None
    raw, problem, _ = _object(reply.result)
    if raw is None:
        why = problem.text if problem else "missing"
        raise UsageError(
            f"config.json of the target cannot be used: {why}", where=path, hint="name the target's folder"
        )
    return Settings(raw)


def _explained(error: AgentError, path: str) -> OpsctlError:
    hint = "give the checkpoint's folder"
    if error.kind == "not-found":
        return UsageError("there is no such folder", where=path, hint=hint)
    if error.kind == "invalid":
        return UsageError(error.message, where=path, hint=hint)
    return RemoteError(error.message, kind=error.kind, where=path)


def _file(raw: checkpoint.Entry) -> File:
    return File(
        raw["name"], raw["kind"], raw["size"], raw["mtime"], raw["inode"], link=raw["link"], outside=raw["outside"]
    )


def _container(raw: checkpoint.Container) -> Container:
    tensors = tuple(Tensor(name, dtype, tuple(shape), raw["file"], a, b) for name, dtype, shape, a, b in raw["tensors"])
    samples = {t.name: Sample(*counts) for t, counts in zip(tensors, raw["samples"], strict=False)}
    rows = {
        name: Rows(found["read"], found["alike"], tuple((i, j) for i, j in found["pairs"]))
        for name, found in raw["rows"].items()
    }
    return Container(raw["file"], tensors, samples, _problem(raw["problem"]), rows)


def _problem(raw: checkpoint.Problem | None) -> Problem | None:
    return Problem(raw["code"], raw["text"]) if raw else None


def _object(
    raw: checkpoint.JsonText, strict: bool = False
) -> tuple[dict[str, Any] | None, Problem | None, tuple[str, ...]]:
    """A JSON object from untrusted text, why there is none, and keys that appear twice."""
    if raw["text"] is None:
        return None, _problem(raw["problem"]) or Problem("missing", "missing"), ()
    if disguised := _disguised(raw["text"]):
        return None, disguised, ()
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            counts = Counter(key for key, _ in items)
            repeated.extend(key for key, count in counts.most_common(8) if count > 1)
        return result

    try:
        value = json.loads(raw["text"], object_pairs_hook=pairs, parse_int=_short_int)
    except RecursionError:
        return None, Problem("json", "nested too deeply"), ()
    except json.JSONDecodeError as error:
        return None, Problem("json", f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"), ()
    except ValueError as error:
        return None, Problem("json", str(error)), ()
    if not isinstance(value, dict):
        return None, Problem("json", "not a JSON object"), ()
    if strict and repeated:
        return None, Problem("duplicate", f"key {repeated[0][:80]!r} appears twice"), ()
    return value, None, tuple(repeated)


def _disguised(text: str) -> Problem | None:
    """What was saved in place of a JSON file, where that can be told."""
    if text.startswith("version https://git-lfs"):
        return Problem("lfs-pointer", "a git-lfs pointer, not the file itself")
    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        return Problem("html", "an HTML or XML page saved in place of the file")
    return None


def _short_int(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _weight_map(raw: Mapping[str, Any]) -> tuple[dict[str, str] | None, Problem | None]:
    entries = raw.get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(file, str) for file in entries.values()):
        return None, Problem("index", "no weight_map of tensor names to file names")
    for name, file in entries.items():
        if "/" in file or "\\" in file or file in ("", ".", "..") or not file.isprintable():
            return None, Problem("escape", f"weight_map sends {name[:80]!r} out of the folder: {file[:120]!r}")
        if not name.isprintable():
            return None, Problem("name", f"weight_map names a tensor with control characters: {name[:80]!r}")
    if len(entries) > 65536:
        return None, Problem("count", f"{len(entries)} entries")
    return entries, None
