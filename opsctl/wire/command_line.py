"""Command lines of SGLang servers: which words are a server's, and what a flag says. Used on both ends."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

MODEL = ("--model-path", "--model")
DRAFTER = ("--speculative-draft-model-path", "--speculative-draft-model")
PORT = ("--port",)
DEFAULT_PORT = 30000  # of every version
SECRET = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
_MODULES = ("sglang.launch_server", "sglang.srt.server")


def arguments(argv: Sequence[str]) -> Optional[List[str]]:
    """What follows the name of the program, when the program is SGLang's server; its workers have titles of their own.

    A program that starts another, as `env` or `numactl` do, may come before it.
    """
    for n, word in enumerate(argv[:8]):
        if (n and argv[n - 1] == "-m" and word in _MODULES) or re.search(r"(^|/)sglang/launch_server\.py$", word):
            return list(argv[n + 1 :])
        if n <= 1 and re.search(r"(^|/)sglang$", word) and list(argv[n + 1 : n + 2]) == ["serve"]:
            return list(argv[n + 2 :])
    return None


def runs_server(argv: Sequence[str]) -> bool:
    """Whether this is Python running SGLang's server itself, and not a program that starts or merely names one."""
    if not argv or not is_python(argv[0]):
        return False
    n = 1
    while n < len(argv) and argv[n].startswith("-") and argv[n] not in ("-m", "-c"):
        n += 2 if argv[n] in ("-X", "-W") else 1
    words = list(argv[n : n + 2])
    if words[:1] == ["-m"]:
        return words[1:] in [[module] for module in _MODULES]
    script = words[0] if words else ""
    return bool(re.search(r"(^|/)sglang/launch_server\.py$", script)) or (
        re.search(r"(^|/)sglang$", script) is not None and words[1:] == ["serve"]
    )


def is_python(program: str) -> bool:
    """Whether a program, by its path, is an interpreter of Python."""
    return re.search(r"(^|/)(python|pypy)[\d.]*[a-z]?$", program) is not None


def is_part(title: str) -> bool:
    """Whether a process calls itself a part of a server, as its schedulers do; anybody can."""
    return title.startswith("sglang::")


def value(argv: Sequence[str], spellings: Tuple[str, ...]) -> Optional[str]:
    """What a flag says, in any of its spellings: the last one as in argparse; None where it says nothing."""
    found = None
    for n, word in enumerate(argv):
        name, inline, said = word.partition("=")
        if name in spellings:
            found = said if inline else argv[n + 1] if n + 1 < len(argv) else None
    return found or None


def without(argv: Sequence[str], prefix: str) -> List[str]:
    """The command without the flags that begin with `prefix`, and without what they say."""
    kept: List[str] = []
    skip = False
    for word in argv:
        if word.startswith("-"):
            skip = word.startswith(prefix)
        if not skip:
            kept.append(word)
    return kept


def port(argv: Sequence[str]) -> int:
    """The port that a server listens on."""
    said = value(argv, PORT) or ""
    return int(said) if said.isdecimal() else DEFAULT_PORT


def masked(argv: Sequence[str]) -> List[str]:
    """The command without the values of flags that hold secrets."""
    out: List[str] = []
    hide = False
    for word in argv:
        flag, inline, _ = word.partition("=")
        secret = _holds_secret(flag)
        out.append("***" if hide else flag + "=***" if secret and inline else word)
        hide = not hide and secret and not inline
    return out


def _holds_secret(flag: str) -> bool:
    """Whether a flag's value is secret, also by the beginning of its name, which argparse takes for the whole."""
    if flag in SECRET:
        return True
    return len(flag) > len("--a") and flag != "--ssl-keyfile" and any(name.startswith(flag) for name in SECRET)
