"""What to do when a server does not start: by the kind of its first error, and how far it had come. Pure.

Sources: SGLang's own advice in its messages (0.4.6 to 0.5.23), and public reports of drivers, NCCL and PCIe.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Optional

_OOM = re.compile(
    r"Tried to allocate (?P<tried>[\d.]+) (?P<tried_in>[KMG])iB.*?total capacity of (?P<all>[\d.]+) (?P<all_in>[MG])iB"
    r"(?: of which (?P<free>[\d.]+) (?P<free_in>[KMG])iB is free)?"
)
_UNITS = {"K": 1.0 / (1 << 20), "M": 1.0 / 1024, "G": 1.0}
_MARGIN = 0.02  # of a card: fragments, and what the next allocation wants
_USUAL_STEP = 0.05

_P2P = (
    "P2P between PCIe cards that IOMMU or ACS redirects makes NCCL hang: try NCCL_P2P_DISABLE=1 in the server's `env`, "
    "then iommu=pt, and `opsctl health`"
)
_TOO_BIG = (
    "the weights do not fit beside what is there: look for leftovers with `opsctl clean`; "
    "else more GPUs (--tp-size) or a smaller quantization"
)
BY_KIND: Dict[str, str] = {
    "not_enough_memory": "what is left for the KV cache is too little: raise --mem-fraction-static, or lower "
    "--context-length, --max-running-requests or --cuda-graph-max-bs",
    "port_in_use": "another process has the port: `opsctl server status` tells which servers run",
    "missing_method": "`opsctl patch sglang` adds what the target's class lacks",
    "index_out_of_range": "`opsctl drafter check` tells whether `d2t` leads out of the vocabulary",
    "nccl": _P2P,
    "nccl_timeout": _P2P,
    "watchdog": _P2P,
    "xid": "the driver reports a fault of a GPU: `opsctl health`",
    "host_out_of_memory": "the host ran out of memory: fewer loader threads, or more swap",
    "killed": "it was killed from outside: the kernel log tells whether for want of memory (`opsctl health`)",
    "shared_memory": "this SGLang was written for GPUs with more shared memory per block: upgrade it",
    "bad_arguments": "this SGLang does not know the flag: see `launch` of the host",
}


def advice(kind: str, message: str, phase: str, draft: bool, fraction: Optional[float]) -> str:
    """What to do about the first error; '' where nothing general can be said.

    phase, draft: as `readiness` has them, from before the failure. fraction: --mem-fraction-static in force.
    """
    if kind == "cuda_out_of_memory":
        return _out_of_memory(message, phase, draft, fraction)
    return BY_KIND.get(kind, "")


def stalled(phase: str) -> str:
    """What it means when a start stands still in a phase."""
    return _P2P if phase in ("init_distributed", "capture_graphs") else ""


def _out_of_memory(message: str, phase: str, draft: bool, fraction: Optional[float]) -> str:
    if phase in ("launch", "init_distributed", "load_weights") and not draft:
        return _TOO_BIG
    if fraction is None:
        return "lower --mem-fraction-static by 0.05"
    return "lower --mem-fraction-static from %.2f to %.2f" % (fraction, fraction - _step(message))


def _step(message: str) -> float:
    """By how much of a card the fraction must sink, in steps of 0.01."""
    found = _OOM.search(message)
    if not found:
        return _USUAL_STEP
    said = found.groupdict()
    tried = float(said["tried"]) * _UNITS[said["tried_in"]]
    free = float(said["free"] or 0) * _UNITS[said["free_in"] or "G"]
    total = float(said["all"]) * _UNITS[said["all_in"]]
    return math.ceil(100 * (max(0.0, tried - free) / total + _MARGIN)) / 100.0
