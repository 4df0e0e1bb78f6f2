"""Which programs a command runs, as far as its text tells."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_HERE = re.compile(r"(?<!<)<<-?\s*['\"]?[A-Za-z_]")  # what follows such a line is a text, up to a word that it names
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BEFORE = {"sudo", "env", "exec", "time", "if", "then", "elif", "else", "while", "until", "do", "!", "{"}
_ENDS = "();|&\n"  # what ends a command; with < or > it is a redirection
_PIPE = re.compile(r"(^|[^|])\|&?\s*$")


def program(words: Sequence[str]) -> str:
    """The program that a command is about: what comes before it says as whom, with which environment, and when."""
    rest = (word for word in words if word not in _BEFORE and not _ASSIGNMENT.match(word))
    return next(rest, "").rpartition("/")[2]


def programs(text: str) -> Iterator[str]:
    """The programs of shell text in their order, up to what cannot be told; those are left out that only filter."""
    plain = _COMMENT.sub("", _TEMPLATE.sub("x", _HERE.split(text)[0])).replace("\\\n", " ")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=_ENDS + "<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    piped = False
    try:
        for word in chain(lexer, "\n"):
            if not set(word) <= set(_ENDS):
                words.append(word)
                continue
            found = program(words)
            if found and (not piped or found == "tee"):
                yield found
            if words or word.strip():
                piped, words = _PIPE.search(word) is not None, []
    except ValueError:  # a quote without its end
        return
