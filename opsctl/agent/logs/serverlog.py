"""Scan a server's log where it lies: files, or what systemd's journal has of its unit."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Sequence

from opsctl.agent.logs.logfiles import blocks
from opsctl.agent.process import service
from opsctl.wire.log_scan import Scanner
from opsctl.wire.protocol import Context

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import FileScan, Scan


def scan(call: Context, path: str, offset: int = 0, limit: int = 0, older: Sequence[str] = ()) -> FileScan:
    """Agent call `serverlog.scan`: the log at `path` from `offset`, as `Scanner.finish` gives it, and what file it was.

    older: files to read before it, oldest first. The body may be a JSON list of secrets to mask in what is quoted.
    `bytes` of the answer plus `offset` is where to go on; `file` tells whether it is still the same file then.
    """
    scanner = Scanner(json.loads(call.body.decode()) if call.body else ())
    for name in (*older, path):
        for data in blocks(name, offset if name == path else 0, limit):
            scanner.feed(data)
            call.progress({"bytes": scanner.bytes})
            if call.cancelled():
                break
    status = os.stat(path)
    return {**scanner.finish(), "file": [status.st_dev, status.st_ino], "offset": offset}


def scan_unit(call: Context, unit: str, user: bool = False) -> Scan:
    """Agent call `serverlog.scan_unit`: what a unit has said since its last start, as `Scanner.finish` gives it."""
    scanner = Scanner(json.loads(call.body.decode()) if call.body else ())
    whose = (["--user"] if user else []) + service.this_start(unit, user, service.show(call, unit, user))
    argv = ["journalctl", "-o", "short-iso", "--no-pager"] + whose
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    call.started(child.pid)
    assert child.stdout is not None
    with child.stdout:
        for data in iter(lambda: child.stdout.read(1 << 20), b""):  # type: ignore[union-attr]  # it is a pipe, see above
            scanner.feed(data)
            call.progress({"bytes": scanner.bytes})
            if call.cancelled():
                child.kill()
    child.wait()
    call.ended(child.pid)
    return scanner.finish()


CALLS = {"scan": scan, "scan_unit": scan_unit}
