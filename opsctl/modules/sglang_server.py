"""The server that serves a host's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.modules import sglang_plan as plan_of
from opsctl.modules.contract import Change, Module, Site
from opsctl.modules.paths import look
from opsctl.modules.sglang_kinds import (
    ENV,
    FLAGS,
    LAUNCH,
    LINK,
    SETTINGS,
    UNIT,
    ContainerServer,
    ProcessServer,
    UnitServer,
)
from opsctl.modules.sglang_plan import Server, ServerArgs
from opsctl.secret import Secret
from opsctl.wire.calls.files import filelook_stat
from opsctl.wire.calls.process import container_look, process_listener, process_status, service_show
from opsctl.wire.calls.source import launchflags_known
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

    def observe(self, args: ServerArgs, site: Site) -> Sequence[Call[Any]]:
        return tuple(_questions(args, plan_of.server(site, args.drafter)).values())

    def plan(self, args: ServerArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        server = plan_of.server(site, args.drafter)
        known = dict(zip(_questions(args, server), seen, strict=True))
        kind = UnitServer if server.unit else ContainerServer if server.container else ProcessServer
        return kind(args, server, site, known).change()

    def result(
        self, args: ServerArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        ready = done[-1].result if done and args.state != "stopped" else {}
        return {key: ready[key] for key in ("seconds", "phases") if key in ready}


def _questions(args: ServerArgs, server: Server) -> dict[str, Call[Any]]:
    asked: dict[str, Call[Any]] = {}
    if server.container is not None:
        asked["container"] = container_look(server.container)
    elif server.unit is None:
        asked["process"] = process_status(server.name)
    else:
        asked["service"] = service_show(server.unit, server.user_unit)
    if args.state != "stopped" or "process" in asked:
        asked["listener"] = process_listener(server.port)
    if args.state == "stopped":
        return asked
    if server.launch is not None:
        asked[LAUNCH] = look(server.launch_file, follow=False)
        if server.api_key is not None:
            asked[SETTINGS] = look(server.settings_file, follow=False)
    if server.unit is not None and server.launch is not None:
        asked[UNIT] = look(server.unit_file, follow=False)
        asked[ENV] = look(server.env_file, follow=False)
    link = args.release_link
    if link is not None:
        asked[LINK] = filelook_stat(link, digest=False)
    path = server.env.get("PYTHONPATH")
    if server.interpreter is not None and not isinstance(path, Secret):
        asked[FLAGS] = launchflags_known(server.interpreter, server.cwd, path)
    return asked
