"""A Python for hosts that lie: it runs the real agent, and changes its answers on the way out.

Usage, as the `python` of a host: a script that runs `python liar.py SEED CALL "$@"`. SEED chooses what is changed in
the results of calls named CALL (`*`: of all). `silent:CALLS`: nothing is
changed, but these calls or areas, with commas between, have no answer (`silent:*`: only lock and journal do).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from typing import Any, BinaryIO, cast

from opsctl.wire.protocol import frame, read_frame

ANSWERING = ("lock", "history", "journal")
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 70,
    1e308,
    "",
    "x",
    "\x1b[31m\n",
    [],
    [None],
    ["x"],
    {},
    {"x": 1},
    [[]],
    [{}],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in an answer, of which lists may have many alike."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def spoiled(value: Any, chance: random.Random) -> Any:
    """An answer with one place taken out, replaced or added to."""
    path = chance.choice(places(value))
    if not path:
        return chance.choice(ODD)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    match chance.randrange(5):
        case 0 if isinstance(holder, dict):
            del holder[path[-1]]
        case 1 if isinstance(holder, dict):
            holder["something new"] = chance.choice(ODD)
        case _:
            holder[path[-1]] = chance.choice(ODD)
    return value


def silent(wanted: str, call: str) -> bool:
    """Whether an answer to a call is kept back."""
    area = call.partition(".")[0]
    quiet = wanted.removeprefix("silent:").split(",") if wanted.startswith("silent:") and call else []
    return area not in ANSWERING if quiet == ["*"] else call in quiet or area in quiet


def main() -> None:
    chance, wanted = random.Random(int(sys.argv[1])), sys.argv[2]
    agent = subprocess.Popen([sys.executable, *sys.argv[3:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin
    assert agent.stdout
    calls: dict[int, str] = {}
    size = re.search(r"i\.read\((\d+)\)", " ".join(sys.argv))
    assert size
    agent.stdin.write(sys.stdin.buffer.read(int(size[1])))
    agent.stdin.flush()

    def onward() -> None:
        while received := read_frame(sys.stdin.buffer):
            header, body = received
            if "call" in header:
                calls[header["id"]] = header["call"]
            agent.stdin.write(frame(header, body))  # type: ignore[union-attr]
            agent.stdin.flush()  # type: ignore[union-attr]
        os.close(agent.stdin.fileno())  # type: ignore[union-attr]

    threading.Thread(target=onward, daemon=True).start()
    while received := read_frame(cast(BinaryIO, agent.stdout)):
        header, body = received
        if silent(wanted, calls.get(header.get("id", 0), "")):
            continue
        if "id" in header and wanted in ("*", calls.get(header["id"])):
            for key in ("result", "progress", "error"):
                if key in header:
                    header[key] = spoiled(header[key], chance)
            if body and chance.random() < 0.3:
                body = chance.choice([b"", body[:-1], chance.randbytes(20)])
        sys.stdout.buffer.write(frame(header, body))
        sys.stdout.buffer.flush()


main()
