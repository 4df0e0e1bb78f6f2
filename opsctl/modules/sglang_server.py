"""The server that serves a host's model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opsctl.findings import Finding
from opsctl.inventory import InventoryHost
from opsctl.modules import server_kinds
from opsctl.modules.contract import Change, Module, Site
from opsctl.modules.server_kinds.base import ServerArgs
from opsctl.wire.protocol import Call, Reply


class SglangServer(Module[ServerArgs]):
    """Have the host's SGLang server running with a given draft model, answering, or stopped.

    What it runs comes from the host's `sglang` section: a launch command, a systemd unit or a container. One change
    stops the old server, switches the release link, writes the launch file, starts the new server and waits for its
    first token.
    Taken back, it stops the new server, restores link and files, starts the old server and waits for that.
    A server that opsctl did not start is left alone unless `adopt` says otherwise. It is taken over only when it is an
    SGLang server by its own command line and program, of the user that opsctl works as, led by no service manager or
    container, and when its command, environment and working folder can be read. Any other process is never stopped.
    """

    name = "sglang_server"
    args = ServerArgs
    examples = """
- name: Serve the release that was staged
  when: false
  sglang_server: {drafter: /models/releases/draft/3f9a1c, ready_timeout: 20m}
  supervise: {confirm_within: 30m}
- name: Stop
  when: false
  sglang_server: {state: stopped}
"""

    def lint_host(self, host: InventoryHost) -> Iterator[Finding]:
        """Flags in its `launch` that no release of SGLang takes. A run asks the host's own."""
        from opsctl.sglang.server import command, flags

        for one in flags.unknown(command.words(host.sglang) or []):
            message = f"no SGLang from {flags.OLDEST} to {flags.NEWEST} has the flag {one.flag}"
            yield Finding("flag", "warning", message, host.said("sglang", "launch"), one.hint or "")

    def observe(self, args: ServerArgs, site: Site) -> Sequence[Call[Any]]:
        return tuple(server_kinds.of(args, site).questions().values())

    def plan(self, args: ServerArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        server = server_kinds.of(args, site)
        server.known = dict(zip(server.questions(), seen, strict=True))
        return server.change()

    def result(
        self, args: ServerArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        ready = done[-1].result if done and args.state != "stopped" else {}
        return {key: ready[key] for key in ("seconds", "phases") if key in ready}
