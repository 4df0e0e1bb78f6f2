"""Compares plain_attention with the release's own kernels, interpreted. Prints the largest difference of each case.

Runs in the environment of a release, with the stand-ins on PYTHONPATH.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch

POOL = 48


def kernels(name: str) -> tuple[Any, Any]:
    """What stands in, and what it stands in for."""
    for package in ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops"):
        try:
            plain = getattr(importlib.import_module(f"{package}.{name}"), f"{name}_fwd")
        except ModuleNotFoundError:
            continue
        return plain, plain.__wrapped__
    raise SystemExit(f"this release has no {name}")


def difference(name: str, out: str, shape: Sequence[int], **values: Any) -> float:
    """The largest between what both write into `out`, called with those of `values` that this release knows."""
    told = []
    for function in kernels(name):
        known = inspect.signature(function).parameters
        given = {**values, out: torch.zeros(*shape), "k_scale": 1.0, "v_scale": 1.0}
        function(**{name: value for name, value in given.items() if name in known})
        told.append(given[out])
    return float((told[0] - told[1]).abs().max())


def bounds(lengths: Sequence[int]) -> Any:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def pool(kv_heads: int, width: int, out: int) -> tuple[Any, Any]:
    """Of MLA, where `out` is the smaller, values are part of the keys."""
    keys = torch.randn(POOL, kv_heads, width)
    return keys, keys[..., :out] if out < width else torch.randn(POOL, kv_heads, out)


def tree_masks(before: Sequence[int], new: Sequence[int]) -> tuple[Any, Any]:
    """Any earlier token or none, and always oneself."""
    masks = []
    for old, n in zip(before, new, strict=True):
        mask = torch.rand(n, old + n) < 0.5
        mask[:, old:] = mask[:, old:].tril() | torch.eye(n, dtype=torch.bool)
        masks.append(mask.flatten())
    return torch.cat(masks), bounds([len(mask) for mask in masks]).long()


def extend(heads: int, kv: int, width: int, out: int, before: Sequence[int], new: Sequence[int], how: str) -> float:
    keys, values = pool(kv, width, out)
    mask, starts = tree_masks(before, new) if how == "tree" else (None, None)
    return difference(
        "extend_attention", "o_extend", (sum(new), heads, out),
        q_extend=torch.randn(sum(new), heads, width), k_extend=torch.randn(sum(new), kv, width),
        v_extend=torch.randn(sum(new), kv, out), k_buffer=keys, v_buffer=values, qo_indptr=bounds(new),
        kv_indptr=bounds(before), kv_indices=torch.arange(sum(before)).flip(0), custom_mask=mask,
        is_causal=how != "open", mask_indptr=starts, max_len_extend=max(new), sm_scale=width**-0.5,
    )  # fmt: skip


def decode(heads: int, kv: int, width: int, out: int, before: Sequence[int]) -> float:
    keys, values = pool(kv, width, out)
    return difference(
        "decode_attention", "o", (len(before), heads, out),
        q=torch.randn(len(before), heads, width), k_buffer=keys, v_buffer=values, kv_indptr=bounds(before),
        kv_indices=torch.arange(sum(before)).flip(0), attn_logits=torch.zeros(len(before), heads, 2, out),
        attn_lse=torch.zeros(len(before), heads, 2), num_kv_splits=torch.full((len(before),), 2, dtype=torch.int32),
        max_kv_splits=2, sm_scale=width**-0.5,
    )  # fmt: skip


if __name__ == "__main__":
    for case in (
        (2, 2, 16, 16, [5, 0, 7], [3, 4, 1], "causal"),
        (4, 2, 16, 16, [5, 0, 7], [3, 4, 1], "causal"),
        (4, 2, 16, 16, [5, 3], [4, 4], "tree"),
        (4, 2, 16, 16, [5, 0], [3, 4], "open"),
        (4, 1, 576, 512, [5, 3], [4, 4], "tree"),
    ):
        print("extend", *case, extend(*case), sep="\t")
    for heads, kv, width, out in ((2, 2, 16, 16), (4, 2, 16, 16), (4, 1, 576, 512)):
        print("decode", heads, kv, width, out, decode(heads, kv, width, out, [5, 1, 9]), sep="\t")
