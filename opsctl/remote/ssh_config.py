"""From a spec and the OpenSSH configuration to the hops of a route.

OpenSSH itself is asked (`ssh -G`) where it is installed, so that Match, Include, exec and quoting mean what they mean
there; else fabric's reader. What paramiko cannot do of it is told, not ignored.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import UsageError
from opsctl.localfiles import from_home
from opsctl.remote.spec import ConnectionSpec
from opsctl.secret import Secret
from opsctl.text import one_line

Options = Mapping[str, Sequence[str]]  # lower-case keyword -> its values, in order

# What a user would rely on and paramiko does not do: keyword -> (values that ask for nothing, what is done instead).
# Keywords and defaults: ssh_config(5) of OpenSSH 9. GSSAPI is not among them: distributions switch it on for everybody,
# so it is spoken of only when a login fails.
NOT_HONOURED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "stricthostkeychecking": (("true", "yes", "ask", "accept-new"), "unknown and changed host keys are refused"),
    "pkcs11provider": (("none",), "keys on tokens are used only through ssh-agent"),
    "knownhostscommand": (("none",), "only known hosts files and pins count"),
    "revokedhostkeys": (("none", ""), "mark revoked keys with @revoked in a known hosts file"),
    "verifyhostkeydns": (("false", "no"), "host keys in DNS are not looked at"),
    "canonicalizehostname": (("false", "no"), "the name is used as it is"),
    "bindaddress": (("none",), "the system chooses the source address"),
    "bindinterface": (("none",), "the system chooses the interface"),
    "proxyusefdpass": (("no",), "the proxy command's input and output are used"),
}


@dataclass(frozen=True, slots=True)
class Hop:
    """One SSH server on the way, the last one being the host itself."""

    address: str
    port: int
    user: str
    key_name: str  # what its key is filed under in known hosts files
    keys: tuple[str, ...] = ()
    configured_keys: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    use_agent: bool = True
    agent_keys_only: tuple[str, ...] = ()  # IdentitiesOnly: files whose public half limits the agent's keys
    known_hosts: tuple[str, ...] = ()  # all that are read
    own_known_hosts: tuple[str, ...] = ()  # the user's among them; the first is where keys are added
    accept_new: bool = False
    pin: str | None = None
    password: Secret | None = None
    proxy_command: str | None = None

    def __str__(self) -> str:
        return f"{self.user}@{self.address}" + (f":{self.port}" if self.port != 22 else "")


@dataclass(frozen=True, slots=True)
class Route:
    """The hops to a host, and what of the configuration is not honoured on the way."""

    hops: tuple[Hop, ...]
    warnings: tuple[str, ...] = ()


def route(spec: ConnectionSpec) -> Route:
    """The way to a host. Raises UsageError when the configuration cannot be used."""
    target = spec.address or spec.name
    options = read(target, spec.ssh_config, spec.user, spec.port)
    last = _hop(target, options, spec)
    warnings = unhonoured(options)
    jump = spec.jump if spec.jump is not None else _one(options, "proxyjump")
    hops: list[Hop] = []
    for text in (part.strip() for part in (jump or "none").split(",")):
        if text.lower() == "none" or not text:
            continue
        user, host, port = split_target(text)
        on_way = read(host, spec.ssh_config, user, port)
        first = not hops  # only the first hop is reached from here, so only its own jump or proxy counts
        before = _one(on_way, "proxyjump") if first else None
        if before and before.lower() != "none":
            hops += route(_jump_spec(spec, before)).hops
        hops.append(_hop(host, on_way, _jump_spec(spec, text)))
        warnings += tuple(w for w in unhonoured(on_way) if w not in warnings)
    return Route((*hops, last), warnings)


def read(host: str, config: str | None, user: str | None, port: int | None) -> Options:
    """The OpenSSH options for a host, `user` and `port` taken as given on its command line."""
    if host.startswith("-"):
        raise UsageError(f"{host!r} cannot be the name of a host")
    given: dict[str, Sequence[str]] = {"hostname": [host]}
    if user:
        given["user"] = [user]
    if port:
        given["port"] = [str(port)]
    if config == "none":
        return given
    if config is not None and not from_home(config).is_file():
        raise UsageError(f"there is no OpenSSH configuration {config}", hint="see `ssh_config` of the host")
    ssh = shutil.which("ssh")
    found = _ask_openssh(ssh, host, config, user, port) if ssh else _ask_fabric(host, config)
    return {**found, **{k: v for k, v in given.items() if k != "hostname" or "hostname" not in found}}


def unhonoured(options: Options) -> tuple[str, ...]:
    """What these options ask for and do not get."""
    return tuple(
        f"{keyword} {' '.join(options[keyword])} is not honoured: {instead}"
        for keyword, (harmless, instead) in NOT_HONOURED.items()
        if keyword in options and " ".join(options[keyword]).lower() not in harmless
    )


def split_target(text: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]` or `ssh://...`, with IPv6 addresses in brackets, in its parts."""
    user, at, rest = text.removeprefix("ssh://").rpartition("@")
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:
        host, port = rest, ""
    if not host or (port and not port.isdigit()):
        raise UsageError(f"{text!r} is not [user@]host[:port]", hint="see `jump` of the host")
    return (user if at else None), host, (int(port) if port else None)


