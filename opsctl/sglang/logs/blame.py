"""Which of the errors in a log came first, why it happened, and what each kind of trouble means.

One process dies, the others report that it is gone, the parent reports that a child failed, and systemd that the
service did. All of them write to one log within seconds and not always in that order. What counts is the earliest error
that is not the echo of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from opsctl.wire.calls.logs import Mark

_ECHO_SECONDS = 30.0  # how long before its cause an echo can be written


@dataclass(frozen=True, slots=True)
class Candidate:
    """An error as one mark of the scan tells it.

    Args:
        index: of the mark.
        life: index of the start it happened in, -1 before any.
        message: the last exception of the chain, or the line.
        chain: exceptions of the chain, the root first.
        deadly: it ends a process whatever follows.
        harmless: it cost one request, or nothing.
        after_ready: it happened while the server served.
    """

    index: int
    life: int
    at: str | None
    rank: str | None
    kind: str
    message: str
    chain: tuple[str, ...]
    where: str | None
    deadly: bool
    harmless: bool
    after_ready: bool


@dataclass(frozen=True, slots=True)
class Blamed:
    """The first error. cause: what is behind it, in a sentence, or None where nothing is known of it."""

    at: str | None
    rank: str | None
    kind: str
    message: str
    cause: str | None
    chain: tuple[str, ...]
    where: str | None

    def document(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "rank": self.rank,
            "kind": self.kind,
            "message": self.message,
            "cause": self.cause,
            "chain": list(self.chain),
            "where": self.where,
        }


def candidate(mark: Mark, index: int, life: int, ready_at: str | None) -> Candidate | None:
    """The error that a mark tells of, if it does."""
    name, head = mark["name"], mark.get("head", "")
    chain: tuple[str, ...] = ()
    deadly = harmless = False
    if name == "exception":
        chain = tuple(mark["errors"])
        if not chain:
            chain = (head,) if head else ()
        if not chain:
            return None
        kind, message = mark["kind"] or "exception", chain[-1]
        harmless = any(text in head for text in HARMLESS_HEADS)
        deadly = head.endswith(DEADLY_HEAD)
    elif name == "problem":
        kind, message = mark["kind"], mark["text"]
        deadly = TROUBLES[kind].deadly
    elif name == "watchdog":
        kind, message = "watchdog", mark["text"]
        deadly = "soft=True" not in message
    elif name == "child_exit" and mark["code"] in ("-9", "-11", "-6", "137"):
        kind = "killed" if mark["code"] in ("-9", "137") else "segfault"
        message, deadly = f"{mark['what']} (pid {mark['pid']}) ended with exit code {mark['code']}", True
    elif name in _TEXT_MARKS:
        kind, message = _TEXT_MARKS[name], mark["text"]
        deadly = name == "warmup_failed"
        if name == "graph_failed" and "out of memory" in message:
            kind = "cuda_out_of_memory"
    else:
        return None
    return Candidate(
        index,
        life,
        mark["at"],
        mark["rank"],
        kind,
        message,
        chain,
        mark.get("where"),
        deadly,
        harmless,
        ready_at is not None,
    )


_TEXT_MARKS = {
    "warmup_failed": "warmup",
    "graph_failed": "exception",
    "batch_oom": "kv_cache_full",
    "leak": "memory_leak",
    "health_failed": "unresponsive",
    "port_wait": "port_in_use",
}


def blame(confirmed: Sequence[Candidate]) -> Blamed | None:
    """The earliest of the errors that cost a life, unless it only echoes one written just after it."""
    if not confirmed:
        return None
    first = confirmed[0]
    if _is_echo(first):
        near = [c for c in confirmed if c.life == first.life and not _is_echo(c) and _near(first.at, c.at)]
        first = near[0] if near else first
    return Blamed(first.at, first.rank, first.kind, first.message, _cause(first), first.chain, first.where)


def _is_echo(one: Candidate) -> bool:
    return TROUBLES[one.kind].echo or one.kind in ("killed", "warmup") or _tells_of_a_peer(one.message)


def _tells_of_a_peer(message: str) -> bool:
    return any(
        word in message
        for word in ("Broken pipe", "Connection reset", "Connection refused", "EOFError", "BrokenPipeError")
    )


def _near(first: str | None, other: str | None) -> bool:
    if not first or not other:
        return True
    return abs((datetime.fromisoformat(other) - datetime.fromisoformat(first)).total_seconds()) <= _ECHO_SECONDS


def _cause(one: Candidate) -> str | None:
    root = one.chain[0] if len(one.chain) > 1 and one.chain[0] != one.message else ""
    meaning = TROUBLES[one.kind].meaning
    return ": ".join(part for part in (root, meaning) if part) or None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A kind of error.

    Args:
        meaning: why it happens and what helps, one or two sentences.
        deadly: seen alone in a line, it tells that a process ended or cannot go on.
        explains: it has this one cause, whatever else is seen.
        elsewhere: that cause has nothing to do with drafts, so that no fault of a draft model ended this server.
        echo: other processes report it because one of them died; what that one said comes first.
    """

    meaning: str
    deadly: bool = False
    echo: bool = False
    explains: bool = False
    elsewhere: bool = False


