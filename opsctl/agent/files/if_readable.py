"""What a file or folder holds, and nothing where it is missing, or not for us to read."""

from __future__ import annotations

import contextlib
import os
from typing import List

_MOST = 64 << 20  # bytes: the memory map of a large process has a few millions
_PIECE = 64 << 10  # bytes: of a setting in /proc/sys the kernel gives none where it is asked for many at a time


def text_of(path: str) -> str:
    """The text of a file; what is none is replaced."""
    found = bytearray()
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as stream:
        while len(found) < _MOST:
            part = stream.read(_PIECE)
            if not part:
                break
            found += part
        return found.decode("utf-8", "replace")
    return ""


def names_in(folder: str) -> List[str]:
    """The names in a folder, sorted."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []
