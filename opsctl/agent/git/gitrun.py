"""Running git as the owner of the checkout, so that it never asks, runs no hooks, and answers in English."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from opsctl.agent.core.users import User
from opsctl.agent.git import checkout
from opsctl.agent.process.commands import Done, ending, execute
from opsctl.wire.protocol import AgentError, Context

SETTINGS = (
    "protocol.file.allow=always",
    "protocol.ext.allow=never",
    "user.name=opsctl",
    "user.email=opsctl@localhost",
)
ENVIRONMENT = {"GIT_ASKPASS": "", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "GIT_ADVICE": "0"}


def git(
    call: Context,
    words: Sequence[str],
    path: str,
    timeout: float = 120.0,
    ok: Optional[Sequence[int]] = (0,),
    env: Optional[Dict[str, str]] = None,
    stdin: bytes = b"",
    maker: Optional[User] = None,
) -> Done:
    """Run git in the checkout at `path`, or as `maker` in none. `ok`: how it may end; None: any way.

    Raises AgentError, also where git must not run there: see `checkout.owner`.
    """
    if maker is None:
        command = checkout.command(path, list(words), SETTINGS)
    else:
        command = checkout.command_of(maker, "/", list(words), SETTINGS)
    environment = dict(command.env, **ENVIRONMENT, **(env or {}))
    done = execute(call, command.argv, "/", environment, stdin, timeout, keep_output=64 << 20, clean=True)
    if ok is not None and done.code not in ok:
        raise refused(words[0], done)
    return done


def refused(doing: str, done: Done) -> AgentError:
    said = done.err.decode("utf-8", "replace")
    if "dubious ownership" in said or "unsafe repository" in said:
        text = "git %s: a checkout belongs to another user; become that user, or add it to safe.directory" % doing
        return AgentError("permission", text, stderr=said[-2000:])
    lines = said.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), None)
    if first is None:
        return AgentError("failed", "git %s: %s" % (doing, ending(done)), stderr=said[-2000:])
    told = lines[first].partition(": ")[2]
    names = [line.strip() for line in lines[first + 1 : first + 11] if line.startswith("\t")]
    return AgentError("failed", " ".join(["git %s: %s" % (doing, told), ", ".join(names)]).strip(), stderr=said[-2000:])


def text(done: Done) -> str:
    return done.out.decode("utf-8", "surrogateescape").strip()
