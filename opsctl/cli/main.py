"""The command tree. Imports only the module of the command that was asked for, so that `opsctl --help` stays quick."""

from __future__ import annotations

import errno
import importlib
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import typer
from typer.core import TyperCommand, TyperGroup

from opsctl import __version__
from opsctl.cli import examples
from opsctl.errors import Exit, OpsctlError
from opsctl.text import printable
from opsctl.wire import masking


@dataclass(frozen=True, slots=True)
class Entry:
    """A top-level command: the module of `opsctl.cli` that defines it as `app`, and its line in `opsctl --help`."""

    module: str
    help: str
    panel: str


# Every mistake in a command line is one of these: click's UsageError, for which typer has no public name.
_Misused = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

# Looking for pydantic plugins reads the metadata of every installed package: a tenth of a short run's time.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_DO, _SEE, _WRITE = "Do", "See", "Write and check"

COMMANDS: dict[str, Entry] = {
    "run": Entry("run", "Run a playbook.", _DO),
    "deploy": Entry("deploy", "Put a draft model into service, measured and undoable.", _DO),
    "patch": Entry("patch", "Bring a host's SGLang source to the state EAGLE-3 needs, or back.", _DO),
    "drafter": Entry("drafter", "Check, compare, convert and stage EAGLE-3 draft models.", _DO),
    "server": Entry("server", "Status, start, stop, restart, wait.", _DO),
    "rollback": Entry("rollback", "Undo a run.", _DO),
    "clean": Entry("clean", "List and remove leftovers of our own servers.", _DO),
    "probe": Entry("probe", "Measure acceptance length, throughput and latency.", _SEE),
    "diagnose": Entry("diagnose", "Say why the acceptance is what it is.", _SEE),
    "health": Entry("health", "Is this GPU host fit to serve?", _SEE),
    "logs": Entry("logs", "Collect, follow, summarise and redact logs.", _SEE),
    "source": Entry("source", "Read the SGLang source on a host.", _SEE),
    "history": Entry("history", "Past runs on a host.", _SEE),
    "show": Entry("show", "One past run.", _SEE),
    "report": Entry("report", "One past run as a page.", _SEE),
    "practice": Entry("practice", "A practice host on this machine, to try everything on.", _WRITE),
    "init": Entry("init", "Look at a host and write an inventory and playbooks for it.", _WRITE),
    "inventory": Entry("inventory", "List, check and trust hosts.", _WRITE),
    "lint": Entry("lint", "Check playbooks without touching a host.", _WRITE),
    "doc": Entry("doc", "Modules, and the keys of playbooks and inventories.", _WRITE),
    "schema": Entry("schema", "JSON Schema of playbooks and inventories, for editors.", _WRITE),
}


def build(argv: Sequence[str]) -> TyperGroup:
    """The command tree: the command named in `argv` for real, the others as a name and a line of help."""
    wanted = next((word for word in argv if not word.startswith("-")), None)
    everything = "_OPSCTL_COMPLETE" in os.environ
    commands = {
        name: load(name, entry) if everything or name == wanted else _stub(name, entry)
        for name, entry in COMMANDS.items()
    }
    root = typer.Typer(
        name="opsctl",
        help="Serve large models with SGLang and EAGLE-3 on GPU hosts reached by SSH.",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        no_args_is_help=True,
    )
    root.callback()(_root)
    group = typer.main.get_group(root)
    group.commands = dict(commands)
    group.params += typer.main.get_install_completion_arguments()
    return group


def run(args: list[str]) -> int:
    """Run one command line. Returns its exit code; every error has been told on stderr."""
    try:
        result = build(args)(args, prog_name="opsctl", standalone_mode=False)
        return int(result) if isinstance(result, int) else Exit.DONE
    except _Misused as error:
        error.show()
        return Exit.USAGE
    except typer.Exit as error:
        return error.exit_code
    except OpsctlError as error:
        tell(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return Exit.INTERRUPTED
    except SystemExit:
        # What typer makes of a broken pipe, and of nothing else here: the reader of our output has gone
        # (`opsctl ... | head`), and nothing is left to tell it.
        return Exit.DONE
    except Exception as error:  # noqa: BLE001  the last net: a bug, shown whole but with secrets masked
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _refused(f"cannot write: {error.strerror}", Exit.FAILED)
        if isinstance(error, FileNotFoundError) and _homeless():
            return _refused("the folder this was started in does not exist any more", Exit.USAGE)
        _say(printable(masking.text(traceback.format_exc())))
        _say("this is a bug in opsctl: please report it with the lines above")
        return Exit.BUG


def _refused(message: str, code: Exit) -> Exit:
    """Say why it ended. Nothing of our output that is still to be written may fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _say(f"error: {message}")
    return code


def _homeless() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def tell(error: OpsctlError) -> None:
    """Print an error and its next step on stderr, safe for a terminal, without what looks like a secret.

    Errors quote what they are about: a URL with a password in it, the environment of a command.
    """
    _say(f"error: {printable(masking.text(str(error)))}")
    if error.hint:
        _say(f"  → {printable(masking.text(error.hint))}")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def load(name: str, entry: Entry) -> TyperCommand | TyperGroup:
    """The command with everything below it."""
    command = typer.main.get_command(importlib.import_module(f"opsctl.cli.{entry.module}").app)
    assert isinstance(command, TyperCommand | TyperGroup)
    command.name, command.rich_help_panel = name, entry.panel
    command.help = command.help or entry.help
    examples.add(name, command)
    # Completion is installed once, for the whole of opsctl.
    command.params = [p for p in command.params if p.name not in ("install_completion", "show_completion")]
    return command


def _stub(name: str, entry: Entry) -> TyperCommand:
    return TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"opsctl {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass
