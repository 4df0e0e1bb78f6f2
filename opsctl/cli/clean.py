"""opsctl clean: leftovers of our own servers, listed with the proof that they are ours, and removed after consent."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import HostOption, InventoryOption
from opsctl.cli.terminal import TERMINAL, tell_errors
from opsctl.errors import Exit

if TYPE_CHECKING:
    from opsctl.gpu.cleaning import Findings
    from opsctl.gpu.ownership import Owned
    from opsctl.wire.calls.gpu import Done

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def clean(
    inventory: InventoryOption = None,
    host: HostOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List leftovers of our servers and remove them after consent. Others' processes are listed, never touched."""
    from opsctl.verbs import clean as verb
    from opsctl.verbs.hosts import choose

    done = verb.find(choose(inventory, host), TERMINAL)
    listed = [(one.host, one.value) for one in done if one.value is not None]
    if not json_output:
        for target, found in listed:
            _show(target.name, found)
    to_clean = [target for target, found in listed if found.anything]
    code = tell_errors(done)
    removed: dict[str, list[Done]] = {}
    if to_clean and (yes or (not json_output and _consent(len(to_clean)))):
        results = verb.remove(to_clean, TERMINAL)
        code = tell_errors(results) or code
        removed = {one.host.name: one.value for one in results if one.value is not None}
        failed = [item for items in removed.values() for item in items if not item["done"]]
        code = code or (Exit.FAILED if failed else Exit.DONE)
    elif to_clean:
        code = code or Exit.CHANGES
    if json_output:
        typer.echo(json.dumps({"hosts": [_json(t.name, f, removed.get(t.name)) for t, f in listed]}, indent=2))
    else:
        _tell_removed(removed)
    raise typer.Exit(code)


def _consent(hosts: int) -> bool:
    if not sys.stdin.isatty():
        typer.echo("nothing removed: --yes removes what is ours", err=True)
        return False
    return typer.confirm(f"Remove what is ours on {hosts} host{'s' if hosts > 1 else ''}?", default=False)


def _show(name: str, found: Findings) -> None:
    from opsctl.text import one_line, printable, size

    typer.echo(f"{printable(name)}: {_summary(found)}")
    ours = set(found.removable_processes)
    for owned in sorted(found.processes, key=lambda o: o not in ours):
        mark = "remove" if owned in ours else ""
        typer.echo(f"  {owned.klass.value:<10} {mark:<7} {one_line(_process(owned))}")
    for left in found.files:
        mark, kind = "remove" if left.removable else "", "socket" if left.file.socket else "file"
        text = f"{left.file.path}  {size(left.file.size)}  {left.proof}"
        typer.echo(f"  {kind:<10} {mark:<7} {one_line(text)}")


def _process(owned: Owned) -> str:
    process = owned.process
    held = f"{owned.gpu_memory_mib:.0f} MiB of GPU memory" if owned.gpu_memory_mib else "no GPU memory known"
    if process is None:
        return f"pid {owned.pid}  {held}  {owned.proof}"
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.started))
    parts = [
        f"pid {owned.pid}",
        process.comm,
        f"uid {process.uid}",
        f"since {started}",
        process.exe,
        f"cgroup {process.cgroup}",
        held,
    ]
    return "; ".join([", ".join(filter(None, parts)), owned.proof])


def _summary(found: Findings) -> str:
    processes, files = len(found.removable_processes), len(found.removable_files)
    if not found.anything:
        return "no leftovers of ours"
    return f"left over of ours: processes {processes}, files {files}"


def _tell_removed(removed: dict[str, list[Done]]) -> None:
    from opsctl.text import printable

    for name, items in removed.items():
        for item in items:
            what = f"pid {item['pid']}" if "pid" in item else item["path"]
            outcome = "gone" if item["done"] else f"left: {item['why']}"
            typer.echo(f"{printable(name)}: {printable(what)} {printable(outcome)}")


def _json(name: str, found: Findings, removed: list[Done] | None) -> dict[str, Any]:
    return {
        "host": name,
        "processes": [
            {
                "pid": o.pid,
                "class": o.klass.value,
                "server": o.server,
                "proof": o.proof,
                "uid": o.process.uid if o.process else None,
                "started": o.process.started if o.process else None,
                "exe": o.process.exe if o.process else None,
                "cgroup": o.process.cgroup if o.process else None,
                "gpu_memory_mib": o.gpu_memory_mib,
                "removable": o in found.removable_processes,
            }
            for o in found.processes
        ],
        "files": [
            {"path": f.file.path, "size": f.file.size, "uid": f.file.uid, "removable": f.removable, "proof": f.proof}
            for f in found.files
        ],
        "removed": removed,
    }
