"""What a model class does when it is asked to capture hidden states for EAGLE-3, followed to its effect. Pure.

A setter that exists proves nothing: it writes an attribute of an inner model, and only where the `forward` of the class
that is really built reads that attribute are states captured. So the setter is run by syntax, once without layer ids
and a few times with some, each write is noted with the class of the object it lands on, and then the reader is looked
for. What syntax cannot follow is told as such.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.sglang.releases import Capture, Layers, Target
from opsctl.sglang.source.symbols import (
    ClassRef,
    Function,
    Method,
    dotted,
    find_method,
    lineage,
    parse,
    resolve,
    walk,
)
from opsctl.sglang.source.tree import SourceTree

CAPTURE, GET, SET = "set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head"
ASKED_OF_TARGET = (CAPTURE, GET)  # SET is asked of the draft model; wrappers have it for symmetry

_DEEPEST = 12  # calls within calls
_FLAG = "capture_aux_hidden_states"
_PROBES = ((1, 19, 36), (2, 20, 37), (5, 20, 40))  # of 40 layers: output style, input style, up to the last layer
_OF_PROBES = 40
_RULES = {
    "+1": ((2, 20, 37), (3, 21, 38), (6, 21, 41)),
    "+1 if first is 1": ((2, 20, 37), (2, 20, 37), (5, 20, 40)),
    "+1 unless last is n": ((2, 20, 37), (3, 21, 38), (5, 20, 40)),
    "as written": _PROBES,
}


class Unreadable(Exception):
    """What is built or written cannot be told by syntax: why, as the end of a sentence."""


class _Raises(Exception):
    """The code raises: why, as the end of a sentence."""


class _Fork(Exception):
    """An attribute may hold one of several classes: each has to be looked at."""

    def __init__(self, key: tuple[str, str], classes: Sequence[ClassRef]) -> None:
        self.key, self.classes = key, classes


@dataclass(frozen=True, slots=True)
class _Object:
    """An instance of a class of the tree."""

    cls: ClassRef


@dataclass(frozen=True, slots=True)
class _Layers:
    """The decoder layers of a model, or one of them."""

    owner: _Object


@dataclass(frozen=True, slots=True)
class _Super:
    """`super()` in a method of `owner`, on an object."""

    of: _Object
    owner: ClassRef


_NOTHING = object()  # a value that does not matter: a config, a process group, a device


@dataclass(frozen=True, slots=True)
class Write:
    """An attribute that the setter wrote on an object of class `cls`; `value`: layers, True, or something else."""

    cls: ClassRef
    attribute: str
    value: Any
    on_layers: bool = False


@dataclass
class _Run:
    """One run of a setter by syntax. pins: the class taken for an attribute that may hold several."""

    tree: SourceTree
    count: Layers | int
    pins: Mapping[tuple[str, str], ClassRef]
    writes: list[Write] = field(default_factory=list)

    def call(self, method: Method, this: _Object, given: Sequence[Any], depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise Unreadable("its calls go too deep")
        arguments = method.node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        defaults = [None] * (len(names) - len(arguments.defaults)) + [
            d.value if isinstance(d, ast.Constant) else _NOTHING for d in arguments.defaults
        ]
        values = dict(zip(names, defaults, strict=True))
        values.update(zip(names[1:], given, strict=False))
        values[names[0]] = this
        done, value = self._body(method.node.body, values, method, depth)
        return value if done else None

    def _body(self, body: Sequence[ast.stmt], names: dict[str, Any], method: Method, depth: int) -> tuple[bool, Any]:
        for statement in body:
            done, value = self._statement(statement, names, method, depth)
            if done:
                return True, value
        return False, None

    def _statement(self, node: ast.stmt, names: dict[str, Any], method: Method, depth: int) -> tuple[bool, Any]:
        match node:
            case ast.Return(value=value):
                return True, self._value(value, names, method, depth) if value else None
            case ast.Raise():
                raise _Raises(f"{CAPTURE} raises")
            case ast.If(test=test, body=body, orelse=orelse):
                return self._body(body if self._truth(test, names, method, depth) else orelse, names, method, depth)
            case ast.For(target=ast.Name(id=name), iter=iterated, body=body):
                values = self._value(iterated, names, method, depth)
                if not isinstance(values, list | tuple):
                    raise Unreadable(f"a loop over {ast.unparse(iterated)} cannot be followed")
                for one in values:
                    names[name] = one
                    done, returned = self._body(body, names, method, depth)
                    if done:
                        return True, returned
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value, names, method, depth), names, method, depth)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, names, method, depth), names, method, depth)
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Expr(value=value):
                self._value(value, names, method, depth)
            case _:
                raise Unreadable(f"a statement of it cannot be followed: {ast.unparse(node).splitlines()[0][:60]}")
        return False, None

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any], method: Method, depth: int) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Attribute(value=on, attr=attribute):
                self._write(self._value(on, names, method, depth), attribute, value)
            case _:
                raise Unreadable(f"an assignment to {ast.unparse(target)} cannot be followed")

    def _write(self, on: Any, attribute: str, value: Any) -> None:
        if isinstance(on, _Object):
            self.writes.append(Write(on.cls, attribute, value))
        elif isinstance(on, _Layers):
            self.writes.append(Write(on.owner.cls, attribute, value, on_layers=True))
        else:
            raise Unreadable(f"what {attribute} is written on cannot be told")

    def _truth(self, node: ast.expr, names: dict[str, Any], method: Method, depth: int) -> bool:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand, names, method, depth)
            case ast.BoolOp(op=op, values=values):
                truths = (self._truth(v, names, method, depth) for v in values)
                return all(truths) if isinstance(op, ast.And) else any(truths)
            case ast.Attribute(attr="is_last_rank"):
                return True
            case ast.Compare(left=ast.Attribute(attr="world_size")):
                return False  # asked only to refuse pipelines
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(v, names, method, depth) for v in (left, *others)]
                return all(_compared(op, a, b, node) for op, a, b in zip(ops, values[:-1], values[1:], strict=True))
        value = self._value(node, names, method, depth)
        if value is _NOTHING or isinstance(value, Layers):
            raise Unreadable(f"the condition {ast.unparse(node)[:60]} cannot be told")
        return bool(value)

    def _value(self, node: ast.expr, names: dict[str, Any], method: Method, depth: int) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names.get(name, _NOTHING)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [self._value(part, names, method, depth) for part in parts]
            case ast.Attribute(attr="num_hidden_layers" | "num_layers"):
                return self.count
            case ast.Attribute(value=on, attr=attribute):
                return self._attribute(self._value(on, names, method, depth), attribute)
            case ast.Subscript(value=on, slice=index):
                return self._item(self._value(on, names, method, depth), self._value(index, names, method, depth))
            case ast.BinOp(left=left, op=op, right=right):
                a, b = (self._value(v, names, method, depth) for v in (left, right))
                return _computed(op, a, b, node)
            case ast.ListComp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), iter=over, ifs=[])]):
                values = self._value(over, names, method, depth)
                if not isinstance(values, list | tuple):
                    raise Unreadable(f"{ast.unparse(node)} cannot be followed")
                return [self._value(element, {**names, name: value}, method, depth) for value in values]
            case ast.SetComp(elt=element, generators=generators):
                return self._value(ast.ListComp(elt=element, generators=generators), names, method, depth)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._truth(test, names, method, depth) else orelse, names, method, depth)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._truth(node, names, method, depth)
            case ast.Call(func=function, args=arguments):
                return self._called(function, arguments, names, method, depth)
        return _NOTHING

    def _called(
        self, function: ast.expr, arguments: list[ast.expr], names: dict[str, Any], method: Method, depth: int
    ) -> Any:
        if isinstance(function, ast.Name):
            if function.id == "super":
                return _Super(names[next(iter(names))], method.owner)
            given = [self._value(a, names, method, depth) for a in arguments]
            match function.id, given:
                case "len", [_Layers()]:
                    return self.count
                case "list" | "sorted" | "tuple" | "set", [list() | tuple() as values]:
                    return list(values)
                case ("max" | "min" | "len") as name, [list() | tuple() as values]:
                    return len(values) if name == "len" else max(values) if name == "max" else min(values)
                case "hasattr" | "getattr", [_Object() as on, str(attribute), *_]:
                    found = self._attribute(on, attribute, absent=True)
                    return found is not None if function.id == "hasattr" else found
                case "setattr", [on, str(attribute), value]:
                    self._write(on, attribute, value)
                    return None
            return _NOTHING
        if isinstance(function, ast.Attribute):
            on = self._value(function.value, names, method, depth)
            found = None
            if isinstance(on, _Object):
                found = find_method(self.tree, on.cls, function.attr)
            elif isinstance(on, _Super):
                found = _above(self.tree, on, function.attr)
                on = on.of
            if found is not None:
                given = [self._value(a, names, method, depth) for a in arguments]
                return self.call(found, on, given, depth + 1)
            if function.attr == CAPTURE and isinstance(on, _Object):
                raise _Raises(f"{on.cls.name} lacks {CAPTURE}")
            if function.attr == CAPTURE:
                raise Unreadable(f"{ast.unparse(function.value)} is built in a way that cannot be followed")
        return _NOTHING

    def _attribute(self, on: Any, attribute: str, absent: bool = False) -> Any:
        if not isinstance(on, _Object):
            return _NOTHING
        for write in reversed(self.writes):
            if write.cls.node is on.cls.node and write.attribute == attribute and not write.on_layers:
                return write.value
        if attribute == "layers":
            return _Layers(on)
        method = find_method(self.tree, on.cls, attribute)
        if method is not None:
            if not any(dotted(d) == "property" for d in method.node.decorator_list):
                return _NOTHING
            return self.call(method, on, ())
        key = (on.cls.name, attribute)
        if key in self.pins:
            return _Object(self.pins[key])
        classes = built(self.tree, on.cls, attribute)
        if len(classes) > 1:
            raise _Fork(key, classes)
        if classes:
            return _Object(classes[0])
        return None if absent else _NOTHING

    def _item(self, on: Any, index: Any) -> Any:
        if isinstance(on, _Layers):
            return on
        if isinstance(on, list | tuple) and isinstance(index, int):
            return on[index]
        return _NOTHING


def built(tree: SourceTree, cls: ClassRef, attribute: str) -> tuple[ClassRef, ...]:
    """The classes that `self.attribute` of an instance may be built from; () where syntax does not tell.

    A class may be handed over by a subclass as an argument, or by a method that builds the model, or stand in a class
    attribute: all of them are what the subclass has.
    """
    return tuple(dict.fromkeys(_Built(tree, cls).of(attribute)))


@dataclass(frozen=True)
class _Built:
    tree: SourceTree
    cls: ClassRef

    def of(self, attribute: str) -> Iterator[ClassRef]:
        init = find_method(self.tree, self.cls, "__init__")
        if init is not None:
            yield from self._in(init, attribute, self._parameters(init, None, {}), 0)

    def _in(
        self, init: Method, attribute: str, names: dict[str, tuple[ClassRef, ...]], depth: int
    ) -> Iterator[ClassRef]:
        """What one `__init__` builds, else the one that it calls."""
        if depth > _DEEPEST:
            return
        own: list[ClassRef] = []
        above: list[ClassRef] = []
        for node in walk(init.node):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        names.setdefault(target.id, self._classes(node.value, names, init))
                    elif isinstance(target, ast.Attribute) and dotted(target) == f"self.{attribute}":
                        own += self._instances(node.value, names, init, depth)
            elif isinstance(node, ast.Call) and (base := self._base(node, init)) is not None:
                above += self._in(base, attribute, self._parameters(base, node, names, init), depth + 1)
        yield from own or above

    def _base(self, call: ast.Call, init: Method) -> Method | None:
        """The `__init__` that is called as `super().__init__` or `Base.__init__`."""
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"):
            return None
        on = call.func.value
        if isinstance(on, ast.Call) and dotted(on.func) == "super":
            owner = init.owner
            if on.args and isinstance(on.args[0], ast.Name):
                owner = resolve(self.tree, init.module, on.args[0].id) or owner
            return _above(self.tree, _Super(_Object(self.cls), owner), "__init__")
        base = (
            resolve(self.tree, init.module, on.id, before=init.owner.node.lineno) if isinstance(on, ast.Name) else None
        )
        return find_method(self.tree, base, "__init__") if base else None

    def _parameters(
        self,
        init: Method,
        call: ast.Call | None,
        outer: Mapping[str, tuple[ClassRef, ...]],
        caller: Method | None = None,
    ) -> dict[str, tuple[ClassRef, ...]]:
        """Parameters that hold classes: those handed over, else the defaults."""
        arguments = init.node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        found: dict[str, tuple[ClassRef, ...]] = {}
        for name, default in zip(names[::-1], arguments.defaults[::-1], strict=False):
            found[name] = self._classes(default, {}, init)
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                found[argument.arg] = self._classes(value, {}, init)
        if call is not None and caller is not None:
            first = 0 if _explicit(call) else 1
            for name, node in zip(names[first:], call.args, strict=False):
                found[name] = self._classes(node, outer, caller)
            for keyword in call.keywords:
                if keyword.arg:
                    found[keyword.arg] = self._classes(keyword.value, outer, caller)
        return {name: classes for name, classes in found.items() if classes}

    def _classes(
        self, node: ast.expr, names: Mapping[str, tuple[ClassRef, ...]], method: Method
    ) -> tuple[ClassRef, ...]:
        """The classes that an expression may name."""
        match node:
            case ast.Name(id=name):
                if name in names:
                    return names[name]
                found = resolve(self.tree, method.module, name)
                return (found,) if found else ()
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in method.module.imports:
                there = parse(self.tree, "/".join(method.module.imports[module]) + ".py")
                found = resolve(self.tree, there, name) if there else None
                return (found,) if found else ()
            case ast.IfExp(body=body, orelse=orelse):
                return (*self._classes(body, names, method), *self._classes(orelse, names, method))
            case ast.BoolOp(values=values):
                return tuple(c for v in values for c in self._classes(v, names, method))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attribute):
                for owner in lineage(self.tree, self.cls):
                    for statement in owner.node.body:
                        value = _assigned(statement, attribute)
                        if value is not None:
                            return self._classes(value, {}, Method(owner, method.node))
        return ()

    def _instances(
        self, node: ast.expr, names: Mapping[str, tuple[ClassRef, ...]], method: Method, depth: int
    ) -> list[ClassRef]:
        """The classes that an expression may give an instance of."""
        match node:
            case ast.IfExp(body=body, orelse=orelse):
                return [
                    *self._instances(body, names, method, depth),
                    *self._instances(orelse, names, method, depth),
                ]
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                return list(self.of(attribute)) if depth < _DEEPEST else []
            case ast.Call(func=function, args=arguments):
                made = self._classes(function, names, method)
                if made:
                    return list(made)
                if isinstance(function, ast.Attribute) and dotted(function.value) == "self":
                    maker = find_method(self.tree, self.cls, function.attr)
                    if maker is not None and depth < _DEEPEST:
                        returned = [n.value for n in walk(maker.node) if isinstance(n, ast.Return) and n.value]
                        inner = self._parameters(maker, node, names, method)
                        return [c for r in returned for c in self._instances(r, inner, maker, depth + 1)]
                return [c for a in arguments for c in self._instances(a, names, method, depth)]
        return []


def read(tree: SourceTree, cls: ClassRef) -> Target:
    """What the class does as a target of EAGLE-3."""
    missing = [name for name in ASKED_OF_TARGET if find_method(tree, cls, name) is None]
    if CAPTURE in missing:
        return Target(Capture.NO, why=f"lacks {', '.join(missing)}")
    try:
        found = _read(tree, cls, {})
    except Unreadable as error:
        return Target(Capture.UNKNOWN, why=str(error))
    if missing and found.capture is Capture.YES:
        return Target(Capture.NO, why=f"lacks {', '.join(missing)}")
    return found


def _read(tree: SourceTree, cls: ClassRef, pins: Mapping[tuple[str, str], ClassRef]) -> Target:
    method = find_method(tree, cls, CAPTURE)
    assert method is not None
    try:
        run = _Run(tree, Layers(1, 0), pins)
        run.call(method, _Object(cls), [None])
        probes = []
        for ids in _PROBES:
            probe = _Run(tree, _OF_PROBES, pins)
            probe.call(method, _Object(cls), [list(ids)])
            probes.append(_layers(probe.writes))
    except _Raises as raises:
        return Target(Capture.NO, why=str(raises))
    except _Fork as fork:
        return _both(cls, [(c, _read(tree, cls, {**pins, fork.key: c})) for c in fork.classes])
    problem = _without_effect(tree, cls, run)
    if problem:
        return Target(Capture.NO_EFFECT, why=problem)
    rule = next((name for name, given in _RULES.items() if list(given) == probes), None)
    default = _layers(run.writes)
    if default is None or rule is None:
        raise Unreadable("which layers it captures cannot be told")
    return Target(Capture.YES, tuple(map(str, default)), rule)


def _both(cls: ClassRef, found: Sequence[tuple[ClassRef, Target]]) -> Target:
    """One answer for a class that is built around one of several models."""
    answers = {target for _, target in found}
    if len(answers) == 1:
        return answers.pop()
    able = [(c, t) for c, t in found if t.capture in (Capture.YES, Capture.DEPENDS)]
    if not able:
        return found[0][1]
    around = sorted({*(c.name for c, t in able if not t.around), *(name for _, t in able for name in t.around)})
    return Target(Capture.DEPENDS, able[0][1].default, able[0][1].ids, found[0][1].why, tuple(around))


def _layers(writes: Sequence[Write]) -> tuple[Any, ...] | None:
    """The layers that were written last: as an attribute, else as a mark on layers."""
    lists = [w.value for w in writes if isinstance(w.value, list) and w.value]
    return tuple(lists[-1]) if lists else None


def _without_effect(tree: SourceTree, cls: ClassRef, run: _Run) -> str | None:
    """Why what the setter wrote captures nothing, or ends the server; None if it does capture."""
    marks = [w for w in run.writes if w.attribute != _FLAG and (isinstance(w.value, list) or w.on_layers)]
    if not marks:
        return "its setter writes no layers"
    read = [w for w in marks if w.attribute in _read_in_forward(tree, w.cls)]
    if not read:
        first = marks[0]
        return f"its setter writes {first.attribute} on a {first.cls.name}, whose forward does not read it"
    inner = read[-1].cls
    owners = [w.cls for w in run.writes if w.attribute == _FLAG and w.value is True] or [cls]
    taking = [owner for owner in owners if unpacks(tree, owner)]
    if not taking:
        return f"{cls.name}.forward does not take what {inner.name} captured"
    if all(owner.node is not cls.node and not _goes_through(tree, cls, owner) for owner in taking):
        return f"{cls.name}.forward does not go through that of {taking[0].name}, which takes what was captured"
    return None


def _goes_through(tree: SourceTree, cls: ClassRef, owner: ClassRef) -> bool:
    """Whether the forward of a wrapper hands its language model on or calls it; also where no forward is written."""
    nodes = list(forward_nodes(tree, cls))
    parts = {n.attr for n in nodes if isinstance(n, ast.Attribute) and dotted(n) == f"self.{n.attr}"}
    return not nodes or any(owner.node is c.node for part in parts for c in built(tree, cls, part))


def _read_in_forward(tree: SourceTree, cls: ClassRef) -> set[str]:
    """Every attribute that the forward of a class reads, itself or in the methods that it calls."""
    found: set[str] = set()
    for node in forward_nodes(tree, cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(name.value)
    return found


def unpacks(tree: SourceTree, cls: ClassRef) -> bool:
    """Whether a forward takes a pair of hidden states and captured states apart."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Name | ast.Call)
        and any("aux" in dotted(part) for part in node.targets[0].elts)
        for node in forward_nodes(tree, cls)
    )


