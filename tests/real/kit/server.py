"""A real SGLang server on the CPU, started for a test and stopped with all that belongs to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import environment

KIT = Path(__file__).resolve().parent
MODELS = KIT / "models"
START_LIMIT = 240.0  # seconds; 15 to 20 on an idle machine with two cores
STOP_LIMIT = 4.0


@dataclass(frozen=True)
class Running:
    url: str
    port: int
    pid: int
    log: Path
    argv: tuple[str, ...]


class DidNotStart(Exception):
    """The server ended before it was ready; its log says why."""

    def __init__(self, log: Path) -> None:
        super().__init__(f"the server ended before it was ready:\n{log.read_text(errors='replace')[-2000:]}")
        self.log = log


def command(
    version: str, target: str, drafter: Path | None, port: int, more: Sequence[str] = (), steps: int = 3
) -> list[str]:
    """The launch command. `more` comes last and so wins over what is here."""
    argv = [str(environment.python(version)), "-m", "sglang.launch_server"]
    argv += ["--model-path", str(MODELS / f"target-{target}"), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--device", "cpu", "--dtype", "float32", "--sampling-backend", "pytorch", "--trust-remote-code"]
    argv += ["--mem-fraction-static", "0.1", "--max-total-tokens", "4096", "--max-running-requests", "4"]
    argv += ["--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup"]
    argv += ["--enable-metrics", "--decode-log-interval", "4"]
    # Of the backends that run on any CPU only Triton's verifies draft trees.
    plain = drafter is None and target == "llama"
    argv += ["--attention-backend", "torch_native" if plain else "triton"]
    if target == "k25":
        argv += ["--skip-tokenizer-init"]  # its multimodal processor comes with the real model only
    if drafter:
        argv += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(drafter)]
        argv += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", str(steps + 1)]
    return [*argv, *more]


def environ(tree: Path | None = None) -> dict[str, str]:
    """The server's environment. tree: folder that holds an `sglang` package to run in place of the installed one."""
    path = [str(KIT / "stand-ins"), *([str(tree)] if tree else [])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


@contextmanager
def serving(argv: Sequence[str], env: dict[str, str], log: Path) -> Iterator[Running]:
    """Run a launch command until the block ends. Raises DidNotStart."""
    port = int(argv[argv.index("--port") + 1])
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url, log)
        yield Running(url, port, process.pid, log, tuple(argv))
    finally:
        _stop(process)


def ask(url: str, ids: Sequence[int], tokens: int, patience: float = 120) -> dict[str, Any]:
    """The `meta_info` of the answer to a greedy request that stops at so many tokens and not before."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = json.dumps({"input_ids": list(ids), "sampling_params": sampling}).encode()
    asked = urllib.request.Request(url + "/generate", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=patience) as answer:
        meta: dict[str, Any] = json.load(answer)["meta_info"]
    return meta


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    # Not /health: it generates a token, which a dead scheduler never does. This answers once the model is loaded.
    deadline = time.monotonic() + START_LIMIT
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/get_model_info", timeout=2) as answer:
                if answer.status == 200:
                    return
        except urllib.error.HTTPError as error:
            if error.code == 401:  # it is up, and wants a key
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    raise DidNotStart(log)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the session that was started for the server: politely, then by force whatever of it is left."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_LIMIT)
