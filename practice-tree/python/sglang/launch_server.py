"""The practice server: takes SGLang's launch flags, writes its log lines, answers its API. No model is loaded.

python -m sglang.launch_server --model-path DIR --port N [--speculative-algorithm EAGLE3 ...]
"""

import argparse
import json
import os
import signal
import sys
import threading
import time

from sglang.practice.decoding import Decoder
from sglang.practice.http import Server
from sglang.practice.scenario import choose

SHARDS = 8


def main():
    args = parse(sys.argv[1:])
    name, scenario = choose(args.speculative_draft_model_path, args.model_path)
    log(f"PRACTICE SERVER in the place of SGLang 0.5.9, scenario {name!r}: no model is loaded")
    shown = ", ".join(f"{key}={value!r}" for key, value in vars(args).items())
    log(f"server_args=ServerArgs({shown})")
    decoder = Decoder(scenario, args.speculative_num_steps or 3, bool(args.speculative_algorithm))
    try:
        server = Server(args, decoder, log)
    except OSError as error:
        log(
            f"[Errno {error.errno}] error while attempting to bind on address ('{args.host}', {args.port}): "
            "address already in use"
        )
        return 1
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    load(args, scenario, stop)
    server.ready.set()
    log("The server is fired up and ready to roll!")
    stop.wait()
    log("Gracefully exiting... Remaining number of requests 0.")
    return 0


def load(args, scenario, stop):
    """Say what SGLang says while it loads, in the time that the scenario gives it."""
    pause = scenario.start_seconds / (2 * SHARDS + 4)
    log("Init torch distributed begin.")
    log("Init torch distributed ends. elapsed=0.31 s, mem usage=0.42 GB")
    _weights("KimiK25ForConditionalGeneration", 94.5, 41.59, pause, stop)
    if scenario.ends_in == "oom":
        log(
            "Scheduler hit an exception: Traceback (most recent call last):\n"
            '  File "scheduler.py", line 2933, in run_scheduler_process\n'
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 3 has a total capacity of "
            "94.97 GiB of which 1.12 GiB is free.\n"
        )
        log("Received sigquit from a child process. It usually means the child failed.")
        raise SystemExit(1)
    if scenario.ends_in == "hang":
        stop.wait()
        raise SystemExit(0)
    log("KV Cache is allocated. #tokens: 260000, KV size: 17.02 GB")
    log("Memory pool end. avail mem=35.10 GB")
    _graphs("cuda graph", (8, 4, 2, 1), pause, stop)
    if args.speculative_algorithm:
        _weights("LlamaForCausalLMEagle3", 34.2, 1.97, pause / 4, stop)
        _graphs("draft cuda graph", (8, 4, 2, 1), pause / 4, stop)
    log(
        "max_total_num_tokens=260000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=48, context_len=262144, available_gpu_mem=9.21 GB"
    )
    log(f"INFO:     Started server process [{os.getpid()}]")
    log("INFO:     Application startup complete.")
    log(f"INFO:     Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")


def _weights(kind, available, used, pause, stop):
    log(f"Load weight begin. avail mem={available:.2f} GB")
    began = time.time()
    for shard in range(SHARDS + 1):
        done = shard * 100 // SHARDS
        sys.stderr.write(
            f"\rLoading safetensors checkpoint shards: {done:3d}% Completed | {shard}/{SHARDS} "
            f"[00:{int(time.time() - began):02d}<00:00,  4.00it/s]"
        )
        sys.stderr.flush()
        _pause(pause, stop)
    sys.stderr.write("\n")
    log(
        f"Load weight end. elapsed={time.time() - began:.2f} s, type={kind}, dtype=torch.bfloat16, "
        f"avail mem={available - used:.2f} GB, mem usage={used:.2f} GB."
    )


def _graphs(name, sizes, pause, stop):
    log(f"Capture {name} begin. This can take up to several minutes. avail mem=9.87 GB")
    began = time.time()
    log(f"Capture {name} bs {sorted(sizes)}")
    for done, size in enumerate(sizes):
        sys.stderr.write(
            f"\rCapturing batches (bs={size} avail_mem=9.{9 - done} GB): "
            f"{done * 100 // len(sizes):3d}%|          | {done}/{len(sizes)} [00:00<00:00,  9.00it/s]"
        )
        sys.stderr.flush()
        _pause(pause, stop)
    sys.stderr.write("\n")
    log(f"Capture {name} end. Time elapsed: {time.time() - began:.2f} s. mem usage=0.61 GB. avail mem=9.26 GB.")


def _pause(seconds, stop):
    if stop.wait(seconds):
        raise SystemExit(0)


def log(text):
    sys.stderr.write(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text + "\n")
    sys.stderr.flush()


def parse(argv):
    """SGLang's flags, as far as an operator of EAGLE-3 meets them; others are kept as they come."""
    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization")
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--served-model-name")
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--attention-backend")
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--speculative-draft-attention-backend")
    parser.add_argument("--speculative-draft-model-quantization")
    parser.add_argument("--disable-cuda-graph", action="store_true")
    parser.add_argument("--watchdog-timeout", type=float, default=300)
    parser.add_argument("--decode-log-interval", type=int, default=40)
    parser.add_argument("--log-requests", action="store_true")
    parser.add_argument("--config")
    args, others = parser.parse_known_args(argv)
    if args.config:
        args.api_key = args.api_key or _settings(args.config).get("api-key")
    args.other_flags = others
    return args


def _settings(path):
    """A file of settings, as far as one `name: "value"` a line goes."""
    with open(path, encoding="utf-8") as file:
        pairs = [line.partition(":") for line in file if line.strip() and not line.startswith("#")]
    return {name.strip(): json.loads(value) for name, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main())
