"""Conditions that must hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from opsctl.errors import UsageError
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.wire.host import Host


class AssertArgs(ModuleArgs):
    that: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        description="Expressions, as in `when`. Each must be true.", min_length=1, json_schema_extra={"raw": True}
    )
    msg: str | None = Field(None, description="What to say when one is not.")


class Assert(Action[AssertArgs]):
    """Stop the play unless every condition is true."""

    name = "assert"
    instant = True
    args = AssertArgs
    free_form = "that"
    results = frozenset({"assertion"})
    examples = """
- name: A scratch folder was given
  assert: {that: ["scratch != ''"], msg: "no scratch folder"}
"""

    def run(self, args: AssertArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        for expression in args.that:
            value = site.evaluate(expression)
            if not isinstance(value, bool):
                kind = type(value).__name__
                raise UsageError(
                    f"`that: {expression}` is {value!r}, a {kind}, and neither true nor false",
                    hint="compare it with something",
                )
            if not value:
                return Outcome(values={"assertion": expression}, failed=args.msg or f"not true: {expression}")
        return Outcome()