def forward_nodes(tree: SourceTree, cls: ClassRef) -> Iterator[ast.AST]:
    """Every node of the forward of a class and of the methods of the same object that it calls."""
    todo: list[Method] = [m for m in [find_method(tree, cls, "forward")] if m]
    seen: set[Function] = set()
    while todo:
        method = todo.pop()
        if method.node in seen:
            continue
        seen.add(method.node)
        for node in walk(method.node):
            yield node
            if isinstance(node, ast.Attribute):
                found = None
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    found = find_method(tree, cls, node.attr)
                elif isinstance(node.value, ast.Call) and dotted(node.value.func) == "super":
                    found = _above(tree, _Super(_Object(cls), method.owner), node.attr)
                if found:
                    todo.append(found)


def _above(tree: SourceTree, on: _Super, name: str) -> Method | None:
    """The method that `super()` finds: that of the classes after `owner`, in the order of the object's own class."""
    after = False
    for owner in lineage(tree, on.of.cls):
        if after and (node := owner.own(name)):
            return Method(owner, node)
        after = after or owner.node is on.owner.node
    return None


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
            return value
    return None


def _explicit(call: ast.Call) -> bool:
    """Whether `self` is handed over, as in `Base.__init__(self, ...)`."""
    return bool(call.args) and dotted(call.args[0]) == "self"


def _compared(op: ast.cmpop, a: Any, b: Any, node: ast.expr) -> bool:
    match op:
        case ast.Is():
            return a is b
        case ast.IsNot():
            return a is not b
    if _NOTHING in (a, b):
        raise Unreadable(f"the condition {ast.unparse(node)[:60]} cannot be told")
    if isinstance(a, Layers) or isinstance(b, Layers):
        return True  # layers of a model as large as any: `0 <= layer < len(self.layers)`
    match op:
        case ast.Eq():
            return bool(a == b)
        case ast.NotEq():
            return bool(a != b)
        case ast.Lt():
            return bool(a < b)
        case ast.LtE():
            return bool(a <= b)
        case ast.Gt():
            return bool(a > b)
        case ast.GtE():
            return bool(a >= b)
    raise Unreadable(f"the condition {ast.unparse(node)[:60]} cannot be told")


def _computed(op: ast.operator, a: Any, b: Any, node: ast.expr) -> Any:
    if isinstance(a, int | Layers) and isinstance(b, int):
        match op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.FloorDiv():
                return a // b
    raise Unreadable(f"{ast.unparse(node)} cannot be computed")
