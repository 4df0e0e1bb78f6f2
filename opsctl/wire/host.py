"""A connected host, as much of it as modules and use cases of the domain may use. Never sent to a host itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ContextManager, List, NamedTuple, Optional, Protocol, Sequence, Union

if TYPE_CHECKING:
    import fabric
    import httpx

    from opsctl.wire.protocol import Call, R, Reply

OnProgress = Callable[[Any, bytes], None]


class RawResult(NamedTuple):
    """What a command without an agent gave."""

    status: Optional[int]
    stdout: bytes
    stderr: str


class Part(NamedTuple):
    """Bytes start to end of a local file, for the same place in a file of the host's folder.

    It starts where a block of a chunk does, and ends where one ends: the host digests it block by block.
    """

    source: str
    name: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class UnderWay(Protocol):
    """A call that was sent."""

    def wait(self, timeout: Optional[float] = None) -> Reply[Any]:
        """The reply. Raises RemoteError, Unreachable."""
        ...


class Sender(Protocol):
    """Streams to a host."""

    def send(self, folder: str, parts: Sequence[Part], on_bytes: Callable[[int], None]) -> None:
        """Write the parts into files of the host's folder. Raises Unreachable, RemoteError, UsageError."""
        ...


class Host(Protocol):
    """A connected host.

    Where it is that of a task, every wait ends with the task's time (RemoteError, kind `timeout`) and with Ctrl-C.
    """

    @property
    def name(self) -> str: ...

    def call(
        self, call: Call[R], *, timeout: Optional[float] = None, on_progress: Optional[OnProgress] = None
    ) -> Reply[R]:
        """One call, one round trip. Raises RemoteError, Unreachable."""
        ...

    def batch(self, calls: Sequence[Call[Any]], *, timeout: Optional[float] = None) -> List[Reply[Any]]:
        """Independent calls, all in one round trip, run side by side. Raises the first RemoteError."""
        ...

    def outcomes(
        self, calls: Sequence[Call[Any]], *, timeout: Optional[float] = None
    ) -> Sequence[Union[Reply[Any], Exception]]:
        """As `batch`, with an error in the place of each call that failed. Raises Unreachable."""
        ...

    def send(self, calls: Sequence[Call[Any]], *, on_progress: Optional[OnProgress] = None) -> Sequence[UnderWay]:
        """Send calls in one write without waiting."""
        ...

    def sending(self, size: int) -> ContextManager[Sender]:
        """Streams for about `size` bytes of files, which begin to connect at once."""
        ...

    def cleaning_up(self) -> Host:
        """The same host, for what has to be put right after a failure: for a while, whatever the task's time."""
        ...

    def check(self) -> None:
        """Raise RemoteError or Interrupted where time is over, or the user has stopped it: for work beside the host."""
        ...

    def raw(self, command: str, *, timeout: float = 60.0) -> RawResult:
        """A shell command without the agent, as the login user. Raises RemoteError, Unreachable."""
        ...

    def http(self, port: int) -> httpx.Client:
        """A client whose requests reach 127.0.0.1:`port` of the host through the connection."""
        ...

    def fabric(self, timeout: Optional[float] = None) -> fabric.Connection:
        """A fabric connection over this one, each of its commands within `timeout` seconds. Raises UsageError."""
        ...
