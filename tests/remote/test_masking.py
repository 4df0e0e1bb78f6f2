"""What the agent was told to mask it writes nowhere, and neither does the supervisor that it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opsctl.errors import RemoteError
from opsctl.remote import steps as journal
from opsctl.remote.host import RemoteHost
from opsctl.wire.protocol import Call
from tests.remote.steps import RUN, begin, tree
from tests.sshd import eventually

SECRET = "correct horse\tbattery"
PRINTS = (
    f"import sys, time; sys.stdout.write({SECRET[:9]!r}); sys.stdout.flush(); time.sleep(0.3); print({SECRET[9:]!r})"
)


def written(state: Path) -> str:
    return "\n".join(content.decode("utf-8", "replace") for content in tree(state).values())


def running(*after: str, **how: object) -> Call:
    return Call("proc.run", {"argv": [sys.executable, "-c", "; ".join([PRINTS, *after])], **how})


def test_the_host_writes_no_secret_that_its_agent_was_told(host: RemoteHost, state: Path) -> None:
    host.tell_secrets([SECRET])
    host.call(begin())
    step = journal.apply(RUN, 1, f"print {SECRET}", [running("sys.exit(3)", ok=[0])])
    with pytest.raises(RemoteError) as failed:
        host.call(step)
    assert SECRET in str(failed.value.fields["stdout"])  # the controller gets it as it is, and masks it itself
    host.call(Call("journal.checkpoint", {"run": RUN, "data": {"said": SECRET}}))
    host.call(Call("lock.take", {"holder": {"who": SECRET}}))
    host.call(Call("journal.finish", {"run": RUN, "outcome": "failed", "why": f"it said {SECRET}"}))
    assert "battery" not in written(state)
    assert written(state).count("***") >= 5


def test_neither_does_a_supervisor(host: RemoteHost, state: Path) -> None:
    """Its events hold what a change prints as it comes, also in two parts, and what its calls gave."""
    host.tell_secrets([SECRET])
    host.call(begin())
    host.call(journal.supervise(RUN, 1, "print", [running(live=True)], [], [], 60))
    events = (state / "runs" / RUN / "events").read_text(errors="replace")
    assert "***" in events
    host.call(Call("supervise.revert", {"run": RUN}))
    eventually(lambda: "reverted" in (state / "runs" / RUN / "events").read_text(errors="replace"))
    assert "battery" not in written(state)
    assert "correct" not in written(state)


def test_what_looks_like_a_secret_is_masked_without_being_told(host: RemoteHost, state: Path) -> None:
    token = "hf_" + "aB3" * 12
    host.call(begin())
    host.call(Call("journal.finish", {"run": RUN, "outcome": "failed", "why": f"403 for {token}"}))
    assert token not in written(state)
    assert "REDACTED/hf-token" in written(state)
