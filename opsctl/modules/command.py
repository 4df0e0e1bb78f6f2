"""Commands: with or without a shell, and raw, on hosts without a usable Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from opsctl.errors import TaskFailed
from opsctl.modules.contract import Action, Change, Module, ModuleArgs, Outcome, Progress, Site
from opsctl.modules.fields import HostPath, Pattern, Public, Text, seal, split
from opsctl.quantities import TimeLimit
from opsctl.secret import Secret
from opsctl.text import one_line
from opsctl.wire.calls.files import filelook_stat
from opsctl.wire.calls.process import proc_run, proc_undo
from opsctl.wire.host import Host
from opsctl.wire.protocol import Call, Reply

KEEP = "0"
UNFORESEEN = "effect unknown until it runs; give it `creates`, `unless` or `check`"

Words = Public | list[Public]
# What Ansible takes out of a command that is one text.
_ANSIBLES = re.compile(r"(?:^|\s)(chdir|creates|removes|executable)=\S")


class ChangedWhen(ModuleArgs):
    """Signs in a command's result that it changed something. Any one is enough."""

    output: Pattern | None = Field(None, description="Found in its standard output.")
    code: list[int] = Field(default=[], description="Its exit code is one of these.")


class CommandArgs(ModuleArgs):
    cmd: Public | None = Field(None, description="The command, as one text.")
    creates: HostPath | None = Field(None, description="Not run if this path exists.")
    removes: HostPath | None = Field(None, description="Not run unless this path exists.")
    unless: Words | None = Field(None, description="Not run if this read-only command succeeds.")
    check: Words | None = Field(
        None, description="Read-only rehearsal that prints what would change; not run if it prints nothing."
    )
    read_only: bool = Field(False, description="It changes nothing, so it runs in check mode too.")
    changed_when: bool | ChangedWhen = Field(True, description="Whether, or by which sign, it has changed something.")
    undo: Words | None = Field(None, description="Command that takes it back in a rollback.")
    cwd: HostPath | None = Field(None, description="Folder to run it in.")
    env: dict[str, Text] = Field(default={}, description="Environment variables on top of the usual ones.")
    stdin: Text | None = Field(None, description="Its standard input; nothing by default.")
    timeout: TimeLimit = Field(600.0, description="It is stopped after this time.")
    inactivity: TimeLimit | None = Field(None, description="It is stopped after this time without output.")
    ok_codes: list[int] = Field(default=[0], description="Exit codes that mean success.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cmd is not None and self.model_fields_set == {"cmd"} and (found := _ANSIBLES.search(self.cmd)):
            ours = {"chdir": "cwd"}.get(found[1], found[1])
            raise ValueError(
                f"`{found[1]}=` would be a word of the command: give `{ours}` beside `cmd`, "
                "or `env: {}` with it if the word is meant"
            )
        if self.read_only and (self.creates or self.removes or self.unless or self.check or self.undo):
            raise ValueError("`read_only` excludes creates, removes, unless, check and undo")
        return self

    def words(self) -> Words:
        assert self.cmd is not None
        return split(self.cmd, "cmd")

    def shell_path(self) -> str | None:
        return None


class ArgvArgs(CommandArgs):
    argv: list[Public] | None = Field(
        None, description="The command as a list of words, instead of `cmd`.", min_length=1
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.cmd is None) == (self.argv is None):
            raise ValueError("give either `cmd` or `argv`")
        if self.cmd is not None:
            split(self.cmd, "cmd")
        return self

    def words(self) -> Words:
        return self.argv if self.argv is not None else super().words()


class ShellArgs(CommandArgs):
    cmd: Public = Field(description="The shell text.")
    executable: HostPath = Field("/bin/sh", description="The shell.")

    def words(self) -> Words:
        return self.cmd

    def shell_path(self) -> str | None:
        return self.executable


class Command(Module[Any]):
    """Run a program, without a shell: what is in the arguments is never interpreted.

    It counts as changed whenever it runs, unless `changed_when` or `read_only` says otherwise. `creates`, `removes`,
    `unless` and `check` say when it need not run; without them check mode reports it as unknown. Give secrets in
    `env` or `stdin`: arguments are visible to every user of the host.
    """

    name = "command"
    command_line: ClassVar[Literal["words", "shell"] | None] = "words"
    args: ClassVar[type[ModuleArgs]] = ArgvArgs
    free_form = "cmd"
    results = frozenset({"code", "stdout", "stderr", "seconds", "dropped", "skipped_because"})
    examples = """
- name: What runs there
  command: {cmd: uname -r, read_only: true}
- name: Mark the folder
  command:
    argv: [touch, "{{ scratch }}/marked"]
    creates: "{{ scratch }}/marked"
    undo: [rm, "{{ scratch }}/marked"]
"""

    def observe(self, args: CommandArgs, site: Site) -> Sequence[Call[Any]]:
        return tuple(guards(args).values())

    def plan(self, args: CommandArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        replies = dict(zip(guards(args), seen, strict=True))
        if "read" in replies:
            _demand_success(args, replies["read"].result)
            return None
        if idle_because(args, replies):
            return None
        summary = "run " + one_line(_shown(args.words()), 100)
        if args.changed_when is False:
            return Change(summary, (_run(args),), _undo(args), harmless=f"{summary}: it says that it changes nothing")
        foreseen = bool(replies) and args.changed_when is True
        return Change(summary, (_run(args),), _undo(args), unknown=None if foreseen else UNFORESEEN)

    def result(
        self, args: CommandArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        replies = dict(zip(guards(args), seen, strict=True))
        if done:
            ran = dict(done[-1].result)
            return {**ran, "changed": has_changed(args.changed_when, ran)}
        if "read" in replies:
            return {**replies["read"].result, "changed": False}
        return {"skipped_because": idle_because(args, replies)}

    def lasting(self, args: Mapping[str, Any]) -> str | None:
        if args.get("undo") or args.get("read_only"):
            return None
        return "give it `undo`, or `read_only: true` where it changes nothing"


class Shell(Command):
    """Run a shell text on the host: pipes, redirections, variables.

    The same as `command` otherwise. Templates in it are put into the text as they are: quote what may hold spaces
    (`{{ path | quote }}`), or use `command`, which needs no quoting.
    """

    name = "shell"
    command_line = "shell"
    args = ShellArgs
    examples = """
- name: Count the cores
  shell: {cmd: "grep -c ^processor /proc/cpuinfo", read_only: true}
- name: Note the date once
  shell: {cmd: "date > {{ scratch | quote }}/began", creates: "{{ scratch }}/began"}
"""


def guards(args: CommandArgs) -> dict[str, Call[Any]]:
    """What is asked before the command: read-only calls, by what they answer."""
    asked: dict[str, Call[Any]] = {}
    if args.read_only:
        asked["read"] = _run(args, keep=None)
    for name, path in (("creates", args.creates), ("removes", args.removes)):
        if path is not None:
            asked[name] = filelook_stat(path, digest=False, follow=True)
    for name, words in (("unless", args.unless), ("check", args.check)):
        if words is not None:
            asked[name] = _run(args, words, keep=None, with_stdin=False)
    return asked


def idle_because(args: CommandArgs, replies: Mapping[str, Reply[Any]]) -> str | None:
    """Why the command need not run. Raises TaskFailed where its rehearsal failed."""
    if "creates" in replies and replies["creates"].result["kind"] != "absent":
        return f"{args.creates} exists"
    if "removes" in replies and replies["removes"].result["kind"] == "absent":
        return f"{args.removes} does not exist"
    if "unless" in replies and replies["unless"].result["code"] == 0:
        return "the command of `unless` succeeded"
    if "check" in replies:
        said = replies["check"].result
        if said["code"] != 0:
            what = f"the command of `check` failed: exit code {said['code']}: {_last(said)}"
            raise TaskFailed(what, values=said)
        if not said["stdout"].strip():
            return "the command of `check` printed nothing"
    return None


def has_changed(sign: bool | ChangedWhen, ran: Mapping[str, Any]) -> bool:
    if isinstance(sign, bool):
        return sign
    return ran["code"] in sign.code or bool(sign.output and re.search(sign.output, ran["stdout"]))


def _run(
    args: CommandArgs,
    words: Words | None = None,
    keep: str | None = KEEP,
    with_stdin: bool = True,
) -> Call[Any]:
    sealed, body = seal(args.env, args.stdin if with_stdin else None)
    how = _how(args, args.words() if words is None else words)
    if keep is not None:
        how.update(keep=keep, live=True, ok=args.ok_codes)
    return proc_run(body=body, **how, **sealed)


def _how(args: CommandArgs, words: Words) -> dict[str, Any]:
    shell = args.shell_path()
    argv = split(words, "command") if isinstance(words, str) and shell is None else words
    how: dict[str, Any] = {"argv": argv, "timeout": args.timeout}
    if isinstance(argv, str) and shell is not None:
        how["shell"] = shell
    if args.cwd is not None:
        how["cwd"] = args.cwd
    if args.inactivity is not None:
        how["idle"] = args.inactivity
    return how


def _undo(args: CommandArgs) -> tuple[Call[Any], ...] | None:
    if args.undo is None:
        return None if args.changed_when else ()
    # A secret environment is gone by then: an undo must do without it.
    plain, _ = seal({k: v for k, v in args.env.items() if not isinstance(v, Secret)})
    return (proc_undo(keep=KEEP, **_how(args, args.undo), **plain),)


def _demand_success(args: CommandArgs, ran: Mapping[str, Any]) -> None:
    if ran["code"] not in args.ok_codes:
        raise TaskFailed(f"`{one_line(_shown(args.words()), 80)}`: exit code {ran['code']}: {_last(ran)}",
                         values=ran)  # fmt: skip


def _last(ran: Mapping[str, Any]) -> str:
    lines = [line for line in (ran["stderr"] or ran["stdout"]).splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "it said nothing"


def _shown(words: Words) -> str:
    return words if isinstance(words, str) else shlex.join(words)


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

    def lasting(self, args: Mapping[str, Any]) -> str | None:
        return "use `shell`, and give it `undo`, or `read_only: true` where it changes nothing"

    def run(self, args: RawArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        ran = host.raw(args.cmd, timeout=args.timeout)
        stdout = ran.stdout.decode("utf-8", "backslashreplace")
        values = {"code": ran.status, "stdout": stdout, "stderr": ran.stderr}
        if ran.status in args.ok_codes:
            return Outcome(values)
        return Outcome(values, failed=f"exit code {ran.status}: {one_line((ran.stderr or stdout).strip()[-300:])}")
