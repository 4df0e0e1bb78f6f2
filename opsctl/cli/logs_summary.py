"""`opsctl logs summary` of hosts: their logs are scanned where they lie, and only the marks travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opsctl.cli.hosts import on_each
from opsctl.cli.logs_collect import expected
from opsctl.errors import UsageError
from opsctl.sglang.logs import log_survey, timeline
from opsctl.wire.calls.logs import Scan, serverlog_scan, serverlog_scan_unit

if TYPE_CHECKING:
    from opsctl.cli.hosts import Done
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost

_MOST_OLDER = 6  # rotated files to go back in search of the start of the server
_LONGEST = 900.0  # seconds: ten gigabytes, on a slow disk


def of_hosts(hosts: Sequence[InventoryHost]) -> list[Done[timeline.Summary]]:
    """The timeline of each host's server."""
    return on_each(hosts, _of_host)


def _of_host(remote: RemoteHost, host: InventoryHost) -> timeline.Summary:
    server = log_survey.survey(remote.call, host.sglang, expected(host))
    if server.logs:
        found = _scan(remote, server.logs)
    elif server.unit:
        found = remote.call(serverlog_scan_unit(server.unit, server.user_unit), timeout=_LONGEST).result
    else:
        raise UsageError("no server runs here, and no log is known", hint="set `log` or `unit` in its sglang section")
    return timeline.build(found, current=True)


def _scan(remote: RemoteHost, logs: Sequence[str]) -> Scan:
    """The newest file, and as many older ones as it takes to see a start of the server."""
    older: list[str] = []
    earlier = list(logs[:-1])
    while True:
        found: Scan = remote.call(serverlog_scan(logs[-1], older=older), timeout=_LONGEST).result
        started = any(mark["name"] == "start" for mark in found["marks"])
        if started or not earlier or len(older) >= _MOST_OLDER:
            return found
        older.insert(0, earlier.pop())
