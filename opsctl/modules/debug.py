"""Showing values."""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import Field, model_validator

from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.secret import masked
from opsctl.text import printable
from opsctl.wire.host import Host
from opsctl.yaml_source import Fraction


class DebugArgs(ModuleArgs):
    msg: Any = Field(None, description="What to show.")
    var: str | None = Field(None, description="Expression whose value to show.", json_schema_extra={"raw": True})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.msg is None) == (self.var is None):
            raise ValueError("give either `msg` or `var`")
        return self


class Debug(Action[DebugArgs]):
    """Show a message or the value of an expression."""

    name = "debug"
    instant = True
    args = DebugArgs
    free_form = "msg"
    results = frozenset({"msg"})
    examples = """
- name: Say it
  debug: "working in {{ scratch }}"
- name: Show it
  debug: {var: scratch}
"""

    def run(self, args: DebugArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        value = masked(args.msg if args.var is None else site.evaluate(args.var))
        plain = str(value) if isinstance(value, Fraction) else value  # as it was written: 1.10 and not 1.1
        text = plain if isinstance(plain, str) else json.dumps(plain, indent=2, ensure_ascii=False, default=str)
        shown = text if args.var is None else f"{args.var} = {text}"
        return Outcome(values={"msg": value}, lines=tuple(printable(shown).splitlines()))
