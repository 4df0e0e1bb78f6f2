"""`opsctl inventory`: list, check, add, import and trust hosts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import HostOption, InventoryOption
from opsctl.cli.terminal import TERMINAL, tell_errors
from opsctl.errors import Exit, UsageError
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.inventory import Inventory, InventoryHost

app = typer.Typer(help="List, check, add, import and trust hosts.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
PatternArgument = Annotated[str | None, typer.Argument(metavar="[PATTERN]", help="Hosts; default: all.")]


@app.command("list")
def list_(
    pattern: PatternArgument = None,
    inventory: InventoryOption = None,
    host: HostOption = None,
    variables: Annotated[bool, typer.Option("--vars", help="Show the variables of each host.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Hosts, their groups and how they are reached.

    Example: opsctl inventory list 'blackwell:!spare' --vars
    """
    from opsctl.inventory import load
    from opsctl.secret import masked

    loaded = load(inventory)
    hosts = loaded.select(pattern or host or "all")
    if as_json:
        shown = {"inventory": loaded.file, "hosts": [_as_data(h) for h in hosts], "groups": _groups(loaded)}
        typer.echo(json.dumps(masked(shown), indent=2, default=str))
        return
    width = max(len(h.name) for h in hosts)
    for one in hosts:
        typer.echo(printable(f"{one.name:<{width}}  {_reached(one)}  [{', '.join(one.groups)}]"))
        if variables:
            for name, value in sorted(one.variables.items()):
                typer.echo(printable(f"    {name}: {json.dumps(masked(value), ensure_ascii=False, default=str)}"))
    _tell_notes(loaded)


@app.command()
def check(
    pattern: PatternArgument = None,
    inventory: InventoryOption = None,
    host: HostOption = None,
    as_json: JsonOption = False,
) -> int:
    """Connect to every host and say who we are there, with which Python, and what is not honoured.

    Example: opsctl inventory check blackwell
    """
    from opsctl.inventory import load
    from opsctl.verbs import inventory as verb

    loaded = load(inventory)
    _tell_notes(loaded)
    done = verb.check(loaded.select(pattern or host or "all"), TERMINAL)
    if as_json:
        rows = [asdict(d.value) if d.value else {"host": d.host.name, "error": str(d.error)} for d in done]
        typer.echo(json.dumps({"hosts": rows}, indent=2))
        return next((int(d.error.exit_code) for d in done if d.error), Exit.DONE)
    for one in done:
        if one.value:
            seen = one.value
            typer.echo(printable(f"{seen.host}: ok, {seen.user}@{seen.node}, Python {seen.python}"))
            for warning in seen.warnings:
                typer.echo(printable(f"    not honoured: {warning}"))
    return tell_errors(done)


@app.command()
def add(
    host: Annotated[str, typer.Argument(metavar="[USER@]ADDRESS", help="Name, address or alias of ~/.ssh/config.")],
    name: Annotated[str | None, typer.Option("--name", help="What it is called; default: its first name.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="A group that it is to be of.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Private key.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=1, max=65535, help="SSH port.")] = None,
    jump: Annotated[str | None, typer.Option("--jump", "-J", metavar="HOST", help="Jump host.")] = None,
    inventory: InventoryOption = None,
) -> int:
    """Add a host to the inventory. Comments and order stay; opsctl init looks at the host first.

    Example: opsctl inventory add root@192.0.2.12 --name k27 --group blackwell
    """
    from opsctl.inventory import find
    from opsctl.verbs import inventory as verb
    from opsctl.verbs.init import spec

    path = find(inventory)
    if path is None:
        raise UsageError("there is no inventory here", hint=f"opsctl init --host {host} writes one")
    called, entry = verb.entry(spec(host, key=key, port=port), name, jump)
    verb.add(path, called, entry, group)
    typer.echo(printable(f"added {called} to {path}"))
    typer.echo(printable(f"next: opsctl inventory check {called}"))
    return Exit.DONE


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An inventory of Ansible's.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="What to write.")] = Path("inventory.yaml"),
) -> int:
    """Write opsctl's own inventory from one of Ansible's, and tell what it leaves out. FILE stays as it is.

    Secrets are never copied: each becomes an environment variable that is told.

    Example: opsctl inventory import hosts.ini --to inventory.yaml
    """
    from opsctl.verbs import inventory as verb

    told = verb.import_(file, to)
    typer.echo(printable(f"wrote {to}"))
    for line in told:
        typer.echo(printable(line))
    return Exit.DONE


@app.command()
def trust(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Hosts whose keys to trust.")],
    inventory: InventoryOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask about hosts that are not known.")] = False,
    replace: Annotated[
        list[str] | None,
        typer.Option(metavar="FINGERPRINT", help="The new key of a host whose key has changed; may be given again."),
    ] = None,
) -> int:
    """Show the keys of hosts, ask, and add them to known_hosts. A changed key needs --replace.

    Compare each fingerprint with the host's own: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub, on its console.
    """
    from opsctl.verbs import inventory as verb
    from opsctl.verbs.hosts import choose

    keys = verb.keys(choose(inventory, pattern))
    for name, shown in keys.found:
        typer.echo(printable(f"{name}: {shown.key.type} {shown.key.fingerprint} ({shown.verdict.value})"))
    keys.demand_replaceable(replace or [])
    if not keys.new and not keys.changed:
        typer.echo("nothing to add")
        return Exit.DONE
    if keys.new and not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "not a terminal, so nobody can be asked whether to trust these keys",
                hint="look at them, then add --yes",
            )
        count = len(keys.new)
        typer.confirm(f"Trust {'this key' if count == 1 else f'these {count} keys'}?", abort=True)
    for line in keys.trust(TERMINAL):
        typer.echo(printable(line))
    return Exit.DONE


def _tell_notes(inventory: Inventory) -> None:
    for note in inventory.notes:
        typer.echo(printable(f"note: {note}"), err=True)


def _as_data(host: InventoryHost) -> dict[str, Any]:
    said = host.settings.model_dump(exclude_none=True, exclude={"vars", "sglang"})
    return {"name": host.name, "groups": list(host.groups), "connection": said, "vars": dict(host.variables)}


def _groups(inventory: Inventory) -> dict[str, list[str]]:
    return {name: list(members) for name, members in inventory.groups.items()}


def _reached(host: InventoryHost) -> str:
    said = host.settings
    if said.connection == "local":
        return "this machine"
    user = f"{said.user}@" if said.user else ""
    port = f":{said.port}" if said.port else ""
    become = f", becomes {'root' if said.become is True else said.become}" if said.become else ""
    return f"{user}{said.address or host.name}{port}{become}"
