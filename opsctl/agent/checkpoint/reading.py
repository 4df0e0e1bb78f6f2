"""What there is to know of a checkpoint folder without copying it: listing, config, headers, mapping tables, samples.

Half a megabyte describes a drafter of several gigabytes. Samples are reduced where the file lies: only counts travel.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from opsctl.agent.checkpoint import torchfile
from opsctl.agent.checkpoint.safetensors import MAX_TENSORS, Damaged, Entry, header_length, parse
from opsctl.agent.files import safepath
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls import checkpoint as told

MAX_FILES = 2000
MAX_WEIGHT_FILES = 256
MAX_CONFIG = 1 << 20
MAX_INDEX = 4 << 20
MAX_TABLE = 4 << 20
WINDOW = 4096
WINDOWS = 8
SAMPLE_BUDGET = 16 << 20  # bytes read for samples of one file
CHUNK = 1 << 20
INDEX = "model.safetensors.index.json"
EMBEDDING_PLACES, EMBEDDING_LENGTH = 64, 512
_HEAD = re.compile(r"(^|\.)lm_head\.weight$")
# Not that of a layer, which has one of its own in some models with MTP.
_EMBEDDING = re.compile(r"^(?!.*\blayers\.).*?\b(embed_tokens|tok_embeddings|word_embeddings|wte)\.weight$")
_PLACES = 240  # evenly spread, so that halves and thirds fall on each other; and as many scattered
_SCATTER = 2654435761  # Knuth's multiplicative hash
_BEGIN = 64  # bytes that tell rows of trained numbers apart
_MOST_PAIRS = 64


def gather(call: Context, path: str, full: bool = False, follow_links: bool = False) -> Reply[told.Gathered]:
    """Describe the folder. The body holds the mapping tables, at the offsets given in `tables`."""
    files = listing(path)
    weights = _weight_files(files)
    digest = hashlib.sha256()
    body: List[bytes] = []
    tables: List[told.Table] = []
    containers = []
    room = MAX_TENSORS  # in all files together: a whole model named by mistake has 70,000
    for file in weights[:MAX_WEIGHT_FILES]:
        container: told.Container = {
            "file": file["name"],
            "tensors": [],
            "samples": [],
            "rows": {},
            "problem": None,
            "metadata": {},
        }
        containers.append(container)
        try:
            with _open(path, file, follow_links) as handle:
                entries, container["metadata"] = _entries(handle, file, digest)
                room -= len(entries)
                if room < 0:
                    raise Damaged("count", "over %d tensors in the folder: no drafter has so many" % MAX_TENSORS)
                container["tensors"] = [(e.name, e.dtype, list(e.shape), e.start, e.end) for e in entries]
                for entry in entries:
                    _table(handle, entry, file["name"], tables, body)
                container["samples"] = _samples(call, handle, entries, full, digest)
                heads = [entry for entry in entries if _HEAD.search(entry.name) and _is_matrix(entry)]
                container["rows"] = {entry.name: _alike_rows(handle, entry) for entry in heads}
        except Damaged as damaged:
            container["problem"] = {"code": damaged.code, "text": damaged.message}
        if room < 0:
            break
    settings = _text(path, files, "config.json", MAX_CONFIG, follow_links)
    index = _text(path, files, INDEX, MAX_INDEX, follow_links)
    quantization = _text(path, files, "hf_quant_config.json", MAX_CONFIG, follow_links)
    for text in (settings, index, quantization):
        digest.update((text["text"] or "").encode("utf-8", "surrogatepass"))
    result: told.Gathered = {
        "files": files,
        "config": settings,
        "index": index,
        "quantization": quantization,
        "containers": containers,
        "tables": tables,
        "full": full,
        "digest": digest.hexdigest(),
    }
    return Reply(result, b"".join(body))


def config(call: Context, path: str) -> told.JsonText:
    """The text of the folder's config.json alone, or the problem with it. A link is followed wherever it leads."""
    return _text(path, listing(path), "config.json", MAX_CONFIG, follow_links=True)


def embedding(call: Context, path: str) -> Reply[told.Embedding]:
    """Rows of the folder's embedding. Of a whole model it lies in one file of many, often the first. Links are
    followed wherever they lead.
    """
    for file in _weight_files(listing(path))[:MAX_WEIGHT_FILES]:
        if not file["name"].endswith(".safetensors"):
            continue
        try:
            with _open(path, file, follow_links=True) as handle:
                entries, _ = _entries(handle, file, hashlib.sha256())
                found = next((e for e in entries if _EMBEDDING.search(e.name) and _is_matrix(e)), None)
                if found is not None:
                    body = _spread_rows(handle, found, EMBEDDING_PLACES, EMBEDDING_LENGTH)
                    length = len(body) // EMBEDDING_PLACES
                    shape = list(found.shape)
                    return Reply({"name": found.name, "dtype": found.dtype, "shape": shape, "length": length}, body)
        except Damaged:
            continue
    return Reply({"name": None, "dtype": "", "shape": [], "length": 0})


def digests(call: Context, path: str, file: str, ranges: List[List[int]], follow_links: bool = False) -> List[str]:
    """SHA-256 of each byte range [start, end) of one file of the folder."""
    known = {entry["name"]: entry for entry in listing(path)}
    if file not in known:
        raise AgentError("not-found", "no such file in the folder", path=os.path.join(path, file))
    found = []
    try:
        with _open(path, known[file], follow_links) as handle:
            for done, (start, end) in enumerate(ranges):
                digest = hashlib.sha256()
                for block in _blocks(call, handle, start, end):
                    digest.update(block)
                found.append(digest.hexdigest())
                call.progress({"done": done + 1, "of": len(ranges)})
    except Damaged as damaged:
        raise AgentError("invalid", damaged.message, path=os.path.join(path, file)) from None
    return found


def boundaries(path: str, files: List[told.Entry], follow_links: bool = False) -> Dict[str, List[int]]:
    """Where tensors begin and end in each weight file; nothing for one that cannot be read as such."""
    found = {}
    for file in _weight_files(files)[:MAX_WEIGHT_FILES]:
        try:
            with _open(path, file, follow_links) as handle:
                entries, _ = _entries(handle, file, hashlib.sha256())
        except Damaged:
            continue
        found[file["name"]] = [at for entry in entries for at in (entry.start, entry.end)]
    return found


def listing(path: str) -> List[told.Entry]:
    """Everything in the folder, by name. Raises AgentError."""
    root = os.path.realpath(path)
    try:
        names = sorted(os.listdir(path))
    except NotADirectoryError:
        raise AgentError("invalid", "not a folder", path=path) from None
    except FileNotFoundError:
        raise AgentError("not-found", "no such folder", path=path) from None
    except OSError as error:
        raise AgentError("permission", str(error.strerror), path=path) from None
    if len(names) > MAX_FILES:
        raise AgentError("invalid", "%d entries: not a checkpoint folder" % len(names), path=path)
    return [_describe(path, root, name) for name in names]


def _describe(path: str, root: str, name: str) -> told.Entry:
    full = os.path.join(path, name)
    info = os.lstat(full)
    link, outside = None, False
    if stat.S_ISLNK(info.st_mode):
        link = os.readlink(full)
        outside = os.path.dirname(os.path.realpath(full)) != root
        try:
            info = os.stat(full)
        except OSError:
            return {
                "name": name,
                "kind": "broken-link",
                "size": 0,
                "mtime": 0,
                "inode": 0,
                "link": link,
                "outside": outside,
            }
    is_file, is_folder = stat.S_ISREG(info.st_mode), stat.S_ISDIR(info.st_mode)
    return {
        "name": name,
        "kind": "file" if is_file else "folder" if is_folder else "other",
        "size": info.st_size,
        "mtime": info.st_mtime_ns,
        "inode": info.st_ino,
        "link": link,
        "outside": outside,
    }


def _weight_files(files: List[told.Entry]) -> List[told.Entry]:
    # The server's own order of preference (loader.py _prepare_weights, all versions).
    # A link out of the folder counts whatever it points at: that it is there is what has to be said.
    there = [f for f in files if (f["kind"] != "folder" or f["outside"]) and not _NO_WEIGHTS.search(f["name"])]
    for suffix in (".safetensors", ".bin", ".pt"):
        found = [f for f in there if f["name"].endswith(suffix)]
        if found:
            return found
    return []


# weight_utils.py filter_files_not_needed_for_inference; what glob leaves out; and the trainer's state, no weights.
_NO_WEIGHTS = re.compile(r"^\.|(training_args|optimizer)\.bin$|(optimizer|scheduler|scaler)\.pt$|^training_state")


def _open(path: str, file: told.Entry, follow_links: bool) -> BinaryIO:
    """The file, if it is a regular one inside the folder. Raises Damaged."""
    if file["link"] is not None and (file["outside"] or file["kind"] != "file") and not follow_links:
        where = "leaves the folder" if file["outside"] else "leads to no file"
        raise Damaged("symlink", "a symbolic link that %s: -> %.200s" % (where, ascii(file["link"])))
    if file["kind"] != "file":
        kind = "pipe, socket or device" if file["kind"] == "other" else file["kind"]
        raise Damaged("not-a-file", "not a regular file but a %s" % kind)
    try:
        descriptor = safepath.descriptor(os.path.join(path, file["name"]))
    except OSError as error:
        raise Damaged("unreadable", "cannot be opened: %s" % error.strerror) from None
    except AgentError as error:
        raise Damaged("unreadable", error.message) from None
    if os.fstat(descriptor).st_ino != file["inode"]:
        os.close(descriptor)
        raise Damaged("changed", "changed while it was read")
    return open(descriptor, "rb")


def _text(path: str, files: List[told.Entry], name: str, limit: int, follow_links: bool) -> told.JsonText:
    file = next((f for f in files if f["name"] == name), None)
    if file is None:
        return {"text": None, "problem": None, "present": False}
    try:
        if file["size"] > limit:
            raise Damaged("size", "%d bytes: over the cap of %d" % (file["size"], limit))
        with _open(path, file, follow_links) as handle:
            return {"text": _exactly(handle, 0, file["size"]).decode("utf-8"), "problem": None, "present": True}
    except UnicodeDecodeError:
        return {"text": None, "problem": {"code": "encoding", "text": "not UTF-8"}, "present": True}
    except Damaged as damaged:
        return {"text": None, "problem": {"code": damaged.code, "text": damaged.message}, "present": True}


def _entries(handle: BinaryIO, file: told.Entry, digest: Any) -> Tuple[List[Entry], Dict[str, str]]:
    digest.update(("%s %d\n" % (ascii(file["name"]), file["size"])).encode())
    if not file["name"].endswith(".safetensors"):
        entries = torchfile.entries(handle)
        digest.update(repr([entry[:3] for entry in entries]).encode())
        return entries, {}
    length = header_length(_exactly(handle, 0, min(64, file["size"])), file["size"])
    header = _exactly(handle, 8, 8 + length)
    digest.update(header)
    return parse(header, file["size"])


def _table(handle: BinaryIO, entry: Entry, file: str, tables: List[told.Table], body: List[bytes]) -> None:
    if not ("d2t" in entry.name or "t2d" in entry.name) or sum(map(len, body)) + entry.end - entry.start > MAX_TABLE:
        return
    data = _exactly(handle, entry.start, entry.end)
    tables.append({"file": file, "name": entry.name, "offset": sum(map(len, body)), "length": len(data)})
    body.append(data)


