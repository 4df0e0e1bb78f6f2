"""What is sent to a host to start the agent there, and the further modules a call needs.

The command line holds a loader of a few hundred bytes; the agent itself follows on its standard input, compressed, so
nothing of it shows in `ps` or reaches a disk.
"""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from opsctl.wire.areas import module_of
from opsctl.wire.protocol import Call, frame

# What every host gets, and the loader in front of it.
CORE = ("wire.protocol", "wire.areas", "agent.core.dispatch", "agent.core.durable", "agent.core.main")
LOADER = "agent.core.loader"
MODULE = re.compile(r"(agent\.[a-z0-9_]+|wire)\.[a-z0-9_]+")  # a name that an agent may ask for
PYTHONS = (
    *("python3", "/usr/bin/python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3.8"),
    "/usr/libexec/platform-python",
)
NO_PYTHON = "opsctl: no python"  # on standard error, when none of PYTHONS will do
_PACKAGE = Path(__file__).parents[1]  # not importlib.resources: it takes 10 ms to load
_IMPORT = re.compile(r"^[ \t]*from opsctl\.((?:agent|wire)[.\w]*) import (\([^)]*\)|[^\n#]+)", re.M)
_DOCSTRING = re.compile(r'^([ \t]*)"""[^"]*(?:"(?!"")[^"]*)*"""[ \t]*$', re.M)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.M)
_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+\S.*\n|\n(?=[ \t]))+", re.M)
# What every agent needs of the standard library; and what many need besides, which is loaded while the agent's own
# source is still on the way: on a long link that saves 20 ms, where nothing is to be waited for it would cost them.
_NEEDED = "os,zlib,json,typing,threading,contextlib,struct,signal,importlib.machinery,fcntl"
_MEANWHILE = "hashlib shutil subprocess"
_TOO_OLD = 121  # exit status of the loader under a Python before 3.8


def command(size: int, python: str | None) -> str:
    """The shell command that starts the agent, whose `size` bytes follow on its standard input.

    Without `python` the first usable one is taken. No quotes, dollars or newlines in the loader: it passes a login
    shell of any kind, /bin/sh and perhaps sudo on its way.
    """
    loader = (
        f"import sys;sys.version_info<(3,8) and sys.exit({_TOO_OLD});import select,{_NEEDED};"
        f"select.select([0],[],[],0)[0] or list(map(__import__,sys.argv[1:]));"
        f"i=os.fdopen(os.dup(0),str().join([chr(114),chr(98)]));exec(zlib.decompress(i.read({size})))"
    )
    candidates = shlex.quote(python) if python else " ".join(PYTHONS)
    script = (
        f'for p in {candidates}; do command -v "$p" >/dev/null 2>&1 || continue; '
        f'"$p" -I -S -c "{loader}" {_MEANWHILE}; r=$?; '
        f'case $r in {_TOO_OLD}|126|127) ;; *) exit $r;; esac; done; echo "{NO_PYTHON}" >&2; exit 127'
    )
    return f"/bin/sh -c {shlex.quote(script)}"


def boot(config: dict[str, Any], entry: str = "agent.core.main") -> bytes:
    """The compressed agent, for the standard input of `command(len(...))`."""
    return _compressed(entry, repr(config))


def load_frames(calls: Iterable[Call[Any]], known: set[str]) -> bytes:
    """A frame with the modules that `calls` need and that are not in `known`, which they are added to."""
    return load_modules((module for call in calls for module in _needed_by(call)), known)


def load_modules(modules: Iterable[str], known: set[str]) -> bytes:
    """The same for modules, by name, and all that they import."""
    wanted: dict[str, None] = {}
    for module in modules:
        wanted.update((needed, None) for needed in needs(module) if needed not in known)
    known.update(wanted)
    return load_frame(tuple(wanted)) if wanted else b""


@cache
def load_frame(modules: tuple[str, ...]) -> bytes:
    """The frame that brings agent modules, or word of those that there are none of."""
    found = [(module, _sent(module) if _path(module) else None) for module in modules]
    sizes = [(module, None if text is None else len(text)) for module, text in found]
    packer = zlib.compressobj(9, zdict=_dictionary())
    return frame({"load": sizes}, packer.compress(b"".join(text or b"" for _, text in found)) + packer.flush())


@cache
def needs(module: str) -> tuple[str, ...]:
    """A module and everything of the agent it imports, what is imported first first."""
    found: list[str] = []
    try:
        text = _source(module)
    except KeyError:
        return ()  # the agent says that there is no such call
    for other in _imports(text):
        found += [m for m in needs(other) if m not in found]
    return (*found, module)


def _needed_by(call: Call[Any]) -> Iterator[str]:
    names = [call.name]
    for key in ("calls", "undo", "settle"):  # calls within calls: journal.apply, supervise.start
        names += [str(nested[0]) for nested in call.args.get(key) or () if isinstance(nested, list | tuple)]
    yield from filter(None, map(module_of, names))
    if call.name.partition(".")[0] in ("journal", "supervise"):
        yield "wire.redact"  # for what they write: see masking


def _imports(text: str) -> Iterator[str]:
    """Agent modules that a module imports, inside functions too.

    By pattern and not by `ast`: that costs a tenth of the time, and in CPython 3.11 `ast.parse` fails now and then when
    two threads are in it (python/cpython#106905).
    """
    for where, names in _IMPORT.findall(text):
        inside = [f"{where}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip()]
        yield from (name for name in ([where] if _path(where) else inside) if name != LOADER)


@cache
def _path(module: str) -> Path | None:
    if not MODULE.fullmatch(module):
        return None
    path = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    return path if path.is_file() else None


@cache
def _source(module: str) -> str:
    """The text of an agent module. Raises KeyError if there is none of that name."""
    path = _path(module)
    if path is None:
        raise KeyError(module)
    return path.read_text(encoding="utf-8")


def slim(text: str) -> str:
    """Agent source without docstrings, comments and imports for types, with the same lines: 40 % less has to travel.

    A new connection sends 14 KB before it has to wait for the other side, so this saves many hosts a round trip.
    """
    text = _TYPES.sub(lambda found: "\n" * found[0].count("\n"), text)
    return _COMMENT.sub("", _DOCSTRING.sub(lambda found: f'{found[1]}""' + "\n" * found[0].count("\n"), text))


@cache
def _sent(module: str) -> bytes:
    return slim(_source(module)).encode()


@cache
def _dictionary() -> bytes:
    """The source that every agent has from its start: with it the rest is a sixth smaller on its way."""
    return b"".join(_sent(name) for name in (LOADER, *CORE))


@cache
def _compressed(entry: str, config: str) -> bytes:
    # A supervisor is started with the same loader, so it is among the modules too.
    modules = {name: _sent(name).decode() for name in (LOADER, *CORE)}
    text = f"{modules[LOADER]}\nboot({modules!r}, {entry!r}, i, {config})\n"
    return zlib.compress(text.encode(), 9)
