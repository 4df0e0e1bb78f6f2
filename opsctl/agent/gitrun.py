"""Running git so that it never asks, never runs a repository's hooks, and answers in English."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from opsctl.agent.gitforeign import disarmed
from opsctl.agent.proc import Done, ending, execute
from opsctl.agent.protocol import AgentError, Context

# A checkout may belong to another user: it may be read and changed, but nothing in it is executed.
SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "safe.directory=*",
    "protocol.file.allow=always",
    "protocol.ext.allow=never",
)
ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ADVICE": "0",
}
IDENTITY = ("user.name=opsctl", "user.email=opsctl@localhost")


def command(cwd: Optional[str]) -> List[str]:
    """The words that begin every git command, in a checkout that may be another user's."""
    argv = ["git"]
    for setting in (*SETTINGS, *IDENTITY, *(disarmed(cwd) if cwd else ())):
        argv += ["-c", setting]
    return argv


def git(
    call: Context,
    words: Sequence[str],
    cwd: Optional[str],
    timeout: float = 120.0,
    ok: Optional[Sequence[int]] = (0,),
    env: Optional[Dict[str, str]] = None,
    stdin: bytes = b"",
) -> Done:
    """Run git. Raises AgentError where it is missing, or ends otherwise than `ok` (None: any way)."""
    try:
        done = execute(
            call,
            command(cwd) + list(words),
            cwd,
            dict(ENVIRONMENT, **(env or {})),
            stdin,
            timeout,
            keep_output=64 << 20,
        )
    except AgentError as error:
        if error.kind == "not-found" and error.fields.get("path") == "git":
            raise AgentError("missing-tool", "git is not installed on this host", tool="git") from None
        raise
    if ok is not None and done.code not in ok:
        raise refused(words[0], done)
    return done


def refused(doing: str, done: Done) -> AgentError:
    said = done.err.decode("utf-8", "replace")
    if "dubious ownership" in said or "unsafe repository" in said:  # a git before 2.38 does not take it from us
        text = "git %s: the checkout belongs to another user; become that user, or add it to safe.directory" % doing
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
