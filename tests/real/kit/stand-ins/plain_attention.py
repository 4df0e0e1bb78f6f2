"""The two attention kernels that a verify cycle spends its time in, in plain torch: interpreted they take seconds.

Names and layouts are those of SGLang's call sites. H query heads share G key/value heads; a sequence's keys and values
lie in the pool's rows `kv_indices[kv_indptr[n] : kv_indptr[n + 1]]`. What is not known here goes to the release's own
kernel, which Triton interprets.
"""

import functools
import inspect

import torch

# Say how a GPU is to do it, or where it keeps what it needs meanwhile; what comes out as `o` is the same.
TUNING = {
    *("max_len_extend", "extend_seq_lens_cpu", "identity_kv_indices", "attn_logits", "attn_lse", "num_kv_splits"),
    *("max_kv_splits", "has_mla", "use_pdl", "uneven_batch", "enable_lean"),
    *("lean_Mp", "lean_Lp", "lean_Op", "lean_locks"),
}


def in_torch(kernel, plain):
    """`plain`, for calls that use none but its parameters; the kernel itself for all others."""
    own, theirs = inspect.signature(plain).parameters, inspect.signature(kernel)

    @functools.wraps(kernel)
    def call(*args, **kwargs):
        given = theirs.bind(*args, **kwargs).arguments
        further = {name: value for name, value in given.items() if name not in own and name not in TUNING}
        if all(no_effect(name, value, theirs.parameters[name].default) for name, value in further.items()):
            return plain(**{name: value for name, value in given.items() if name in own})
        return kernel(*args, **kwargs)

    return call


def no_effect(name, value, default):
    if name in ("k_scale", "v_scale"):
        return value is None or value == 1.0
    return value is default or (not isinstance(value, torch.Tensor) and value == default)


def extend_attention(
    q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices,
    custom_mask, is_causal, mask_indptr, sm_scale=None,
):  # fmt: skip
    """New tokens attend to all that the pool has of their sequence, and to new ones as the mask or their order says."""
    for n in range(len(qo_indptr) - 1):
        first, last = int(qo_indptr[n]), int(qo_indptr[n + 1])
        rows = kv_indices[kv_indptr[n] : kv_indptr[n + 1]]
        before, new = len(rows), last - first
        visible = torch.ones(new, before + new, dtype=torch.bool)
        if custom_mask is not None:
            start = int(mask_indptr[n])
            mask = custom_mask[start : start + visible.numel()].view(visible.shape)
            visible[:, before:] = mask[:, before:]
        elif is_causal:
            visible[:, before:] = visible[:, before:].tril()
        keys, values = k_extend[first:last], v_extend[first:last]
        if before:  # without, the pool may lie otherwise: MLA keeps one latent head, and new tokens still have all
            keys, values = torch.cat([k_buffer[rows], keys]), torch.cat([v_buffer[rows], values])
        o_extend[first:last] = attend(q_extend[first:last], keys, values, visible, sm_scale)


def decode_attention(q, k_buffer, v_buffer, o, kv_indptr, kv_indices, sm_scale):
    """One token of each sequence attends to all that the pool has of it."""
    for n in range(len(q)):
        rows = kv_indices[kv_indptr[n] : kv_indptr[n + 1]]
        o[n : n + 1] = attend(q[n : n + 1], k_buffer[rows], v_buffer[rows], torch.ones(1, len(rows)).bool(), sm_scale)


def attend(q, k, v, visible, scale):
    """q (Q, H, D), k (K, G, D), v (K, G, E), visible (Q, K): (Q, H, E)."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    return torch.einsum("hqk,khe->qhe", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
