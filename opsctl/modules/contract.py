"""What a module is.

A module knows one family of desired states. It says what to ask of a host (`observe`), and from the answers what is
missing (`plan`): a `Change`, which carries its own application and its own undoing as plain agent calls, or None.
It never touches a host itself. From this come check mode, diffs, idempotence and rollback, with no code per module.

    observe ──calls──► host ──replies──► plan ──► Change(calls, undo, settle, diffs)
                                                   │ journaled, then applied by the agent,
                                                   │ each call only if the host is still as observed
                                                   ▼
                                                 result ──► what `register` gets

Modules that measure or decide instead of changing (`probe`, `assert`) are `Action`s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from opsctl.errors import UsageError
from opsctl.text import one_line
from opsctl.wire.host import Host, OnProgress
from opsctl.wire.protocol import Call, Reply

if TYPE_CHECKING:
    from opsctl.findings import Finding
    from opsctl.inventory import InventoryHost
    from opsctl.inventory.model import SglangSettings


class ModuleArgs(BaseModel):
    """Arguments of a module. Unknown names are errors; text becomes numbers only where the schema says number.

    Fields with `json_schema_extra={"raw": True}` hold expressions: they are not rendered as templates.
    """

    # A commit `3207427` written without quotes is a number to YAML; the reader keeps `1.10` as it was written.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, coerce_numbers_to_str=True)


A = TypeVar("A", bound=ModuleArgs)
RESULTS = frozenset({"changed", "failed", "skipped", "message"})  # what `register` gets of every task


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A file before and after, None where it is absent. Views decide how to show it; `secret` ones are not shown."""

    path: str
    before: bytes | None
    after: bytes | None
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What has to happen on one host, and how to take it back.

    Attributes:
        summary: one line, in the imperative: "create /etc/x, mode 0644".
        calls: agent calls that bring the change about, in order. Each carries what was observed and refuses with a
            conflict if that no longer holds.
        undo: agent calls that take it back, in the order in which they are to run; every one does nothing where
            there is nothing to take back, so that a half-applied change can be undone. None: cannot be undone.
        settle: agent calls to run once, after everything of a run has been undone (start what was running before).
        after: agent calls to make, as a step of their own, once the run has ended well and its gates hold.
        transfer: moves bytes to the host before `calls` run. Leaves nothing visible; continues where it was cut. Gives
            what `register` gets in the place of `values` of the same names, which foretell it.
        diffs: what `--diff` shows.
        unknown: why check mode cannot tell whether this changes anything; None where it can.
        harmless: why check mode leaves it out and counts it as no change; None where it is to be counted.
        values: what `register` gets besides the module's result, in check mode too.
        makes: folders that are there afterwards, so that check mode does not miss them in later tasks.
    """

    summary: str
    calls: tuple[Call[Any], ...]
    undo: tuple[Call[Any], ...] | None = ()
    settle: tuple[Call[Any], ...] = ()
    after: tuple[Call[Any], ...] = ()
    transfer: Callable[[Host, Progress], Mapping[str, Any]] | None = None
    diffs: tuple[FileDiff, ...] = ()
    unknown: str | None = None
    harmless: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    makes: frozenset[str] = frozenset()

    @property
    def shown(self) -> list[str]:
        """The files of which an undo may show what it would make of them."""
        return [diff.path for diff in self.diffs if not diff.secret]


Progress = Callable[[str, float | None], None]
"""Tell how far something has come: a line of text, and a fraction from 0 to 1 where it is known."""


def passed_on(progress: Progress) -> OnProgress:
    """Hand the progress that a call tells on to people, as far as it is any."""

    def tell(data: Any, body: bytes) -> None:
        if isinstance(data, dict) and "text" in data:
            fraction = data.get("fraction")
            progress(one_line(str(data["text"]), 200), fraction if isinstance(fraction, int | float) else None)

    return tell


@dataclass(frozen=True, slots=True)
class Site:
    """What a module may know besides its arguments.

    Attributes:
        host: name in the inventory.
        variables: everything a template of this task may use; for what they say of the host's SGLang see `sglang`.
        find: the local file for a relative path: beside the playbook, then `files/` or `templates/` of the project,
            then what opsctl ships. Raises UsageError naming the places looked at.
        render: renders template text with `variables`; the name is for error messages.
        evaluate: value of an expression over `variables`, as in `when`. Raises UsageError.
        check: whether this is check mode.
        cancelled: whether the run is to stop; for what takes long on the controller.
        made: folders that earlier tasks would have made, in check mode.
    """

    host: str
    variables: Mapping[str, Any]
    find: Callable[[str, str], Path]  # (kind: "files" | "templates", path)
    render: Callable[[str, str], str]  # (text, name)
    evaluate: Callable[[str], Any]
    check: bool = False
    cancelled: Callable[[], bool] = lambda: False
    made: Set[str] = frozenset()

    @property
    def sglang(self) -> SglangSettings:
        """The host's `sglang` section, templates in it filled in. Raises UsageError where variables make it unfit."""
        from opsctl.inventory.model import SglangSettings
        from opsctl.schema_errors import plainly

        try:
            return SglangSettings.model_validate(self.variables.get("sglang") or {})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, ("sglang", *first["loc"][:1])))
            raise UsageError(f"{key}: {plainly(first)}") from None


