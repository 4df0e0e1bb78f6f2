"""Becoming another user through sudo: no helper files, no prompt text to guess."""

from __future__ import annotations

import os
import shlex
import time

from opsctl.errors import AuthFailed, OpsctlError, Unreachable
from opsctl.remote import bundle
from opsctl.remote.stream import Stream
from opsctl.secret import Secret
from opsctl.text import one_line


def command(inner: str, user: str | None, nonce: str | None) -> str:
    """`inner` (a program and its quoted arguments), as `user`.

    With a nonce sudo asks on standard error in just these words and reads the answer from standard input; once
    through, `NONCE-in` is written there. Without one it must let us in unasked.
    """
    if user is None:
        return f"exec {inner}"
    if nonce is None:
        return f"exec sudo -H -n -u {shlex.quote(user)} -- {inner}"
    through = f"/bin/sh -c {shlex.quote(f'echo {nonce}-in >&2; exec {inner}')}"
    return f"exec sudo -H -S -p {nonce}-ask -u {shlex.quote(user)} -- {through}"


def nonce() -> str:
    return f"opsctl-{os.urandom(8).hex()}"


def answer(stream: Stream, word: str, password: Secret, user: str, host: str, timeout: float) -> None:
    """Give sudo the password if and when it asks. Raises AuthFailed, Unreachable."""
    deadline = time.monotonic() + timeout
    given = False
    while time.monotonic() < deadline:
        said = stream.stderr()
        if f"{word}-in" in said:
            return
        asked = said.count(f"{word}-ask")
        if asked > 1:
            raise AuthFailed(
                f"sudo refused the password for becoming {user}", where=host, hint="check `become_password` of the host"
            )
        if asked and not given:
            stream.send(password.reveal().encode() + b"\n", timeout)
            given = True
        try:
            if not stream.receive(0.02):
                raise refused(stream, user, host)
        except TimeoutError:
            continue
    raise Unreachable(
        f"sudo neither asked nor let us in within {timeout:g} s",
        where=host,
        hint="sudo may be slow because of LDAP or DNS: raise the `sudo` timeout of the host",
    )


def refused(stream: Stream, user: str | None, host: str) -> OpsctlError:
    """The error for an agent that ended before it spoke: what the shell, sudo or python have to say."""
    status = stream.status(2.0)
    text = stream.stderr()
    if bundle.NO_PYTHON in text:
        return Unreachable(
            "there is no usable python3 (3.8 or later) on the host",
            where=host,
            hint="install one, or name it with `python` of the host; `raw` tasks work without",
        )
    if user is not None and "sudo" in text.lower():
        return AuthFailed(
            f"sudo does not let us become {user} unasked: {one_line(text)}",
            where=host,
            hint="give `become_password` (or use --ask-become-password), or a NOPASSWD rule; requiretty must be off",
        )
    ended = "the connection was closed" if status is None else f"status {status}"
    return Unreachable(f"the agent did not start ({ended}): {one_line(text or 'no output')}", where=host)
