"""What a user asks of a run. Imports little: it is read before the first connection is begun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import UsageError
from opsctl.text import VARIABLE, one_line

if TYPE_CHECKING:
    from opsctl.yaml_source import Source


@dataclass(frozen=True, slots=True)
class Given:
    """A value given on the command line: as text whose type is still open, or as a value.

    source: the file that it was read from, where it was.
    """

    value: Any
    open: bool = False
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What our own record says of a run that is to go on: its playbook's name, and the hosts it was for."""

    playbook: str
    hosts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks for.

    Attributes:
        playbook: a path, or the name of a playbook of the project or a shipped one.
        given: values for params and variables, by name.
        resume: the run to go on with.
        recorded: that run in our own records, None where it is not there.
        exit_code: in check mode, end with CHANGES when something would change.
        lock_wait: seconds to wait for another operator.
        at_once: hosts worked on at a time.
    """

    playbook: str
    inventory: str | None = None
    limit: str | None = None
    given: Mapping[str, Given] = field(default_factory=dict)
    tags: Sequence[str] = ()
    skip_tags: Sequence[str] = ()
    start_at: str | None = None
    check: bool = False
    exit_code: bool = False
    yes: bool = False
    lock_wait: float = 0.0
    at_once: int = 32
    resume: str | None = None
    recorded: Recorded | None = None


def parse_given(extra: Iterable[str], strings: Iterable[str] = ()) -> dict[str, Given]:
    """`-e NAME=VALUE`, `-e @FILE` and `--set-string NAME=VALUE`; later ones win. Raises UsageError."""
    given: dict[str, Given] = {}
    for word in extra:
        if word.startswith("@"):
            from opsctl.yaml_source import read_yaml

            source = read_yaml(Path(word[1:]))
            if not isinstance(source.value, dict):
                raise UsageError("a file of variables is a mapping", where=source.place())
            given |= {_name(k, word): Given(v, source=source) for k, v in source.value.items()}
            continue
        name, text = _split(word, "-e")
        given[name] = tagged(text) if text.startswith("!") else Given(text, open=True)
    for word in strings:
        name, text = _split(word, "--set-string")
        given[name] = Given(text)
    return given


def _split(word: str, option: str) -> tuple[str, str]:
    name, sign, text = word.partition("=")
    if not sign:
        raise UsageError(f"{option} {one_line(word, 60)}: expected NAME=VALUE")
    return _name(name, word), text


def _name(name: str, word: str) -> str:
    if not VARIABLE.match(name):
        raise UsageError(f"-e {one_line(word, 60)}: {name!r} cannot be a variable")
    return name


def tagged(text: str) -> Given:
    """A value that says where it comes from: `!env NAME`. Any other text that begins with ! is just text."""
    from opsctl.secret_sources import TAGS
    from opsctl.yaml_source import parse_yaml

    if any(text.startswith(f"{tag} ") for tag in TAGS):
        return Given(parse_yaml(text, "-e").value)
    return Given(text, open=True)
