"""What a file or folder holds, and nothing where it is missing, or not for us to read."""

from __future__ import annotations

import contextlib
import os
from typing import List

_MOST = 64 << 20  # characters: the memory map of a large process is a few million


def text_of(path: str) -> str:
    """The text of a file; what is none is replaced."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read(_MOST)
    return ""


def names_in(folder: str) -> List[str]:
    """The names in a folder, sorted."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []
