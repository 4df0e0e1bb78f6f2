"""Events as JSON, one object on a line."""

from __future__ import annotations

import json
from collections.abc import Callable

from opsctl.engine.events import Event, to_json


def jsonl_view(write: Callable[[str], None]) -> Callable[[Event], None]:
    """Writes every event as one line of JSON, with keys in a fixed order."""
    return lambda event: write(json.dumps(to_json(event), ensure_ascii=True, default=str))
