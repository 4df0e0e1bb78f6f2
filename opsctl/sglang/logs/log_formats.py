"""What a server log tells of the SGLang version and of the launch flags.

`server_args=` prints every field of ServerArgs, and each release added some. Where the log has no such line, the
wording of others narrows it down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.sglang import releases
from opsctl.sglang.releases import Range, Version

# The fields of ServerArgs that each release added and every later one has.
FIELDS = releases.markers("fields")

# Wording -> first and last release that has it. Sources: managers/scheduler_metrics_mixin.py and its successors,
# model_executor/model_runner.py, mem_cache/memory_pool.py of the wheels.
WORDINGS: tuple[tuple[str, str, str | None, str | None], ...] = (
    ("Decode batch", r"Decode batch\. ", None, "0.5.3.post3"),
    ("Decode batch", r"Decode batch(?: \[\d+\])?, ", "0.5.4", None),
    ("Decode batch", r"(?:cuda|cpu|npu) graph: ", "0.4.10", None),
    ("Decode batch", r"#queue-req: \d+, *$", None, "0.5.8.post1"),
    ("Decode batch", r"#queue-req: \d+$", "0.5.9", None),
    ("Decode batch", r"accept rate: ", "0.5.3", None),
    ("Load weight end", r"end\. elapsed=", "0.5.9", None),
    ("Load weight end", r"end\. type=", None, "0.5.8.post1"),
    ("Load weight end", r"dtype=", None, "0.5.9"),
    ("KV Cache is allocated", r"allocated\. dtype: ", "0.5.13", None),
    ("KV Cache is allocated", r"allocated\. #tokens", None, "0.5.12.post1"),
    ("Init", r"torch distributed begin", None, "0.5.20"),
    ("Init", r"parallel begin", "0.5.21", None),
    ("Capture", r"CUDA graph begin\. backend=", "0.5.14", None),
    ("Capture", r"cuda graph begin\. This can take", None, "0.5.13.post1"),
    ("Engine startup timings", r"load_weight=", "0.5.17", None),
)


def version(flags: Mapping[str, Any], samples: Mapping[str, str]) -> str | None:
    """The release that wrote the log: '0.5.9', '0.5.10 to 0.5.10.post1', or None where nothing tells.

    Args:
        flags: the fields of ServerArgs, {} where the log does not have them.
        samples: a line of each kind, as `Scanner.finish` gives them.
    """
    low, high = releases.known()[0], releases.known()[-1]
    told = False
    if len(flags) > 50:  # else the line was cut, and an absent field means nothing
        told = True
        low = max((version for version, fields in FIELDS if not flags.keys().isdisjoint(fields)), default=low)
        after = next((version for version, _ in FIELDS if version > low), None)
        high = _before(after) if after else high
    else:
        for kind, pattern, since, until in WORDINGS:
            if kind in samples and re.search(pattern, samples[kind]):
                told = True
                low = max(low, Version.parse(since) if since else low)
                high = min(high, Version.parse(until) if until else high)
    return str(Range(low, high)) if told and low <= high else None


def _before(version: Version) -> Version:
    """The release before one."""
    return max(one for one in releases.known() if one < version)


def flags(text: str) -> dict[str, Any]:
    """The fields of `ServerArgs(a=1, ...)` (to 0.5.18) or `{'a': 1, ...}` (from 0.5.19), also of a line that was cut.

    A value that is no Python literal stays text.
    """
    body = text.removeprefix("ServerArgs").strip()
    found: dict[str, Any] = {}
    for item in _items(body[1:]):
        match = re.match(r"""\s*(?:(['"])(?P<quoted>\w+)\1\s*:|(?P<name>\w+)=)\s*(?P<value>.*)""", item, re.DOTALL)
        if match:
            found[match["quoted"] or match["name"]] = _literal(match["value"].strip())
    return found


def _items(body: str) -> Iterator[str]:
    """`body` cut at its top-level commas, up to the bracket that closes it."""
    depth, quote, start, i = 0, "", 0, 0
    while i < len(body):
        c = body[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
            if depth < 0:
                yield body[start:i]
                return
        elif c == "," and depth == 0:
            yield body[start:i]
            start = i + 1
        i += 1


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
