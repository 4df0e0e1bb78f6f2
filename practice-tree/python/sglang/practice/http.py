"""SGLang's HTTP API, as far as its operators use it."""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = "This is a practice server. "


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, args, decoder, log):
        super().__init__((args.host, args.port), Handler)
        self.args, self.decoder, self.log = args, decoder, log
        self.ready = threading.Event()
        self.answers = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        route = {
            "/health": self._health,
            "/health_generate": self._health,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/v1/models": self._models,
            "/metrics": self._metrics,
        }.get(self.path.split("?")[0])
        self._route(route)

    def do_POST(self):
        route = {
            "/generate": self._generate,
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._chat,
            "/flush_cache": self._flush,
        }.get(self.path.split("?")[0])
        self._route(route)

    def _route(self, route):
        length = int(self.headers.get("content-length") or 0)
        self.body = self.rfile.read(length) if length else b""
        if route is None:
            self._json(404, {"detail": "Not Found"})
        elif not self._allowed():
            self._json(401, {"error": "Unauthorized"})
        else:
            route()

    def _allowed(self):
        key, path = self.server.args.api_key, self.path.split("?")[0]
        open_to_all = path.startswith("/health") or path == "/metrics"
        return not key or open_to_all or self.headers.get("authorization") == f"Bearer {key}"

    # ------------------------------------------------------------ answers

    def _health(self):
        if not self.server.ready.is_set():
            return self._text(503, "")
        self.server.decoder.generate(1, 1)
        return self._text(200, "")

    def _server_info(self):
        args, decoder = self.server.args, self.server.decoder
        state = {"last_gen_throughput": round(decoder.counters.throughput, 2)}
        state["memory_usage"] = {"weight": 41.59, "kvcache": 17.02, "token_capacity": 260000, "graph": 0.61}
        if decoder.accept_length() is not None:
            state["avg_spec_accept_length"] = decoder.accept_length()
        info = dict(vars(args), status="ready", internal_states=[state], version="0.5.9", practice_server=True)
        self._json(200, info)

    def _model_info(self):
        folder = self.server.args.model_path
        try:
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
        except FileNotFoundError:
            config = {}
        self._json(
            200,
            {
                "model_path": folder,
                "tokenizer_path": folder,
                "is_generation": True,
                "weight_version": "default",
                "model_type": config.get("model_type"),
                "architectures": config.get("architectures"),
            },
        )

    def _models(self):
        name = self.server.args.served_model_name or self.server.args.model_path
        self._json(200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "sglang"}]})

    def _metrics(self):
        if not self.server.args.enable_metrics:
            return self._json(404, {"detail": "Not Found"})
        args, decoder = self.server.args, self.server.decoder
        counters, labels = decoder.counters, f'{{model_name="{args.model_path}",tp_rank="0"}}'
        values = {
            "sglang:num_running_reqs": ("gauge", counters.running),
            "sglang:num_queue_reqs": ("gauge", 0),
            "sglang:token_usage": ("gauge", 0.0),
            "sglang:gen_throughput": ("gauge", round(counters.throughput, 2)),
            "sglang:generation_tokens_total": ("counter", counters.tokens),
            "sglang:prompt_tokens_total": ("counter", counters.prompt_tokens),
            "sglang:num_requests_total": ("counter", counters.requests),
        }
        if decoder.speculative:
            length = decoder.accept_length() or 0.0
            values["sglang:spec_accept_length"] = ("gauge", length)
            values["sglang:spec_accept_rate"] = ("gauge", length / (decoder.num_steps + 1))
        lines = []
        for name, (kind, value) in values.items():
            lines += [f"# HELP {name} {name}", f"# TYPE {name} {kind}", f"{name}{labels} {value}"]
        return self._text(200, "\n".join(lines) + "\n", "text/plain; version=0.0.4")

    def _flush(self):
        with self.server.decoder.counters.lock:
            self.server.decoder.counters.steps = self.server.decoder.counters.accepted = 0
        self._text(200, "Cache flushed.\nPlease check backend logs for more details.\n")

    def _generate(self):
        request = json.loads(self.body or b"{}")
        prompt = request.get("input_ids") or str(request.get("text", "")).split()
        wanted = int(request.get("sampling_params", {}).get("max_new_tokens", 128))
        if not request.get("stream"):
            meta = self.server.decoder.generate(len(prompt), wanted)
            tokens = meta["completion_tokens"]
            return self._answer({"text": _text(tokens), "output_ids": list(range(tokens)), "meta_info": meta})
        self._begin_stream()
        done = [0]

        def on_tokens(count):
            done[0] += count
            self._event({"text": _text(done[0]), "meta_info": {"completion_tokens": done[0]}})

        meta = self.server.decoder.generate(len(prompt), wanted, on_tokens)
        self._event({"text": _text(wanted), "output_ids": list(range(wanted)), "meta_info": meta})
        return self._end_stream()

    def _chat(self):
        request = json.loads(self.body or b"{}")
        words = " ".join(str(m.get("content", "")) for m in request.get("messages", [])).split()
        wanted = int(request.get("max_completion_tokens") or request.get("max_tokens") or 128)
        head = {"id": "chatcmpl-practice", "created": int(time.time()), "model": request.get("model", "")}
        usage = {"prompt_tokens": len(words), "completion_tokens": wanted, "total_tokens": len(words) + wanted}
        if not request.get("stream"):
            meta = self.server.decoder.generate(len(words), wanted)
            message = {"role": "assistant", "content": _text(meta["completion_tokens"])}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            return self._answer(dict(head, object="chat.completion", choices=[choice], usage=usage))
        self._begin_stream()

        def on_tokens(count):
            delta = {"index": 0, "delta": {"content": TEXT * count}, "finish_reason": None}
            self._event(dict(head, object="chat.completion.chunk", choices=[delta]))

        self.server.decoder.generate(len(words), wanted, on_tokens)
        self._event(dict(head, object="chat.completion.chunk", choices=[], usage=usage))
        return self._end_stream()

    # ------------------------------------------------------------ transport

    def _answer(self, data):
        self._json(200, data)
        self._log_decode()

    def _json(self, status, data):
        self._text(status, json.dumps(data), "application/json")

    def _text(self, status, text, kind="text/plain"):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin_stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def _event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def _end_stream(self):
        self.wfile.write(b"data: [DONE]\n\n")
        self._log_decode()

    def _log_decode(self):
        decoder = self.server.decoder
        length = decoder.accept_length()
        accept = (
            ""
            if length is None
            else (f"accept len: {length:.2f}, accept rate: {length / (decoder.num_steps + 1):.2f}, ")
        )
        self.server.log(
            f"Decode batch, #running-req: 1, #token: {decoder.counters.tokens}, token usage: 0.00, {accept}"
            f"cuda graph: True, gen throughput (token/s): {decoder.counters.throughput:.2f}, #queue-req: 0"
        )
        self.server.answers += 1
        if self.server.answers == decoder.scenario.dies_after:
            self.server.log(
                "Scheduler hit an exception: Traceback (most recent call last):\n"
                "RuntimeError: CUDA error: an illegal memory access was encountered\n"
            )
            self.server.log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            os._exit(1)

    def log_message(self, form, *values):
        self.server.log(f"INFO:     {self.client_address[0]}:{self.client_address[1]} - {form % values}")


def _text(tokens):
    return (TEXT * tokens).strip()
