"""A running server seen through its HTTP interface, typed, for every version from 0.4.6 to 0.5.23.

The `httpx.Client` comes from outside: over the network, or through a connection to the host when the server listens on
the host's loopback only. What the server says is data from outside: whatever of it is not as SGLang answers, too long,
too slow, or a number that is none, is an error that names the endpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from opsctl.errors import AuthFailed, Lost, OpsctlError, RemoteError, Unreachable
from opsctl.schema_errors import plainly
from opsctl.secret import Secret
from opsctl.sglang.server.served import Answer, Chunk, Load, Metrics, Piece, Sampling, ServerInfo, count, read_metrics
from opsctl.text import one_line
from opsctl.wire import limits
from opsctl.wire.protocol import AgentError

if TYPE_CHECKING:
    import httpx

# The first that answers wins. Both names have been there since 0.5.6, where the old one began to log a warning.
SERVER_INFO_PATHS = ("/server_info", "/get_server_info")
# /v1/loads since 0.5.9 (0.5.9 answers 500 beside a newer FastAPI); /get_load from 0.4.10 to 0.5.20.
LOAD_PATHS = ("/v1/loads", "/get_load")
_ABSENT = (404, 405, 500, 501)
_PATIENCE = 5.0  # seconds for an answer that needs no generation
_ANSWER_LIMIT = 600.0  # seconds without a byte of an answer: a long prompt may wait for its turn that long
_MOST_SAID = 64 << 10  # bytes of an error that are looked at for its words
_WAKE_LIMIT = 120.0  # seconds for one token of a server that may be compiling its kernels


Prompt = str | Sequence[int]


class Server:
    """Client of one server.

    Raises Unreachable (Lost: the connection to the host, not the server), AuthFailed, RemoteError (kind: refused,
    timeout, lost, failed; odd, elsewhere, too-much, encoded for an answer that was not read, or not to its end).
    """

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
            return self._ask("GET", "/health_generate", timeout=limit, seconds=limit).status_code == 200
        except Lost:
            raise
        except OpsctlError:
            return False

    def wake(self) -> None:
        """Have one token generated."""
        body = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
        self._check(self._ask("POST", "/generate", json=body, timeout=_WAKE_LIMIT, seconds=_WAKE_LIMIT))

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
                with self._read(path):
                    return _load(ranks)
        return None

    def metrics(self) -> Metrics | None:
        """The server's metrics; None when it was started without --enable-metrics."""
        answer = self._ask("GET", "/metrics")
        if answer.next_request and answer.next_request.url == self._http.base_url.join("/metrics/"):
            answer = self._ask("GET", "/metrics/")  # where it is mounted as an application of its own
        if answer.status_code in _ABSENT:
            return None
        self._check(answer)
        with self._read("/metrics"):
            return read_metrics(answer.content.decode("utf-8", "replace"))

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """`messages` through the server's own chat template; None where /tokenize takes plain text only (0.5.9)."""
        answer = self._ask("POST", "/tokenize", json={"messages": list(messages), "add_generation_prompt": True})
        if answer.status_code in (401, 403):
            self._check(answer)
        try:
            tokens = limits.read_json(answer.content).get("tokens") if answer.status_code == 200 else None
        except (ValueError, AttributeError):
            return None
        return tokens if isinstance(tokens, list) and all(isinstance(t, int) for t in tokens) else None

    def generate(self, prompt: Prompt, sampling: Sampling, *, patience: float = _ANSWER_LIMIT) -> Answer:
        """Generate from `prompt` (text or token ids) as it is, without a chat template, timing each piece.

        patience: seconds without a byte of the answer.
        """
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
        last: Piece | None = None
        text = ""
        ids: list[int] = []
        limit = httpx.Timeout(patience, connect=10)
        most_tokens = 2 * sampling.max_tokens + 64  # a server may do a little more than it was asked for, and no more
        with (
            self._told(),
            self._http.stream(
                "POST",
                "/generate",
                json=body,
                headers=self._headers,
                timeout=limit,
                extensions={"most": limits.STREAM, "seconds": limits.GENERATION},
            ) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                self._check(answer)
            with self._read("/generate"):
                for event in _events(answer.iter_raw()):
                    now = time.perf_counter() - begin
                    if "error" in event:
                        raise self._refused(_code(event["error"]), json.dumps(event["error"]))
                    last = Piece.of(event)
                    if max(last.tokens, len(chunks), len(ids)) > most_tokens:
                        raise ValueError(
                            f"more than {most_tokens} tokens or events for the {sampling.max_tokens} tokens asked for"
                        )
                    chunks.append(Chunk(now, last.tokens))
                    # Cumulative unless the server was started with incremental output: then each has its own part.
                    text = _grown(text, last.text)
                    ids = _grown_ids(ids, last.ids, last.tokens)
                    if len(text) > limits.EVENT:
                        raise limits.too_much("/generate", limits.EVENT)
        reason = last.meta.get("finish_reason") if last else None
        if last is None or not reason:
            raise RemoteError(
                "the answer broke off before it was finished", kind="lost", where=self._where, hint=_LOST_HINT
            )
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise self._refused(
                _code({"code": reason.get("status_code")}, 500), str(reason.get("message") or "aborted")
            )
        return Answer(text, tuple(ids), last.meta, tuple(chunks), time.perf_counter() - begin)

    def _get(self, path: str, headers: Mapping[str, str] | None = None, timeout: float | None = None) -> Any:
        """The JSON at `path`; None where this version does not have it."""
        answer = self._ask("GET", path, headers=headers, timeout=timeout)
        if answer.status_code in _ABSENT:
            return None
        self._check(answer)
        with self._read(path):
            return limits.read_json(answer.content)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        seconds: float = limits.SECONDS,
    ) -> httpx.Response:
        """The whole answer. `timeout`: seconds without a byte; `seconds`: for all of it."""
        import httpx

        wait = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        headers, more = {**self._headers, **(headers or {})}, {"seconds": seconds}
        with self._told():
            return self._http.request(method, path, json=json, headers=headers, timeout=wait, extensions=more)

    @contextmanager
    def _read(self, path: str) -> Iterator[None]:
        """Within it an answer is read; what is not as it should be is told, with the endpoint."""
        try:
            yield
        except ValueError as error:
            raise RemoteError(
                f"{path} is not an SGLang server's answer: {one_line(str(error))}", kind="odd", where=self._where
            ) from None
        except AgentError as error:
            raise RemoteError(error.message, kind=error.kind, where=self._where) from None

    def _parsed(self, model: type[ServerInfo], data: Any, path: str) -> ServerInfo:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the answer"
            raise RemoteError(
                f"{path} is not an SGLang server's answer: {one_line(place)}: {plainly(first)}",
                kind="odd",
                where=self._where,
            ) from None

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code in (401, 403):
            raise AuthFailed(
                "the server wants an API key, or another one",
                where=self._where,
                hint="put the key in the environment variable OPSCTL_API_KEY, or name another with --api-key-env",
            )
        if answer.status_code >= 400:
            raise self._refused(answer.status_code, answer.content[:_MOST_SAID].decode("utf-8", "replace"))
        if answer.status_code != 200:
            onward = answer.headers.get("location")
            raise RemoteError(
                f"{answer.url.path}: HTTP {answer.status_code}"
                + (f": it sends us to {one_line(onward)}, which is not followed" if onward else ""),
                kind="elsewhere" if onward else "odd",
                where=self._where,
            )

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
                f"no server answers: {one_line(str(error))}",
                where=self._where,
                hint="is it running? `opsctl server status`",
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
                f"the server dropped the request: {one_line(str(error))}",
                kind="lost",
                where=self._where,
                hint=_LOST_HINT,
            ) from None


