"""The manual page opsctl(1), from the command tree."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from opsctl import __version__
from opsctl.cli import reference
from opsctl.errors import Exit


def manual() -> str:
    """The page in roff, for `man`."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH OPSCTL 1 "" "opsctl {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "opsctl \\- serve large models with SGLang and EAGLE-3 on GPU hosts reached by SSH"
    yield ".SH SYNOPSIS"
    yield ".B opsctl"
    yield "COMMAND [OPTIONS] [ARGUMENTS]"
    yield ".SH COMMANDS"
    for words, command in reference.tree():
        yield f".SS {_text(words.removeprefix('opsctl '))}"
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            example = paragraph.strip().startswith("opsctl ")
            yield from (
                [".RS", _text(paragraph.strip()), ".RE"] if example else [".PP", _text(" ".join(paragraph.split()))]
            )
        for one in command.params:
            about = getattr(one, "help", None)
            if about and one.name != "help" and one.opts[0].startswith("-"):
                yield ".TP"
                yield f"\\fB{_text(', '.join([*one.opts, *one.secondary_opts]))}\\fR"
                yield _text(about)
    yield ".SH EXIT STATUS"
    for code in Exit:
        yield f".TP\n{int(code)}\n{code.name.lower().replace('_', ' ')}"
    yield ".SH ENVIRONMENT"
    yield ".TP\nOPSCTL_INVENTORY\nThe inventory, where \\-i does not name one."
    yield ".TP\nOPSCTL_OUTPUT, OPSCTL_SUMMARY\nDefaults of \\-\\-output and \\-\\-summary, for CI."
    yield ".TP\nOPSCTL_API_KEY\nAPI key of the server, where the inventory does not name one."


def _text(text: str) -> str:
    """Text that roff takes for nothing but text."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
