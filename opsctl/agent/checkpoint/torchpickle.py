"""The pickle of a PyTorch `.bin` file, from its opcodes. Nothing in it is ever executed.

It is walked by a machine that knows only what a flat state dict needs: any other global, opcode or structure ends the
walk with an error.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any, BinaryIO, Callable, Dict, List, NamedTuple, Tuple

from opsctl.agent.checkpoint.safetensors import MAX_RANK, MAX_TENSORS, Damaged, bad_name

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


_IGNORED = frozenset({"PROTO", "FRAME"})
_LITERAL = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE", "NONE"}
)
_PUSH: Dict[str, Callable[[Any], Any]] = {
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
}
