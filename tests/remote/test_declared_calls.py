"""Both ends agree on every call: what is declared in wire/calls is what the agent's functions take and give."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import opsctl.wire.calls as declarations
from opsctl.wire.areas import AREAS
from opsctl.wire.protocol import Reply

ROOMS = sorted(path.stem for path in Path(declarations.__file__).parent.glob("*.py") if path.stem != "__init__")
DECLARED = [
    (name, area, function)
    for room in ROOMS
    for name, made in vars(importlib.import_module(f"opsctl.wire.calls.{room}")).items()
    if hasattr(made, "__wrapped__")
    for area, _, function in [name.partition("_")]
]


@pytest.mark.parametrize(("name", "area", "function"), DECLARED, ids=[f"{a}.{f}" for _, a, f in DECLARED])
def test_a_call_takes_what_it_is_declared_to_take(name: str, area: str, function: str) -> None:
    module = importlib.import_module(f"opsctl.agent.{AREAS[area]}")
    taken = list(inspect.signature(module.CALLS[function]).parameters.values())[1:]  # the first is the context
    declared = list(inspect.signature(declarations.declaration(f"{area}.{function}")).parameters.values())
    wanted = [(p.name, p.default) for p in declared if p.name != "body"]
    assert wanted == [(p.name, p.default) for p in taken]


@pytest.mark.parametrize(("name", "area", "function"), DECLARED, ids=[f"{a}.{f}" for _, a, f in DECLARED])
def test_both_ends_give_the_same_types(name: str, area: str, function: str) -> None:
    module = importlib.import_module(f"opsctl.agent.{AREAS[area]}")
    answering = module.CALLS[function]
    _, *taken = inspect.signature(answering).parameters
    hints = get_type_hints(answering, {**vars(module), **names_for_types(module)})
    declared = get_type_hints(declarations.declaration(f"{area}.{function}"))
    assert {key: form(hints[key]) for key in taken} == {key: form(declared[key]) for key in taken}
    given = hints["return"]
    assert form(get_args(given)[0] if get_origin(given) is Reply else given) == form(get_args(declared["return"])[0])


def names_for_types(module: ModuleType) -> dict[str, Any]:
    """What a module imports for its annotations alone."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), str(module.__file__), "exec"), names)
    return names


def form(hint: Any) -> object:
    """A type as JSON has it: a list, a tuple of any length and a sequence are arrays; a dictionary is an object."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return frozenset(map(form, arguments)) if len(set(map(form, arguments))) > 1 else form(arguments[0])
    if origin is Literal:
        return Literal, frozenset(arguments)
    if origin in (list, Sequence, Iterable) or (origin is tuple and arguments[1:] == (...,)):
        return "array", form(arguments[0])
    if origin in (dict, Mapping):
        return "object", *map(form, arguments)
    return (origin, *map(form, arguments)) if arguments else hint


def test_every_call_of_the_agent_is_declared() -> None:
    calls = [
        f"{area}.{name}" for area, at in AREAS.items() for name in importlib.import_module(f"opsctl.agent.{at}").CALLS
    ]
    assert sorted(calls) == sorted(
        f"{area}.{function}" for _, area, function in DECLARED if not function.startswith("_")
    )
