"""Where the model lies that a server's command names: what is relative there is so to the server's own folder."""

from __future__ import annotations

import os
from typing import Optional


def placed(said: Optional[str], cwd: Optional[str]) -> Optional[str]:
    """The folder of a model, as a server that works in `cwd` finds it; the name of one on a hub stays as it is.

    `org/name` may be either: like SGLang, whatever is a folder there is taken for that.
    """
    if not said or not cwd:
        return said
    there = os.path.normpath(os.path.join(cwd, said))
    return there if said.startswith(".") or os.path.isdir(there) else said
