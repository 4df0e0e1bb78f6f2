"""Tensors of a PyTorch `.bin` file, read from its zip directory and its pickle. Nothing in it is ever executed."""

from __future__ import annotations

import struct
import zipfile
from typing import BinaryIO, Dict, List, Optional

from opsctl.agent.checkpoint.safetensors import BITS, MAX_TENSORS, Damaged, Entry, bad_name, elements
from opsctl.agent.checkpoint.torchpickle import Tensor, demand_harmless, walk

MAX_PICKLE = 1 << 20
MAX_READ = 1 << 20  # largest single read zipfile may make: bounds the central directory


class _Bounded:
    """A file that refuses single reads a hostile directory could make huge."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, MAX_READ + 1) if size >= 0 else MAX_READ + 1)
        if len(data) > MAX_READ:
            raise Damaged("size", "the zip directory is over the cap of %d bytes" % MAX_READ)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


def entries(file: BinaryIO) -> List[Entry]:
    """Tensors of an open `.bin` file, by name. Raises Damaged."""
    if file.read(4) != b"PK\x03\x04":
        file.seek(0)
        first = file.read(64)
        if first.startswith(b"version https://git-lfs"):
            raise Damaged("lfs-pointer", "a git-lfs pointer, not the weights themselves")
        if first.lstrip()[:1] == b"<":
            raise Damaged("html", "an HTML or XML page saved in place of the weights")
        file.seek(0)
        demand_harmless(file.read(MAX_PICKLE))
        raise Damaged("not-torch", "not a zip archive: a legacy pickle, or no PyTorch file at all")
    try:
        with zipfile.ZipFile(_Bounded(file)) as archive:
            infos = _members(archive.infolist())
            name = _pickle_name(infos)
            prefix = name[: -len("data.pkl")]
            tensors = walk(archive.read(name))
            order = infos.get(prefix + "byteorder")
            if order is not None and order.file_size <= 16 and archive.read(order) != b"little":
                raise Damaged("byteorder", "not little-endian")
            return [_entry(file, infos.get(prefix + "data/" + t.key), label, t) for label, t in sorted(tensors.items())]
    except (
        zipfile.BadZipFile,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        struct.error,
    ) as error:
        raise Damaged("zip", "damaged zip archive: %s" % error) from None


def _members(infos: List[zipfile.ZipInfo]) -> Dict[str, zipfile.ZipInfo]:
    """Members by name. Raises Damaged."""
    if len(infos) > 2 * MAX_TENSORS:
        raise Damaged("count", "%d members in the archive" % len(infos))
    found = {}
    for info in infos:
        reason = "appears twice" if info.filename in found else bad_name(info.filename)
        if not reason and info.flag_bits & 1:
            reason = "is encrypted"
        if reason:
            raise Damaged("zip", "member %.80s of the archive %s" % (ascii(info.filename), reason))
        found[info.filename] = info
    return found


def _pickle_name(infos: Dict[str, zipfile.ZipInfo]) -> str:
    names = [name for name in infos if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(names) != 1:
        raise Damaged("not-torch", "a zip archive with %d data.pkl members" % len(names))
    info = infos[names[0]]
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.file_size > MAX_PICKLE:
        raise Damaged("size", "data.pkl is compressed or over the cap of %d bytes" % MAX_PICKLE)
    return names[0]


def _entry(file: BinaryIO, info: Optional[zipfile.ZipInfo], name: str, tensor: Tensor) -> Entry:
    if info is None or info.compress_type != zipfile.ZIP_STORED:
        raise Damaged("storage", "the storage of %r is missing or compressed" % name)
    size = BITS[tensor.dtype] // 8
    begin, length = tensor.offset * size, elements(tensor.shape) * size
    if begin + length > info.file_size:
        raise Damaged("size", "%r needs %d bytes, its storage has %d" % (name, begin + length, info.file_size))
    if not tensor.contiguous:
        raise Damaged("stride", "%r is stored with strides" % name)
    file.seek(info.header_offset)
    local = file.read(30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise Damaged("zip", "the local header of the storage of %r is damaged" % name)
    length_of_name, extra = struct.unpack("<HH", local[26:30])
    # Of two directory entries that share bytes one has a name that is not in its header.
    if file.read(length_of_name) != info.orig_filename.encode("utf-8"):
        raise Damaged("zip", "the storage of %r lies in another member" % name)
    data = info.header_offset + 30 + length_of_name + extra
    if data + info.file_size > file.seek(0, 2):
        raise Damaged("truncated", "the storage of %r ends after the file" % name)
    return Entry(name, tensor.dtype, tensor.shape, data + begin, data + begin + length)
