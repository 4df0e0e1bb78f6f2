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
from opsctl.cli.terminal import say, tell
from opsctl.errors import Exit, OpsctlError
from opsctl.text import printable
from opsctl.wire import masking


@dataclass(frozen=True, slots=True)
class Entry:
    """A top-level command: the module of `opsctl.cli` that defines it as `app`, or MODULE:APP, and its line of help."""

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
    "deploy": Entry("drafter:deploy", "Put a draft model into service, measured and undoable.", _DO),
    "patch": Entry("patch", "Bring a host's SGLang source to the state EAGLE-3 needs, or back.", _DO),
    "drafter": Entry("drafter", "Check, compare, convert and stage EAGLE-3 draft models.", _DO),
    "server": Entry("server", "Status, start, stop, restart, wait.", _DO),
    "rollback": Entry("past:rollback_app", "Undo a run.", _DO),
    "clean": Entry("clean", "List and remove leftovers of our own servers.", _DO),
    "probe": Entry("probe", "Measure acceptance length, throughput and latency.", _SEE),
    "diagnose": Entry("diagnose", "Say why the acceptance is what it is.", _SEE),
    "health": Entry("health", "Is this GPU host fit to serve?", _SEE),
    "logs": Entry("logs", "Collect, follow, summarise and redact logs.", _SEE),
    "source": Entry("source", "Read the SGLang source on a host.", _SEE),
    "history": Entry("past:history_app", "Past runs on a host.", _SEE),
    "show": Entry("past:show_app", "One past run.", _SEE),
    "report": Entry("past:report_app", "One past run as a page.", _SEE),
    "practice": Entry("practice", "A practice host on this machine, to try everything on.", _WRITE),
    "init": Entry("init", "Look at a host and write an inventory and playbooks for it.", _WRITE),
    "inventory": Entry("inventory", "List, check, add, import and trust hosts.", _WRITE),
    "lint": Entry("lint", "Check playbooks without touching a host.", _WRITE),
    "doc": Entry("doc", "Modules, and the keys of playbooks and inventories.", _WRITE),
    "schema": Entry("doc:schema_app", "JSON Schema of playbooks and inventories, for editors.", _WRITE),
}


