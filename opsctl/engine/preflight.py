"""All of a play that can be checked without a host: every task is made ready for every host before one is touched."""

from __future__ import annotations

from collections.abc import Collection

from opsctl.engine import gates, templating
from opsctl.engine.prepare import Surroundings, prepare
from opsctl.engine.scope import Layer, Scope
from opsctl.engine.tasks import Play
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import UsageError

_AT_RUN_TIME = ("facts", "measures", "failed_task")


def check(play: Play, chosen: Collection[int], layers: tuple[Layer, ...], around: Surroundings) -> None:
    """Raise UsageError for undefined variables, missing local files, wrong arguments."""
    tasks = play.all_tasks()
    later = {name: Unknown("known at run time") for name in _AT_RUN_TIME}
    made = {t.keys.register_ for t in tasks if t.keys.register_ and t.number in chosen}
    later |= {name: Unknown(f"registered by an earlier task: {name}") for name in made}
    left_out = {t.keys.register_: t.name for t in tasks if t.keys.register_ and t.keys.register_ not in made}
    reasons = {f"{name} is registered by {task!r}": name for name, task in left_out.items()}
    absent = {name: Unknown(reason) for reason, name in reasons.items()}
    scope = Scope((Layer({**later, **absent}), *layers))
    for task in tasks:
        if task.number not in chosen:
            continue
        try:
            prepare(task, scope, around)
        except Undecided as error:
            if error.reason in reasons:
                raise UsageError(f"{error.reason}, which does not run", where=task.at.place,
                                 hint="leave out --start-at-task or --tags; --resume RUN keeps what was registered",
                                 ) from None  # fmt: skip
    for index, gate in enumerate(play.keys.gates):
        at = play.at / "gates" / index
        try:
            gates.bounds(gate, scope, at)
            if gate.that is not None:
                templating.holds(gate.that, scope, at / "that", "that")
        except Undecided:
            continue
