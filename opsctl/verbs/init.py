"""Looking at a host that is in no inventory yet, and writing an inventory and playbooks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.errors import Conflict, HostKeyError, UsageError
from opsctl.verbs.frontend import SILENT, Frontend

if TYPE_CHECKING:
    from opsctl.remote.host import RemoteHost
    from opsctl.remote.spec import ConnectionSpec
    from opsctl.survey.look import Found
    from opsctl.survey.write import Reached, Section

INVENTORY = "inventory.yaml"


def spec(
    host: str | None,
    *,
    user: str | None = None,
    key: Path | None = None,
    port: int | None = None,
    host_key: str | None = None,
) -> ConnectionSpec:
    """How to reach [USER@]ADDRESS; None is this machine. Raises UsageError."""
    from opsctl.localfiles import from_home
    from opsctl.remote.spec import ConnectionSpec

    if host is None:
        return ConnectionSpec("this machine", "local")
    named, _, address = host.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9_.:\-]+", address):
        raise UsageError(f"{host!r} is no host name or address", hint="as for ssh: [USER@]ADDRESS; the port by --port")
    file = from_home(key) if key else None
    if file is not None and not file.is_file():
        raise UsageError(f"there is no key file {key}")
    keys = (str(file.resolve()),) if file else ()
    return ConnectionSpec(address, address=address, port=port, user=user or named or None, keys=keys, host_key=host_key)


def look(
    spec: ConnectionSpec,
    server_port: int | None = None,
    trusts: Callable[[str, str, str], bool] | None = None,
    front: Frontend = SILENT,
) -> Found:
    """What is found on a host. Changes nothing there.

    Args:
        server_port: which server, where several run.
        trusts: whether a person trusts a key that is not known yet: of this host, of this type, with this fingerprint.
            None where there is nobody to ask.

    Raises HostKeyError, Unreachable, AuthFailed.
    """
    from opsctl.survey.look import look as survey

    with _connected(spec, trusts) as remote:
        front.say(f"looking at {spec.name} ...")
        return survey(lambda calls: remote.outcomes(calls, timeout=120.0), server_port)


def _connected(spec: ConnectionSpec, trusts: Callable[[str, str, str], bool] | None) -> RemoteHost:
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
        if trusts is None or not trusts(spec.name, shown.key.type, fingerprint):
            raise HostKeyError(
                f"its key is not known yet: {shown.key.type} {fingerprint}",
                where=spec.name,
                hint=f"compare it with the host's own; then add --host-key {fingerprint}",
            ) from None
        shown.trust()
        return connect(spec)


def reached(spec: ConnectionSpec, found: Found, name: str | None) -> Reached:
    """What the host is called in the inventory, and how it is reached. Raises UsageError for a name that cannot be."""
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


def demand_free(name: str | None) -> None:
    """Raise UsageError where no host, or none of this name, can be added to the inventory that is here."""
    from opsctl.verbs import inventory

    inventory.demand_free(Path(INVENTORY), name)


def write(reached: Reached, found: Found, section: Section, front: Frontend = SILENT) -> Iterator[str]:
    """Write the files, none over another, or add the host to the inventory that is here; what was done, file by file.

    Raises Conflict, UsageError.
    """
    from opsctl.engine import schema
    from opsctl.localfiles import shipped
    from opsctl.survey import write
    from opsctl.verbs import inventory

    files = {
        f"{write.SCHEMAS}/inventory.schema.json": json.dumps(schema.inventory(), indent=1) + "\n",
        f"{write.SCHEMAS}/playbook.schema.json": json.dumps(schema.playbook(), indent=1) + "\n",
        f"{write.SCHEMAS}/patch.schema.json": json.dumps(schema.patch(), indent=1) + "\n",
    }
    for name in write.PLAYBOOKS:
        text = (shipped("playbooks") / f"{name}.yaml").read_text(encoding="utf-8")
        files[f"playbooks/{name}.yaml"] = write.playbook(text, found)
    if Path(INVENTORY).exists():
        entry = [*write.host(reached, found, section)]
        inventory.add(Path(INVENTORY), reached.name, entry, write.GROUP)
        yield f"added {reached.name} to {INVENTORY}"
    else:
        files = {INVENTORY: write.inventory(reached, found, section), **files}
    for path, text in files.items():
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            if path == INVENTORY:
                raise Conflict(f"{path} has appeared meanwhile: nothing was written") from None
            if not path.startswith(write.SCHEMAS):
                front.say(f"kept {path}, which was here already{_other_hosts(Path(path), write.GROUP)}")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        else:
            if not path.startswith(write.SCHEMAS):
                yield f"wrote {path}"


def _other_hosts(path: Path, group: str) -> str:
    """What to do where a playbook that was here is not for the hosts of the group."""
    if f"hosts: {group}" in path.read_text(encoding="utf-8", errors="replace"):
        return ""
    return f": say `hosts: {group}` in it for all hosts of the project"
