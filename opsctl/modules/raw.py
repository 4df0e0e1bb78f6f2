"""Commands on hosts without a usable Python."""

from __future__ import annotations

from pydantic import Field

from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.modules.fields import Public
from opsctl.quantities import TimeLimit
from opsctl.text import one_line
from opsctl.wire.host import Host


class RawArgs(ModuleArgs):
    cmd: Public = Field(description="Text for the login user's shell.")
    timeout: TimeLimit = Field(60.0, description="It is given up after this time.")
    ok_codes: list[int] = Field(default=[0], description="Exit codes that mean success.")


class Raw(Action[RawArgs]):
    """Run a shell text over plain SSH, without the agent, as the login user.

    For hosts that have no Python yet. It is not journaled and cannot be undone; use `command` or `shell` otherwise.
    """

    name = "raw"
    args = RawArgs
    free_form = "cmd"
    read_only = False
    changes = True
    examples = """
- name: Give the host a Python
  when: false
  raw: {cmd: "apt-get install -y python3", timeout: 10m}
"""

    def run(self, args: RawArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        ran = host.raw(args.cmd, timeout=args.timeout)
        stdout = ran.stdout.decode("utf-8", "backslashreplace")
        values = {"code": ran.status, "stdout": stdout, "stderr": ran.stderr}
        if ran.status in args.ok_codes:
            return Outcome(values)
        return Outcome(values, failed=f"exit code {ran.status}: {one_line((ran.stderr or stdout).strip()[-300:])}")
