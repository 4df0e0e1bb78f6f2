"""A process of its own that asks a server: `python -m tests.campaigns._asking TICK opsctl|agent ...`.

TICK: seconds that pass at each look on the clock of the limits in time, so that minutes are over at once; 0: real ones.
`opsctl WORDS...` is a command line; `agent CALL ARGS` a call of the agent, which exits 4 where it fails.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from opsctl.agent.core import dispatch
from opsctl.cli.main import run
from opsctl.text import printable
from opsctl.wire import limits
from opsctl.wire.protocol import AgentError, Context


def main(tick: float, kind: str, *words: str) -> int:
    if tick:
        looks = itertools.count()
        limits.now = lambda: next(looks) * tick  # type: ignore[assignment]
    if kind == "opsctl":
        return run(list(words))
    arguments: dict[str, Any] = json.loads(words[1])
    try:
        reply = dispatch.invoke(words[0], arguments, Context())
    except AgentError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)  # as the controller shows it
        return 4
    print(f"done: {printable(repr(reply.result))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *sys.argv[2:]))