_LOST_HINT = "its scheduler may have died: `opsctl logs` shows the first error, `opsctl diagnose` says why"


def _events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream. Raises ValueError for one that is none."""
    for data in _data(pieces):
        if data == b"[DONE]":
            return
        event = limits.read_json(data)
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        yield event


def _data(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What the `data:` lines of a stream say. Raises AgentError where more than an event comes before the next."""
    line, size = bytearray(), 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        line += first
        size += len(piece)
        for other in others:
            if line.startswith(b"data:"):
                yield bytes(line[5:].strip())
                size = 0
            line = bytearray(other)
        if size > limits.EVENT:
            raise limits.too_much("/generate: one event", limits.EVENT)


def _grown(sofar: str, new: str) -> str:
    return new if new.startswith(sofar) or not sofar else sofar + new


def _grown_ids(sofar: list[int], new: list[int], total: int) -> list[int]:
    return new if len(new) == total else sofar + new


def _load(ranks: Sequence[Mapping[str, Any]]) -> Load:
    waiting = sum(count(rank, "num_waiting_reqs") for rank in ranks)
    # /get_load counts the waiting ones among all; /v1/loads tells the running ones.
    running = sum(
        count(rank, "num_running_reqs")
        if "num_running_reqs" in rank
        else max(count(rank, "num_reqs") - count(rank, "num_waiting_reqs"), 0)
        for rank in ranks
    )
    return Load(running, waiting)


def _code(error: Any, usual: int = 400) -> int:
    """The HTTP status in an error that came inside a stream; `usual` where there is none, as for a prompt too long."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else usual


def _message(body: str) -> str:
    """The words in an error body, whichever of the shapes it has."""
    try:
        data = limits.read_json(body.encode())
    except ValueError:
        return body
    for _ in range(3):
        if isinstance(data, dict):
            data = data.get("message") or data.get("error") or data.get("detail") or body
    return data if isinstance(data, str) else body