def _samples(
    call: Context, handle: BinaryIO, entries: List[Entry], full: bool, digest: Any
) -> List[Tuple[int, int, int, int]]:
    """Per tensor: blocks read, blocks of zeros only, blocks with NaN or Inf, bytes read."""
    windows = max(2, min(WINDOWS, SAMPLE_BUDGET // (WINDOW * max(1, len(entries)))))
    found = []
    for entry in entries:
        blocks = zeros = wild = size = 0
        ranges = [(entry.start, entry.end)] if full else _windows(entry, windows)
        for start, end in ranges:
            for block in _blocks(call, handle, start, end):
                digest.update(block)
                blocks += 1
                size += len(block)
                zeros += block.count(0) == len(block)
                wild += has_nonfinite(block, entry.dtype)
        found.append((blocks, zeros, wild, size))
    return found


def _windows(entry: Entry, count: int) -> List[Tuple[int, int]]:
    length = entry.end - entry.start
    if length <= count * WINDOW:
        return [(entry.start, entry.end)]
    step = (length - WINDOW) / (count - 1)
    starts = [entry.start + (int(i * step) & ~7) for i in range(count - 1)]
    return [(start, start + WINDOW) for start in starts] + [(entry.end - WINDOW, entry.end)]


# For each dtype: bytes per element, and the exponent bits in its two highest bytes.
_EXPONENTS = {"BF16": (2, 0x7F80), "F16": (2, 0x7C00), "F32": (4, 0x7F80), "F64": (8, 0x7FF0)}


def has_nonfinite(block: bytes, dtype: str) -> bool:
    """Whether a float block holds a NaN or an infinity. `block` starts at an element."""
    if dtype not in _EXPONENTS:
        return False
    size, mask = _EXPONENTS[dtype]
    low, high = block[size - 2 :: size], block[size - 1 :: size]
    suspects = high.translate(_SUSPECTS[dtype])
    at = suspects.find(1)
    while at >= 0:
        if low[at] & (mask & 0xFF) == mask & 0xFF:
            return True
        at = suspects.find(1, at + 1)
    return False


_SUSPECTS = {
    dtype: bytes(byte & (mask >> 8) == mask >> 8 for byte in range(256)) for dtype, (_, mask) in _EXPONENTS.items()
}


def _blocks(call: Context, handle: BinaryIO, start: int, end: int) -> Any:
    while start < end:
        if call.cancelled():
            raise AgentError("failed", "cancelled")
        stop = min(end, start + CHUNK)
        yield _exactly(handle, start, stop)
        start = stop


def _exactly(handle: BinaryIO, start: int, end: int) -> bytes:
    handle.seek(start)
    parts: List[bytes] = []
    missing = end - start
    while missing:
        part: Optional[bytes] = handle.read(missing)
        if not part:
            raise Damaged("truncated", "the file ended while it was read")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _alike_rows(handle: BinaryIO, entry: Entry) -> told.Rows:
    """Read rows and tell which begin as another does.

    Each place is read with the row after it. Rows filled with one number, as those of padding, do not count as alike.
    """
    count = entry.shape[0]
    places = {at for k in range(_PLACES) for at in (k * count // _PLACES, k * _SCATTER % count)}
    if count <= 2 * _PLACES:
        places = set(range(count))
    found: Dict[bytes, List[int]] = {}
    rows = sorted({row for place in places for row in (place, place + 1) if row < count})
    for row in rows:
        found.setdefault(_row(handle, entry, row, _BEGIN), []).append(row)
    groups = [same for begin, same in found.items() if len(same) > 1 and not _filled(begin)]
    pairs: List[Tuple[int, int]] = [(same[k - 1], same[k]) for same in groups for k in range(1, len(same))]
    return {"read": len(rows), "alike": sum(map(len, groups)), "pairs": pairs[:_MOST_PAIRS]}


def _spread_rows(handle: BinaryIO, entry: Entry, places: int, length: int) -> bytes:
    """The first `length` bytes of `places` rows, evenly spread."""
    count = entry.shape[0]
    return b"".join(_row(handle, entry, k * count // places, length) for k in range(places))


def _is_matrix(entry: Entry) -> bool:
    return len(entry.shape) == 2 and entry.end > entry.start


def _filled(begin: bytes) -> bool:
    """Whether one number, of at most four bytes, is all there is."""
    return all(len(set(begin[k::4])) <= 1 for k in range(4))


def _row(handle: BinaryIO, entry: Entry, row: int, length: int) -> bytes:
    width = (entry.end - entry.start) // entry.shape[0]
    wanted = min(length, width)
    found = os.pread(handle.fileno(), wanted, entry.start + row * width)
    if len(found) < wanted:
        raise Damaged("truncated", "the file ended while it was read")
    return found


CALLS: Dict[str, Callable[..., Any]] = {
    "gather": gather,
    "config": config,
    "digests": digests,
    "embedding": embedding,
}
