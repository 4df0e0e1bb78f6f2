"""Waiting for a host to be ready."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from opsctl.errors import RemoteError
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site, passed_on
from opsctl.modules.fields import HostPath, Pattern, Public, Statuses, Text, seal_headers
from opsctl.quantities import TimeLimit
from opsctl.wire.calls.process import wait_http, wait_log, wait_path, wait_port
from opsctl.wire.calls.server import ready_wait
from opsctl.wire.host import Host
from opsctl.wire.protocol import Call

MARGIN = 30.0  # seconds by which the host may be late with its own deadline


class HttpAnswer(ModuleArgs):
    url: Public = Field(description="Address, as seen from the host.", pattern=r"^https?://")
    status: Statuses = Field([200], description="Statuses that are waited for.")
    contains: Pattern | None = Field(None, description="Regular expression to be found in the answer.")
    headers: dict[str, Text] = Field(default={}, description="Headers of the request.")


class LogLine(ModuleArgs):
    pattern: Pattern = Field(description="Regular expression to be found in a line.")
    path: HostPath | None = Field(None, description="The log; that of the process in `while_alive` by default.")
    fail: Pattern | None = Field(None, description="A line with this in it ends the wait as failed.")
    offset: int | None = Field(None, description="Byte to begin at; new lines only by default.", ge=0)


class ServerReady(ModuleArgs):
    port: int = Field(30000, description="The server's port on the host.", ge=1, le=65535)
    log: HostPath | None = Field(None, description="Its log, which says how far it has come.")
    offset: int | None = Field(None, description="Byte of the log to begin at; new lines only by default.", ge=0)


class Living(ModuleArgs):
    """What must not die meanwhile."""

    process: str | None = Field(None, description="Name of a process of the module `process`.")
    unit: str | None = Field(None, description="A systemd unit.")
    user: bool = Field(False, description="Whether it is a user's unit.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.process is None) == (self.unit is None):
            raise ValueError("give either `process` or `unit`")
        return self

    def data(self) -> dict[str, Any]:
        return {"process": self.process} if self.process is not None else {"unit": self.unit, "user": self.user}


class WaitArgs(ModuleArgs):
    port: int | None = Field(None, description="A TCP port that is to accept connections.", ge=1, le=65535)
    host: str = Field("127.0.0.1", description="Where the port is, as seen from the host.")
    path: HostPath | None = Field(None, description="A path that is to be there.")
    state: Literal["present", "absent"] = Field("present", description="`absent`: wait for the port or path to go.")
    http: Annotated[
        HttpAnswer | None, BeforeValidator(lambda value: {"url": value} if isinstance(value, str) else value)
    ] = Field(None, description="An address that is to answer.")
    log: LogLine | None = Field(None, description="A line that is to appear in a log.")
    server: ServerReady | None = Field(None, description="An SGLang server that is to answer with a token.")
    timeout: TimeLimit = Field(300.0, description="How long to wait.")
    stall: TimeLimit | None = Field(None, description="Give up when the log has nothing new for this time.")
    while_alive: Living | None = Field(None, description="Give up when this dies.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if sum(goal is not None for goal in (self.port, self.path, self.http, self.log, self.server)) != 1:
            raise ValueError("give one of `port`, `path`, `http`, `log`, `server`")
        if self.stall is not None and self.log is None and self.server is None:
            raise ValueError("`stall` goes with `log` or `server`")
        if self.log and self.log.path is None and not (self.while_alive and self.while_alive.process):
            raise ValueError("`log` needs a `path`, or a process in `while_alive`")
        return self


class WaitFor(Action[WaitArgs]):
    """Wait for a port, a path, an HTTP answer, a log line or an SGLang server; it always ends, and says why it failed.

    The waiting is done on the host, so a slow link costs nothing. It ends early when the process it depends on dies,
    when the log says that it failed, or when the log stands still.
    """

    name = "wait_for"
    programs = frozenset({"sleep"})
    args = WaitArgs
    read_only = False
    measures: ClassVar[tuple[str, ...]] = ("seconds",)
    examples = """
- name: The folder is there
  wait_for: {path: "{{ scratch }}", timeout: 5s}
- name: The server answers
  when: false
  wait_for:
    http: {url: "http://127.0.0.1:30000/health_generate", status: 200}
    while_alive: {process: sglang}
    timeout: 20m
"""

    def run(self, args: WaitArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        try:
            reply = host.call(call_of(args), timeout=args.timeout + MARGIN, on_progress=passed_on(progress))
        except RemoteError as error:
            return Outcome(values={"kind": error.kind}, failed=error.message, hint=error.hint)
        return Outcome(values=reply.result, measures={"seconds": reply.result["seconds"]})


def call_of(args: WaitArgs) -> Call[Any]:
    """The agent call that does the waiting."""
    common: dict[str, Any] = {"timeout": args.timeout}
    if args.while_alive is not None:
        common["alive"] = args.while_alive.data()
    if args.port is not None:
        return wait_port(args.port, args.host, "open" if args.state == "present" else "closed", **common)
    if args.path is not None:
        return wait_path(args.path, args.state, **common)
    if args.http is not None:
        sealed, body = seal_headers(args.http.headers)
        http = args.http
        return wait_http(http.url, http.status, http.contains, body=body, **sealed, **common)
    stall: dict[str, Any] = {"stall": args.stall} if args.stall is not None else {}
    if args.server is not None:
        return ready_wait(**args.server.model_dump(exclude_none=True), **stall, **common)
    assert args.log is not None
    return wait_log(**args.log.model_dump(exclude_none=True), **stall, **common)
