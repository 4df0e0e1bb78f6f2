# ruff: noqa: E501  log lines stay in one piece
"""Logs of the start of a server on eight GPUs, as each release words them; from the format strings of the sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The lines of one release that differ from those of others. `@` stands for `[time rank] `."""

    release: str
    version: str  # what can be told from the lines alone, without server_args
    distributed: tuple[str, str]
    load_end: str
    kv: str
    graph: tuple[str, str]
    draft_graph: tuple[str, str]
    decode: str


_CLASSIC_DRAFT = (
    "Capture draft cuda graph begin. This can take up to several minutes. avail mem=10.48 GB",
    "Capture draft cuda graph end. Time elapsed: 11.42 s. mem usage=0.61 GB. avail mem=9.87 GB.",
)
_CLASSIC = (
    "Capture cuda graph begin. This can take up to several minutes. avail mem=35.10 GB",
    "Capture cuda graph end. Time elapsed: 31.25 s. mem usage=2.10 GB. avail mem=33.00 GB.",
)
_TORCH = ("Init torch distributed begin.", "Init torch distributed ends. mem usage=0.62 GB")
_TORCH_ELAPSED = ("Init torch distributed begin.", "Init torch distributed ends. elapsed=4.21 s, mem usage=0.62 GB")
_PARALLEL = ("Init parallel begin.", "Init parallel ends. elapsed=4.21 s")
_NEW = (
    "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, avail mem=35.10 GB",
    "Capture target verify CUDA graph end. bs=[1, 2, 4], elapsed=31.25 s, mem usage=2.10 GB, avail mem=33.00 GB.",
)
_NEW_DRAFT = (
    "Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=10.48 GB",
    "Capture draft decode CUDA graph end. bs=[1, 2, 4], elapsed=11.42 s, mem usage=0.61 GB, avail mem=9.87 GB.",
)
_LOADED = "type=KimiK25ForConditionalGeneration, dtype=torch.bfloat16, avail mem=52.58 GB, mem usage=41.59 GB."
_LOADED_NEW = "type=KimiK25ForConditionalGeneration, quant=compressed-tensors, avail mem=52.58 GB, mem usage=41.59 GB."
_KV = "KV Cache is allocated. #tokens: 260000, KV size: 17.02 GB"
_KV_NEW = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 260000, KV size: 17.02 GB"
_TAIL = "cuda graph: True, gen throughput (token/s): 118.40, #queue-req: 0"

WORDINGS = [
    Wording("0.4.6", "0.4.6 to 0.5.3.post3", _TORCH, f"Load weight end. {_LOADED}", _KV, _CLASSIC, _CLASSIC_DRAFT,
            "Decode batch. #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, gen throughput (token/s): 118.40, #queue-req: 0, "),
    Wording("0.5.3", "0.5.3 to 0.5.3.post3", _TORCH, f"Load weight end. {_LOADED}", _KV, _CLASSIC, _CLASSIC_DRAFT,
            f"Decode batch. #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.68, {_TAIL}, "),
    Wording("0.5.4", "0.5.4 to 0.5.8.post1", _TORCH, f"Load weight end. {_LOADED}", _KV, _CLASSIC, _CLASSIC_DRAFT,
            f"Decode batch [812], #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.68, {_TAIL}, "),
    Wording("0.5.8.post1", "0.5.4 to 0.5.8.post1", _TORCH, f"Load weight end. {_LOADED}", _KV, _CLASSIC, _CLASSIC_DRAFT,
            f"Decode batch, #running-req: 1, #full token: 1312, full token usage: 0.00, swa token: 3, swa token usage: 0.01, accept len: 2.71, accept rate: 0.68, {_TAIL}, "),
    Wording("0.5.9", "0.5.9", _TORCH_ELAPSED, f"Load weight end. elapsed=152.31 s, {_LOADED}", _KV, _CLASSIC, _CLASSIC_DRAFT,
            f"Decode batch, #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.68, {_TAIL}"),
    Wording("0.5.11", "0.5.9 to 0.5.12.post1", _TORCH_ELAPSED, f"Load weight end. elapsed=152.31 s, {_LOADED_NEW}", _KV, _CLASSIC, _CLASSIC_DRAFT,
            f"Decode batch, #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.57, pre-allocated usage: 0.22, #prealloc-req: 0, #transfer-req: 1, #retracted-req: 0, {_TAIL}"),
    Wording("0.5.14", "0.5.14 to 0.5.20", _TORCH_ELAPSED, f"Load weight end. elapsed=152.31 s, {_LOADED_NEW}", _KV_NEW, _NEW, _NEW_DRAFT,
            f"Decode batch, #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.57, {_TAIL}"),
    Wording("0.5.23", "0.5.21 to 0.5.23", _PARALLEL, f"Load weight end. elapsed=152.31 s, {_LOADED_NEW}", _KV_NEW, _NEW, _NEW_DRAFT,
            f"Decode batch, #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.57, cap len: 3.10, block accept len: 9.99, {_TAIL}, est. decode TFLOPS/s (per GPU): 1.20, fwd occupancy: 91.00%"),
]  # fmt: skip


def log(wording: Wording, ranks: int = 8, flags: bool = False, ready: bool = True) -> str:
    """A whole start: distributed 03:00:10 to 03:00:14, weights to 03:02:46, draft weights, pools, graphs, ready 03:04:30."""
    lines = []
    if flags:
        lines.append(
            "[2026-02-08 03:00:00] server_args=ServerArgs(model_path='/srv/kimi', tp_size=8, api_key='abcd1234secret')"
        )

    def every(at: str, text: str) -> None:
        lines.extend(f"[2026-02-08 {at} TP{rank}] {text}" for rank in reversed(range(ranks)))

    every("03:00:10", wording.distributed[0])
    every("03:00:14", wording.distributed[1])
    every("03:00:14", "Load weight begin. avail mem=94.20 GB")
    lines.append("\rLoading safetensors checkpoint shards:  50% Completed | 32/64 [01:10<01:10,  2.19s/it]")
    every("03:02:46", wording.load_end)
    every("03:02:47", wording.kv)
    every("03:02:48", "Memory pool end. avail mem=35.20 GB")
    every("03:02:50", wording.graph[0])
    lines.append(
        "\r  0%|          | 0/3 [00:00<?, ?it/s]\rCapturing batches (bs=4 avail_mem=34.91 GB):  33%|###3      | 1/3 [00:10<00:20, 10.41s/it]"
    )
    every("03:03:21", wording.graph[1])
    every("03:03:22", "Load weight begin. avail mem=33.00 GB")
    every(
        "03:03:24",
        wording.load_end.replace("KimiK25ForConditionalGeneration", "LlamaForCausalLMEagle3").replace("152.31", "2.05"),
    )
    every("03:03:25", "Memory pool end. avail mem=10.50 GB")
    every("03:03:26", wording.draft_graph[0])
    every("03:03:38", wording.draft_graph[1])
    lines.append(
        "[2026-02-08 03:03:40 TP0] max_total_num_tokens=260000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=262144, available_gpu_mem=9.87 GB"
    )
    lines.append("[2026-02-08 03:03:41] INFO:     Started server process [4242]")
    lines.append("[2026-02-08 03:03:41] INFO:     Application startup complete.")
    if ready:
        lines.append("[2026-02-08 03:04:30] The server is fired up and ready to roll!")
        lines.append(f"[2026-02-08 03:12:44 TP0] {wording.decode}")
        lines.append(f"[2026-02-08 03:12:45 TP0] {wording.decode.replace('2.71', '3.29').replace('118.40', '141.60')}")
    return "\n".join(lines) + "\n"
