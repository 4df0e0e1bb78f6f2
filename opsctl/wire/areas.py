"""The names of calls. A call is `<area>.<function>`; AREAS says which module of the agent answers for an area.

The names lie in journals and outlive the files: a module may move, its area keeps its name.
"""

from __future__ import annotations

from typing import Optional

AREAS = {
    "arrival": "stage.receive",
    "checkpoint": "checkpoint.reading",
    "collect": "logs.collect",
    "container": "process.container",
    "diffing": "source.diffing",
    "facts": "core.facts",
    "fetch": "checkpoint.fetch",
    "filelook": "files.look",
    "files": "files.changes",
    "follow": "logs.follow",
    "git": "git.git",
    "gpu": "gpu.gather",
    "gpuactive": "gpu.active",
    "gpuclean": "gpu.clean",
    "history": "core.history",
    "http": "core.http_request",
    "journal": "core.journal",
    "launchflags": "source.interpreter",
    "lock": "core.host_lock",
    "logfiles": "logs.logfiles",
    "patching": "source.patching",
    "patchlook": "source.patchlook",
    "proc": "process.commands",
    "process": "process.process",
    "ready": "server.ready",
    "serverlog": "logs.serverlog",
    "servers": "server.servers",
    "service": "process.service",
    "source": "source.source",
    "stage": "stage.stage",
    "stagesource": "stage.source_files",
    "startlog": "server.startlog",
    "supervise": "core.supervise",
    "survey": "source.survey",
    "vram": "gpu.vram",
    "wait": "process.wait",
}


def module_of(name: str) -> Optional[str]:
    """The module of the agent that answers a call, as `agent.<room>.<file>`; None: no such area."""
    where = AREAS.get(name.partition(".")[0])
    return "agent." + where if where else None
