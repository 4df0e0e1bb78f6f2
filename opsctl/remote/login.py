"""Logging in: which keys and passwords are tried, in which order, and what is said when none will do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm

from opsctl.errors import AuthFailed
from opsctl.localfiles import demand_file, from_home, opened, read
from opsctl.remote import hostkeys, questions
from opsctl.remote.lean_paramiko import paramiko, words
from opsctl.remote.ssh_config import Hop


@dataclass(frozen=True, slots=True)
class Identity:
    """A key that alone let us in: its file, or None where the SSH agent has it, and its public half."""

    file: str | None
    public: str


def authenticate(transport: paramiko.Transport, hop: Hop, where: str) -> Identity | None:
    """Log in with each key and then the password, in OpenSSH's order. Raises AuthFailed.

    Gives the key; None if it took a password, a certificate or more than one step.
    """
    tried: list[str] = []
    allowed: list[str] | None = None
    further = False
    for what, identity, attempt in _ways(transport, hop, tried):
        if allowed is not None and what not in allowed:
            continue
        if what == "keyboard-interactive" and not (hop.password or further):
            continue  # a person is asked for what a server wants beside a key, not instead of one
        try:
            left = attempt()
            if transport.is_authenticated():
                return None if further else identity
            allowed = left or None  # further methods are asked for
            further = True
        except paramiko.BadAuthenticationType as error:
            allowed = list(error.allowed_types)
        except questions.Unanswered as error:
            raise AuthFailed(
                f"{hop} asks {error.prompt!r}, which no password of ours answers",
                where=where,
                hint="run opsctl in a terminal to be asked, or use a key that lets it in without a second step",
            ) from error
        except (paramiko.AuthenticationException, paramiko.SSHException, EOFError, OSError) as error:
            if not transport.is_active():
                tried.append(f"then the server broke off: {words(error)}")
                break
    allowed = allowed or _accepted(transport, hop)
    accepted = f"; the server accepts {', '.join(allowed)}" if allowed else ""
    raise AuthFailed(
        f"{hop} rejected every login method tried: {'; '.join(tried) or 'none, as there is no key and no password'}"
        f"{accepted}",
        where=where,
        hint=f"check `user` and `key` of the host, `ssh-add -l`, and `ssh -p {hop.port} {hop.user}@{hop.address}`; "
        "of its ways to log in, Kerberos (GSSAPI) and host based ones are not tried",
    )


def _ways(
    transport: paramiko.Transport, hop: Hop, tried: list[str]
) -> Iterator[tuple[str, Identity | None, Callable[[], list[str]]]]:
    """Method, key and attempt of each way to log in; what is tried is noted in words."""
    seen: set[bytes] = set()
    for where, file, key in _keys(hop, tried):
        blob = key.public_blob.key_blob if key.public_blob else key.asbytes()
        if blob in seen:
            continue
        seen.add(blob)
        tried.append(f"key {where}")
        plain = key.public_blob is None and "-cert-" not in key.get_name()
        identity = Identity(file, f"{key.get_name()} {key.get_base64()}") if plain else None
        yield "publickey", identity, lambda key=key: transport.auth_publickey(hop.user, key)  # type: ignore[misc]
    if hop.password:
        password = hop.password
        tried.append("password")
        yield "password", None, lambda: transport.auth_password(hop.user, password.reveal(), fallback=False)
    if hop.password or questions.attended():
        yield "keyboard-interactive", None, lambda: _answer(transport, hop, tried)


def _answer(transport: paramiko.Transport, hop: Hop, tried: list[str]) -> list[str]:
    tried.append("keyboard-interactive")
    if questions.attended():
        transport.auth_timeout = max(transport.auth_timeout, questions.PATIENCE)
    return transport.auth_interactive(hop.user, questions.answering(hop.password, str(hop)))


def _keys(hop: Hop, tried: list[str]) -> Iterator[tuple[str, str | None, paramiko.PKey]]:
    """The keys to try: named in the inventory, held by the agent (no file), configured."""
    for file in hop.keys:
        yield from _from_file(file, hop, tried, named=True)
    if hop.use_agent:
        with contextlib.suppress(paramiko.SSHException, OSError):
            limit = {blob for f in hop.agent_keys_only if (blob := _public_half(f))}
            for key in paramiko.Agent().get_keys():
                if not hop.agent_keys_only or key.asbytes() in limit:
                    yield f"of the SSH agent, {key.comment or key.get_name()}", None, key
    for file in hop.configured_keys:
        yield from _from_file(file, hop, tried, named=False)


def _from_file(file: str, hop: Hop, tried: list[str], *, named: bool) -> Iterator[tuple[str, str, paramiko.PKey]]:
    try:
        demand_file(from_home(file))
        key = paramiko.PKey.from_path(file)
    except FileNotFoundError:
        if named:
            tried.append(f"key {file} (no such file)")
        return
    except (paramiko.PasswordRequiredException, TypeError):  # which of the two depends on the file's format
        if named:
            tried.append(f"key {file} (encrypted: add it to the SSH agent with ssh-add)")
        return
    except (paramiko.pkey.UnknownKeyType, UnsupportedAlgorithm):  # DSA, and keys that lie on hardware
        tried.append(f"key {file} (of a kind that is used only through the SSH agent: ssh-add)")
        return
    except (paramiko.SSHException, OSError, ValueError) as error:
        tried.append(f"key {file} (unusable: {words(error)})")
        return
    certificates = [c for c in (*hop.certificates, f"{file}-cert.pub") if _certifies(c, key)]
    for certificate in certificates:
        certified = paramiko.PKey.from_path(file)
        certified.load_certificate(certificate)
        yield f"{file} with certificate", file, certified
    yield file, file, key


def _certifies(certificate: str, key: paramiko.PKey) -> bool:
    """Whether a certificate file can be loaded with a key."""
    try:
        with opened(Path(certificate)) as file:
            return file.read(64).startswith(key.get_name().encode())
    except OSError:
        return False


def _public_half(file: str) -> bytes | None:
    for key in hostkeys.parse("x " + _text(f"{file}.pub")):
        return key.key.blob
    return None


def _text(file: str) -> str:
    try:
        return read(Path(file)).decode("utf-8", "replace")
    except OSError:
        return ""


def _accepted(transport: paramiko.Transport, hop: Hop) -> list[str]:
    """The ways in that a server names, for the error message alone."""
    try:
        transport.auth_none(hop.user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (paramiko.SSHException, EOFError, OSError):
        pass
    return []
