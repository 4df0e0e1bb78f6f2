"""Arguments of agent calls with secrets in them: those travel in the body, which is neither logged nor journaled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from opsctl.modules.fields import Text, reveal
from opsctl.secret import Secret


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
