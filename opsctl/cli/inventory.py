"""`opsctl inventory`: list, check and trust hosts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.hosts import chosen, on_each, tell_errors
from opsctl.cli.options import HostOption, InventoryOption
from opsctl.errors import Exit, HostKeyError, RemoteError, UsageError
from opsctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opsctl.inventory import Inventory, InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.remote.trust import Found

app = typer.Typer(help="List, check and trust hosts.", no_args_is_help=True)

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
    for note in loaded.notes:
        typer.echo(printable(f"note: {note}"), err=True)


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
    hosts = chosen(inventory, pattern or host)
    done = on_each(hosts, _look)
    if as_json:
        rows = [d.value or {"host": d.host.name, "error": str(d.error)} for d in done]
        typer.echo(json.dumps({"hosts": rows}, indent=2))
        return next((int(d.error.exit_code) for d in done if d.error), Exit.DONE)
    for one in done:
        if one.value:
            seen = one.value
            typer.echo(printable(f"{seen['host']}: ok, {seen['user']}@{seen['node']}, Python {seen['python']}"))
            for warning in seen["warnings"]:
                typer.echo(printable(f"    not honoured: {warning}"))
    return tell_errors(done)


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
    from opsctl.remote.hostkeys import Verdict
    from opsctl.remote.trust import fetch

    hosts = [h for h in chosen(inventory, pattern) if h.settings.connection != "local"]
    found = [(host.name, fetch(host.connection())) for host in hosts]
    for name, shown in found:
        typer.echo(printable(f"{name}: {shown.key.type} {shown.key.fingerprint} ({shown.verdict.value})"))
    _demand_replaceable(found, replace or [])
    new = [(name, shown) for name, shown in found if shown.verdict is Verdict.UNKNOWN]
    changed = [(name, shown) for name, shown in found if shown.verdict is Verdict.CHANGED]
    if not new and not changed:
        typer.echo("nothing to add")
        return Exit.DONE
    if new and not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is nobody to ask whether to trust these keys", hint="look at them, then add --yes")
        typer.confirm(f"Trust {'this key' if len(new) == 1 else f'these {len(new)} keys'}?", abort=True)
    for name, shown in new:
        typer.echo(printable(f"{name}: added to {shown.trust()}"))
    for name, shown in changed:
        for file in shown.replace():
            typer.echo(printable(f"{name}: its other keys are out of {file}; {file}.old is as it was"))
        typer.echo(printable(f"{name}: {shown.key.fingerprint} is in {shown.files[0]}"))
        for file in shown.contradicting():
            typer.echo(printable(f"{name}: {file} still says otherwise, and counts too: change it as root"), err=True)
    return Exit.DONE


def _demand_replaceable(found: Sequence[tuple[str, Found]], fingerprints: Sequence[str]) -> None:
    """Raise, before anything is written, for a key that is revoked, differs from a pin, or changed and not named."""
    from opsctl.remote.hostkeys import Verdict

    for name, shown in found:
        if shown.verdict is Verdict.REVOKED:
            raise HostKeyError(
                f"{shown.key.fingerprint} is marked @revoked in a known hosts file", where=name, hint="do not trust it"
            )
        if shown.verdict is not Verdict.CHANGED:
            continue
        if shown.pin:
            raise HostKeyError(
                f"it is pinned in the inventory to {shown.pin}, and shows {shown.key.fingerprint}; nothing was written",
                where=name,
                hint="if its own `ssh-keygen -lf` says the same, edit `host_key` of the host in the inventory",
            )
        if shown.key.fingerprint not in fingerprints:
            raise HostKeyError(
                f"its key HAS CHANGED to {shown.key.fingerprint}; nothing was written",
                where=name,
                hint="somebody may be in between. If its own `ssh-keygen -lf` says the same: --replace FINGERPRINT",
            )
    shows = {shown.key.fingerprint for _, shown in found}
    for fingerprint in fingerprints:
        if fingerprint not in shows:
            raise UsageError(f"--replace {fingerprint}: no host shows this key; nothing was written")


def _look(remote: RemoteHost, host: InventoryHost) -> dict[str, Any]:
    from opsctl.wire.calls import core
    from opsctl.wire.calls.core import Facts

    told: Facts = remote.call(core.facts_gather(["host", "user", "python"]), timeout=60).result
    user, node, python = told.get("user"), told.get("host"), told.get("python")
    if user is None or node is None or python is None:
        raise RemoteError(f"it does not say what it is: {told['missing']}", where=host.name)
    return {
        "host": host.name, "user": user["name"], "node": node["name"],
        "python": python["version"], "host_key": remote.fingerprint, "warnings": list(remote.warnings),
    }  # fmt: skip


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
