"""What a change keeps so that it can be taken back: a record, written ahead, and before-images beside it.

A call that is given `keep: NAME` writes `NAME.json` into the folder of its journal step before it changes anything.
Its undo is given the same name, and finds there how things were and how they were meant to become.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

from opsctl.agent import durable
from opsctl.agent.protocol import AgentError, Context


def place(call: Context, name: str) -> str:
    """Path of the blob `name` of this call's journal step."""
    if not call.blobs:
        raise AgentError("invalid", "nothing can be kept outside a journal")
    if os.sep in name or name.startswith("."):
        raise AgentError("invalid", "not a name for something kept: %r" % name)
    with durable.explained():
        os.makedirs(call.blobs, mode=0o700, exist_ok=True)
    return os.path.join(call.blobs, name)


def save(call: Context, name: Optional[str], record: Dict[str, Any]) -> None:
    """Write the record of `name`, durable before this returns. Does nothing outside a journal (`name` None)."""
    if name is None:
        return
    with durable.explained():
        durable.write(place(call, name) + ".json", json.dumps(record).encode())


def load(call: Context, name: str) -> Optional[Dict[str, Any]]:
    """The record of `name`; None where the change had not begun."""
    try:
        with open(place(call, name) + ".json") as stream:
            record = json.load(stream)
    except FileNotFoundError:
        return None
    except ValueError:
        raise AgentError("failed", "the record of %s in the journal is damaged" % name, path=call.blobs) from None
    return record if isinstance(record, dict) else None
