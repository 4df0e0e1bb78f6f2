"""The agent over a real SSH connection and over a pipe: calls, errors, order, clean-up."""

from __future__ import annotations

import pytest

from opsctl.agent.protocol import Call
from opsctl.errors import RemoteError
from opsctl.remote.host import RemoteHost

pytestmark = pytest.mark.usefixtures("host")


def test_unknown_calls_are_errors_and_do_not_disturb_the_others(host: RemoteHost) -> None:
    first, second, third = host.outcomes([Call("nope.x"), Call("protocol.y"), Call("os.system", {"command": "true"})])
    assert isinstance(first, RemoteError)
    assert "no agent module 'nope'" in str(first)
    assert isinstance(second, RemoteError)
    assert "has no call 'y'" in str(second)
    assert isinstance(third, RemoteError)
    assert "no agent module 'os'" in str(third)


def test_raw_needs_no_agent(host: RemoteHost) -> None:
    result = host.raw("echo out; echo err >&2; exit 3")
    assert (result.status, result.stdout, result.stderr) == (3, b"out\n", "err\n")
