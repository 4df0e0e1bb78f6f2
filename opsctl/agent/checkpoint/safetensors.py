"""A safetensors header, read from bytes more strictly than the reference library reads it.

Layout: u64 little-endian n, n bytes of JSON that start with `{`, then the data. The entries, sorted by offset, must
tile the data exactly. On top of that: no duplicate keys at any level, no numbers but integers, caps on everything that
costs time.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, NoReturn, Tuple

MAX_HEADER = 1 << 20  # real drafters have 1.5 to 3 KB
LIBRARY_MAX_HEADER = 100_000_000
MAX_TENSORS = 4096
MAX_RANK = 8
MAX_DIM = 1 << 48
MAX_NAME = 512

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


class Entry(NamedTuple):
    """One tensor: its bytes are file[start:end]."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    start: int
    end: int


class Damaged(Exception):
    """The container is damaged or hostile. `code` is a word for the kind: size, json, duplicate, dtype, ..."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def header_length(first: bytes, file_size: int) -> int:
    """Length of the JSON header. `first`: up to 64 first bytes of the file. Raises Damaged."""
    if file_size == 0:
        raise Damaged("size", "the file is empty: too small for a safetensors header")
    if first.startswith(b"version https://git-lfs"):
        raise Damaged("lfs-pointer", "a git-lfs pointer, not the weights themselves")
    length = int.from_bytes(first[:8], "little")
    # A header of 60 or 15392 bytes begins the file with `<` or ` <` too, but no page makes so small a number.
    if first.lstrip()[:1] == b"<" and length > MAX_HEADER:
        raise Damaged("html", "an HTML or XML page saved in place of the weights")
    if first[:4] == b"PK\x03\x04":
        raise Damaged("not-safetensors", "a zip archive (PyTorch pickle?) under a safetensors name")
    if first[:4] == b"GGUF":
        raise Damaged("not-safetensors", "a GGUF file under a safetensors name")
    if file_size < 10:
        raise Damaged("size", "%d bytes: too small for a safetensors header" % file_size)
    if length > file_size - 8:
        text = first.strip()
        if text.isascii() and text.decode("ascii", "replace").isprintable():
            raise Damaged("not-safetensors", "text, not safetensors: it starts with %r" % text[:40].decode("ascii"))
        if length > LIBRARY_MAX_HEADER:
            raise Damaged("header-length", "header length %d is over the format's 100 MB" % length)
        raise Damaged("header-length", "header length %d is larger than the file (%d bytes)" % (length, file_size))
    if length > MAX_HEADER:
        raise Damaged("header-length", "header length %d: over the cap of %d bytes" % (length, MAX_HEADER))
    if length < 2:
        raise Damaged("header-length", "header length %d: too small for a JSON object" % length)
    return length


def parse(header: bytes, file_size: int) -> Tuple[List[Entry], Dict[str, str]]:
    """Entries in file order, and the metadata. Raises Damaged."""
    if header[:1] != b"{":
        raise Damaged("header-start", "the header starts with byte %#04x, not with '{'" % header[0])
    raw = _strict_json(header)
    metadata = _metadata(raw.pop("__metadata__", {}))
    if len(raw) > MAX_TENSORS:
        raise Damaged("count", "%d tensors: over the cap of %d" % (len(raw), MAX_TENSORS))
    base = 8 + len(header)
    entries = sorted((_entry(name, value, base) for name, value in raw.items()), key=lambda e: (e.start, e.end, e.name))
    _tiles(entries, base, file_size)
    return entries, metadata


def elements(shape: Tuple[int, ...]) -> int:
    """Number of elements of `shape`."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def bad_name(name: str) -> str:
    """Why a tensor name is not acceptable, or an empty string."""
    if not name or len(name) > MAX_NAME:
        return "empty" if not name else "%d characters long" % len(name)
    if not name.isprintable():
        return "contains control characters"
    parts = name.replace("\\", "/").split("/")
    if ".." in parts or name[0] in "/\\":
        return "looks like a path"
    return ""


