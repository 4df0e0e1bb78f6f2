"""Planner tables: arguments and what was observed on one side, the change and its undo on the other.

A case in cases/MODULE.yaml has
    name, args
    seen        one reply per call of `observe`: {result: ...} or {result: ..., body: text}
    files       local files the module may find: {name: text}
    variables   for templates
and says what follows:
    calls       [[call, args] or [call, args, body text], ...]; `unchanged: true` stands for no change at all
    undo, settle, summary, unknown, result, shows (path -> [before, after] of the differences)
    error       part of the message of the error that planning raises
    invalid     part of the message of the error that the arguments raise
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from opsctl import modules
from opsctl.errors import OpsctlError
from opsctl.modules.contract import Module
from opsctl.wire.protocol import Call, Reply
from tests.modules.conftest import site

CASES = [
    pytest.param(path.stem, case, id=f"{path.stem}-{case['name']}")
    for path in sorted(Path(__file__).with_name("cases").glob("*.yaml"))
    for case in yaml.safe_load(path.read_text())
]


def as_data(calls: tuple[Call, ...] | None) -> list[list[Any]] | None:
    if calls is None:
        return None
    return [[c.name, c.args, c.body.decode()] if c.body else [c.name, c.args] for c in calls]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_plan(name: str, case: dict[str, Any], tmp_path: Path) -> None:
    module = modules.get(name)
    assert isinstance(module, Module)
    for local, text in case.get("files", {}).items():
        (tmp_path / local).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / local).write_text(text)
        (tmp_path / local).chmod(0o644)
    here = site(case.get("variables"), tmp_path)
    if "invalid" in case:
        with pytest.raises(ValidationError) as caught:
            module.args.model_validate(case["args"])
        assert case["invalid"] in str(caught.value)
        return
    args = module.args.model_validate(case["args"])
    seen = [Reply(reply["result"], reply.get("body", "").encode()) for reply in case["seen"]]
    assert len(module.observe(args, here)) == len(seen)
    if "error" in case:
        with pytest.raises(OpsctlError) as refused:
            module.plan(args, seen, here)
        assert case["error"] in str(refused.value)
        return
    change = module.plan(args, seen, here)
    if case.get("unchanged"):
        assert change is None
    else:
        assert change is not None
        assert as_data(change.calls) == case["calls"]
        assert as_data(change.undo) == case.get("undo", [])
        assert as_data(change.settle) == case.get("settle", [])
        assert bool(change.unknown) == case.get("unknown", False)
        if "summary" in case:
            assert change.summary == case["summary"]
        if "shows" in case:
            shown = {d.path: [_text(d.before), _text(d.after)] for d in change.diffs}
            assert shown == case["shows"]
    if "result" in case:
        assert module.result(args, seen, None, here) == case["result"]


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()