class Declared(ABC, Generic[A]):
    """What a task can name. The class docstring is its documentation; its first line is the summary.

    Attributes:
        free_form: the argument that a bare string fills: `command: uptime`.
        examples: YAML tasks, run by the tests.
        results: what `register` may get besides RESULTS; None: not known beforehand.
        command_line: how the argument `cmd` is read; None where it is no command line.
        src: where the local file lies that the argument `src` names; None where it names none.
        programs: those whose work it does, with check mode and rollback.
    """

    name: ClassVar[str]
    args: ClassVar[type[ModuleArgs]]
    free_form: ClassVar[str | None] = None
    examples: ClassVar[str] = ""
    results: ClassVar[frozenset[str] | None] = None
    command_line: ClassVar[Literal["words", "shell"] | None] = None
    src: ClassVar[Literal["files", "templates"] | None] = None
    programs: ClassVar[frozenset[str]] = frozenset()

    def lasting(self, args: Mapping[str, Any]) -> str | None:
        """What to do about a task that a rollback cannot take back; None where it can. `args` are not rendered."""
        return None

    def lint_host(self, host: InventoryHost) -> Iterator[Finding]:
        """What is wrong with the settings of a host for tasks like this one."""
        return iter(())


class Module(Declared[A]):
    """A family of desired states."""

    # Whether what it observes takes the host long: then it is not observed anew after each change that comes before.
    costly: ClassVar[bool] = False

    @abstractmethod
    def observe(self, args: A, site: Site) -> Sequence[Call[Any]]:
        """What must be known of the host. Calls without side effects. Pure but for reading local files."""

    @abstractmethod
    def plan(self, args: A, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        """What is missing, None if nothing. `seen` has one reply per call of `observe`.

        Pure but for reading local files.
        """

    def remark(self, args: A, seen: Sequence[Reply[Any]]) -> str:
        """What the task's line says where nothing is missing, of what somebody should know all the same."""
        return ""

    def result(
        self, args: A, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        """What `register` gets besides changed and failed; `done` has the replies of the calls, if any ran.

        A key `changed` in it wins over the fact that calls ran: a command may know that it changed nothing.
        """
        return {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action found.

    Attributes:
        failed: why it failed, None if it did not.
        measures: what gates may use.
        lines: for people, who decide by them what to do next.
        details: for those who want to know more.
        at_end: called once it is known how the run ended on the host, with that: done, failed, rolled-back, ...
            Raises OSError.
    """

    values: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    hint: str | None = None
    measures: dict[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    at_end: Callable[[str], object] | None = None


class Action(Declared[A]):
    """A module that measures, checks or waits. Read-only actions run in check mode as well."""

    read_only: ClassVar[bool] = True  # False: needs what the play has changed, so check mode does not run it
    instant: ClassVar[bool] = False  # whether the host cannot have changed meanwhile
    changes: ClassVar[bool] = False  # whether it may change the host: then check mode reports it as unknown
    measures: ClassVar[tuple[str, ...]] = ()  # names it may put into Outcome.measures, for lint of gates

    def reads_only(self, args: A) -> bool:
        """Whether this may run in check mode."""
        return self.read_only

    @abstractmethod
    def run(self, args: A, host: Host, site: Site, progress: Progress) -> Outcome:
        """Do it. Raises RemoteError, Unreachable."""
