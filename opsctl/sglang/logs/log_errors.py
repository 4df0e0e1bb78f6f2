"""Says what each kind of trouble in a server log means. `opsctl.wire.log_patterns.PROBLEMS` tells them apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """A kind of error.

    Args:
        meaning: why it happens and what helps, one or two sentences.
        deadly: seen alone in a line, it tells that a process ended or cannot go on.
        echo: other processes report it because one of them died; what that one said comes first.
    """

    meaning: str
    deadly: bool = False
    echo: bool = False


TROUBLES: dict[str, Trouble] = {
    "xid": Trouble(
        "the GPU driver reported an error of the card (kernel log): see `opsctl health` for this Xid", deadly=True
    ),
    "host_out_of_memory": Trouble(
        "the kernel's out-of-memory killer ended a process: host memory ran out, often while weights are "
        "loaded by many threads",
        deadly=True,
    ),
    "cuda_out_of_memory": Trouble(
        "GPU memory ran out: lower --mem-fraction-static (by 0.05), --cuda-graph-max-bs or --chunked-prefill-size,"
        " or look for another process that holds GPU memory"
    ),
    "not_enough_memory": Trouble(
        "after the weights nothing was left for the KV cache: raise --mem-fraction-static, or shard the "
        "model over more GPUs"
    ),
    "kv_cache_full": Trouble(
        "the KV cache ran out of tokens in a batch: lower --max-running-requests or raise --mem-fraction-static"
    ),
    "port_in_use": Trouble("the port is taken: another server, or the last one has not ended", deadly=True),
    "missing_method": Trouble(
        "the target's model class lacks the methods EAGLE-3 needs (set_eagle3_layers_to_capture, get_embed_and_head,"
        " set_embed_and_head); KimiK25ForConditionalGeneration has them from 0.5.10 on: opsctl patch sglang adds them"
    ),
    "index_out_of_range": Trouble(
        "a token id beyond the embedding table: with EAGLE-3 typically a draft model whose d2t holds "
        "absolute ids instead of"
        " offsets: opsctl drafter check"
    ),
    "context_length": Trouble(
        "the context length asked for is longer than the model's: lower --context-length, or set"
        " SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    ),
    "watchdog": Trouble(
        "a forward pass did not end in time: a hang, most often in a collective operation or a stuck GPU",
        deadly=True,
        echo=True,
    ),
    "nccl_timeout": Trouble(
        "a collective operation did not end in time: a rank hangs or has died, or the links between the GPUs (P2P,"
        " IOMMU, ACS) do not work",
        deadly=True,
        echo=True,
    ),
    "nccl": Trouble(
        "a collective operation failed: a peer died, or the links between the GPUs (P2P, IOMMU, ACS) do not work",
        echo=True,
    ),
    "shared_memory": Trouble(
        "a Triton kernel wants more shared memory than this GPU has: block sizes made for another GPU"
    ),
    "cuda": Trouble("a CUDA call failed; it may belong to an earlier kernel (CUDA_LAUNCH_BLOCKING=1 tells which)"),
    "killed": Trouble(
        "a process was ended by SIGKILL from outside: the out-of-memory killer, a stop limit that ran out, or a person",
        deadly=True,
    ),
    "segfault": Trouble("a process crashed in native code", deadly=True),
    "bad_arguments": Trouble("the launch flags were refused: this version does not know one of them", deadly=True),
    "memory_leak": Trouble("SGLang's own accounting of the KV cache no longer adds up: a bug of this version"),
    "unresponsive": Trouble("the scheduler stopped answering"),
    "warmup": Trouble("the first request, sent by the server itself, failed: what the scheduler said before tells why"),
    "exception": Trouble(""),
}

# Heads of tracebacks that end the process that wrote them: "Scheduler hit an exception", "TokenizerManager hit ...".
DEADLY_HEAD = "hit an exception"
# Heads of tracebacks that cost one request or nothing.
HARMLESS_HEADS: tuple[str, ...] = (
    "Exception in ASGI application",
    "post-warmup freeze_gc failed",
    "Ignore import error",
    "Exception ignored in",
    "Task exception was never retrieved",
)
