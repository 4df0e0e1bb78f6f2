"""Secrets in arguments: refused where others could read them, and otherwise only ever in the body of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from opsctl import modules
from opsctl.modules.contract import Module
from opsctl.modules.wait_for import WaitArgs, call_of
from opsctl.secret import Secret
from opsctl.wire.protocol import Call, Reply
from tests.modules.conftest import site

KEY = Secret("k3y-that-nobody-sees")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("command", {"cmd": KEY}),
        ("command", {"argv": ["curl", KEY]}),
        ("command", {"cmd": "x", "undo": ["curl", KEY]}),
        ("shell", {"cmd": KEY}),
        ("process", {"name": "s", "argv": ["s", KEY], "log": "/l"}),
        ("raw", {"cmd": KEY}),
        ("http", {"url": KEY}),
        ("wait_for", {"http": {"url": KEY}}),
    ],
)
def test_refused_where_others_could_read_it(name: str, args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="could be read by every user of the host"):
        modules.get(name).args.model_validate(args)


ABSENT = Reply({"kind": "absent"})


@pytest.mark.parametrize(
    ("name", "args", "seen"),
    [
        ("copy", {"content": KEY, "dest": "/etc/key"}, [ABSENT]),
        ("line", {"path": "/etc/keys", "line": KEY, "create": True}, [ABSENT]),
        ("template", {"src": "t.j2", "dest": "/etc/key"}, [ABSENT]),
        ("command", {"cmd": "login", "env": {"KEY": KEY}, "stdin": KEY, "undo": "logout"}, []),
        ("command", {"cmd": "login", "env": {"KEY": KEY}, "unless": "status"}, [Reply({"code": 1})]),
        ("process", {"name": "s", "argv": "s", "log": "/l", "env": {"KEY": KEY}}, [Reply({"state": "absent"})]),
    ],
)
def test_only_in_the_body_of_a_call(name: str, args: dict[str, Any], seen: list[Reply], tmp_path: Path) -> None:
    module = modules.get(name)
    assert isinstance(module, Module)
    (tmp_path / "t.j2").write_text("key={{ key }}\n")
    here = site({"key": KEY.reveal()}, tmp_path)
    parsed = module.args.model_validate(args)
    change = module.plan(parsed, seen, here)
    assert change is not None
    calls: list[Call] = [*module.observe(parsed, here), *change.calls, *(change.undo or ()), *change.settle]
    assert KEY.reveal() not in repr([(call.name, call.args) for call in calls])
    assert any(KEY.reveal().encode() in call.body for call in change.calls)
    assert all(not call.body for call in change.undo or ())
    assert KEY.reveal() not in change.summary
    assert all(diff.secret for diff in change.diffs)


def test_a_secret_header_of_a_wait() -> None:
    call = call_of(WaitArgs.model_validate({"http": {"url": "http://x", "headers": {"Authorization": KEY}}}))
    assert KEY.reveal() not in repr(call.args)
    assert KEY.reveal().encode() in call.body
