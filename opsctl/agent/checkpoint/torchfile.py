"""Tensors of a PyTorch `.bin` file, read from its zip directory and its pickle. Nothing in it is ever executed."""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from typing import Any, BinaryIO, Callable, Dict, List, NamedTuple, Optional, Tuple

from opsctl.agent.checkpoint.safetensors import BITS, MAX_RANK, MAX_TENSORS, Damaged, Entry, bad_name, elements

MAX_PICKLE = 1 << 20
MAX_READ = 1 << 20  # largest single read zipfile may make: bounds the central directory
MAX_OPCODES = 100 * MAX_TENSORS
_LEGACY_PICKLES = 5  # what torch.save wrote one after the other: magic number, version, system, state, keys
STORAGES = {
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
}  # fmt: skip
_ORDERED_DICT = ("collections", "OrderedDict")
_REBUILD = ("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = ("torch._utils", "_rebuild_parameter")
_IGNORED = frozenset({"PROTO", "FRAME"})
_LITERAL = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE", "NONE"}
)
_PUSH: Dict[str, Callable[[Any], Any]] = {
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
}


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


class _Global(NamedTuple):
    module: str
    name: str


class _Storage(NamedTuple):
    dtype: str
    key: str
    elements: int


class Tensor(NamedTuple):
    dtype: str
    key: str
    offset: int
    shape: Tuple[int, ...]
    contiguous: bool


def walk(data: bytes) -> Dict[str, Tensor]:
    """Tensors of a pickled flat state dict, from its opcodes alone. Raises Damaged."""
    state = _value(io.BytesIO(data))
    if not isinstance(state, dict):
        raise Damaged("pickle", "not a state dict")
    if len(state) > MAX_TENSORS:
        raise Damaged("count", "%d tensors: over the cap of %d" % (len(state), MAX_TENSORS))
    for name, value in state.items():
        reason = "is not text" if not isinstance(name, str) else bad_name(name)
        if reason:
            raise Damaged("name", "tensor name %.80r %s" % (name, reason))
        if not isinstance(value, Tensor):
            raise Damaged("pickle", "%r is not a tensor: not a flat state dict" % name)
    return state


def _value(file: BinaryIO) -> Any:
    """What the pickle at this place of a file stands for; the place is then its end. Raises Damaged."""
    try:
        return _Machine().run(file)
    except Damaged:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeDecodeError) as error:
        raise Damaged("pickle", "damaged pickle: %s" % error) from None


def demand_harmless(data: bytes) -> None:
    """Raises Damaged (pickle-import) where pickles that follow each other, as in an old file, would run code."""
    file = io.BytesIO(data)
    try:
        for _ in range(_LEGACY_PICKLES):
            _value(file)
    except Damaged as damaged:
        if damaged.code == "pickle-import":
            raise


class _Machine:
    """Runs the few opcodes torch.save emits for a state dict, on placeholders."""

    def __init__(self) -> None:
        self.stack: List[Any] = []
        self.marks: List[int] = []
        self.memo: Dict[int, Any] = {}

    def run(self, file: BinaryIO) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count > MAX_OPCODES:
                raise Damaged("count", "over %d opcodes" % MAX_OPCODES)
            name = opcode.name
            if name == "STOP":
                return self.stack[-1]
            if name in _PUSH:
                self.stack.append(_PUSH[name](argument))
            elif name in _LITERAL:
                self.stack.append(argument)
            elif name not in _IGNORED:
                step = getattr(self, "op_" + name.lower(), None)
                if step is None:
                    raise Damaged("pickle", "opcode %s has no place in a state dict" % name)
                step(argument)
        raise Damaged("pickle", "the pickle has no end")

    def op_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def since_mark(self) -> List[Any]:
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def op_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(_allowed(module, name))

    def op_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_allowed(str(module), str(name)))

    def op_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.since_mark()))

    def op_tuple1(self, _: Any) -> None:
        self.stack[-1:] = [tuple(self.stack[-1:])]

    def op_tuple2(self, _: Any) -> None:
        self.stack[-2:] = [tuple(self.stack[-2:])]

    def op_tuple3(self, _: Any) -> None:
        self.stack[-3:] = [tuple(self.stack[-3:])]

    def op_binput(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    op_long_binput = op_binput

    def op_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def op_binget(self, index: int) -> None:
        self.stack.append(self.memo[index])

    op_long_binget = op_binget

    def op_setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(self.stack[-1], [key, value])

    def op_setitems(self, _: Any) -> None:
        items = self.since_mark()
        self._set(self.stack[-1], items)

    def _set(self, target: Any, items: List[Any]) -> None:
        if not isinstance(target, dict):
            raise Damaged("pickle", "items are set on something that is no dict")
        for key, value in zip(items[::2], items[1::2]):
            if not isinstance(key, str):
                raise Damaged("pickle", "a key of the state dict is no text")
            if key in target:
                raise Damaged("duplicate", "key %.80r appears twice" % key)
            target[key] = value

    def op_build(self, _: Any) -> None:
        # `state_dict()._metadata`: module versions, of no use here.
        self.stack.pop()

    def op_binpersid(self, _: Any) -> None:
        kind, storage, key, _, count = self.stack.pop()[:5]  # a legacy file has a sixth: what it is a view of
        if kind != "storage" or not isinstance(storage, _Global) or storage.name not in STORAGES:
            raise Damaged("pickle", "a persistent object that is no tensor storage")
        if not isinstance(key, str) or not key.isalnum():
            raise Damaged("pickle", "the key of a storage is no plain word")
        self.stack.append(_Storage(STORAGES[storage.name], key, int(count)))

    def op_reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function == _ORDERED_DICT and arguments == ():
            self.stack.append({})
        elif function == _REBUILD:
            self.stack.append(_rebuild(*arguments[:4]))
        elif function == _PARAMETER and isinstance(arguments[0], Tensor):
            self.stack.append(arguments[0])
        else:
            raise Damaged("pickle", "a call that builds no tensor")


def _rebuild(storage: Any, offset: Any, shape: Any, stride: Any) -> Tensor:
    numbers = [offset, *shape, *stride]
    if not isinstance(storage, _Storage) or not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers):
        raise Damaged("shape", "a tensor with impossible sizes")
    if len(shape) > MAX_RANK or len(shape) != len(stride):
        raise Damaged("shape", "a tensor of %d dimensions" % len(shape))
    want, contiguous = 1, True
    for dim, step in zip(reversed(shape), reversed(stride)):
        contiguous = contiguous and (dim <= 1 or step == want)
        want *= dim
    return Tensor(storage.dtype, storage.key, offset, tuple(shape), contiguous)


def _allowed(module: str, name: str) -> _Global:
    found = _Global(module, name)
    if found in (_ORDERED_DICT, _REBUILD, _PARAMETER) or (module == "torch" and name in STORAGES):
        return found
    raise Damaged(
        "pickle-import", "the pickle imports %.80s, which is outside the allow-list" % ascii(module + "." + name)
    )
