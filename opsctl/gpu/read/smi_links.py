"""Read `nvidia-smi nvlink -s` and `-e`, drivers 450 to 595."""

from __future__ import annotations

import re

from opsctl.gpu.model import Links

MARK = re.compile(
    r"^\s*(?:Link \d+: (?:<inactive>|[\d.]+ GB/s)\s*$"
    r"|NVML: Unable to retrieve NVLink information as all links are inActive)",
    re.MULTILINE,
)
_GPU = re.compile(r"^GPU (?P<index>\d+): .*?(?:\(UUID: (?P<uuid>[^)]+)\))?\s*$")
_ACTIVE = re.compile(r"^\s*Link \d+: [\d.]+ GB/s\s*$")
_INACTIVE = re.compile(r"^\s*Link \d+: <inactive>\s*$")
_ANY = re.compile(r"^\s*Link \d+: (\S.*?)\s*$")
# Of all counters those that count faults: packets and effective rates are none.
_FAULT = re.compile(
    r"^\s*Link \d+: (?:Replay|Recovery|CRC|Malformed packet|Buffer overrun|Rx|Rx remote|Rx General|"
    r"Local link integrity|Tx discards|Link recovery failed events?|Xmit discards)(?: Errors?)?: (\d+)"
)


def read(status: str, errors: str = "") -> tuple[Links, ...]:
    """The links of each GPU; a GPU without NVLink is listed without any, or not at all."""
    counted = {index: _faults(lines) for index, _, lines in _blocks(errors)}
    return tuple(
        Links(
            index=index,
            uuid=uuid,
            active=sum(bool(_ACTIVE.match(line)) for line in lines),
            inactive=sum(bool(_INACTIVE.match(line)) for line in lines),
            others=tuple(dict.fromkeys(found[1] for line in lines if (found := _other(line)))),
            errors=counted.get(index),
        )
        for index, uuid, lines in _blocks(status)
    )


def _other(line: str) -> re.Match[str] | None:
    """A link whose state is told in a word that no driver to 595 has."""
    return None if _ACTIVE.match(line) or _INACTIVE.match(line) else _ANY.match(line)


def _faults(lines: list[str]) -> int | None:
    found = [int(match[1]) for line in lines if (match := _FAULT.match(line))]
    return sum(found) if found else None


def _blocks(text: str) -> list[tuple[int, str | None, list[str]]]:
    blocks: list[tuple[int, str | None, list[str]]] = []
    for line in text.splitlines():
        if opened := _GPU.match(line):
            blocks.append((int(opened["index"]), opened["uuid"], []))
        elif blocks:
            blocks[-1][2].append(line)
    return blocks
