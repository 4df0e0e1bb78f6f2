"""Options that commands share, and those that the params of a playbook become."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.engine.options import Options

Output = Literal["human", "jsonl", "github", "gitlab"]

InventoryOption = Annotated[
    str | None,
    typer.Option("--inventory", "-i", metavar="FILE", help="Inventory (default: inventory.yaml here or above)."),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host", "--limit", "-H", metavar="PATTERN", help="Hosts and groups: a:b either, a:&b both, a:!c not."
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", envvar="OPSCTL_OUTPUT", help="How to show what happens.")
]
JunitOption = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit XML report.")]
SummaryOption = Annotated[
    Path | None,
    typer.Option("--summary", metavar="FILE", envvar="OPSCTL_SUMMARY", help="Append a Markdown summary."),
]
DiffOption = Annotated[
    bool | None, typer.Option("--diff/--no-diff", help="Show what changes in files (default: in check mode).")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def duration(option: str, text: str) -> float:
    """The seconds that an option says. Raises UsageError."""
    from opsctl.quantities import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


@dataclass(frozen=True, slots=True)
class Showing:
    """How to show a run, and which reports to write."""

    output: Output = "human"
    diff: bool | None = None
    verbose: bool = False
    junit: Path | None = None
    summary: Path | None = None
    html: Path | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options of a command that runs a playbook ask for.

    given: the params that were given, and no others: the playbook knows their defaults.
    """

    playbook: str
    inventory: str | None
    host: str | None
    check: bool
    exit_code: bool
    yes: bool
    lock_wait: float
    showing: Showing
    given: dict[str, Any] = field(default_factory=dict)

    def options(self, params: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> Options:
        """As the engine wants it.

        Args:
            params: what the command says of params that nobody gave.
            more: fields of `Options` that it knows besides.
        """
        from opsctl.verbs.runs import playbook

        asked = {
            "inventory": self.inventory, "limit": self.host, "check": self.check, "exit_code": self.exit_code,
            "yes": self.yes, "lock_wait": self.lock_wait,
        }  # fmt: skip
        return playbook(self.playbook, {**params, **self.given}, **(asked | more))


@dataclass(frozen=True, slots=True)
class As:
    """How a param is asked for, where its own name and type do not say it best."""

    option: str | None = None
    metavar: str | None = None
    min: float | None = None


Command = Callable[..., int]


def runs(
    playbook: str = "",
    shown: Mapping[str, As] | None = None,
    *,
    argument: str | None = None,
    hidden: Collection[str] = (),
) -> Callable[[Command], Command]:
    """Give a command the params of a shipped playbook as options, and the options of every run.

    The command gets what they say as `asked`; an option that it declares itself stands in the place of one of these. A
    project's own playbook of this name is what runs, and judges what it is given.

    Args:
        playbook: its name; empty for a command that says itself which one.
        shown: params that are asked for in another way than by name and type.
        argument: a param that is no option. One without a default never is.
        hidden: params that the command sets itself.
    """

    def decorate(command: Command) -> Command:
        own = _parameters(command)
        del own["asked"]
        params = {name: one for name, one in _params(playbook).items() if name not in (*own, *hidden)}
        common = _parameters(_common)
        every = [one for name, one in common.items() if name not in own]
        merged = [
            *own.values(),
            *every[:2],  # the hosts
            *(_parameter(name, one, (shown or {}).get(name, As()), name == argument) for name, one in params.items()),
            *every[2:],
            Parameter("_context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
        ]

        def carry_out(_context: typer.Context, **values: Any) -> int:
            given = {name: _value(values[name], one["type"]) for name, one in params.items() if _said(_context, name)}
            asked = Asked(playbook, given=given, **_common(**{name: values[name] for name in common}))
            return command(asked=asked, **{name: values[name] for name in own})

        functools.update_wrapper(carry_out, command)
        carry_out.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]  # typer reads it
        carry_out.__annotations__ = {one.name: one.annotation for one in merged}
        return carry_out

    return decorate


def _said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _common(
    host: HostOption = None,
    inventory: InventoryOption = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would change, and change nothing.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="With --check: end with 3 when something would change, 14 when that cannot be told, 0 when nothing "
            "would.",
        ),
    ] = False,
    diff: DiffOption = None,
    yes: YesOption = False,
    lock_wait: Annotated[
        str, typer.Option("--lock-wait", metavar="DURATION", help="How long to wait for another operator to finish.")
    ] = "0s",
    output: OutputOption = "human",
    junit: JunitOption = None,
    summary: SummaryOption = None,
    html: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the run as an HTML page.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show everything, unchanged tasks and times too.")
    ] = False,
) -> dict[str, Any]:
    """The options of every run, as fields of `Asked`."""
    return {
        "inventory": inventory, "host": host, "check": check, "exit_code": exit_code, "yes": yes,
        "lock_wait": duration("--lock-wait", lock_wait),
        "showing": Showing(output, diff, verbose, junit, summary, html),
    }  # fmt: skip


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function as keywords, with their annotations evaluated."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters
    return {n: p.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[n]) for n, p in found.items()}


def _params(playbook: str) -> dict[str, dict[str, Any]]:
    """The params of a shipped playbook, each with its `type`.

    Read with the plain loader: the one for users' files takes a tenth of a second to load, and connecting to a host
    begins after this.
    """
    if not playbook:
        return {}
    import yaml

    from opsctl.localfiles import shipped

    text = (shipped("playbooks") / f"{playbook}.yaml").read_text(encoding="utf-8")
    plays = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: {"type": "text", **param} for play in plays for name, param in play.get("params", {}).items()}


_TYPES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "list": list[str], "path": Path, "file": Path, "folder": Path
}  # fmt: skip
_METAVARS = {kind: kind.upper() for kind in ("path", "file", "folder", "duration", "size")} | {"secret": "!env NAME"}


def _parameter(name: str, param: Mapping[str, Any], shown: As, argument: bool) -> Parameter:
    """A param of a playbook as a parameter that typer makes an option or an argument of."""
    kind, default, choices = param["type"], param.get("default"), param.get("choices")
    takes: Any = Literal[tuple(choices)] if choices else _TYPES.get(kind, str)
    if kind in ("list", "map", "secret") or (isinstance(default, str) and "{{" in default):
        default = None
    said: dict[str, Any] = {
        "metavar": shown.metavar or _METAVARS.get(kind),
        "help": param.get("help"),
        "min": shown.min,
    }
    if "default" not in param:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[takes, typer.Argument(**said)])
    info = typer.Argument(**said) if argument else typer.Option(shown.option or f"--{name.replace('_', '-')}", **said)
    takes = takes if isinstance(default, bool) else takes | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[takes, info])


def _value(value: Any, kind: str) -> Any:
    """What an option says, as `-e` would say it of a param of this type."""
    if kind == "secret":
        from opsctl.engine.options import tagged

        return tagged(value).value
    return str(value) if isinstance(value, Path) else value