def _strict_json(header: bytes) -> Dict[str, Any]:
    try:
        raw = json.loads(
            header.decode("utf-8").rstrip(" "),
            object_pairs_hook=_no_duplicates,
            parse_int=_bounded_int,
            parse_float=_bounded_float,
            parse_constant=_no_constant,
        )
    except Damaged:
        raise
    except UnicodeDecodeError:
        raise Damaged("json", "the header is not UTF-8") from None
    except RecursionError:
        raise Damaged("json", "the header is nested too deeply") from None
    except ValueError as error:
        raise Damaged("json", "the header is not JSON: %s" % error) from None
    if not isinstance(raw, dict):
        raise Damaged("json", "the header is not a JSON object")
    if not header.endswith((b"}", b" ")):
        raise Damaged("json", "the header is padded with something else than spaces")
    return raw


def _no_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise Damaged("duplicate", "key %r appears twice" % key[:80])
            seen.add(key)
    return result


def _bounded_int(text: str) -> int:
    # Turning a million digits into an int takes seconds; no size or offset has more than 20.
    if len(text) > 20 or text == "-0":
        raise Damaged("number", "an integer of %d digits" % len(text) if text != "-0" else "the number -0")
    return int(text)


def _bounded_float(text: str) -> float:
    if len(text) > 64:
        raise Damaged("number", "a number of %d digits" % len(text))
    return float(text)


def _no_constant(text: str) -> NoReturn:
    raise Damaged("number", "the literal %s" % text)


def _metadata(raw: Any) -> Dict[str, str]:
    if not isinstance(raw, dict):
        raise Damaged("metadata", "__metadata__ is not an object")
    for key, value in raw.items():
        if not isinstance(value, str):
            raise Damaged("metadata", "__metadata__ value of %r is not a string" % key[:80])
    return raw


def _entry(name: str, raw: Any, base: int) -> Entry:
    reason = bad_name(name)
    if reason:
        raise Damaged("name", "tensor name %r %s" % (name[:80], reason))
    if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
        raise Damaged("entry", "entry of %r does not have exactly dtype, shape and data_offsets" % name)
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise Damaged("dtype", "unknown dtype %.40r of %r" % (dtype, name))
    if not isinstance(shape, list) or not all(_is_size(dim) for dim in shape):
        raise Damaged("shape", "shape %.80r of %r is not a list of non-negative integers" % (shape, name))
    if len(shape) > MAX_RANK:
        raise Damaged("shape", "%r has %d dimensions: over the cap of %d" % (name, len(shape), MAX_RANK))
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise Damaged("offsets", "data_offsets %.80r of %r are not two non-negative integers" % (offsets, name))
    begin, end = offsets
    if begin > end:
        raise Damaged("offsets", "data_offsets of %r run backwards: %d to %d" % (name, begin, end))
    bits = elements(tuple(shape)) * BITS[dtype]
    if bits % 8 or bits // 8 != end - begin:
        raise Damaged(
            "size", "%r: shape %r of %s takes %d bytes, its range has %d" % (name, shape, dtype, bits // 8, end - begin)
        )
    return Entry(name, dtype, tuple(shape), base + begin, base + end)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DIM


def _tiles(entries: List[Entry], base: int, file_size: int) -> None:
    at = base
    for entry in entries:
        if entry.start < at:
            raise Damaged("overlap", "%r overlaps the tensor before it by %d bytes" % (entry.name, at - entry.start))
        if entry.start > at:
            raise Damaged("gap", "a gap of %d bytes before %r" % (entry.start - at, entry.name))
        at = entry.end
    if at > file_size:
        raise Damaged("truncated", "the file ends %d bytes early: %d of %d" % (at - file_size, file_size, at))
    if at < file_size:
        raise Damaged("trailing", "%d trailing bytes after the last tensor" % (file_size - at))
