"""Running git so that it never asks, never runs a repository's hooks, and answers in English."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from opsctl.agent.proc import Done, ending, execute
from opsctl.agent.protocol import AgentError, Context

# A checkout may belong to another user: it may be read and changed, but nothing in it is executed.
SETTINGS = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "safe.directory=*", "protocol.file.allow=always")
ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ADVICE": "0",
}
IDENTITY = ("user.name=opsctl", "user.email=opsctl@localhost")


def git(
    call: Context,
    words: Sequence[str],
    cwd: Optional[str],
    timeout: float = 120.0,
    ok: Optional[Sequence[int]] = (0,),
    env: Optional[Dict[str, str]] = None,
) -> Done:
    """Run git. Raises AgentError where it is missing, or ends otherwise than `ok` (None: any way)."""
    argv: List[str] = ["git"]
    for setting in SETTINGS + IDENTITY:
        argv += ["-c", setting]
    try:
        done = execute(
            call, argv + list(words), cwd, dict(ENVIRONMENT, **(env or {})), timeout=timeout, keep_output=64 << 20
        )
    except AgentError as error:
        if error.kind == "not-found" and error.fields.get("path") == "git":
            raise AgentError("missing-tool", "git is not installed on this host", tool="git") from None
        raise
    if ok is not None and done.code not in ok:
        raise refused(words[0], done)
    return done


def refused(doing: str, done: Done) -> AgentError:
    lines = [line for line in done.err.decode("utf-8", "replace").splitlines() if line.startswith(("fatal:", "error:"))]
    said = lines[0].partition(": ")[2] if lines else ending(done)
    return AgentError("failed", "git %s: %s" % (doing, said), stderr=done.err.decode("utf-8", "replace")[-2000:])


def text(done: Done) -> str:
    return done.out.decode("utf-8", "surrogateescape").strip()
