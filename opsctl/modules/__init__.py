"""Families of desired states, one file each. `get` imports only the one that is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from opsctl.errors import UsageError
from opsctl.text import did_you_mean

if TYPE_CHECKING:
    from opsctl.modules.contract import Action, Module

# Name in a playbook -> "file of this package:class in it".
MODULES: dict[str, str] = {
    "assert": "assert_:Assert",
    "command": "command:Command",
    "copy": "copy:Copy",
    "debug": "debug:Debug",
    "drafter_check": "drafter_check:DrafterCheck",
    "drafter_fetch": "drafter_fetch:DrafterFetch",
    "drafter_stage": "drafter_stage:DrafterStage",
    "facts": "facts:Facts",
    "file": "file:File",
    "git": "git:Git",
    "gpu_health": "gpu_health:GpuHealth",
    "http": "http:Http",
    "line": "line:Line",
    "logs_collect": "logs_collect:LogsCollect",
    "probe": "probe:Probe",
    "process": "process:Process",
    "raw": "command:Raw",
    "service": "service:Service",
    "sglang_patch": "sglang_patch:SglangPatch",
    "sglang_server": "sglang_server:SglangServer",
    "shell": "command:Shell",
    "template": "template:Template",
    "wait_for": "wait_for:WaitFor",
}


def names() -> list[str]:
    """All module names, sorted."""
    return sorted(MODULES)


def get(name: str) -> Module[Any] | Action[Any]:
    """The module called `name`. Raises UsageError with the nearest valid name."""
    try:
        where, cls = MODULES[name].split(":")
    except KeyError:
        raise UsageError(f"there is no module {name!r}", hint=did_you_mean(name, MODULES)) from None
    module: Module[Any] | Action[Any] = getattr(importlib.import_module(f"opsctl.modules.{where}"), cls)()
    return module
