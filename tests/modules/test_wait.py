"""Waiting on the host: it always ends, and says why."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from opsctl.agent.logs.logtail import Tail
from opsctl.agent.process import process
from opsctl.modules.wait_for import WaitArgs, call_of
from opsctl.secret import Secret
from tests.modules.conftest import InProcess, Play


class Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, str, str | None, bytes]] = []  # noqa: RUF012  one server per test

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, self.headers.get("Authorization"), content))
        starting = self.path == "/starting" and len(self.asked) < 3
        body = b'{"state": "ready"}'
        self.send_response(503 if starting else 404 if self.path == "/nowhere" else 200)
        self.send_header("Content-Type", "application/json" if self.path != "/text" else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked = []
    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_port_that_opens_and_one_that_closes(play: Play, server: str) -> None:
    port = int(server.rsplit(":", 1)[1])
    assert play.act("wait_for", port=port, timeout=5).failed is None
    assert play.act("wait_for", port=free_port(), state="absent", timeout=5).failed is None


def test_a_port_that_never_opens_ends_with_what_was_seen(play: Play) -> None:
    port = free_port()
    outcome = play.act("wait_for", port=port, timeout=0.3)
    assert outcome.failed == (f"waited 0.3 s for port {port} of 127.0.0.1 to be open; last seen: Connection refused")
    assert outcome.values == {"kind": "timeout"}


def test_an_answer_that_takes_some_asking(play: Play, server: str) -> None:
    outcome = play.act("wait_for", http={"url": server + "/starting", "contains": "ready"}, timeout=20)
    assert outcome.failed is None
    assert outcome.values["status"] == 200
    assert len(Handler.asked) == 3
    refused = play.act("wait_for", http={"url": server + "/x", "contains": "nope"}, timeout=0.1)
    assert "'nope' is not in the answer" in str(refused.failed)


def test_the_death_of_the_process_ends_the_wait_with_the_end_of_its_log(play: Play, top: Path) -> None:
    log = top / "log"
    process.start(InProcess(), "s", ["/bin/sh", "-c", "echo loading; echo 'out of memory' >&2; exit 1"], str(log))
    outcome = play.act("wait_for", path=str(top / "ready"), timeout=60, while_alive={"process": "s"})
    assert outcome.failed == "process s has ended; the last line of its log: out of memory"


def test_a_line_counts_from_where_the_process_started(play: Play, top: Path) -> None:
    log = top / "log"
    log.write_text("ready, said an earlier run\n")
    process.start(InProcess(), "s", ["/bin/sh", "-c", "echo up and ready; exec sleep 600"], str(log))
    try:
        outcome = play.act("wait_for", log={"pattern": "ready"}, timeout=20, while_alive={"process": "s"})
        assert outcome.values["line"] == "up and ready"
    finally:
        process.stop(InProcess(), "s", wait=10)


def test_a_line_that_means_failure_and_a_log_that_stands_still(play: Play, top: Path) -> None:
    log = top / "log"
    log.write_text("loading\nNCCL error: unhandled\n")
    wanted = {"path": str(log), "pattern": "ready", "fail": "NCCL error", "offset": 0}
    assert play.act("wait_for", log=wanted, timeout=20).failed == "the log says: NCCL error: unhandled"
    still = play.act("wait_for", log={"path": str(log), "pattern": "ready", "offset": 0}, timeout=60, stall=0.3)
    assert still.failed == f"nothing new in {log} for 0.3 s; its last line: NCCL error: unhandled"


def test_a_log_is_followed_through_rotation_truncation_and_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(str(log), 0)
    assert tail.lines() == []
    log.write_text("one\ntw")
    assert tail.lines() == ["one"]
    with log.open("a") as stream:
        stream.write("o\n10%\r20%\r")
    assert tail.lines() == ["two", "10%", "20%"]
    with log.open("a") as stream:
        stream.write("last of the old\n")
    os.rename(log, tmp_path / "log.1")
    log.write_text("first of the new\n")
    assert tail.lines() == ["last of the old", "first of the new"]
    log.write_text("cut\n")
    tail.lines()
    assert tail.lines() == ["cut"] or tail.last == "cut"
    tail.close()


def test_a_request_keeps_its_secrets_out_of_the_arguments(play: Play, server: str) -> None:
    outcome = play.act(
        "http",
        url=server + "/generate",
        method="POST",
        headers={"Authorization": Secret("Bearer k3y!")},
        json={"text": "hi"},
    )
    assert outcome.values["json"] == {"state": "ready"}
    assert Handler.asked == [("POST", "/generate", "Bearer k3y!", b'{"text": "hi"}')]
    assert "k3y!" not in str(play.host.asked[0].args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"url": "/nowhere"}, 'status 404, not 200: {"state": "ready"}'),
        ({"url": "/text", "contains": "absent"}, "'absent' is not in the answer"),
    ],
)
def test_an_answer_that_is_not_as_asked_for(play: Play, server: str, args: dict[str, Any], message: str) -> None:
    outcome = play.act("http", **{**args, "url": server + args["url"]})
    assert message in str(outcome.failed)


@pytest.mark.parametrize(
    ("args", "name", "call"),
    [
        (
            {"port": 8000, "timeout": "20m"},
            "wait.port",
            {"port": 8000, "host": "127.0.0.1", "state": "open", "timeout": 1200.0},
        ),
        ({"path": "/x/y", "state": "absent"}, "wait.path", {"path": "/x/y", "state": "absent", "timeout": 300.0}),
        (
            {"http": "http://localhost:1/h", "while_alive": {"unit": "s.service"}},
            "wait.http",
            {
                "url": "http://localhost:1/h",
                "status": [200],
                "timeout": 300.0,
                "alive": {"unit": "s.service", "user": False},
            },
        ),
        (
            {"server": {"port": 30001, "log": "/var/log/s.log"}, "stall": "3m"},
            "ready.wait",
            {"port": 30001, "log": "/var/log/s.log", "stall": 180.0, "timeout": 300.0},
        ),
    ],
)
def test_what_is_asked_of_the_host(args: dict[str, Any], name: str, call: dict[str, Any]) -> None:
    asked = call_of(WaitArgs.model_validate(args))
    assert (asked.name, asked.args) == (name, call)


@pytest.mark.parametrize(
    "args", [{}, {"port": 1, "path": "/x"}, {"port": 1, "stall": 3}, {"log": {"pattern": "x"}}, {"port": 70000}]
)
def test_waits_that_make_no_sense(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WaitArgs.model_validate(args)
