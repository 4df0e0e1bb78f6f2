"""A small HTTP server that answers in the shapes of one SGLang version, for tests that need no SGLang.

The shapes are those of the releases' managers/tokenizer_manager.py; only the fields a client reads are there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMES = {
    # version: (accepted, proposed, histogram)
    "0.5.3": (None, None, None),
    "0.5.5": (None, None, None),
    "0.5.6": ("spec_accept_token_num", "spec_draft_token_num", None),
    "0.5.9": ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    "0.5.11": ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    "0.5.12": ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    "0.5.23": ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
}


@dataclass
class Shape:
    """How the stand-in behaves. cycles: accepted drafts of each verify step, over and over; None: no speculation."""

    version: str = "0.5.9"
    cycles: tuple[int, ...] | None = (3,)
    steps: int = 3
    algorithm: str = "EAGLE3"
    metrics: bool = True
    others: int = 0  # tokens generated for somebody else, per request of ours
    running: int = 0
    api_key: str | None = None
    token: Callable[[int], int] = lambda n: 200 + n  # the n-th generated token
    renders_chat: bool = False
    longest_prompt: int = 100_000
    dies: bool = False
    asleep: bool = False  # tells nothing of itself until it has generated something, as 0.5.9 without a warm-up
    skip_tokenizer_init: bool = False
    model: str = "/srv/models/target"
    drafter: str = "/srv/models/drafter"
    generated: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    awake: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(shape: Shape):
    class Handler(_Handler):
        pass

    Handler.shape = shape
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def newer(version: str, than: str) -> bool:
    one, two = (tuple(map(int, v.split("."))) for v in (version, than))
    return one >= two


class _Handler(BaseHTTPRequestHandler):
    shape: Shape

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        shape, path = self.shape, self.path
        if path.startswith("/metrics"):
            return self._text(_metrics(shape)) if shape.metrics else self._text("Not Found", 404)
        if shape.api_key and self.headers.get("authorization") != f"Bearer {shape.api_key}":
            return self._json({"error": "Unauthorized"}, 401)
        if path == "/get_server_info" or (path == "/server_info" and newer(shape.version, "0.5.6")):
            if shape.asleep:
                shape.awake.wait(30)
            return self._json(_info(shape))
        if path == "/get_load" and not newer(shape.version, "0.5.23"):
            return self._json([{"dp_rank": 0, "num_reqs": shape.running, "num_waiting_reqs": 0}])
        if path == "/v1/loads" and newer(shape.version, "0.5.9"):
            if shape.version == "0.5.9":
                return self._text("Internal Server Error", 500)
            return self._json({"loads": [{"num_running_reqs": shape.running, "num_waiting_reqs": 0}]})
        return self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        shape = self.shape
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if shape.api_key and self.headers.get("authorization") != f"Bearer {shape.api_key}":
            return self._json({"error": "Unauthorized"}, 401)
        if self.path == "/tokenize":
            if not shape.renders_chat:
                return self._json({"object": "error", "message": "Field required"}, 400)
            return self._json({"tokens": [7] + [len(m["content"]) for m in body["messages"]]})
        shape.awake.set()
        if not body.get("stream"):
            return self._json({"text": "x", "meta_info": {"completion_tokens": 1}})
        shape.asked.append(body)
        prompt = body.get("text") or body["input_ids"]
        if len(prompt) > shape.longest_prompt:
            return self._refuse("The input is longer than the model's context length")
        return self._stream(body)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        total = body["sampling_params"]["max_new_tokens"]
        for event in _events(self.shape, total):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
            if self.shape.dies:
                return
        self.shape.generated += total + self.shape.others
        self.wfile.write(b"data: [DONE]\n\n")

    def _refuse(self, message: str) -> None:
        """Inside the stream, as SGLang does."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: " + json.dumps({"error": {"message": message}}).encode() + b"\n\ndata: [DONE]\n\n")

    def _json(self, value: object, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _text(self, value: str, status: int = 200) -> None:
        self._send(value.encode(), "text/plain", status)

    def _send(self, data: bytes, kind: str, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _info(shape: Shape) -> dict[str, Any]:
    speculates = shape.cycles is not None
    return {
        "version": shape.version,
        "model_path": shape.model,
        "tokenizer_path": shape.model,
        "api_key": shape.api_key,
        "tp_size": 8,
        "skip_tokenizer_init": shape.skip_tokenizer_init,
        "enable_metrics": shape.metrics,
        "speculative_algorithm": shape.algorithm if speculates else None,
        "speculative_draft_model_path": shape.drafter if speculates else None,
        "speculative_num_steps": shape.steps if speculates else None,
        "speculative_eagle_topk": 1 if speculates else None,
        "speculative_num_draft_tokens": shape.steps + 1 if speculates else None,
        "internal_states": [{"last_gen_throughput": 60.0, "api_key": shape.api_key}],
    }


def _metrics(shape: Shape) -> str:
    labels = '{model_name="target",tp_rank="0"}'
    return (
        "# HELP sglang:generation_tokens_total Number of generation tokens processed.\n"
        "# TYPE sglang:generation_tokens_total counter\n"
        f"sglang:generation_tokens_total{labels} {float(shape.generated)}\n"
        "# HELP sglang:spec_accept_length The average acceptance length of speculative decoding.\n"
        "# TYPE sglang:spec_accept_length gauge\n"
        f"sglang:spec_accept_length{labels} 0.0\n"
    )


def _events(shape: Shape, total: int) -> list[dict[str, Any]]:
    """The cumulative events of one answer of `total` tokens: one token from the prompt pass, then cycles."""
    produced, taken, events = 1, [], [(1, [])]
    while produced < total:
        accepted = shape.cycles[len(taken) % len(shape.cycles)] if shape.cycles else 0
        taken.append(accepted)
        produced = min(produced + accepted + 1, total)
        events.append((produced, list(taken)))
    return [_event(shape, n, done, last=n == total and done == taken) for n, done in events]


def _event(shape: Shape, tokens: int, cycles: list[int], last: bool) -> dict[str, Any]:
    ids = [shape.token(n) for n in range(tokens)]
    meta: dict[str, Any] = {
        "id": "1",
        "finish_reason": {"type": "length", "length": tokens} if last else None,
        "prompt_tokens": 4,
        "completion_tokens": tokens,
    }
    if last and shape.cycles is not None:
        accepted, proposed, histogram = NAMES[shape.version]
        meta["spec_verify_ct"] = len(cycles)
        if shape.version != "0.5.3":
            meta["spec_accept_length"] = tokens / len(cycles)
            meta["spec_accept_rate"] = sum(cycles) / (len(cycles) * shape.steps)
        if accepted:
            meta |= {accepted: sum(cycles), proposed: len(cycles) * shape.steps}
        if histogram:
            meta[histogram] = [cycles.count(n) for n in range(max(cycles) + 1)]
    return {"text": " ".join(map(str, ids)), "output_ids": ids, "meta_info": meta}
