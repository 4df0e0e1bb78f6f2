"""Where a host's server lives and what it is to run: from the host's settings and the task's arguments. Pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, model_validator

from opsctl.errors import UsageError
from opsctl.localfiles import read_text
from opsctl.modules.contract import ModuleArgs, Site
from opsctl.modules.fields import HostPath, Text, reveal
from opsctl.quantities import Duration
from opsctl.secret import Secret
from opsctl.sglang.server import command, flags
from opsctl.wire.calls.server import STALL_SECONDS
from opsctl.wire.command_line import CONFIG


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
        name: of its process record, or of its unit.
        unit, container: the systemd unit or docker container that serves; both None for a plain process.
        launch: words of its command, before a draft model is put in; None where a unit or container says it by itself,
            or the process that runs.
        releases: folder of drafter releases.
        api_key: goes into the settings file; None where there is none, or the command keeps it itself.
    """

    name: str
    port: int
    bind: str
    unit: str | None
    user_unit: bool
    container: str | None
    launch: list[str] | None
    env: Mapping[str, Text]
    cwd: str
    log: str | None
    folder: str
    releases: str | None = None
    api_key: Text | None = None

    @property
    def interpreter(self) -> str | None:
        """The Python that runs the command; None where that cannot be told."""
        return flags.interpreter(self.launch or ())

    @property
    def settings_file(self) -> str:
        return _settings_file(self.folder, self.port)

    @property
    def launch_file(self) -> str:
        return posixpath.join(self.folder, f"launch-{self.port}.sh")

    @property
    def env_file(self) -> str:
        return posixpath.join(self.folder, f"launch-{self.port}.env")

    @property
    def unit_file(self) -> str:
        """Where opsctl writes the unit; one that the operator wrote is never replaced."""
        top = "~/.config/systemd/user" if self.user_unit else "/etc/systemd/system"
        return f"{top}/{self.unit}"


def server(site: Site, drafter: str | None = None) -> Server:
    """The server that the inventory describes. Raises UsageError where it describes two, or none to give a drafter."""
    settings = site.sglang
    port, unit, container = settings.port, settings.unit, settings.container
    if unit and container:
        raise UsageError(f"{site.host}: both `unit` and `container` are set; its server is one of them")
    # A container is made with its command, which a restart cannot change.
    launch = None if container else command.words(settings)
    if drafter is not None and launch is None and unit is None and container is None:
        raise unsaid(site)
    log = settings.log
    folder = posixpath.dirname(log) if log else settings.weights_root or settings.checkout or "~"
    if log is None and unit is None and container is None:
        log = posixpath.join(folder, f"sglang-{port}.log")
    folder = folder.rstrip("/") or "/"
    key = settings.api_key
    if launch is None or command.keeps_key_itself(launch):
        key = None
    if launch is not None and key is not None:
        launch = [*launch, CONFIG[0], _settings_file(folder, port)]
    return Server(
        name=container or f"sglang-{port}",
        port=port,
        bind=settings.bind,
        unit=None if unit is None else unit if "." in unit else f"{unit}.service",
        user_unit=settings.user_unit,
        container=container,
        launch=launch,
        env=settings.env,
        cwd=settings.folder,
        log=log,
        folder=folder,
        releases=settings.release_root,
        api_key=key,
    )


def unsaid(site: Site, more: str = "") -> UsageError:
    """The error for a command that is needed and that the inventory does not tell."""
    return UsageError(
        f"{site.host}: the inventory does not say how its server is started{more}",
        hint="set `launch` (command or flags), `unit` or `container` in its sglang section",
    )


def _settings_file(folder: str, port: int) -> str:
    return posixpath.join(folder, f"launch-{port}.yaml")


WRITTEN = b"# Written by opsctl"


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
    return _render(site, "launch.sh.j2", name=server.name, cwd=server.cwd, env=plain, argv=argv)


def env_text(server: Server) -> str | None:
    """The secret part of the environment, as systemd reads it; None where there is none."""
    secret = {key: reveal(value) for key, value in server.env.items() if isinstance(value, Secret)}
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in secret.items()) or None


def settings_text(server: Server) -> str | None:
    """The file of settings with the API key; None where there is none."""
    return None if server.api_key is None else command.settings_text(reveal(server.api_key))


def unit_text(site: Site, server: Server, stop_wait: float) -> str:
    return _render(
        site,
        "sglang.service.j2",
        unit=server.unit,
        port=server.port,
        launch_file=server.launch_file,
        env_file=server.env_file if env_text(server) else None,
        log=server.log,
        stop_wait=int(stop_wait),
        user=server.user_unit,
    )


def _render(site: Site, template: str, **values: Any) -> str:
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
