"""YAML with the place of every key and value, and without YAML's guesses.

Plain scalars become `true`/`false`, null, decimal integers and decimal fractions; everything else stays text (`08`,
`1e3`, `0644`, dates). A fraction remembers how it was written, so that a schema that wants text gets `1.10`. A word
such as `no` remembers that it had no quotes, so that it is never taken for what was not meant.

A file of Ansible's is read as Ansible reads it: its guesses are YAML 1.1's, and a vaulted value is a secret that cannot
be had.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from opsctl.errors import Place, UsageError
from opsctl.localfiles import read
from opsctl.secret_sources import TAGS, VAULT_HINT, late_secret, vaulted
from opsctl.text import did_you_mean, nearest, one_line

DocPath = tuple[str | int, ...]
"""Where a value stands in a document: keys and list indexes from the top."""
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FRACTION = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?\Z")
_CORE = "tag:yaml.org,2002:"
_BEHIND_SIGN = re.compile(
    r"(undefined alias|duplicate anchor|undefined tag handle) .*"
)  # may be a password with * or &
_MOST_NODES = 200_000  # aliases of aliases can stand for billions of nodes
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
JUDGED_LATER = object()
"""Marks a field of a model whose value is checked on its own, against what is known only then."""
_BOOLS = {"yes": True, "no": False, "on": True, "off": False, "y": True, "n": False, "true": True, "false": False}
_NULL = "null"
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")


class Fraction(float):
    """A number with the text it was written as."""

    text: str

    def __new__(cls, text: str) -> Fraction:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Source:
    """One document: plain values, and where each stands; parts of it may stand in other files than `file`."""

    file: str
    value: Any
    keys: Mapping[DocPath, Place]
    values: Mapping[DocPath, Place]

    @property
    def files(self) -> set[str]:
        """All files that it was read from."""
        return {self.file, *(place.file for place in self.keys.values())}

    def place(self, path: Sequence[str | int] = ()) -> Place:
        """Where the value at `path` stands, or the nearest thing around it."""
        return self._place(self.values, path)

    def key_place(self, path: Sequence[str | int]) -> Place:
        """Where the key that `path` ends with stands, or the nearest thing around it."""
        return self._place(self.keys, path)

    def _place(self, first: Mapping[DocPath, Place], path: Sequence[str | int]) -> Place:
        wanted = tuple(path)
        found = first.get(wanted)
        while found is None and wanted:
            found = self.values.get(wanted)
            wanted = wanted[:-1]
        return found or self.values.get(()) or Place(self.file, 1, 1)


def read_yaml(path: Path, shown: str | None = None) -> Source:
    """The YAML file at `path`. Raises UsageError with the place of what is wrong."""
    try:
        text = read(path, piped=True)
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, expected a YAML file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return parse_yaml(text, shown or str(path))


def parse_yaml(
    text: bytes | str, file: str, is_ansible: Callable[[Collection[str]], bool] = lambda keys: False
) -> Source:
    """The one YAML document in `text`; `file` names it in messages. Raises UsageError.

    is_ansible: whether a document with these keys at its top is Ansible's.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1 if isinstance(text, bytes) else None
        raise UsageError("the file is not UTF-8 text", where=Place(file, line)) from None
    try:
        node = yaml.compose(decoded, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise _malformed(error, file) from None
    except yaml.reader.ReaderError as error:
        line = decoded[: error.position].count("\n") + 1 if isinstance(error.position, int) else None
        raise UsageError(
            f"the file holds a character that YAML does not allow: {error.reason}", where=Place(file, line)
        ) from None
    except RecursionError:
        raise UsageError("the file is nested too deeply", where=Place(file)) from None
    keys = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    builder = (_AnsibleBuilder if is_ansible(keys) else _Builder)(file)
    try:
        value = None if node is None else builder.build(node, ())
    except RecursionError:
        raise UsageError("the file is nested too deeply", where=Place(file)) from None
    return Source(file, value, builder.keys, builder.values)


def plain_scalar(text: str) -> Any:
    """What an unquoted scalar stands for: also used for values given on the command line."""
    match text:
        case "true":
            return True
        case "false":
            return False
        case "" | "~" | "null":
            return None
    if _INTEGER.match(text) and len(text) < 4000:
        return int(text)
    return Fraction(text) if _FRACTION.match(text) else Word.of(text)


class _Builder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[DocPath, Place] = {}
        self.values: dict[DocPath, Place] = {}
        self._open: set[int] = set()
        self._built = 0

    def build(self, node: yaml.Node, path: DocPath) -> Any:
        self._built += 1
        if self._built > _MOST_NODES:
            raise self._error(node, "the document is too large when its aliases are expanded")
        if id(node) in self._open:
            raise self._error(node, "this alias stands for something that contains itself")
        self.values[path] = self._at(node)
        if node.tag.startswith("!"):
            return self._tagged(node)
        self._open.add(id(node))
        try:
            match node:
                case yaml.MappingNode():
                    return self._mapping(node, path)
                case yaml.SequenceNode():
                    return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: DocPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_CORE}merge":
                merged |= self._merge(value_node, path)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.startswith("!"):
                hint = 'put quotes around a template: "{{ name }}"' if isinstance(key_node, yaml.MappingNode) else None
                raise self._error(key_node, "a key must be plain text", hint)
            key = str(key_node.value)
            if key in result:
                first = self.keys[(*path, key)]
                raise self._error(key_node, f"the key {key!r} stands here twice", f"the first one is at {first}")
            self.keys[(*path, key)] = self._at(key_node)
            result[key] = self.build(value_node, (*path, key))
        return {**merged, **result} if merged else result

    def _merge(self, node: yaml.Node, path: DocPath) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in reversed(parts):
            if not isinstance(part, yaml.MappingNode):
                raise self._error(part, "`<<` needs a mapping, or a list of mappings")
            merged |= self.build(part, path)
        return merged

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        if not isinstance(node, yaml.ScalarNode) or node.style:
            return text
        if node.tag == f"{_CORE}str" and text not in tuple("yYnN"):  # which the library takes for text, unlike YAML 1.1
            return text
        return plain_scalar(text)

    def _tagged(self, node: yaml.Node) -> Any:
        tag = node.tag
        if tag == "!vault":
            raise self._error(node, "Ansible Vault values are not read here", VAULT_HINT)
        if tag not in TAGS:
            if nearest(tag, TAGS):
                raise self._error(node, f"unknown tag {tag}", did_you_mean(tag, TAGS))
            # Text that begins with a ! may be a secret that nobody knows yet: it is not quoted.
            raise self._error(node, "unknown tag", f"known are {', '.join(TAGS)}; text that begins with ! needs quotes")
        place = self._at(node)
        if isinstance(node, yaml.ScalarNode) and node.value:
            # One word is one argument: nothing here is split as a shell would.
            return late_secret(tag, [str(node.value)], place)
        if tag == "!cmd" and isinstance(node, yaml.SequenceNode) and node.value:
            return late_secret(tag, [str(item.value) for item in node.value], place)
        expected = "a list: !cmd [program, argument]" if tag == "!cmd" else f"one word: {tag} NAME"
        raise self._error(node, f"{tag} takes {expected}")

    def _at(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _error(self, node: yaml.Node, message: str, hint: str | None = None) -> UsageError:
        return UsageError(message, where=self._at(node), hint=hint)


class _AnsibleBuilder(_Builder):
    """Builds what Ansible would: `yes` is true, `0644` is 420, `!unsafe` is text and `!vault` a secret."""

    _READERS: ClassVar = {
        f"{_CORE}{kind}": getattr(yaml.constructor.SafeConstructor(), f"construct_yaml_{kind}")
        for kind in ("bool", "int", "float", "null")
    }

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self._READERS[node.tag](node)
        except (KeyError, ValueError):
            return str(node.value)

    def _tagged(self, node: yaml.Node) -> Any:
        if node.tag in ("!vault", "!vault-encrypted"):
            return vaulted(self._at(node))
        if node.tag == "!unsafe" and isinstance(node, yaml.ScalarNode):
            text = str(node.value)
            return f"{{% raw %}}{text}{{% endraw %}}" if "{" in text else text  # for Ansible it is no template
        return super()._tagged(node)


def _malformed(error: yaml.MarkedYAMLError, file: str) -> UsageError:
    mark = error.problem_mark or error.context_mark
    place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
    problem = _BEHIND_SIGN.sub(r"\1", one_line(error.problem or "cannot be read"))
    hint = None
    if "\\t" in problem or "character that cannot start any token" in problem:
        hint = "indent with spaces; put quotes around text that begins with @, `, % or a tab"
    elif "mapping values are not allowed" in problem:
        hint = "check the indentation, and put quotes around text with a colon in it"
    context = f" ({one_line(error.context)})" if error.context else ""
    return UsageError(f"malformed YAML: {problem}{context}", where=place, hint=hint)


class Word(str):
    """A scalar without quotes that is text here, and a bool or null to other readers of YAML."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> str:
        """The text, as a Word if it is one: `yes`, `Yes` and `YES` are, `yEs` is not."""
        low = text.lower()
        known = (low in _BOOLS or low == _NULL) and text in (low, low.capitalize(), low.upper())
        return cls(text) if known else text

    @property
    def meant(self) -> bool | None:
        """What those other readers take it for."""
        return as_bool(self)


def as_bool(text: str) -> bool | None:
    """What a word means where a bool is expected; None if it is no such word."""
    return _BOOLS.get(text.lower())


def ambiguous(word: Word, where: Place | None, what: str = "", *, bools: bool = True) -> UsageError:
    """The error for a word whose meaning nothing decides. bools: whether a bool may stand there."""
    plain = {True: "true", False: "false", None: _NULL}[word.meant]
    kind = "null" if word.meant is None else "a bool"
    said = f"{what}`{word}` without quotes is text to some readers of YAML and {kind} to others"
    either = bools or word.meant is None
    hint = f'write {plain}, or "{word}" where the text is meant' if either else f'write it in quotes: "{word}"'
    return UsageError(said, where=where, hint=hint)


def refuse(value: Any, source: Source, path: Sequence[str | int]) -> None:
    """Raise UsageError for the first such word in a value that no type describes."""
    match value:
        case Word():
            raise ambiguous(value, source.place(path))
        case list():
            for index, one in enumerate(value):
                refuse(one, source, (*path, index))
        case dict():
            for key, one in value.items():
                refuse(one, source, (*path, key))


def settled(annotation: Any, value: Any, source: Source, path: DocPath) -> Any:
    """`value` with each such word a bool where `annotation` wants one. Raises UsageError for all others."""
    members = list(_members(annotation))
    match value:
        case Word() if bool in members and str not in members and value.meant is not None:
            return value.meant
        case Word():
            raise ambiguous(value, source.place(path), bools=str not in members or bool in members)
        case list():
            inner = [args[0] for m in members if typing.get_origin(m) is list and (args := typing.get_args(m))]
            return [settled(_union(inner), one, source, (*path, i)) for i, one in enumerate(value)]
        case dict():
            model = next((m for m in members if isinstance(m, type) and issubclass(m, BaseModel)), None)
            if model is not None:
                return {key: _field(model, key, one, source, (*path, key)) for key, one in value.items()}
            inner = [args[1] for m in members if typing.get_origin(m) is dict and (args := typing.get_args(m))]
            return {key: settled(_union(inner), one, source, (*path, key)) for key, one in value.items()}
    return value


def _field(model: type[BaseModel], key: str, value: Any, source: Source, path: DocPath) -> Any:
    info = next((i for name, i in model.model_fields.items() if (i.alias or name) == key), None)
    if info is not None and JUDGED_LATER in info.metadata:
        return value
    if info is not None and isinstance(value, str) and _takes_whole_numbers(info):
        try:
            whole_number(value)
        except ValueError as error:
            raise UsageError(f"{key}: {error}", where=source.place(path)) from None
    return settled(info.annotation if info else Any, value, source, path)


def _takes_whole_numbers(info: FieldInfo) -> bool:
    """Whether a field takes nothing but whole numbers, and has no reader of its own."""
    wanted = info.annotation is int or set(typing.get_args(info.annotation)) == {int, type(None)}
    return wanted and not any(isinstance(m, BeforeValidator) for m in info.metadata)


def whole_number(value: Any) -> Any:
    """The value. Raises ValueError for digits with leading zeros or underscores: octal to some, decimal to others."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9_]+", value) and not _WHOLE.match(value):
        raise ValueError(f"expected a whole number in plain decimal digits, got {one_line(repr(value), 60)}")
    return value


def _union(annotations: list[Any]) -> Any:
    return typing.Union[tuple(annotations)] if annotations else Any  # noqa: UP007  of as many as there are


def _members(annotation: Any) -> typing.Iterator[Any]:
    """The types of which a value may be one."""
    if typing.get_origin(annotation) is Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, type(int | str)):
        for one in typing.get_args(annotation):
            yield from _members(one)
    else:
        yield annotation