# For `--help` of commands that show none of their own. Each is parsed by the tests.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "deploy": (
        "opsctl deploy drafter ./my-drafter --check",
        "opsctl deploy drafter ./my-drafter --host k25",
    ),
    "patch": (
        "opsctl patch sglang --check --diff",
        "opsctl patch sglang",
        "opsctl patch check --tree ~/sglang",
        "opsctl patch list",
    ),
    "drafter": (
        "opsctl drafter check ./my-drafter --host k25",
        "opsctl drafter stage ./my-drafter --host k25 --name draft",
        "opsctl drafter compare ./old-drafter ./new-drafter",
    ),
    "server": (
        "opsctl server status",
        "opsctl server restart --host k25",
        "opsctl server wait --host k25",
    ),
    "logs": (
        "opsctl logs tail --host k25",
        "opsctl logs summary --host k25",
        "opsctl logs collect --host k25 --since 2h",
        "opsctl logs redact < server.log > to-share.log",
    ),
    "inventory": (
        "opsctl inventory check",
        "opsctl inventory list --vars",
        "opsctl inventory trust k25",
    ),
    "source": (
        "opsctl source facts --tree ~/sglang",
        "opsctl source grep 'def load_weights' --tree ~/sglang --glob '*eagle*.py'",
    ),
    "practice": (
        "opsctl practice demo",
        "opsctl practice host ./practice",
    ),
    "patch check": (
        "opsctl patch check --tree ~/sglang",
        "opsctl patch check --tree ~/sglang --own patches --diff",
        "opsctl patch check --tree ~/sglang --own patches --output gitlab",
    ),
    "patch list": ("opsctl patch list",),
    "patch show": ("opsctl patch show eagle3-loader-strict",),
    "drafter check": (
        "opsctl drafter check ./my-drafter --target /data/models/Kimi-K2.5 --sglang 0.5.9",
        "opsctl drafter check ./my-drafter --host k25",
        "opsctl drafter check k25:/models/releases/draft/current --json",
        "opsctl drafter check ./my-drafter --output github --summary summary.md",
    ),
    "drafter stage": (
        "opsctl drafter stage ./my-drafter --host k25 --name draft",
        "opsctl drafter stage k25:/models/downloads/draft --name draft --force context-length",
        "opsctl drafter stage acme/k25-eagle3@v2 --host k25 --fetch-on host",
    ),
    "drafter compare": ("opsctl drafter compare ./old-drafter ./new-drafter",),
    "drafter convert": ("opsctl drafter convert ./speculators-drafter ./my-drafter",),
    "server status": ("opsctl server status", "opsctl server status --host k25 --json"),
    "server start": ("opsctl server start --host k25",),
    "server stop": ("opsctl server stop --host k25",),
    "server restart": ("opsctl server restart --host k25",),
    "server wait": ("opsctl server wait --host k25",),
    "clean": ("opsctl clean --host k25",),
    "probe": (
        "opsctl probe --host k25",
        "opsctl probe --host k25 --concurrency 1,4,16 --gate 'accept_length>=2.5'",
        "opsctl probe --url http://127.0.0.1:30000 --json > before.json",
        "opsctl probe --host k25 --gate 'accept_length>=2.5' --junit probe.xml",
    ),
    "probe compare": ("opsctl probe compare before.json after.json",),
    "diagnose": ("opsctl diagnose --host k25", "opsctl diagnose --here --port 30000"),
    "health": (
        "opsctl health",
        "opsctl health --host blackwell --only klog,pcie --verbose",
        "opsctl health --capture nvidia-smi-q-x.xml dmesg.txt",
        "opsctl health --output github --junit health.xml --summary summary.md",
    ),
    "health explain": ("opsctl health explain p2p.config", "opsctl health explain 79"),
    "logs collect": ("opsctl logs collect --host k25 --since 2h",),
    "logs summary": ("opsctl logs summary server.log",),
    "logs tail": ("opsctl logs tail --host blackwell --level error",),
    "logs redact": ("opsctl logs redact < server.log > to-share.log",),
    "source facts": ("opsctl source facts --tree ~/sglang",),
    "source grep": ("opsctl source grep 'def load_weights' --tree ~/sglang --glob '*eagle*.py'",),
    "source show": ("opsctl source show LlamaForCausalLMEagle3.load_weights --tree ~/sglang",),
    "practice demo": ("opsctl practice demo",),
    "practice host": ("opsctl practice host ./practice",),
    "inventory trust": (
        "opsctl inventory trust k25",
        "opsctl inventory trust k25 --replace SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDzzCCwfwZp1uXVBzo",
    ),
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
        say("interrupted")
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
        say(printable(masking.text(traceback.format_exc())))
        say("this is a bug in opsctl: please report it with the lines above")
        return Exit.BUG


def _refused(message: str, code: Exit) -> Exit:
    """Say why it ended. Nothing of our output that is still to be written may fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    say(f"error: {message}")
    return code


def _homeless() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def load(name: str, entry: Entry) -> TyperCommand | TyperGroup:
    """The command with everything below it."""
    module, _, app = entry.module.partition(":")
    command = typer.main.get_command(getattr(importlib.import_module(f"opsctl.cli.{module}"), app or "app"))
    assert isinstance(command, TyperCommand | TyperGroup)
    command.name, command.rich_help_panel = name, entry.panel
    command.help = command.help or entry.help
    add_examples(name, command)
    # Completion is installed once, for the whole of opsctl.
    command.params = [p for p in command.params if p.name not in ("install_completion", "show_completion")]
    return command


def add_examples(words: str, command: TyperCommand | TyperGroup) -> None:
    """Show the examples at the end of the help of a command and of those below it."""
    for name, below in (getattr(command, "commands", None) or {}).items():
        add_examples(f"{words} {name}", below)
    given = EXAMPLES.get(words)
    text = command.help or ""
    if given and "\n  opsctl " not in f"\n{text}" and "Example" not in text:
        heading = "Example:" if len(given) == 1 else "Examples:"
        command.help = "\n\n".join([text.rstrip(), heading, *(f"  {line}" for line in given)])


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
