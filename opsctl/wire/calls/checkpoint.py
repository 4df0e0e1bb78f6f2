"""Calls of the room `checkpoint`: what is in a checkpoint folder, and such folders fetched from the web."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call


class Entry(TypedDict):
    """What has a name in the folder; of a link, what it leads to. `outside`: it leads out of the folder."""

    name: str
    kind: Literal["file", "folder", "other", "broken-link"]
    size: int
    mtime: int
    inode: int
    link: str | None
    outside: bool


class Problem(TypedDict):
    """Why something could not be read. `code`: one word of agent/checkpoint/safetensors.Damaged."""

    code: str
    text: str


class JsonText(TypedDict):
    """The text of a small file, or why there is none."""

    text: str | None
    problem: Problem | None
    present: bool


class Rows(TypedDict):
    """Rows of a matrix: how many were read, how many of those begin as another does, and some such pairs."""

    read: int
    alike: int
    pairs: list[tuple[int, int]]


class Container(TypedDict):
    """A weight file. `samples`, for each tensor: blocks read, of zeros only, with NaN or infinity; bytes read."""

    file: str
    tensors: list[tuple[str, str, list[int], int, int]]  # name, dtype, shape, start, end
    samples: list[tuple[int, int, int, int]]
    problem: Problem | None
    metadata: dict[str, str]
    rows: dict[str, Rows]  # of output heads, by the name of the tensor


class Table(TypedDict):
    """A mapping table: that many bytes of the body, from `offset` on."""

    file: str
    name: str
    offset: int
    length: int


class Gathered(TypedDict):
    files: list[Entry]
    config: JsonText
    index: JsonText
    quantization: JsonText
    containers: list[Container]
    tables: list[Table]
    full: bool
    digest: str


class Embedding(TypedDict):
    """Rows of an embedding, of which the body has the first `length` bytes each. `name`: None where none is found."""

    name: str | None
    dtype: str
    shape: list[int]
    length: int


class Fetched(TypedDict):
    """A folder from the web. `fetched`: bytes that came now; `removed`: folders that nobody asked for any more."""

    path: str
    revision: str | None
    files: int
    size: int
    fetched: int
    removed: list[str]


@declared
def checkpoint_gather(path: str, full: bool = False, follow_links: bool = False) -> Call[Gathered]: ...


@declared
def checkpoint_config(path: str) -> Call[JsonText]: ...


@declared
def checkpoint_digests(
    path: str, file: str, ranges: Sequence[Sequence[int]], follow_links: bool = False
) -> Call[list[str]]: ...


@declared
def checkpoint_embedding(path: str) -> Call[Embedding]: ...


@declared
def fetch_folder(source: str, endpoint: str, revision: str = "main", *, body: bytes = b"") -> Call[Fetched]: ...
