# ruff: noqa: E501  log lines stay in one piece
"""Speed and memory of the log scanner on a generated log.

python benchmarks/server_log.py make server.log --size 1G     # a month of a busy server, deterministic
python benchmarks/server_log.py scan server.log               # MB/s, and the memory it took at most
python benchmarks/server_log.py redact server.log             # the same for redaction
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def head(at: str) -> str:
    fields = ", ".join(f"field_{i}=None" for i in range(300))
    start = f"[{at}] server_args=ServerArgs(model_path='/m', api_key='very-secret-key', tp_size=8, {fields})\n"
    steps = "".join(
        f"[{at} TP{rank}] {text}\n"
        for text in (
            "Init torch distributed begin.",
            "Load weight begin. avail mem=94.50 GB",
            "Load weight end. elapsed=152.31 s, type=KimiK25ForConditionalGeneration, dtype=torch.bfloat16, avail mem=52.58 GB, mem usage=41.59 GB.",
            "Memory pool end. avail mem=30.10 GB",
            "Capture cuda graph begin. This can take up to several minutes. avail mem=30.10 GB",
            "Capture cuda graph end. Time elapsed: 31.20 s. mem usage=2.10 GB. avail mem=28.00 GB.",
        )
        for rank in range(8)
    )
    return start + steps + f"[{at}] The server is fired up and ready to roll!\n"


def body(rng: random.Random) -> Iterator[str]:
    """Lines for ever: seven Decode lines of ten, Prefill and access lines, now and then a request and a warning."""
    now = datetime(2026, 2, 8, 3, 20)
    step = timedelta(seconds=0.25)
    while True:
        now += step
        at = f"{now:%Y-%m-%d %H:%M:%S}"
        kind = rng.random()
        if kind < 0.7:
            yield (
                f"[{at} TP0] Decode batch, #running-req: {rng.randrange(1, 48)}, #token: {rng.randrange(100000)}, token usage: 0.{rng.randrange(10, 99)},"
                f" accept len: {rng.uniform(1.5, 3.9):.2f}, accept rate: 0.68, cuda graph: True, gen throughput (token/s): {rng.uniform(90, 2500):.2f}, #queue-req: 0\n"
            )
        elif kind < 0.8:
            yield (
                f"[{at} TP0] Prefill batch, #new-seq: 1, #new-token: {rng.randrange(8192)}, #cached-token: 0, token usage: 0.01,"
                " #running-req: 3, #queue-req: 0, input throughput (token/s): 559.53, cuda graph: False\n"
            )
        elif kind < 0.98:
            yield f'[{at}] INFO:     10.0.0.{rng.randrange(255)}:{rng.randrange(20000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        elif kind < 0.995:
            yield f"[{at}] Receive: obj=GenerateReqInput(rid='{rng.getrandbits(128):032x}', text='{'lorem ipsum ' * 20}', sampling_params={{}})\n"
        else:
            yield f"[{at} TP{rng.randrange(8)}] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.7 -> 0.9\n"


def make(path: Path, size: int) -> None:
    rng = random.Random(7)
    lines = body(rng)
    written = 0
    with path.open("w", encoding="ascii") as file:
        written += file.write(head("2026-02-08 03:12:00"))
        while written < size:
            written += file.write("".join(next(lines) for _ in range(10000)))


def scan(path: Path) -> str:
    from opsctl.sglang.logs.timeline import build, scan_files

    summary = build(scan_files([path]))
    return f"{summary.decode['lines']} Decode lines, ready at {summary.starts[0].ready_at}"


def redact(path: Path) -> str:
    from opsctl.wire.redact import Redactor, redact_stream

    redactor = Redactor()
    with path.open("rb") as source, open("/dev/null", "wb") as sink:
        redact_stream(source, sink, redactor)
    return f"{redactor.masked} values masked"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "scan", "redact"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", default="1G")
    options = parser.parse_args()
    if options.what == "make":
        make(options.path, int(options.size[:-1]) * _UNITS[options.size[-1]])
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, cpu = time.perf_counter(), time.process_time()
    said = {"scan": scan, "redact": redact}[options.what](options.path)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    megabytes = options.path.stat().st_size / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{options.what}: {megabytes:.0f} MB in {took:.2f} s ({cpu:.2f} s of CPU): {megabytes / took:.0f} MB/s,"
        f" {megabytes / cpu:.0f} MB per CPU second; memory at most {memory / 1024:.0f} MiB ({before / 1024:.0f} before); {said}"
    )


if __name__ == "__main__":
    main()
