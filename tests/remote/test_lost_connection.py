"""A connection to the host that is lost while a server is asked through it is told as that."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli.main import run
from opsctl.errors import Exit, Lost, RemoteError, Unreachable
from opsctl.sglang.server.api import Sampling, Server
from tests.conftest import MakeHost
from tests.proxy import Proxy
from tests.sshd import Sshd

_SAMPLING = Sampling(0.0, 4)


class Cutting:
    """A server on the host's loopback. `cut` is done while it is asked, before its answer or in the middle of it."""

    def __init__(self) -> None:
        self.cut: Callable[[], None] = lambda: None
        self.half = False
        self.over = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if outer.half:
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b'data: {"text": "a", ')
                    self.wfile.flush()
                outer.cut()
                self.close_connection = True

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Cutting]:
    made = Cutting()
    yield made
    made.close()


ASKED: dict[str, Callable[[Server], Any]] = {
    "info": lambda server: server.info(),
    "load": lambda server: server.load(),
    "metrics": lambda server: server.metrics(),
    "health": lambda server: server.generates(),
    "generate": lambda server: server.generate("a", _SAMPLING),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("asked", ASKED)
def test_a_lost_connection_is_not_told_as_a_server_that_dropped_the_request(
    make_host: MakeHost, sshd: Sshd, slow_link: Callable[..., Proxy], server: Cutting, asked: str, half: bool
) -> None:
    proxy = slow_link()
    host = make_host(port=proxy.port, host_key=str(sshd.host_key))
    server.cut, server.half = proxy.cut, half
    with host.http(server.port) as http, pytest.raises(Lost, match="lost the connection") as told:
        ASKED[asked](Server(http))
    assert told.value.where == "box"
    assert "scheduler" not in str(told.value.hint)
    with host.http(server.port) as http, pytest.raises(Lost):  # and it stays so
        ASKED[asked](Server(http))


def test_a_server_that_drops_the_request_is_still_told_as_that(make_host: MakeHost, server: Cutting) -> None:
    host = make_host()
    with host.http(server.port) as http, pytest.raises(RemoteError, match="the server dropped the request"):
        Server(http).info()
    with host.http(1) as http, pytest.raises(Unreachable, match="no server answers") as told:
        Server(http).info()
    assert not isinstance(told.value, Lost)


PLAY = """
- name: Measure
  hosts: box
  tasks:
    - name: Measure it
      probe: {if_serving: true}
"""


@pytest.mark.parametrize(
    "words", [["probe", "--host", "box", "--port"], ["diagnose", "--host", "box", "--port"], ["run"]]
)
def test_every_command_says_that_the_connection_was_lost(
    sshd: Sshd,
    slow_link: Callable[..., Proxy],
    server: Cutting,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    """Exit 5, also where a server that does not answer would be nothing to fail for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    proxy = slow_link()
    server.cut = proxy.cut
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        f"hosts:\n  box:\n    address: 127.0.0.1\n    port: {proxy.port}\n    key: {sshd.key_file}\n"
        f"    host_key: {sshd.host_key.fingerprint}\n    ssh_config: none\n    state_dir: {tmp_path / 'state'}\n"
        f"    sglang: {{port: {server.port}}}\n"
    )
    (tmp_path / "play.yaml").write_text(PLAY)
    more = [str(server.port)] if words[-1] == "--port" else [str(tmp_path / "play.yaml")] if words == ["run"] else []
    code = run([*words, *more, "-i", str(inventory)])
    told = "".join(capsys.readouterr())
    assert code == Exit.UNREACHABLE, told
    assert "lost the" in told
    assert "scheduler" not in told
