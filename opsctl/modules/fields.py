"""Kinds of argument that several modules take, and how they travel: secrets in the body, which nobody keeps."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from opsctl.patterns import compiled
from opsctl.secret import Secret


def _mode(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3,4}", value):
        return int(value, 8)
    digits = str(value).removeprefix("0o")
    if isinstance(value, int) and not isinstance(value, bool) and re.fullmatch(r"[0-7]{3,4}", digits):
        raise ValueError(f'expected octal digits in quotes: "0{digits.lstrip("0")}"')
    raise ValueError('expected octal digits in quotes, such as "0644"')


def _path(value: str) -> str:
    if not value.startswith(("/", "~")) or "\0" in value:
        raise ValueError("expected an absolute path on the host, or one that starts with ~")
    return value


def _public(value: Any) -> Any:
    if isinstance(value, Secret):
        raise ValueError("a secret here could be read by every user of the host: give it in `env`, `stdin` or a header")
    return value


def _pattern(value: str) -> str:
    compiled(value)
    return value


Mode = Annotated[int, BeforeValidator(_mode, json_schema_input_type=str)]
HostPath = Annotated[str, AfterValidator(_path)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Statuses = Annotated[
    list[int],
    BeforeValidator(
        lambda value: value if isinstance(value, list) else [value], json_schema_input_type=int | list[int]
    ),
]
Text = str | Secret
Public = Annotated[str, BeforeValidator(_public)]  # seen by others on the host: command lines, addresses


def reveal(text: Text) -> str:
    """The text itself, secret or not: for the body of a call, never for its arguments."""
    return text.reveal() if isinstance(text, Secret) else text


def split(text: str, argument: str) -> list[str]:
    """A command line as words, with a shell's quoting and nothing else of a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"`{argument}` cannot be split into words: {error}") from None
    if not words:
        raise ValueError(f"`{argument}` is empty")
    return words


def octal(mode: int) -> str:
    return f"{mode:04o}"


def seal(env: Mapping[str, Text], stdin: Text | None = None) -> tuple[dict[str, Any], bytes]:
    """Arguments and body of a call that runs something, secrets in the body only."""
    args, front = _split("env", env)
    return args, front + (reveal(stdin).encode() if stdin is not None else b"")


def seal_headers(headers: Mapping[str, Text]) -> tuple[dict[str, Any], bytes]:
    """Arguments and front of the body of a request: secret headers travel in the body only."""
    return _split("headers", headers)


def _split(name: str, values: Mapping[str, Text]) -> tuple[dict[str, Any], bytes]:
    plain = {key: value for key, value in values.items() if not isinstance(value, Secret)}
    secret = {key: value.reveal() for key, value in values.items() if isinstance(value, Secret)}
    front = json.dumps({name: secret}).encode() if secret else b""
    args: dict[str, Any] = {name: plain} if plain else {}
    return ({**args, "sealed": len(front)} if front else args), front
