"""Everything a colleague needs to find out what went wrong, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from opsctl.errors import UsageError
from opsctl.gpu import wanted
from opsctl.localfiles import from_home
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.quantities import Duration
from opsctl.secret import secrets_in
from opsctl.sglang.logs import log_parts
from opsctl.sglang.logs.log_collect import Collected, Source, Wish, collect, of_run, told
from opsctl.text import printable
from opsctl.wire.host import Host


class LogsCollectArgs(ModuleArgs):
    folder: str = Field("logs", description="Folder on this machine for the bundle; made if it is not there.")
    since: Duration | None = Field(None, description="How far back. Default: files from their beginning, others a day.")
    run: str | None = Field(None, description="From the start of this run on, with its journal.")
    include: list[str] = Field([], description="Only these parts: unit.txt, proc/*.")
    exclude: list[str] = Field([], description="Leave these parts out.")
    redact: Literal["secrets", "more"] = Field(
        "secrets", description="more: also mask addresses, host names, serial numbers and UUIDs."
    )
    keep_prompts: bool = Field(False, description="Leave what users wrote (--log-requests).")


class LogsCollect(Action[LogsCollectArgs]):
    """Collect a log bundle: server log, flags, environment, unit, kernel lines, GPUs, limits, journal, judgements.

    Secrets and prompts are masked on the host, before anything travels. A part that cannot be had fails nothing. The
    path of the bundle is registered as `path`.
    """

    name = "logs_collect"
    args = LogsCollectArgs
    read_only = False  # it writes a file here, and what is worth collecting is what the play has done
    examples = """
- name: Keep what there is to know
  when: false
  logs_collect: {folder: logs, since: 2h}
"""

    def run(self, args: LogsCollectArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        if args.since is not None and args.run is not None:
            raise UsageError("since and run both say how far back", hint="give one of them")
        log_parts.check_names([*args.include, *args.exclude])
        more = args.redact == "more"
        wish = Wish(args.since, args.run, tuple(args.include), tuple(args.exclude), more, args.keep_prompts)
        folder = _folder(args.folder)
        made = collect(host, source(site), of_run(wish, host), lambda name: folder / f"{name}.tar.zst", progress)
        return outcome(site.host, made)


def source(site: Site) -> Source:
    """The host as its variables describe it."""
    expected = wanted.of(site.variables.get("health"), site.sglang, site.host)
    secrets = tuple(dict.fromkeys(secrets_in(dict(site.variables))))
    return Source(site.host, site.sglang, expected, secrets)


def outcome(host: str, made: Collected) -> Outcome:
    """What the play gets."""
    return Outcome(values=made.to_json(), lines=tuple(printable(line) for line in told(host, made)))


def _folder(name: str) -> Path:
    try:
        folder = from_home(name)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "nobody of that name has a home"
        raise UsageError(f"cannot make the folder {name}: {reason}") from None
    return folder
