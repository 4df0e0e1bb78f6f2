"""Every call of the agent, declared once: its name, its arguments, the type of its reply. A file for each room.

A declaration is a function without a body that is named `<area>_<function>`:

    @declared
    def filelook_stat(path: str, digest: bool = True) -> Call[State]: ...

Called, it gives the `Call` with the arguments that were given, but for None where that is the default; an argument
`body` (bytes) becomes the body. The agent's function takes the same parameters after its context and returns the same
type, which a test holds. A reply is checked against the type when it comes in (remote/agent_client.py). Nothing of this
folder is sent to hosts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from opsctl.wire.areas import AREAS
from opsctl.wire.protocol import Call

P = ParamSpec("P")
R = TypeVar("R")


def declared(stub: Callable[P, Call[R]]) -> Callable[P, Call[R]]:
    """Turn a declaration into the function that builds the call."""
    area, _, function = stub.__name__.partition("_")
    name = f"{area}.{function}"
    code, defaults = stub.__code__, stub.__defaults__ or ()  # not inspect.signature: it takes long for so many
    taken = code.co_varnames[: code.co_argcount]
    unsaid = {key for key, default in zip(reversed(taken), reversed(defaults), strict=False) if default is None}

    @wraps(stub)
    def build(*args: P.args, **kwargs: P.kwargs) -> Call[R]:
        stub(*args, **kwargs)  # raises TypeError for arguments that it does not take
        given: dict[str, Any] = {**dict(zip(taken, args, strict=False)), **kwargs}
        body = given.pop("body", b"")
        return Call(name, {key: value for key, value in given.items() if value is not None or key not in unsaid}, body)

    return build


@cache
def reply_type(name: str) -> Any:
    """The type of the result of a call. Raises KeyError: there is no such call."""
    return get_args(get_type_hints(declaration(name))["return"])[0]


def declaration(name: str) -> Callable[..., Call[Any]]:
    """The declaration of a call, by its name. Raises KeyError."""
    area, _, function = name.partition(".")
    room = importlib.import_module(f"{__name__}.{AREAS[area].partition('.')[0]}")
    found: Callable[..., Call[Any]] | None = getattr(room, f"{area}_{function}", None)
    if found is None:
        raise KeyError(name)
    return found