TROUBLES: dict[str, Trouble] = {
    "xid": Trouble(
        "the GPU driver reported an error of the card (kernel log): see `opsctl health` for this Xid", deadly=True
    ),
    "host_out_of_memory": Trouble(
        "the kernel's out-of-memory killer ended a process: host memory ran out, often while weights are "
        "loaded by many threads",
        deadly=True,
        explains=True,
        elsewhere=True,
    ),
    "cuda_out_of_memory": Trouble(
        "GPU memory ran out: lower --mem-fraction-static (by 0.05), --cuda-graph-max-bs or --chunked-prefill-size,"
        " or look for another process that holds GPU memory",
        explains=True,
        elsewhere=True,
    ),
    "not_enough_memory": Trouble(
        "after the weights nothing was left for the KV cache: raise --mem-fraction-static, or shard the "
        "model over more GPUs",
        explains=True,
        elsewhere=True,
    ),
    "kv_cache_full": Trouble(
        "the KV cache ran out of tokens in a batch: lower --max-running-requests or raise --mem-fraction-static",
        explains=True,
        elsewhere=True,
    ),
    "port_in_use": Trouble(
        "the port is taken: another server, or the last one has not ended", deadly=True, explains=True, elsewhere=True
    ),
    "draft_class": Trouble(
        "the draft model's class is not one of this algorithm: --speculative-algorithm names another kind than the"
        " draft model is (NEXTN for layers of multi-token prediction): opsctl drafter check tells its kind"
    ),
    "matrix_shapes": Trouble(
        "a layer got an input of another width or dtype than its weights have: with EAGLE-3, a draft model whose"
        " config.json lacks `target_hidden_size` where the target is wider, or one made for another target: opsctl"
        " drafter check",
        explains=True,
    ),
    "tensor_widths": Trouble(
        "two tensors differ in width: while graphs are captured, the logits buffer and the draft model's vocabulary"
        " (`draft_vocab_size`, the rows of its lm_head): opsctl drafter check"
    ),
    "missing_method": Trouble(
        "the target's model class lacks the methods EAGLE-3 needs (set_eagle3_layers_to_capture, get_embed_and_head);"
        " KimiK25ForConditionalGeneration has them from 0.5.10 on: opsctl patch sglang adds them"
    ),
    "states_not_captured": Trouble(
        "the target's class takes hidden states for EAGLE-3 apart that its inner model did not record: it takes the"
        " layer ids without effect, as Qwen3.5 does from 0.5.11 to 0.5.21: another release of SGLang, which `opsctl"
        " drafter check --target` tells",
        explains=True,
    ),
    "index_out_of_range": Trouble(
        "a token id beyond the embedding table: with EAGLE-3 typically a draft model whose d2t holds "
        "absolute ids instead of"
        " offsets: opsctl drafter check"
    ),
    "context_length": Trouble(
        "the context length asked for is longer than the model's: lower --context-length, or set"
        " SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
        explains=True,
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
        "a Triton kernel wants more shared memory than this GPU has: block sizes made for another GPU",
        explains=True,
        elsewhere=True,
    ),
    "cuda": Trouble("a CUDA call failed; it may belong to an earlier kernel (CUDA_LAUNCH_BLOCKING=1 tells which)"),
    "killed": Trouble(
        "a process was ended by SIGKILL from outside: the out-of-memory killer, a stop limit that ran out, or a person",
        deadly=True,
    ),
    "segfault": Trouble("a process crashed in native code", deadly=True),
    "bad_arguments": Trouble(
        "the launch flags were refused: this version does not know one of them", deadly=True, explains=True
    ),
    "memory_leak": Trouble(
        "SGLang's own accounting of the KV cache no longer adds up: a bug of this version",
        explains=True,
        elsewhere=True,
    ),
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
