"""A running server seen through its HTTP interface, typed, for every version from 0.4.6 to 0.5.23.

The `httpx.Client` comes from outside: over the network, or through a connection to the host when the server listens on
the host's loopback only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from opsctl.errors import AuthFailed, OpsctlError, RemoteError, Unreachable
from opsctl.schema_errors import plainly
from opsctl.secret import Secret
from opsctl.sglang.metrics import Metrics, read_metrics
from opsctl.sglang.served import Answer, Chunk, Load, Sampling, ServerInfo
from opsctl.text import one_line

if TYPE_CHECKING:
    import httpx

# The first that answers wins. Both names have been there since 0.5.6, where the old one began to log a warning.
SERVER_INFO_PATHS = ("/server_info", "/get_server_info")
# /v1/loads since 0.5.9 (0.5.9 answers 500 beside a newer FastAPI); /get_load from 0.4.10 to 0.5.20.
LOAD_PATHS = ("/v1/loads", "/get_load")
_ABSENT = (404, 405, 500, 501)
_PATIENCE = 5.0  # seconds for an answer that needs no generation
_ANSWER_LIMIT = 600.0  # seconds without a byte of an answer: a long prompt may wait for its turn that long
_WAKE_LIMIT = 120.0  # seconds for one token of a server that may be compiling its kernels


Prompt = str | Sequence[int]


class Server:
    """Client of one server. Raises Unreachable, AuthFailed, RemoteError (kind: refused, timeout, lost, failed)."""

    def __init__(self, http: httpx.Client, api_key: Secret | None = None) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {api_key.reveal()}"} if api_key else {}
        self._where = str(http.base_url).rstrip("/")

    def info(self, *, wake: bool = True) -> ServerInfo:
        """The server's launch arguments and state.

        Until a server up to 0.5.9 has generated something (--skip-server-warmup), nothing reads the scheduler's reply
        to this question, and it would never be answered: then one token is generated first, if `wake` allows it.
        """
        for path in SERVER_INFO_PATHS:
            try:
                answer = self._get(path, timeout=_PATIENCE)
            except RemoteError as error:
                if error.kind != "timeout" or not wake:
                    raise
                self.wake()
                answer = self._get(path)
            if answer is not None:
                return self._parsed(ServerInfo, answer, path)
        raise RemoteError(
            f"no SGLang server here: neither {' nor '.join(SERVER_INFO_PATHS)} answers",
            kind="not-found",
            where=self._where,
            hint="check the address and the port; `opsctl server status` tells what runs on a host",
        )

    def generates(self, limit: float = 10.0) -> bool:
        """Whether it can generate a token now. Its own health check generates one, whatever its settings."""
        try:
            with self._told():
                return self._http.get("/health_generate", headers=self._headers, timeout=limit).status_code == 200
        except OpsctlError:
            return False

    def wake(self) -> None:
        """Have one token generated."""
        body = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
        with self._told():
            answer = self._http.post("/generate", json=body, headers=self._headers, timeout=_WAKE_LIMIT)
        self._check(answer)

    def load(self) -> Load | None:
        """Requests in the server now; None where this version does not tell."""
        for path in LOAD_PATHS:
            try:
                # 0.5.9 may fail here in a way that takes the connection with it.
                answer = self._get(path, {"connection": "close"})
            except RemoteError as error:
                if error.kind != "lost":
                    raise
                continue
            ranks = answer.get("loads") if isinstance(answer, dict) else answer
            if isinstance(ranks, list) and all(isinstance(rank, dict) for rank in ranks):
                waiting = sum(_either(rank, "num_waiting_reqs") for rank in ranks)
                # /get_load counts the waiting ones among all; /v1/loads tells the running ones.
                running = sum(
                    _either(rank, "num_running_reqs")
                    if "num_running_reqs" in rank
                    else max(_either(rank, "num_reqs") - _either(rank, "num_waiting_reqs"), 0)
                    for rank in ranks
                )
                return Load(running, waiting)
        return None

    def metrics(self) -> Metrics | None:
        """The server's metrics; None when it was started without --enable-metrics."""
        with self._told():
            answer = self._http.get("/metrics", headers=self._headers, follow_redirects=True)
        if answer.status_code in _ABSENT:
            return None
        self._check(answer)
        return read_metrics(answer.text)

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """`messages` through the server's own chat template; None where /tokenize takes plain text only (0.5.9)."""
        with self._told():
            body = {"messages": list(messages), "add_generation_prompt": True}
            answer = self._http.post("/tokenize", json=body, headers=self._headers)
        if answer.status_code in (401, 403):
            self._check(answer)
        try:
            tokens = answer.json().get("tokens") if answer.status_code == 200 else None
        except (ValueError, AttributeError):
            return None
        return tokens if isinstance(tokens, list) and all(isinstance(t, int) for t in tokens) else None

    def generate(self, prompt: Prompt, sampling: Sampling) -> Answer:
        """Generate from `prompt` (text or token ids) as it is, without a chat template, timing each piece."""
        key = "text" if isinstance(prompt, str) else "input_ids"
        body = {
            key: prompt if isinstance(prompt, str) else list(prompt),
            "stream": True,
            "sampling_params": {
                "temperature": sampling.temperature,
                "max_new_tokens": sampling.max_tokens,
                "ignore_eos": sampling.ignore_eos,
            },
        }
        import httpx

        begin = time.perf_counter()
        chunks: list[Chunk] = []
        last: dict[str, Any] = {}
        text = ""
        ids: list[int] = []
        limit = httpx.Timeout(_ANSWER_LIMIT, connect=10)
        with (
            self._told(),
            self._http.stream("POST", "/generate", json=body, headers=self._headers, timeout=limit) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                self._check(answer)
            for event in _events(answer):
                now = time.perf_counter() - begin
                if "error" in event:
                    raise self._refused(_code(event["error"]), json.dumps(event["error"]))
                last = event
                tokens = int(event.get("meta_info", {}).get("completion_tokens") or 0)
                chunks.append(Chunk(now, tokens))
                # Cumulative unless the server was started with incremental output; then each event has its own part.
                text = _grown(text, event.get("text") or "")
                ids = _grown_ids(ids, event.get("output_ids") or [], tokens)
        meta = last.get("meta_info")
        if not isinstance(meta, dict) or not meta.get("finish_reason"):
            raise RemoteError(
                "the answer broke off before it was finished", kind="lost", where=self._where, hint=_LOST_HINT
            )
        reason = meta["finish_reason"]
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise self._refused(int(reason.get("status_code") or 500), str(reason.get("message") or "aborted"))
        return Answer(text, tuple(ids), meta, tuple(chunks), time.perf_counter() - begin)

    def _get(self, path: str, headers: Mapping[str, str] | None = None, timeout: float | None = None) -> Any:
        """The JSON at `path`; None where this version does not have it."""
        import httpx

        wait = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        with self._told():
            answer = self._http.get(path, headers={**self._headers, **(headers or {})}, timeout=wait)
        if answer.status_code in _ABSENT:
            return None
        self._check(answer)
        try:
            return answer.json()
        except ValueError:
            return None

    def _parsed(self, model: type[ServerInfo], data: Any, path: str) -> ServerInfo:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the answer"
            raise RemoteError(
                f"{path} is not an SGLang server's answer: {place}: {plainly(first)}", where=self._where
            ) from None

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code in (401, 403):
            raise AuthFailed(
                "the server wants an API key, or another one",
                where=self._where,
                hint="put the key in the environment variable OPSCTL_API_KEY, or name another with --api-key-env",
            )
        if answer.status_code >= 400:
            raise self._refused(answer.status_code, answer.text)

    def _refused(self, status: int, body: str) -> RemoteError:
        kind = "refused" if status < 500 else "failed"
        return RemoteError(f"HTTP {status}: {one_line(_message(body))}", kind=kind, where=self._where)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say low-level failures in our words."""
        import httpx

        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(
                f"no server answers: {error}", where=self._where, hint="is it running? `opsctl server status`"
            ) from None
        except httpx.TimeoutException:
            raise RemoteError(
                "the server took the request and gave no answer in time",
                kind="timeout",
                where=self._where,
                hint=_LOST_HINT,
            ) from None
        except httpx.HTTPError as error:
            raise RemoteError(
                f"the server dropped the request: {error}", kind="lost", where=self._where, hint=_LOST_HINT
            ) from None


_LOST_HINT = "its scheduler may have died: `opsctl logs` shows the first error, `opsctl diagnose` says why"


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream."""
    for line in answer.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _grown(sofar: str, new: str) -> str:
    return new if new.startswith(sofar) or not sofar else sofar + new


def _grown_ids(sofar: list[int], new: list[int], total: int) -> list[int]:
    return new if len(new) == total else sofar + new


def _either(rank: dict[str, Any], name: str) -> int:
    value = rank.get(name)
    return value if isinstance(value, int) else 0


def _code(error: Any) -> int:
    """The HTTP status in an error that came inside a stream; 400 where there is none, as for a prompt too long."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and code >= 400 else 400


def _message(body: str) -> str:
    """The words in an error body, whichever of the shapes it has."""
    try:
        data = json.loads(body)
    except ValueError:
        return body
    for _ in range(3):
        if isinstance(data, dict):
            data = data.get("message") or data.get("error") or data.get("detail") or body
    return data if isinstance(data, str) else body
