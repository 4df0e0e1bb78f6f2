"""Both ends agree on every call: what is declared in wire/calls is what the agent's functions take and give."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import opsctl.wire.calls as declarations
from opsctl.wire.areas import AREAS

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
    declarations.reply_type(f"{area}.{function}")


def test_every_call_of_the_agent_is_declared() -> None:
    calls = [
        f"{area}.{name}" for area, at in AREAS.items() for name in importlib.import_module(f"opsctl.agent.{at}").CALLS
    ]
    assert sorted(calls) == sorted(
        f"{area}.{function}" for _, area, function in DECLARED if not function.startswith("_")
    )
