"""Typed params, filled from the command line or from their defaults."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from opsctl.engine import usage
from opsctl.engine.model import Param
from opsctl.engine.options import Given
from opsctl.engine.scope import Layer
from opsctl.engine.tasks import Play
from opsctl.engine.templating import At, holds_template
from opsctl.errors import UsageError
from opsctl.localfiles import from_home
from opsctl.quantities import seconds, size_in_bytes
from opsctl.secret import Secret
from opsctl.text import did_you_mean, one_line
from opsctl.yaml_source import Word, ambiguous, as_bool, parse_yaml, plain_scalar, refuse


def untyped(name: str, given: Given) -> Any:
    """What a value is when no param says its type. Raises UsageError where it could be two things."""
    if not given.open:
        _refuse(name, given)
        return given.value
    value = plain_scalar(given.value)
    if isinstance(value, Word):
        error = ambiguous(value, None, f"-e {name}: ")
        raise UsageError(error.message, hint=f"{error.hint}: --set-string {name}={value}")
    return value


def _refuse(name: str, given: Given) -> None:
    if given.source is not None:
        refuse(given.value, given.source, (name,))


def check_names(given: Collection[str], plays: Iterable[Play], inventory_names: Collection[str]) -> None:
    """Raise UsageError for a name that no play and no host knows: it is more likely misspelt than meant."""
    known = set(inventory_names)
    for play in plays:
        known |= set(play.keys.params) | set(play.keys.vars)
        for use in usage.uses(play):
            known |= use.guarded  # it may be given: `{{ x | default(1) }}`
    for name in given:
        if name not in known:
            raise UsageError(f"-e {name}: neither the playbook nor the inventory has such a variable",
                             hint=did_you_mean(name, known) if known else None)  # fmt: skip


def declared(plays: Iterable[Play]) -> dict[str, tuple[Param, At]]:
    """The params of all plays whose type is the same wherever they are declared, each as the first play has it."""
    found: dict[str, tuple[Param, At]] = {}
    types: dict[str, set[str]] = {}
    for play in plays:
        for name, param in play.keys.params.items():
            found.setdefault(name, (param, play.at / "params" / name))
            types.setdefault(name, set()).add(param.type)
    return {name: one for name, one in found.items() if len(types[name]) == 1}


def param_layers(
    play: Play, given: Mapping[str, Given], elsewhere: Mapping[str, tuple[Param, At]]
) -> tuple[Layer, Layer]:
    """What the command line says, and the defaults of params (which may be templates). Raises UsageError.

    elsewhere: params of the whole playbook, which say what a value is in a play that does not declare it.
    """
    at = play.at / "params"
    own = {name: (param, at / name) for name, param in play.keys.params.items()}
    said = {name: _given(name, value, {**elsewhere, **own}.get(name)) for name, value in given.items()}
    defaults: dict[str, Any] = {}
    for name, param in play.keys.params.items():
        if name in given:
            continue
        if param.required:
            help_ = f" ({param.help})" if param.help else ""
            raise UsageError(f"the param {name!r} has no value{help_}", where=(at / name).place,
                             hint=f"give it with -e {name}=...")  # fmt: skip
        if param.default is None or holds_template(param.default):
            defaults[name] = param.default
        else:
            try:
                folder = Path(at.source.file).parent
                defaults[name] = _checked(f"default of {name}", param, param.default, folder, at / name)
            except UsageError as error:
                raise UsageError(error.message, where=(at / name / "default").place, hint=error.hint) from None
    return Layer(said), Layer(defaults, at)


def _given(name: str, value: Given, declared: tuple[Param, At] | None) -> Any:
    if declared is None:
        return untyped(name, value)
    param, at = declared
    if param.type != "bool":
        _refuse(name, value)
    return _checked(f"-e {name}", param, value.value, Path(), at)


def _checked(what: str, param: Param, value: Any, folder: Path, at: At) -> Any:
    try:
        result = _converted(param.type, value, folder)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what}: {error}") from None
    if param.choices is not None and result not in _choices(param, folder, at / "choices"):
        raise UsageError(f"{what}: {one_line(repr(result), 60)} is none of the choices",
                         hint=did_you_mean(str(result), [str(c) for c in param.choices]))  # fmt: skip
    return result


def _choices(param: Param, folder: Path, at: At) -> list[Any]:
    """The choices as values of the param's type."""
    try:
        return [_converted(param.type, choice, folder) for choice in param.choices or ()]
    except (ValueError, TypeError) as error:
        raise UsageError(f"choices: {error}", where=at.place) from None


def _converted(kind: str, value: Any, folder: Path) -> Any:
    match kind:
        case "text":
            if isinstance(value, Secret):
                return value
            if isinstance(value, bool):
                return str(value).lower()
            return _kind(str(value), value, str | int | float, "text")
        case "secret":
            return value if isinstance(value, Secret) else Secret(str(value))
        case "bool":
            meant = as_bool(str(value))
            return _kind(value if meant is None else meant, meant, bool, "true or false")
        case "int":
            number = plain_scalar(value) if isinstance(value, str) else value
            return _kind(number, number, int, "a whole number")
        case "float":
            number = plain_scalar(value) if isinstance(value, str) else value
            if isinstance(number, str):
                number = float(number) if number.strip().replace(".", "").isalnum() and number[:1].isdigit() else number
            return float(_kind(number, number, int | float, "a number"))
        case "list" | "map":
            parsed = value
            if isinstance(value, str):
                source = parse_yaml(value, "-e")
                refuse(source.value, source, ())
                parsed = source.value
            return _kind(parsed, parsed, list if kind == "list" else dict, "a list" if kind == "list" else "a mapping")
        case "duration":
            return seconds(value)
        case "size":
            return size_in_bytes(value)
    path = from_home(_kind(value, value, str, "a path"))
    path = path if path.is_absolute() else (folder / path).absolute()
    if kind == "file" and not path.is_file():
        raise ValueError(f"there is no file {path}")
    if kind == "folder" and not path.is_dir():
        raise ValueError(f"there is no folder {path}" + (", it is a file" if path.exists() else ""))
    return str(path)


def _kind(result: Any, value: Any, kind: Any, expected: str) -> Any:
    wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if wrong:
        shown = json.dumps(result, default=str)
        raise ValueError(f"expected {expected}, got {one_line(shown, 60)}")
    return result
