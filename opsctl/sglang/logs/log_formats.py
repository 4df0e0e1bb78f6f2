"""What a server log tells of the SGLang version and of the launch flags.

`server_args=` prints every field of ServerArgs, and each release added some. `FIELDS` names one field per release that
is there from that release on and was in none before (read in the wheels of the releases listed; releases between them,
mostly post releases, count as the one before). Where the log has no such line, the wording of others narrows it down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

# release -> a field of ServerArgs new in it; None where it has the fields of the one before.
FIELDS: tuple[tuple[str, str | None], ...] = (
    ("0.4.6", None),
    ("0.4.6.post5", "enable_eplb"),
    ("0.4.7", "eplb_algorithm"),
    ("0.4.8", "custom_weight_loader"),
    ("0.4.9", "crash_dump_folder"),
    ("0.4.9.post6", "enable_lora"),
    ("0.4.10", None),
    ("0.5.1", "tool_server"),
    ("0.5.2", "numa_node"),
    ("0.5.3", "enable_fp32_lm_head"),
    ("0.5.3.post3", "modelopt_quant"),
    ("0.5.4", "kt_cpuinfer"),
    ("0.5.4.post3", "rl_on_policy_target"),
    ("0.5.5", "kt_max_deferred_experts_per_token"),
    ("0.5.5.post3", "kt_weight_path"),
    ("0.5.6", "dllm_algorithm"),
    ("0.5.6.post2", "dllm_algorithm_config"),
    ("0.5.7", "encoder_only"),
    ("0.5.8", "model_checksum"),
    ("0.5.8.post1", None),
    ("0.5.9", "attn_cp_size"),
    ("0.5.10", "use_ray"),
    ("0.5.10.post1", None),
    ("0.5.11", "enable_mis"),
    ("0.5.12", "detokenizer_worker_num"),
    ("0.5.12.post1", None),
    ("0.5.13", "kv_canary"),
    ("0.5.13.post1", None),
    ("0.5.14", "cp_strategy"),
    ("0.5.15", "dcp_size"),
    ("0.5.15.post1", None),
    ("0.5.16", "dllm_fdfo"),
    ("0.5.17", "dcp_comm_backend"),
    ("0.5.18", "language_model_only"),
    ("0.5.19", "deepep_v2_mode"),
    ("0.5.20", "ple_offload_dir"),
    ("0.5.21", "swa_prefix_tails"),
    ("0.5.22", "watermark_key"),
    ("0.5.23", "enable_paged_experts"),
)
RELEASES: tuple[str, ...] = tuple(release for release, _ in FIELDS)

# Wording -> first and last release that has it. Sources: managers/scheduler_metrics_mixin.py and its successors,
# model_executor/model_runner.py, mem_cache/memory_pool.py of the wheels.
WORDINGS: tuple[tuple[str, str, str | None, str | None], ...] = (
    ("Decode batch", r"Decode batch\. ", None, "0.5.3.post3"),
    ("Decode batch", r"Decode batch(?: \[\d+\])?, ", "0.5.4", None),
    ("Decode batch", r"(?:cuda|cpu|npu) graph: ", "0.4.10", None),
    ("Decode batch", r"#queue-req: \d+, *$", None, "0.5.8.post1"),
    ("Decode batch", r"#queue-req: \d+$", "0.5.9", None),
    ("Decode batch", r"accept rate: ", "0.5.3", None),
    ("Load weight end", r"end\. elapsed=", "0.5.9", None),
    ("Load weight end", r"end\. type=", None, "0.5.8.post1"),
    ("Load weight end", r"dtype=", None, "0.5.9"),
    ("KV Cache is allocated", r"allocated\. dtype: ", "0.5.13", None),
    ("KV Cache is allocated", r"allocated\. #tokens", None, "0.5.12.post1"),
    ("Init", r"torch distributed begin", None, "0.5.20"),
    ("Init", r"parallel begin", "0.5.21", None),
    ("Capture", r"CUDA graph begin\. backend=", "0.5.14", None),
    ("Capture", r"cuda graph begin\. This can take", None, "0.5.13.post1"),
    ("Engine startup timings", r"load_weight=", "0.5.17", None),
)


def version(flags: Mapping[str, Any], samples: Mapping[str, str]) -> str | None:
    """The release that wrote the log: '0.5.9', '0.5.10 to 0.5.10.post1', or None where nothing tells.

    Args:
        flags: the fields of ServerArgs, {} where the log does not have them.
        samples: a line of each kind, as `Scanner.finish` gives them.
    """
    low, high = 0, len(RELEASES) - 1
    told = False
    if len(flags) > 50:  # else the line was cut, and an absent field means nothing
        told = True
        low = max((i for i, (_, field) in enumerate(FIELDS) if field in flags), default=0)
        high = next((i - 1 for i, (_, field) in enumerate(FIELDS) if i > low and field and field not in flags), high)
    else:
        for kind, pattern, since, until in WORDINGS:
            if kind in samples and re.search(pattern, samples[kind]):
                told = True
                low = max(low, RELEASES.index(since) if since else 0)
                high = min(high, RELEASES.index(until) if until else high)
    if not told or low > high:
        return None
    return RELEASES[low] if low == high else f"{RELEASES[low]} to {RELEASES[high]}"


def flags(text: str) -> dict[str, Any]:
    """The fields of `ServerArgs(a=1, ...)` (to 0.5.18) or `{'a': 1, ...}` (from 0.5.19), also of a line that was cut.

    A value that is no Python literal stays text.
    """
    body = text.removeprefix("ServerArgs").strip()
    found: dict[str, Any] = {}
    for item in _items(body[1:]):
        match = re.match(r"""\s*(?:(['"])(?P<quoted>\w+)\1\s*:|(?P<name>\w+)=)\s*(?P<value>.*)""", item, re.DOTALL)
        if match:
            found[match["quoted"] or match["name"]] = _literal(match["value"].strip())
    return found


def _items(body: str) -> Iterator[str]:
    """`body` cut at its top-level commas, up to the bracket that closes it."""
    depth, quote, start, i = 0, "", 0, 0
    while i < len(body):
        c = body[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
            if depth < 0:
                yield body[start:i]
                return
        elif c == "," and depth == 0:
            yield body[start:i]
            start = i + 1
        i += 1


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
