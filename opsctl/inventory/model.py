"""What an inventory file may say."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from opsctl.quantities import TimeLimit
from opsctl.secret import Secret
from opsctl.text import VARIABLE
from opsctl.wire.command_line import DEFAULT_PORT
from opsctl.yaml_source import as_bool

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")


def _secret(value: Any) -> Any:
    return Secret(value) if isinstance(value, str) else value


_PLAIN_SECRET = Annotated[Secret, WithJsonSchema({"type": "string"})]
SecretText = Annotated[_PLAIN_SECRET, BeforeValidator(_secret)]
"""A secret; text in clear becomes one."""

TextOrSecret = str | _PLAIN_SECRET


def _somebody(value: bool | str) -> bool | str:
    if isinstance(value, str) and as_bool(value) is not None:
        raise ValueError(f'"{value}" in quotes would be the name of a user: write true or false without quotes')
    return value


Become = Annotated[bool | str, AfterValidator(_somebody)]
"""Whether to become root, or whom to become."""


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        arbitrary_types_allowed=True,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
        defer_build=True,
    )


class SglangSettings(_Strict):
    """Where SGLang lives on a host and how it is served."""

    checkout: str | None = Field(None, description="Folder of the SGLang source tree on the host.")
    environment: str | None = Field(
        None, description="Virtual or conda environment that serves: its bin/python is used."
    )
    python: str | None = Field(None, description="Interpreter that serves, where `environment` does not name it.")
    launch: dict[str, Any] | list[str] | str | None = Field(
        None,
        description="Launch command: words, one shell line, or a mapping of launch_server flags.",
    )
    container: str | None = Field(None, description="Name of the docker container that serves, where one does.")
    env: dict[str, TextOrSecret] = Field(default_factory=dict, description="Environment variables of the server.")
    unit: str | None = Field(None, description="systemd unit that serves, where one does.")
    unit_scope: Literal["system", "user"] = Field("system", description="Whose systemd the unit belongs to.")
    bind: str = Field("127.0.0.1", description="Address the server listens on, as the host itself reaches it.")
    port: int = Field(DEFAULT_PORT, ge=1, le=65535, description="Port the server listens on.")
    api_key: SecretText | None = Field(None, description="API key of the server: !env, !file or !cmd.")
    model_path: str | None = Field(None, description="Model that is served: folder on the host or hub name.")
    tp: int | None = Field(None, ge=1, description="Tensor parallel size.")
    log: str | None = Field(None, description="Log file of the server on the host.")
    weights_root: str | None = Field(None, description="Folder on the host that holds weights.")
    releases: str | None = Field(None, description="Folder of drafter releases. Default: releases/ in weights_root.")

    @property
    def interpreter(self) -> str | None:
        """The Python that serves; None where it is not said."""
        return self.python or (f"{self.environment.rstrip('/')}/bin/python" if self.environment else None)

    @property
    def release_root(self) -> str | None:
        """The folder of drafter releases; None where it is not said."""
        return self.releases or (f"{self.weights_root.rstrip('/')}/releases" if self.weights_root else None)

    @property
    def folder(self) -> str:
        """Where opsctl starts the server: what is relative in its command is so to this."""
        return self.checkout or "/"

    @property
    def user_unit(self) -> bool:
        """Whether the unit is one of the user's own systemd."""
        return self.unit_scope == "user"


class Timeouts(_Strict):
    """How long each step of connecting may take."""

    connect: TimeLimit = Field(10.0, description="TCP, or the proxy command.")
    banner: TimeLimit = Field(30.0, description="The server's introduction and the agreement on keys.")
    auth: TimeLimit = Field(30.0, description="The server's judgement of one key or password.")
    channel: TimeLimit = Field(30.0, description="Opening a channel.")
    sudo: TimeLimit = Field(30.0, description="sudo asking, or letting us in.")


class Ssh(_Strict):
    """How opsctl speaks SSH, beside what OpenSSH's configuration says."""

    login: Literal["pipelined", "plain"] = Field(
        "pipelined",
        description="`plain` waits for each answer of the server, for where the quick way is in doubt.",
    )


class Settings(_Strict):
    """What can be said of a host, of a group of hosts, and of all hosts. The nearest to the host wins, key by key."""

    connection: Literal["ssh", "local"] | None = Field(None, description="`local` runs on this machine, without SSH.")
    address: str | None = Field(None, description="Name or address to connect to; default: the host's name.")
    port: int | None = Field(None, ge=1, le=65535, description="SSH port.")
    user: str | None = Field(None, description="SSH user.")
    key: list[str] | str | None = Field(None, description="Private key file, or several.")
    jump: list[str] | str | None = Field(None, description="Jump host `[user@]host[:port]`, or several in order.")
    password: SecretText | None = Field(None, description="SSH password: !env, !file or !cmd.")
    become: Become | None = Field(None, description="true: become root through sudo; a name: become that user.")
    become_password: SecretText | None = Field(None, description="sudo password: !env, !file or !cmd.")
    python: str | None = Field(None, description="Python 3.8 or later on the host that runs the agent.")
    host_key: str | None = Field(
        None,
        description="The host's key (`ssh-ed25519 AAAA...`) or its `SHA256:...` fingerprint: nothing else is trusted.",
    )
    known_hosts: list[str] | str | None = Field(None, description="Files to use instead of ~/.ssh/known_hosts.")
    ssh_config: str | None = Field(None, description="ssh_config file to use instead of ~/.ssh/config.")
    state_dir: str | None = Field(None, description="Folder on the host for journals and locks.")
    attempts: int | None = Field(
        None, ge=1, description="Connection attempts, where the failure is of a kind that passes."
    )
    timeouts: Timeouts | None = None
    ssh: Ssh | None = None
    sglang: SglangSettings | None = None
    vars: dict[str, Any] = Field(default_factory=dict, description="Variables for playbooks and templates.")

    @field_validator("address")
    @classmethod
    def _whole_address(cls, value: str | None) -> str | None:
        """Refuse a part of an address: systems read `10.0` as 10.0.0.0, which nobody means."""
        if value is not None and re.fullmatch(r"[0-9.]+", value) and value.count(".") != 3:
            raise ValueError(f"`{value}` is no whole address: expected four numbers such as 10.0.0.5, or a name")
        return value

    @field_validator("vars", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("vars")
    @classmethod
    def _variable_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not VARIABLE.match(name):
                raise ValueError(f"{name!r} cannot be a variable: letters, digits and _ only, no digit first")
        return value


class Group(Settings):
    """A group of hosts and of other groups."""

    hosts: list[str] = Field(default_factory=list, description="Names of hosts of this group.")
    children: list[str] = Field(default_factory=list, description="Names of groups whose hosts belong to this one too.")


class InventoryFile(_Strict):
    """Hosts, groups of hosts, and what holds for all of them."""

    defaults: Settings = Field(default_factory=Settings, description="What holds for every host.")
    groups: dict[str, Group] = Field(default_factory=dict)
    hosts: dict[str, Settings] = Field(default_factory=dict)

    @field_validator("hosts", "groups", mode="before")
    @classmethod
    def _nothing_said(cls, value: Any) -> Any:
        """`name:` with nothing behind it is a host or group of which nothing more is said."""
        if isinstance(value, dict):
            return {name: {} if said is None else said for name, said in value.items()}
        return {} if value is None else value
