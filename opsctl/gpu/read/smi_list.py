"""Read `nvidia-smi -L`, and know the outputs that say nothing about a GPU's health."""

from __future__ import annotations

import re

from opsctl.gpu.model import Gpu, GpuRef, Reading

_LINE = re.compile(r"^GPU (\d+): (.+) \(UUID: (GPU-[0-9A-Za-z-]+)\)\s*$", re.MULTILINE)
_LINK = re.compile(r"^\s+Link \d+: ", re.MULTILINE)
# Outputs of other calls of nvidia-smi: matrices, monitors, per-process CSV, versions.
_OTHER = re.compile(
    r"^(?:\s*(?:\x1b\[4m)?GPU0\s.*CPU Affinity|# gpu\s|(?:[\w.]+, )*pid, process_name|(?:[\w.]+, )*retired_pages\."
    r"|NVIDIA-SMI version\s*:)",
    re.MULTILINE,
)


def read(text: str) -> Reading | None:
    """The listing, None when it is none. `nvlink -s` has the same headings, with links below them."""
    gpus = [Gpu(GpuRef(int(m[1]), m[3], None), name=m[2]) for m in _LINE.finditer(text)]
    if not gpus or _LINK.search(text):
        return None
    return Reading("list", tuple(gpus))


def uninformative(text: str) -> bool:
    """Output of nvidia-smi all the same: nothing in it answers a check."""
    return bool(_OTHER.search(text) or (_LINE.search(text) and _LINK.search(text)))