def _jump_spec(spec: ConnectionSpec, target: str) -> ConnectionSpec:
    """A jump host's own spec: what the inventory says about the host behind it does not count for it."""
    user, host, port = split_target(target.split(",")[0])
    rest = target.partition(",")[2]
    return ConnectionSpec(
        name=host,
        address=host,
        user=user,
        port=port,
        jump=rest or "none",
        keys=spec.keys,
        known_hosts=spec.known_hosts,
        ssh_config=spec.ssh_config,
        timeouts=spec.timeouts,
    )


def _hop(target: str, options: Options, spec: ConnectionSpec) -> Hop:
    address, port = _one(options, "hostname") or target, int(_one(options, "port") or 22)
    user = _one(options, "user") or getpass.getuser()
    alias = _one(options, "hostkeyalias")
    only = _one(options, "identitiesonly") == "yes"
    tokens = {
        **{"%%": "%", "%h": address, "%n": target, "%p": str(port), "%r": user, "%u": getpass.getuser()},
        **{"%d": str(Path.home()), "%L": socket.gethostname().split(".")[0], "%l": socket.gethostname()},
    }
    configured = tuple(_path(f, tokens) for f in options.get("identityfile", ()) if f.lower() != "none")
    own = spec.known_hosts
    everybodys: tuple[str, ...] = ()
    if own is None:
        own = _files(options.get("userknownhostsfile", ("~/.ssh/known_hosts",)), tokens)
        everybodys = _files(options.get("globalknownhostsfile", ()), tokens)
    own = tuple(str(from_home(f)) for f in own)
    proxy = _one(options, "proxycommand")
    return Hop(
        address=address,
        port=port,
        user=user,
        key_name=alias or (address if port == 22 else f"[{address}]:{port}"),
        keys=tuple(str(from_home(k)) for k in spec.keys),
        configured_keys=tuple(f for f in configured if Path(f).is_file()),
        certificates=tuple(_path(f, tokens) for f in options.get("certificatefile", ())),
        use_agent=(_one(options, "identityagent") or "").lower() != "none",
        agent_keys_only=configured if only else (),
        known_hosts=(*own, *everybodys),
        own_known_hosts=own,
        accept_new=_one(options, "stricthostkeychecking") == "accept-new",
        pin=spec.host_key,
        password=spec.password,
        proxy_command=_tokens(proxy, tokens) if proxy and proxy.lower() != "none" and spec.jump is None else None,
    )


def _ask_openssh(ssh: str, host: str, config: str | None, user: str | None, port: int | None) -> Options:
    argv = [ssh, "-G", *(["-F", str(from_home(config))] if config else [])]
    argv += [*(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", host]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"`ssh -G {host}` took more than 20 s", hint="look at the Match exec lines of the OpenSSH configuration"
        ) from None
    if done.returncode:
        raise UsageError(
            f"OpenSSH cannot use its configuration for {host}: {one_line(done.stderr)}", hint=f"try `ssh -G {host}`"
        )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword.lower(), []).append(value.strip())
    return found


def _ask_fabric(host: str, config: str | None) -> Options:
    """What fabric reads of the file that was named, else of the user's and the system's, where OpenSSH is missing."""
    from fabric import Config

    named = str(from_home(config)) if config else None
    settings = Config(lazy=True, runtime_ssh_path=named)
    settings.load_ssh_config()
    values: dict[str, Any] = dict(settings.base_ssh_config.lookup(host))
    return {k.lower(): list(v) if isinstance(v, list) else [str(v)] for k, v in values.items()}


def _one(options: Options, keyword: str) -> str | None:
    values = options.get(keyword)
    return values[0] if values else None


def _files(values: Sequence[str], tokens: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_path(file, tokens) for file in " ".join(values).split() if file.lower() != "none")


def _path(text: str, tokens: Mapping[str, str]) -> str:
    return os.path.expanduser(_tokens(text.strip('"'), tokens))


def _tokens(text: str, tokens: Mapping[str, str]) -> str:
    out, i = "", 0
    while i < len(text):
        pair = text[i : i + 2]
        out += tokens.get(pair, text[i])
        i += 2 if pair in tokens else 1
    return out
