"""The first thing that runs on the host: serves the agent's modules from memory, then starts it.

Sent as text followed by a call of `boot`, and run in `__main__`. Nothing is written to the host's disk.
"""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, BinaryIO, Callable, Dict, Optional, Sequence

ROOT = "opsctl."
HERE = "agent.core.loader"

sources: Dict[str, Optional[str]] = {}  # "agent.core.main" -> source; None: there is no such module
fetch: Optional[Callable[[str], bool]] = None  # asks the controller for a module; says whether it came
_arrived = threading.Condition()


class Memory:
    """Imports `opsctl.agent.<room>.<file>` and `opsctl.wire.<file>` from `sources`."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != "opsctl" and not name.startswith(ROOT):
            return None
        if name in ("opsctl", "opsctl.agent", "opsctl.wire") or (
            name.startswith("opsctl.agent.") and name.count(".") == 2
        ):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        short = name[len(ROOT) :]
        if short not in sources and fetch:
            fetch(short)
        if sources.get(short) is None:
            return None
        return ModuleSpec(name, self, origin="<%s>" % name)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        text = self.get_source(module.__name__)
        exec(compile(text, "<%s>" % module.__name__, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, name: str) -> str:
        """The text of a module; tracebacks ask for it too."""
        return sources.get(name[len(ROOT) :]) or ""


def add(name: str, source: Optional[str]) -> None:
    """Take in the source of a module, and wake those who wait for it."""
    with _arrived:
        sources[name] = source
        _arrived.notify_all()


def wait_for(name: str, seconds: float) -> bool:
    """Wait until the source of a module has come, or word that there is none."""
    with _arrived:
        return _arrived.wait_for(lambda: name in sources, seconds)


def boot(modules: Dict[str, str], entry: str, source: BinaryIO, config: Dict[str, Any]) -> None:
    """Install the importer and call `main(source, config)` of the module named by `entry`."""
    sources.update(modules)
    sys.modules[ROOT + HERE] = sys.modules[__name__]
    sys.meta_path.insert(0, Memory())
    __import__(ROOT + entry)
    sys.modules[ROOT + entry].main(source, config)
