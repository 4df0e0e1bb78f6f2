"""From a host's settings to how it is reached."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.remote.spec import ConnectionSpec, Timeouts

if TYPE_CHECKING:
    from opsctl.inventory.hosts import InventoryHost


def connection_spec(host: InventoryHost) -> ConnectionSpec:
    """What the inventory says about reaching `host`; what it leaves open is for the user's SSH configuration."""
    said = host.settings
    become = said.become
    given = said.timeouts
    timeouts = Timeouts(**{k: getattr(given, k) for k in given.model_fields_set}) if given else Timeouts()
    known_hosts = tuple(_local(host.folder, file) for file in _several(said.known_hosts))
    return ConnectionSpec(
        name=host.name,
        connection=said.connection or "ssh",
        address=said.address,
        port=said.port,
        user=said.user,
        keys=tuple(_local(host.folder, key) for key in _several(said.key)),
        jump=",".join(_several(said.jump)) or None,
        password=said.password,
        become_password=said.become_password,
        become="root" if become is True else become or None,
        python=said.python,
        host_key=said.host_key,
        known_hosts=known_hosts or None,
        ssh_config=_local(host.folder, said.ssh_config) if said.ssh_config not in (None, "none") else said.ssh_config,
        state_dir=said.state_dir,
        login=said.ssh.login if said.ssh else "pipelined",
        attempts=said.attempts or 3,
        timeouts=timeouts,
    )


def _several(value: list[str] | str | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _local(folder: Path, path: str) -> str:
    """A path of this machine as the inventory means it: relative to its own folder."""
    return str(folder / Path(path).expanduser())
