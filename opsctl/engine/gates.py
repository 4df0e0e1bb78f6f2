"""Conditions on what a play has measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opsctl.engine import templating
from opsctl.engine.events import Event, GateChecked, Problem
from opsctl.engine.model import Gate
from opsctl.engine.scope import Scope
from opsctl.engine.session import Session
from opsctl.engine.tasks import Play
from opsctl.engine.templating import At
from opsctl.engine.unknown import Undecided
from opsctl.errors import GateFailed, UsageError


def check(
    play: Play, session: Session, scope: Scope, emit: Callable[[Event], None], clock: Callable[[], float]
) -> None:
    """Check every gate and tell how it stands. Raises GateFailed for the first that does not hold."""
    failed: GateFailed | None = None
    for index, gate in enumerate(play.keys.gates):
        at = play.at / "gates" / index
        measured = session.measures.get(gate.measure) if gate.measure else None
        try:
            holds, message = _judge(gate, measured, scope, at, check=session.info.check)
        except Undecided as error:
            holds, message = None, f"decided at run time: {error.reason}"
        place = at.place
        emit(
            GateChecked(
                at=clock(), host=session.name, gate=_name(gate), holds=holds, measured=measured, message=message,
                place=Problem.at(place),
            )
        )  # fmt: skip
        if holds is False and failed is None:
            failed = GateFailed(f"gate {_name(gate)}: {message}", where=place)
    if failed:
        raise failed


def _judge(gate: Gate, measured: float | None, scope: Scope, at: At, *, check: bool) -> tuple[bool | None, str]:
    if gate.that is not None:
        holds = templating.holds(gate.that, scope, at / "that", "that")
        return holds, f"{gate.that} is {'true' if holds else 'not true'}"
    if measured is None:
        return (None if check else False), f"{gate.measure} was not measured"
    least, most = bounds(gate, scope, at)
    if least is not None and not measured >= least:
        return False, f"{gate.measure} {measured:.4g} < {least:.4g}"
    if most is not None and not measured <= most:
        return False, f"{gate.measure} {measured:.4g} > {most:.4g}"
    return True, f"{gate.measure} is {measured:g}"


def bounds(gate: Gate, scope: Scope, at: At) -> tuple[float | None, float | None]:
    """The least and the most that a gate allows. Raises UsageError, Undecided."""
    return _number(gate.at_least, scope, at / "at_least"), _number(gate.at_most, scope, at / "at_most")


def _number(value: Any, scope: Scope, at: At) -> float | None:
    if value is None:
        return None
    value = templating.render(value, scope, at)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"a gate's bound is a number, got {value!r}", where=at.place) from None


def _name(gate: Gate) -> str:
    return gate.name or gate.measure or gate.that or "gate"
