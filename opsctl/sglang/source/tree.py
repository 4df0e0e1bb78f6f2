"""A source tree as the controller sees it: the files that matter, gathered in one answer."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.errors import RemoteError, UsageError
from opsctl.sglang.source import treeversion
from opsctl.text import nearest
from opsctl.wire.calls.source import Gathered, source_gather
from opsctl.wire.protocol import AgentError, Call, Reply

Reader = Callable[[Call[Any]], Reply[Any]]

_MOST = 64 << 20  # bytes of source that the controller takes from a host

DRAFTER = "srt/models/llama_eagle3.py"
LLAMA = "srt/models/llama.py"
KIMI = "srt/models/kimi_k25.py"
MODEL_RUNNER = "srt/model_executor/model_runner.py"
GRAPH_RUNNER = "srt/model_executor/cuda_graph_runner.py"
GRAPH_RUNNER_NEW = "srt/model_executor/runner/decode_cuda_graph_runner.py"  # since 0.5.14
CAPTURE_SETUP = "srt/model_executor/model_runner_components/attention_backend_setup.py"  # since 0.5.18
WORKERS = ("srt/speculative/eagle_worker.py", "srt/speculative/eagle_worker_v2.py")
METRICS = (
    "srt/managers/scheduler_metrics_mixin.py",  # 0.4.10 to 0.5.9
    "srt/observability/scheduler_metrics_mixin.py",  # 0.5.10 to 0.5.12
    "srt/managers/scheduler_components/metrics_reporter.py",  # since 0.5.13
)
FILES = (
    DRAFTER,
    LLAMA,
    KIMI,
    MODEL_RUNNER,
    GRAPH_RUNNER,
    GRAPH_RUNNER_NEW,
    CAPTURE_SETUP,
    *WORKERS,
    *METRICS,
    *treeversion.VERSION_FILES,
)


@dataclass(frozen=True, slots=True)
class SourceTree:
    """Files by their path inside the package (`srt/models/llama.py`), and what else was asked about the tree."""

    root: str
    prefix: str
    files: Mapping[str, bytes]
    classes: Mapping[str, tuple[str, ...]]  # model class -> files that define it, for the classes asked for
    exists: frozenset[str] = frozenset()
    commit: str | None = None
    git_refused: str | None = None  # why git was not asked, where the tree is in a checkout
    dirty: tuple[str, ...] = ()
    heads: Mapping[str, bytes] = field(default_factory=dict)  # changed files as the commit has them
    names: tuple[str, ...] = ()  # every model class of the tree, where one that was asked for is not there

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    @property
    def at(self) -> str:
        """Which commit it is at, in words that follow its name."""
        if self.git_refused:
            return f"commit unknown: {self.git_refused}"
        return f"commit {self.commit}" if self.commit else "no git checkout"

    def committed(self, path: str) -> bytes | None:
        """The file as the checked out commit has it, None where git does not say that it was changed."""
        return self.heads.get(path)

    def shown(self, path: str) -> str:
        """The path as a user of the tree knows it, relative to its root."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def inside(self, shown: str) -> str:
        """The path inside the package, the reverse of `shown`."""
        return shown.removeprefix(f"{self.prefix}/") if self.prefix else shown

    def having(self, changes: Mapping[str, bytes]) -> SourceTree:
        """The tree with some files changed."""
        return replace(self, files={**self.files, **changes})

    @property
    def version(self) -> treeversion.TreeVersion:
        return treeversion.judge((self.files.get(f, b"") for f in treeversion.VERSION_FILES), self.exists)


def request(
    root: str, classes: Iterable[str] = (), files: Iterable[str] = (), *, everywhere: bool = False
) -> Call[Gathered]:
    """The one call that gathers a tree. everywhere: look for `classes` outside the models as well."""
    wanted = ("KimiK25ForConditionalGeneration", *classes)
    return source_gather(
        root,
        list(dict.fromkeys((*FILES, *files))),
        list(dict.fromkeys(wanted)),
        [path for _, path in treeversion.MARKERS],
        everywhere,
    )


def unpacked(body: bytes, sizes: Iterable[int], where: str | None = None) -> bytes:
    """What a host has packed into `body`, of the sizes it announced. Raises RemoteError if it is anything else."""
    announced = sum(max(size, 0) for size in sizes)
    if announced > _MOST:
        raise RemoteError(f"the files have {announced} bytes, more than {_MOST}", where=where)
    try:
        data = zlib.decompressobj().decompress(body, announced + 1)
    except zlib.error:
        data = b""
    if len(data) != announced:
        raise RemoteError("the files arrived damaged", where=where)
    return data


def received(reply: Reply[Gathered]) -> SourceTree:
    """The tree in an answer to `request`. Raises RemoteError if the bytes are not those announced."""
    told = reply.result
    for path in told["too_large"]:
        raise RemoteError(f"{path} is too large for a source file", where=told["root"])
    data = unpacked(reply.body, (entry["size"] for entry in told["files"]), where=told["root"])
    files: dict[str, bytes] = {}
    heads: dict[str, bytes] = {}
    offset = 0
    for entry in told["files"]:
        part = data[offset : offset + entry["size"]]
        offset += entry["size"]
        if hashlib.sha256(part).hexdigest() != entry["sha256"]:
            raise RemoteError(f"{entry['path']} arrived damaged", where=told["root"])
        (heads if entry["head"] else files)[entry["path"]] = part
    return SourceTree(
        root=told["root"],
        prefix=told["prefix"],
        files=files,
        classes={name: tuple(paths) for name, paths in told["classes"].items()},
        exists=frozenset(told["exists"]),
        commit=told["commit"],
        git_refused=told["git_refused"],
        dirty=tuple(told["dirty"]),
        heads=heads,
        names=tuple(told["names"]),
    )


def load(
    reader: Reader, root: str, classes: Iterable[str] = (), files: Iterable[str] = (), *, everywhere: bool = False
) -> SourceTree:
    """Gather a tree through `reader`. Raises UsageError if there is no SGLang tree at `root`."""
    try:
        return received(reader(request(root, classes, files, everywhere=everywhere)))
    except AgentError as error:
        raise UsageError(
            error.message, hint="give the root of an SGLang checkout, or the folder that contains sglang/"
        ) from error


def unknown_class(tree: SourceTree, name: str) -> UsageError:
    """The error for a model class that the tree does not have."""
    close = nearest(name, tree.names)
    hint = (
        f"did you mean {close!r}?" if close else "give the class name in the target's config.json, under architectures"
    )
    return UsageError(f"no model class {name!r} in this tree", where=tree.root, hint=hint)
