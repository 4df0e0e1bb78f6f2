"""Host patterns: `a:b` or `a,b` (either), `a:&b` (both), `a:!c` (not), with * ? [] in names."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from opsctl.errors import UsageError
from opsctl.text import did_you_mean


def select(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts that `pattern` names, in inventory order. Raises UsageError for a name that is nowhere."""
    words = [word.strip() for word in pattern.replace(",", ":").split(":") if word.strip()]
    if not words:
        raise UsageError("the host pattern is empty", hint="say `all` for every host")
    chosen: set[str] = set()
    plain = [word for word in words if word[0] not in "&!"]
    for word in plain or ["all"]:
        chosen |= _matching(word, hosts, groups)
    for word in words:
        if word[0] == "&":
            chosen &= _matching(word[1:], hosts, groups)
    for word in words:
        if word[0] == "!":
            chosen -= _matching(word[1:], hosts, groups)
    return [host for host in hosts if host in chosen]


def _matching(word: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if word in ("all", "*"):
        return set(hosts)
    if word in groups:
        return set(groups[word])
    if word in hosts:
        return {word}
    if any(c in word for c in "*?["):
        found = set(fnmatch.filter(hosts, word))
        for group in fnmatch.filter(groups, word):
            found |= set(groups[group])
        if found:
            return found
    raise UsageError(f"no host or group is named {word!r}", hint=did_you_mean(word, [*hosts, *groups, "all"]))
