"""What all kinds of server have in common: where one lives, what it is to run, and the steps of a change. Pure."""

from __future__ import annotations

import posixpath
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, model_validator

from opsctl.errors import Conflict, TaskFailed, UsageError
from opsctl.inventory.model import SglangSettings
from opsctl.localfiles import read_text
from opsctl.modules.contract import Change, FileDiff, ModuleArgs, Site
from opsctl.modules.fields import HostPath, Text, reveal
from opsctl.modules.paths import FileAttributes, expected, look, place, refuse
from opsctl.quantities import Duration
from opsctl.secret import Secret
from opsctl.sglang.server import command, flags
from opsctl.text import one_line
from opsctl.wire import command_line
from opsctl.wire.calls.files import State, filelook_stat, files_link, files_restore
from opsctl.wire.calls.process import process_listener
from opsctl.wire.calls.server import LOG_MARK, STALL_SECONDS, ready_wait, startlog_mark
from opsctl.wire.calls.source import launchflags_known
from opsctl.wire.protocol import Call, Reply

# What is known of the host before, and what the calls of a change keep, by these names.
STOP, LINK, LAUNCH, SETTINGS, START = "stop", "link", "launch", "settings", "start"
NOW, LISTENER, FLAGS = "now", "listener", "flags"


class ServerArgs(ModuleArgs):
    state: Literal["started", "stopped", "restarted"] = Field(
        "started", description="`started` restarts a server whose command, environment or draft model differ."
    )
    drafter: HostPath | None = Field(
        None, description="Folder of the draft model to serve; by default the one in service stays."
    )
    link: HostPath | None = Field(
        None, description="Link that names the release in service; by default `current` beside the draft model."
    )
    ready_timeout: Duration = Field(1200.0, description="Time from start to the first token.")
    stall: Duration | None = Field(
        STALL_SECONDS, description="Give up when neither the log nor GPU memory has grown for this time."
    )
    speculation: bool = Field(
        True, description="false: serve without a draft model, to measure what speculation brings."
    )
    stop_wait: Duration = Field(180.0, description="Time to finish requests before it is killed.")
    adopt: bool = Field(
        False,
        description="Take over an SGLang server on this port that opsctl did not start: a rollback starts it again as "
        "it was. Any other program is left alone.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state == "stopped" and self.drafter is not None:
            raise ValueError("`drafter` means nothing with `state: stopped`")
        if not self.speculation and (self.drafter is not None or self.state == "stopped"):
            raise ValueError("`speculation: false` starts a server without a draft model")
        return self

    @property
    def release_link(self) -> str | None:
        """The link that is to name the draft model; None where the one in service stays."""
        if self.drafter is None:
            return None
        return self.link or posixpath.join(posixpath.dirname(self.drafter.rstrip("/")), "current")


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a host.

    Attributes:
        settings: the host's `sglang` section, in which a kind finds what is its own.
        launch: words of its command, before a draft model is put in; None where a unit or container says it by itself,
            or the process that runs.
        api_key: goes into the settings file; None where there is none, or the command keeps it itself.
    """

    settings: SglangSettings
    launch: list[str] | None
    log: str | None
    folder: str
    api_key: Text | None = None

    @property
    def port(self) -> int:
        return self.settings.port

    @property
    def name(self) -> str:
        """By which opsctl knows it, whatever it is."""
        return f"sglang-{self.port}"

    @property
    def env(self) -> Mapping[str, Text]:
        return self.settings.env

    @property
    def cwd(self) -> str:
        return self.settings.folder

    @property
    def interpreter(self) -> str | None:
        """The Python that runs the command; None where that cannot be told."""
        return flags.interpreter(self.launch or ())

    @property
    def settings_file(self) -> str:
        return settings_file(self.folder, self.port)

    @property
    def launch_file(self) -> str:
        return posixpath.join(self.folder, f"launch-{self.port}.sh")


def unsaid(site: Site, more: str = "") -> UsageError:
    """The error for a command that is needed and that the inventory does not tell."""
    return UsageError(
        f"{site.host}: the inventory does not say how its server is started{more}",
        hint="set `launch` (command or flags), `unit` or `container` in its sglang section",
    )


def settings_file(folder: str, port: int) -> str:
    return posixpath.join(folder, f"launch-{port}.yaml")


def words_in(launch_file: bytes) -> list[str]:
    """The words of a launch file, as the shell reads them; none where its quotes do not match."""
    text = launch_file.decode("utf-8", "replace").replace("\\\n", " ")
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


def launch_text(site: Site, server: Server, argv: list[str]) -> str:
    """The launch file: what the server is started with, for systemd and for people. It holds no secrets."""
    plain = {key: value for key, value in server.env.items() if not isinstance(value, Secret)}
    return render(site, "launch.sh.j2", name=server.name, cwd=server.cwd, env=plain, argv=argv)


def settings_text(server: Server) -> str | None:
    """The file of settings with the API key; None where there is none."""
    return None if server.api_key is None else command.settings_text(reveal(server.api_key))


def render(site: Site, template: str, **values: Any) -> str:
    path = site.find("templates", template)
    environment = SandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["quote"] = shlex.quote
    try:
        return environment.from_string(read_text(path)).render(values)
    except OSError as error:
        raise UsageError(f"cannot read the template {path}: {error.strerror}") from None
    except TemplateError as error:
        raise UsageError(f"template error: {error.message}", where=str(path)) from None


@dataclass
class Steps:
    """Calls in the order in which they run, and what takes each back."""

    calls: list[Call[Any]] = field(default_factory=list)
    undo: list[Call[Any]] = field(default_factory=list)
    diffs: list[FileDiff] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def file(self, keep: str, path: str, content: str, seen: Reply[Any], mode: int, secret: bool = False) -> None:
        change = place(path, content.encode(), seen, FileAttributes.model_construct(mode=mode), None, secret)
        if change is None:
            return
        for call in change.calls:
            self.calls.append(call.with_args(keep=keep))
            self.undo.insert(0, files_restore(call.args["path"], keep))
        self.diffs += change.diffs
        self.said.append(f"write {posixpath.basename(path)}")

    def link(self, path: str, target: str, now: State) -> None:
        if now["kind"] == "link" and now["target"] == target:
            return
        if now["kind"] not in ("absent", "link"):
            raise refuse(path, now, "link")
        self.calls.append(files_link(path, target, expect=expected(now), keep=LINK))
        self.undo.insert(0, files_restore(path, LINK))
        self.said.append(f"switch {path} to {target}")


class Kind(ABC):
    """What a server is: how it is looked at, started and stopped, with what all kinds have in common.

    key: the setting of the `sglang` section that names a server of this kind; None where opsctl runs the command.
    launches: whether it is started with the command of the inventory, which may then be changed.
    """

    key: ClassVar[str | None] = None
    launches: ClassVar[bool] = True
    known: Mapping[str, Reply[Any]]  # what the host answers, by the names of the questions

    def __init__(self, args: ServerArgs, server: Server, site: Site) -> None:
        self.args, self.server, self.site = args, server, site

    @property
    @abstractmethod
    def name(self) -> str:
        """What the system knows it by."""

    @property
    @abstractmethod
    def alive(self) -> dict[str, Any]:
        """What must not die while it is waited for."""

    @abstractmethod
    def look(self) -> Call[Any]:
        """Ask how it is."""

    @abstractmethod
    def change(self) -> Change | None:
        """What brings it into the state that is asked for, from what is `known`."""

    def own_files(self) -> dict[str, Call[Any]]:
        """Ask for the files that only this kind has."""
        return {}

    def questions(self) -> dict[str, Call[Any]]:
        """Everything that is asked of the host beforehand."""
        args, server = self.args, self.server
        asked: dict[str, Call[Any]] = {NOW: self.look()}
        if args.state != "stopped" or self.key is None:
            asked[LISTENER] = process_listener(server.port)
        if args.state == "stopped":
            return asked
        if server.launch is not None:
            asked[LAUNCH] = look(server.launch_file, follow=False)
            if server.api_key is not None:
                asked[SETTINGS] = look(server.settings_file, follow=False)
            asked |= self.own_files()
        if args.release_link is not None:
            asked[LINK] = filelook_stat(args.release_link, digest=False)
        path = server.env.get("PYTHONPATH")
        if server.interpreter is not None and not isinstance(path, Secret):
            asked[FLAGS] = launchflags_known(server.interpreter, server.cwd, path)
        return asked

    def argv(self, in_service: str | None) -> list[str]:
        assert self.server.launch is not None
        if not self.args.speculation:
            return command_line.without(self.server.launch, command.SPECULATIVE)
        drafter = self.args.drafter or self._stays(in_service)
        return command.with_drafter(self.server.launch, drafter) if drafter else self.server.launch

    def _stays(self, in_service: str | None) -> str | None:
        """The draft model that a restart keeps: a release that was deployed; else the command's own comes first."""
        assert self.server.launch is not None
        own = command_line.value(self.server.launch, command_line.DRAFTER)
        top = (self.server.settings.release_root or "").lstrip("~")
        deployed = bool(top) and f"{top}/" in (in_service or "")
        return in_service if own is None or deployed else None

    def demand_flags(self, argv: list[str]) -> None:
        """SGLang ends at a flag that it does not know, when the server before is gone already."""
        told = self.known[FLAGS].result if FLAGS in self.known else {}
        if not told.get("flags"):
            return  # it could not be read
        wrong = flags.unknown(argv, told["flags"])
        if wrong:
            names = " and ".join(one.flag for one in wrong)
            raise TaskFailed(
                f"the SGLang in {told['package']} has no flag {names}",
                hint=f"{'; '.join(one.hint for one in wrong)}; it stands in `launch` of the host",
            )

    def files(self, steps: Steps, argv: list[str] | None) -> None:
        link = self.args.release_link
        if link is not None and self.args.drafter is not None:
            name = posixpath.basename(self.args.drafter.rstrip("/"))
            beside = posixpath.dirname(link) == posixpath.dirname(self.args.drafter.rstrip("/"))
            steps.link(link, name if beside else self.args.drafter, self.known[LINK].result)
        if argv is not None:
            settings = settings_text(self.server)
            if settings is not None:
                steps.file(SETTINGS, self.server.settings_file, settings, self.known[SETTINGS], 0o600, secret=True)
            text = launch_text(self.site, self.server, argv)
            steps.file(LAUNCH, self.server.launch_file, text, self.known[LAUNCH], 0o755)

    def mark(self) -> Call[Any]:
        """Notes where the words of the start that follows will begin in the log."""
        return startlog_mark(self.server.log, LOG_MARK)

    def wait(self, *, marked: bool = False) -> Call[Any]:
        server = self.server
        args: dict[str, Any] = {"port": server.port, "timeout": self.args.ready_timeout, "alive": self.alive}
        if server.settings.bind not in ("0.0.0.0", "::", "127.0.0.1"):
            args["host"] = server.settings.bind
        if self.key is not None and server.log is not None:
            args["log"] = server.log
        if marked:
            args["begun"] = LOG_MARK
        args["stall"] = self.args.stall
        return ready_wait(**args)

    def demand_launch(self) -> None:
        """A command that we do not know cannot be changed."""
        if self.server.launch is None and not self.args.speculation:
            raise TaskFailed(
                "its launch command is not known here, so it cannot be started without speculation",
                hint="give `launch` in the inventory, or probe a server without speculation by hand",
            )

    def demand_port(self) -> None:
        """Nobody else may listen where the new server will: its answers would be taken for the new one's."""
        holder = self.known[LISTENER].result
        if holder is not None:
            raise Conflict(
                f"port {self.server.port} is held by a process that is no part of it ({who(holder)})",
                kind="conflict",
                hint="stop that one, or give the server another port",
            )


def who(holder: Mapping[str, Any]) -> str:
    """Whose process holds a port, for people: its number, user, age and command."""
    if holder["pid"] is None:
        return "another user's process"
    since = datetime.fromtimestamp(holder["began"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"pid {holder['pid']} of {holder['user']}, since {since} UTC: {one_line(holder['command'], 120)}"
