"""`opsctl init`: look at a host and write an inventory and playbooks for it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.errors import Conflict, Exit, HostKeyError, UsageError
from opsctl.text import one_line, printable

if TYPE_CHECKING:
    from opsctl.remote.host import RemoteHost
    from opsctl.remote.spec import ConnectionSpec
    from opsctl.survey.look import Found
    from opsctl.survey.write import Reached, Section

app = typer.Typer()

_INVENTORY = "inventory.yaml"


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

    Files that are here already are never overwritten.

    Examples:

      opsctl init

      opsctl init --host root@192.0.2.10

      opsctl init --local --yes
    """
    from opsctl.survey import write
    from opsctl.survey.look import look

    if Path(_INVENTORY).exists():
        raise UsageError(
            f"{_INVENTORY} is here already: nothing was written",
            hint="run this in another folder, or add the host to it by hand: opsctl doc host",
        )
    spec = _spec(host, user, key, port, local, host_key)
    with _connected(spec) as remote:
        typer.echo(f"looking at {printable(spec.name)} ...", err=True)
        found = look(lambda calls: remote.outcomes(calls, timeout=120.0), server_port)
    reached = _reached(spec, found, name)
    section = write.section(found)
    for line in _told(reached, found, section):
        typer.echo(printable(line))
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Write {_INVENTORY} and playbooks/ here?", default=True, abort=True)
    for path in _write(reached, found, section):
        typer.echo(f"wrote {path}")
    typer.echo("\nNext:")
    for command, what in _next(reached, found, section):
        typer.echo(f"  {command:<46} # {what}")
    return Exit.DONE


def _spec(
    host: str | None, user: str | None, key: Path | None, port: int | None, local: bool, host_key: str | None
) -> ConnectionSpec:
    from opsctl.remote.spec import ConnectionSpec

    if not local and host is None:
        if not sys.stdin.isatty():
            raise UsageError("which host?", hint="say --host [USER@]ADDRESS, or --local for this machine")
        host = typer.prompt("Host: [user@]address, or nothing for this machine", default="", show_default=False)
    if local or not host:
        if host or user or key or port:
            raise UsageError("--local is this machine: --host, --user, --key and --port mean nothing there")
        return ConnectionSpec("this machine", "local")
    named, _, address = host.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9_.:\-]+", address):
        raise UsageError(f"{host!r} is no host name or address", hint="as for ssh: [USER@]ADDRESS; the port by --port")
    if key is not None and not key.expanduser().is_file():
        raise UsageError(f"there is no key file {key}")
    keys = (str(key.expanduser().resolve()),) if key else ()
    return ConnectionSpec(address, address=address, port=port, user=user or named or None, keys=keys, host_key=host_key)


def _connected(spec: ConnectionSpec) -> RemoteHost:
    """A connection; a key that is not known yet is shown, and trusted if a person says so. Raises HostKeyError."""
    from opsctl.remote.host import connect

    try:
        return connect(spec)
    except HostKeyError:
        from opsctl.remote.hostkeys import Verdict
        from opsctl.remote.trust import fetch

        shown = fetch(spec)
        if shown.verdict is not Verdict.UNKNOWN or spec.host_key:
            raise
        fingerprint = shown.key.fingerprint
        if not sys.stdin.isatty():
            raise HostKeyError(
                f"its key is not known yet: {shown.key.type} {fingerprint}",
                where=spec.name,
                hint=f"compare it with the host's own; then add --host-key {fingerprint}",
            ) from None
        typer.echo(printable(f"The key of {spec.name} is not known yet: {shown.key.type} {fingerprint}"))
        typer.echo("On the host's console, ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub shows its own.")
        typer.confirm("Trust it?", abort=True)
        shown.trust()
        return connect(spec)


def _reached(spec: ConnectionSpec, found: Found, name: str | None) -> Reached:
    from opsctl.inventory.model import NAME
    from opsctl.survey.write import Reached

    address = spec.address or ""
    told = found.name.partition(".")[0]
    is_number = bool(re.fullmatch(r"[0-9.]+|.*:.*", address))
    chosen = name or (told if is_number or not address else address.partition(".")[0])
    if not NAME.match(chosen) or chosen in ("all", "localhost"):
        if name:
            raise UsageError(f"{name!r} cannot name a host", hint="letters, digits, - _ and . only, and not `all`")
        chosen = "host"
    if spec.connection == "local":
        return Reached(chosen, {"connection": "local"})
    said = {"address": address, "port": spec.port, "user": spec.user, "key": spec.keys[0] if spec.keys else None,
            "host_key": spec.host_key}  # fmt: skip
    return Reached(chosen, {k: v for k, v in said.items() if v is not None})


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


def _write(reached: Reached, found: Found, section: Section) -> Iterator[str]:
    """Write the files, none over another; the ones written. Raises Conflict, UsageError."""
    from opsctl.engine import schema
    from opsctl.localfiles import shipped
    from opsctl.survey import write

    playbooks = shipped("playbooks")
    files = {
        _INVENTORY: write.inventory(reached, found, section),
        f"{write.SCHEMAS}/inventory.schema.json": json.dumps(schema.inventory(), indent=1) + "\n",
        f"{write.SCHEMAS}/playbook.schema.json": json.dumps(schema.playbook(), indent=1) + "\n",
        f"{write.SCHEMAS}/patch.schema.json": json.dumps(schema.patch(), indent=1) + "\n",
    }
    for name in write.PLAYBOOKS:
        text = (playbooks / f"{name}.yaml").read_text(encoding="utf-8")
        files[f"playbooks/{name}.yaml"] = write.playbook(text, reached.name, found)
    for path, text in files.items():
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            if path == _INVENTORY:
                raise Conflict(f"{path} has appeared meanwhile: nothing was written") from None
            typer.echo(f"kept {path}, which was here already", err=True)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        else:
            if not path.startswith(write.SCHEMAS):
                yield path


def _next(reached: Reached, found: Found, section: Section) -> Iterator[tuple[str, str]]:
    yield "opsctl inventory check", "reaches it as the inventory says"
    yield "opsctl health", "is it fit to serve? about forty checks, changes nothing"
    if found.server:
        yield "opsctl server status", "what runs there"
    if {"launch", "unit", "container"} & set(section.values):
        yield "opsctl deploy drafter FOLDER --check", "what a deploy would do"
    else:
        yield "opsctl doc sglang", "how to say what is to be served"
