"""`opsctl init`: look at a host and write an inventory and playbooks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.terminal import TERMINAL
from opsctl.errors import Exit, UsageError
from opsctl.text import one_line, printable

if TYPE_CHECKING:
    from opsctl.survey.look import Found
    from opsctl.survey.write import Reached, Section

app = typer.Typer()


@app.command()
def init(
    host: Annotated[
        str | None,
        typer.Option("--host", "-H", metavar="[USER@]ADDRESS", help="Name, address or alias of ~/.ssh/config."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="SSH user.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Private key.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=1, max=65535, help="SSH port.")] = None,
    local: Annotated[bool, typer.Option("--local", help="Look at this machine, without SSH.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="What the host is called in the inventory.")] = None,
    host_key: Annotated[
        str | None, typer.Option("--host-key", metavar="SHA256:...", help="Trust this key and no other.")
    ] = None,
    server_port: Annotated[
        int | None, typer.Option("--server-port", min=1, max=65535, help="Which server, where several run.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking. Never trusts a key.")] = False,
) -> int:
    """Look at a host and write inventory.yaml and playbooks/ that fit it. Changes nothing there.

    Where an inventory.yaml is here already, the host is added to it. Other files are never overwritten.

    Examples:

      opsctl init

      opsctl init --host root@192.0.2.10

      opsctl init --local --yes
    """
    from opsctl.survey import write
    from opsctl.verbs import init as verb

    extends = Path(verb.INVENTORY).exists()
    if extends:
        verb.demand_free(name)
    spec = verb.spec(_named(host, user, key, port, local), user=user, key=key, port=port, host_key=host_key)
    found = verb.look(spec, server_port, _trusts if sys.stdin.isatty() else None, TERMINAL)
    reached = verb.reached(spec, found, name)
    if extends:
        verb.demand_free(reached.name)
    section = write.section(found)
    for line in _told(reached, found, section):
        typer.echo(printable(line))
    if not yes and sys.stdin.isatty():
        what = f"Add {reached.name} to {verb.INVENTORY}?" if extends else f"Write {verb.INVENTORY} and playbooks/ here?"
        typer.confirm(what, default=True, abort=True)
    for line in verb.write(reached, found, section, TERMINAL):
        typer.echo(line)
    typer.echo("\nNext:")
    for command, what in _next(reached, found, section):
        typer.echo(f"  {command:<46} # {what}")
    return Exit.DONE


def _named(host: str | None, user: str | None, key: Path | None, port: int | None, local: bool) -> str | None:
    """The host that is meant, None for this machine. Raises UsageError."""
    if not local and host is None:
        if not sys.stdin.isatty():
            raise UsageError("which host?", hint="say --host [USER@]ADDRESS, or --local for this machine")
        host = typer.prompt("Host: [user@]address, or nothing for this machine", default="", show_default=False)
    if not local and host:
        return host
    if host or user or key or port:
        raise UsageError("--local is this machine: --host, --user, --key and --port mean nothing there")
    return None


def _trusts(name: str, kind: str, fingerprint: str) -> bool:
    typer.echo(printable(f"The key of {name} is not known yet: {kind} {fingerprint}"))
    typer.echo("On the host's console, ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub shows its own.")
    return typer.confirm("Trust it?", abort=True)


def _told(reached: Reached, found: Found, section: Section) -> Iterator[str]:
    """What was found, for people."""
    values, profile = section.values, found.profile
    count = profile.get("gpus")
    gpus = f"{count} x {profile.get('name') or 'GPUs of several kinds'}" if count else "no NVIDIA GPU"
    if not profile:
        gpus = "the driver says nothing of its GPUs"
    yield f"{reached.name} ({found.name}): {gpus}" + (f", driver {profile['driver']}" if profile.get("driver") else "")
    server = found.server
    if server is None:
        yield "  server     none runs now"
    else:
        whose = " of the user's own systemd" if server.user_unit else ""
        how = (f"unit {server.unit}{whose}" if server.unit else f"container {server.container}" if server.container
               else "started by opsctl" if server.ours else "a plain process")  # fmt: skip
        yield f"  server     pid {server.pid}, {how}, user {server.user or 'unknown'}, port {values['port']}"
    tree = found.checkout
    yield f"  source     {tree.path if tree else found.package or 'not found'}" + (
        f"  {section.comments['checkout']}" if "checkout" in section.comments else ""
    )
    yield f"  python     {values.get('environment') or values.get('python') or 'not found'}"
    yield f"  target     {values.get('model_path') or 'not found'}"
    flags = values.get("launch")
    drafter = flags.get("speculative-draft-model-path") if isinstance(flags, dict) else None
    yield f"  drafter    {drafter or 'none'}; releases will go to {values['weights_root']}/releases"
    if section.has_key:
        yield "  api key    wanted by the server: say where it is in inventory.yaml (never what it is)"
    if found.owner:
        yield f"  note       only {found.owner} can drive that unit: the inventory says `become: {found.owner}`"
    if found.foreign:
        yield "  note       opsctl did not start this server: it is left alone without `--adopt`"
    for note in found.notes:
        yield f"  note       {one_line(note)}"


def _next(reached: Reached, found: Found, section: Section) -> Iterator[tuple[str, str]]:
    yield "opsctl inventory check", "reaches it as the inventory says"
    yield "opsctl health", "is it fit to serve? about forty checks, changes nothing"
    if found.server:
        yield "opsctl server status", "what runs there"
    if {"launch", "unit", "container"} & set(section.values):
        yield "opsctl deploy drafter FOLDER --check", "what a deploy would do"
    else:
        yield "opsctl doc sglang", "how to say what is to be served"
