"""HTTP from the host: where secret headers go, and servers that speak something else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opsctl.agent.core import http_request
from opsctl.wire.protocol import AgentError, Context

Serve = Callable[[dict[str, str]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers that redirect paths to addresses, and otherwise answer with the headers they were sent."""
    servers = []

    def start(redirects: dict[str, str]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                onward = redirects.get(self.path)
                self.send_response(302 if onward else 200)
                if onward:
                    self.send_header("Location", onward)
                self.end_headers()
                self.wfile.write(json.dumps({k.lower(): v for k, v in self.headers.items()}).encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def asked(url: str) -> dict[str, str]:
    """The headers that arrive where `url` leads, asked with a plain and a secret one."""
    call = Context()
    call.body = json.dumps({"headers": {"authorization": "Bearer s3cret"}}).encode()
    reply = http_request.request(call, url, headers={"X-Plain": "yes"}, sealed=len(call.body))
    found: dict[str, str] = json.loads(reply.body)
    return found


def test_secret_headers_follow_a_redirect_on_the_same_server_only(serve: Serve) -> None:
    other = serve({})
    first = serve({"/away": other + "/", "/within": "/"})
    within, away = asked(first + "/within"), asked(first + "/away")
    assert (within["x-plain"], within["authorization"]) == ("yes", "Bearer s3cret")
    assert away["x-plain"] == "yes"
    assert "authorization" not in away


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
    ids=["another protocol", "a chunk cut short", "an endless header"],
)
def test_what_is_no_answer_is_told(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(AgentError, match="not a HTTP answer") as caught:
            http_request.request(Context(), url)
    assert url in caught.value.message


@pytest.mark.parametrize(
    "url", ["http://[::1/", "http://127.0.0.1:http/", "http://127.0.0.1:1/a b", "file:///etc/hosts"]
)
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(AgentError, match="not an http address") as caught:
        http_request.request(Context(), url)
    assert caught.value.kind == "invalid"
