"""Command lines of SGLang servers, read as argparse reads them: which words are a server's, and what a flag says.

Used on both ends. Only flags that opsctl reasons about have a name here, in every spelling of every release. A
beginning that fits one of them is that flag: a release that has another such flag as well refuses it. One that fits
several is of one or the other by release, and is not guessed.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from opsctl.wire.secret_names import flag_holds_secret, holds_secret


class Flag(NamedTuple):
    """A flag of a server: its spellings, the usual one first, and what it takes: `text`, `int`, `float` or `switch`."""

    names: Tuple[str, ...]
    kind: str = "text"


MODEL = ("--model-path", "--model")
DRAFTER = ("--speculative-draft-model-path", "--speculative-draft-model")
PORT = ("--port",)
API_KEYS = ("--api-key", "--admin-api-key")
CONFIG = ("--config",)
ALGORITHM = ("--speculative-algorithm",)
DEFAULT_PORT = 30000  # of every version

# server_args.py of 0.4.6 to 0.5.20 and arg_groups/fields/ of 0.5.23.
FLAGS = (
    Flag(MODEL),
    Flag(("--served-model-name",)),
    Flag(("--host",)),
    Flag(PORT, "int"),
    Flag(("--tp-size", "--tensor-parallel-size", "--tp"), "int"),
    Flag(("--context-length",), "int"),
    Flag(("--mem-fraction-static",), "float"),
    Flag(("--quantization",)),
    Flag(("--attention-backend",)),
    Flag(("--trust-remote-code",), "switch"),
    Flag(("--enable-metrics",), "switch"),
    Flag(("--disable-cuda-graph",), "switch"),
    Flag(ALGORITHM),
    Flag(DRAFTER),
    Flag(("--speculative-num-steps",), "int"),
    Flag(("--speculative-eagle-topk",), "int"),
    Flag(("--speculative-num-draft-tokens",), "int"),
    Flag(("--speculative-attention-mode",)),
    Flag(("--speculative-draft-attention-backend",)),
    Flag(("--speculative-draft-model-quantization",)),
    Flag(CONFIG),
    *(Flag((name,)) for name in API_KEYS),
    Flag(("--ssl-keyfile",)),
    Flag(("--ssl-keyfile-password",)),
)
_BY_NAME: Dict[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}
_MODULES = ("sglang.launch_server", "sglang.srt.server")
_NUMBER = re.compile(r"-\d+\Z|-\d*\.\d+\Z")  # a value, though it begins like a flag


class Said(NamedTuple):
    """A flag with its values; or, without a name, one word that belongs to no flag.

    name: the usual spelling where it is known, else as it is written. words: as they stand in the command.
    """

    name: str
    values: Tuple[str, ...]
    words: Tuple[str, ...]

    @property
    def value(self) -> Optional[str]:
        """What a flag of one value says; None where it says nothing."""
        return self.values[0] if self.values and self.values[0] else None

    @property
    def inline(self) -> bool:
        """Whether it is written `--flag=value`."""
        return bool(self.name) and "=" in self.words[0]


def read(argv: Sequence[str]) -> List[Said]:
    """Every word of a command, in order. Of a server's command only what follows the program is taken for flags."""
    words = arguments(argv)
    n = 0 if words is None else len(argv) - len(words)
    found = [Said("", (), (word,)) for word in argv[:n]]
    while n < len(argv):
        end = n + 1
        written, inline, value = argv[n].partition("=")
        if not _begins_flag(argv[n]):
            found.append(Said("", (), (argv[n],)))
        else:
            flag = flag_of(written)
            if not inline:
                most = len(argv) if flag is None else 0 if flag.kind == "switch" else 1
                while end < len(argv) and end - n <= most and not _begins_flag(argv[end]):
                    end += 1
            values = (value,) if inline else tuple(argv[n + 1 : end])
            found.append(Said(flag.names[0] if flag else written, values, tuple(argv[n:end])))
        n = end
    return found


def flag_of(written: str) -> Optional[Flag]:
    """The flag that a word names, in any spelling or by an unambiguous beginning; None where it is not known."""
    if written in _BY_NAME or not written.startswith("--") or written == "--":
        return _BY_NAME.get(written)
    near = {flag for name, flag in _BY_NAME.items() if name.startswith(written)}
    return near.pop() if len(near) == 1 else None


def _begins_flag(word: str) -> bool:
    name = word.partition("=")[0]
    return len(word) > 1 and word.startswith("-") and " " not in name and not _NUMBER.match(word)


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
    """What a flag says: the last one as in argparse; None where it says nothing."""
    said = [one for one in read(argv) if one.name == spellings[0]]
    return said[-1].value if said else None


def without(argv: Sequence[str], prefix: str) -> List[str]:
    """The command without the flags that begin with `prefix`, and without what they say."""
    return [word for one in read(argv) if not one.name.startswith(prefix) for word in one.words]


def port(argv: Sequence[str]) -> int:
    """The port that a server listens on."""
    said = value(argv, PORT) or ""
    return int(said) if said.isdecimal() else DEFAULT_PORT


def masked(argv: Sequence[str]) -> List[str]:
    """The command without the values of flags that hold secrets."""
    out: List[str] = []
    hide = False
    for one in read(argv):
        flag = one.words[0].partition("=")[0]
        listed = bool(one.name) and flag_holds_secret(flag)
        if hide:  # what follows a secret's flag is the secret, also where argparse would not take it
            out += ["***"] * len(one.words)
            hide = False
        elif listed or (one.name and any(holds_secret(flag.lstrip("-"), value) for value in one.values)):
            out += [flag + "=***"] if one.inline else [flag, *["***"] * len(one.values)]
            hide = listed and not one.values
        else:
            out += one.words
    return out
