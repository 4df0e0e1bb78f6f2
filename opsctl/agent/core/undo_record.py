"""What a change keeps so that it can be taken back: a record, written ahead, and before-images beside it.

A call that is given `keep: NAME` writes `NAME.json` into the folder of its journal step before it changes anything.
Its undo is given the same name, and finds there how things were and how they were meant to become. The journal notes
each name, so that a record which is lost is not taken for a change that was never begun.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

from opsctl.agent.core import durable
from opsctl.wire.protocol import AgentError, Context


def place(call: Context, name: str) -> str:
    """Path of the blob `name` of this call's journal step."""
    if not call.blobs:
        raise AgentError("invalid", "nothing can be kept outside a journal")
    if os.sep in name or name.startswith("."):
        raise AgentError("invalid", "not a name for something kept: %r" % name)
    if not call.undoing and not os.path.isdir(call.blobs):
        with durable.explained():
            os.makedirs(call.blobs, mode=0o700, exist_ok=True)
            durable.sync_folder(os.path.dirname(call.blobs))
    return os.path.join(call.blobs, name)


def save(call: Context, name: Optional[str], record: Dict[str, Any]) -> None:
    """Write the record of `name`, durable before this returns. Does nothing outside a journal (`name` None)."""
    if name is None:
        return
    try:
        with durable.explained():
            durable.write(place(call, name) + ".json", durable.pack(record))
    except AgentError as error:
        if not (call.undoing and error.kind == "no-space"):  # it is undone; that the journal notes, too
            raise
    else:
        call.kept(name)


def load(call: Context, name: str) -> Optional[Dict[str, Any]]:
    """The record of `name`; None where the change had not begun. Raises AgentError damaged."""
    try:
        data = durable.read(place(call, name) + ".json")
    except FileNotFoundError:
        if name in call.known:
            raise _damaged(call, "what the journal kept as %s is gone" % name) from None
        return None
    except AgentError as error:  # it may be somebody else's work
        raise _damaged(call, error.message) from error
    record = durable.unpack(data)
    if record is None and name not in call.known:
        record = _plain(data)
    if record is None:
        raise _damaged(call, "what the journal kept as %s is damaged" % name)
    return record


def _plain(data: bytes) -> Optional[Dict[str, Any]]:
    """A record as the journal of format 1 kept it."""
    try:
        record = json.loads(data)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "sum" not in record else None


def _damaged(call: Context, message: str) -> AgentError:
    return AgentError("damaged", message, path=call.blobs)
