"""Hosts for tests: a real sshd, the local agent, a practice host, and a link that can be slow or break."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from opsctl.practice.host import PracticeHost, practice_host
from opsctl.remote.host import RemoteHost, connect
from opsctl.remote.spec import ConnectionSpec
from opsctl.wire.protocol import Call
from tests.proxy import Proxy
from tests.sshd import SSHD, Sshd

MakeHost = Callable[..., RemoteHost]

# A shell starts what it puts in the background with SIGINT ignored, and so would be all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples must not fail because the machine is busy.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two workers a core: a test waits about half of its time, for a server, an answer or a lock."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else 2 * len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A real OpenSSH server, one for the whole session."""
    if not SSHD:
        pytest.skip("needs OpenSSH's sshd (package openssh-server)")
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PracticeHost]:
    """A practice host, one for the whole session. Its SGLang is whatever the tests before have made of it."""
    with practice_host(tmp_path_factory.mktemp("practice")) as host:
        yield host


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The agent's state directory, one per test."""
    return tmp_path / "state"


BOTH_LOGINS = pytest.mark.parametrize("make_host", ["pipelined", "plain"], indirect=True)


@pytest.fixture
def make_host(sshd: Sshd, state: Path, request: pytest.FixtureRequest) -> Iterator[MakeHost]:
    """Connects to the sshd; arguments are those of ConnectionSpec. Every call gives a connection of its own."""
    login = getattr(request, "param", "pipelined")
    made: list[RemoteHost] = []

    def make(**given: Any) -> RemoteHost:
        host = connect(sshd.spec(**{"state_dir": str(state), "login": login, **given}))
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


@pytest.fixture
def host(make_host: MakeHost) -> RemoteHost:
    """A host behind SSH."""
    return make_host()


@pytest.fixture
def local_host(state: Path) -> Iterator[RemoteHost]:
    """This machine, without SSH."""
    with connect(ConnectionSpec("here", "local", state_dir=str(state))) as host:
        yield host


@pytest.fixture
def slow_link(sshd: Sshd) -> Iterator[Callable[..., Proxy]]:
    """Makes proxies to the sshd with a round trip time in seconds, which can cut and freeze: `make_host(port=p.port)`.

    To count round trips, let them `gather` what the server says within that many seconds of silence.

    Host keys are filed under the port, so give `host_key=str(sshd.host_key)` as well.
    """
    made: list[Proxy] = []

    def make(round_trip: float = 0.0, gather: float = 0.0, rate: float = math.inf) -> Proxy:
        made.append(Proxy(sshd.port, round_trip, gather, rate))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def agent_pid() -> Callable[[RemoteHost], int]:
    """The process id of a host's agent."""

    def find(host: RemoteHost) -> int:
        found = host.call(Call("proc.run", {"argv": "echo $PPID"})).result
        return int(found["stdout"])

    return find
