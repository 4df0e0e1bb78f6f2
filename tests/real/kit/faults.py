"""Draft models with one fault each, made from the sound one: the fault is the code that makes it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory. tensors: (dtype, shape, bytes) by name."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, list[int], bytes]]


def layers0(c: Checkpoint) -> Checkpoint:
    """Tensors named `layers.0.*`, which loaders up to 0.5.11 drop without a word."""
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in c.tensors.items()}
    return replace(c, tensors=renamed)


def no_lm_head(c: Checkpoint) -> Checkpoint:
    """`lm_head.weight` left out although the config sets `draft_vocab_size`: the head keeps what memory held."""
    return replace(c, tensors={name: t for name, t in c.tensors.items() if name != "lm_head.weight"})


def no_aux(c: Checkpoint) -> Checkpoint:
    """The config turns the target's features off: the drafter gets 64 of the 192 its `fc` expects, and skips `fc`."""
    return replace(c, config=c.config | {"eagle_config": {"use_aux_hidden_state": False}})


def absolute_d2t(c: Checkpoint) -> Checkpoint:
    """`d2t` with target token ids in place of offsets."""
    dtype, shape, data = c.tensors["d2t"]
    assert dtype == "I64"
    offsets = struct.unpack(f"<{shape[0]}q", data)
    ids = struct.pack(f"<{shape[0]}q", *(n + offset for n, offset in enumerate(offsets)))
    return replace(c, tensors=c.tensors | {"d2t": (dtype, shape, ids)})


def dead_head(c: Checkpoint) -> Checkpoint:
    """`lm_head.weight` all zero: every draft is the same token."""
    dtype, shape, data = c.tensors["lm_head.weight"]
    return replace(c, tensors=c.tensors | {"lm_head.weight": (dtype, shape, bytes(len(data)))})


def scrambled(c: Checkpoint) -> Checkpoint:
    """`lm_head.weight` with its rows in reverse: everything fits that can be read, and every draft is wrong."""
    dtype, shape, data = c.tensors["lm_head.weight"]
    width = len(data) // shape[0]
    rows = [data[n : n + width] for n in range(0, len(data), width)]
    return replace(c, tensors=c.tensors | {"lm_head.weight": (dtype, shape, b"".join(reversed(rows)))})


def half_copied(c: Checkpoint) -> Checkpoint:
    """`lm_head.weight` whose second half repeats the first: half of the drafts are those of other tokens."""
    dtype, shape, data = c.tensors["lm_head.weight"]
    return replace(c, tensors=c.tensors | {"lm_head.weight": (dtype, shape, data[: len(data) // 2] * 2)})


def nextn_lost(c: Checkpoint) -> Checkpoint:
    """The layer that drafts left out, as quantising tools do, although the config still counts it."""
    return replace(c, tensors={name: t for name, t in c.tensors.items() if ".layers.8." not in name})


FAULTS: dict[str, Callable[[Checkpoint], Checkpoint]] = {
    "layers0": layers0,
    "no-lm-head": no_lm_head,
    "no-aux": no_aux,
    "absolute-d2t": absolute_d2t,
    "dead-head": dead_head,
    "scrambled": scrambled,
    "half-copied": half_copied,
    "nextn-lost": nextn_lost,
}


def make(fault: str, good: Path, out: Path) -> Path:
    """Write the variant `fault` of the checkpoint `good` to the folder `out`; `good` gives a plain copy."""
    checkpoint = read(good)
    if fault != "good":
        checkpoint = FAULTS[fault](checkpoint)
    write(checkpoint, out)
    return out


def read(folder: Path) -> Checkpoint:
    """The checkpoint in a folder. Without a config.json there, its config is empty."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {
        name: (t["dtype"], t["shape"], data[start + t["data_offsets"][0] : start + t["data_offsets"][1]])
        for name, t in header.items()
    }
    config = folder / "config.json"
    return Checkpoint(json.loads(config.read_text()) if config.exists() else {}, tensors)


def write(checkpoint: Checkpoint, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint.config, indent=1) + "\n")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, shape, data) in checkpoint.tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
