"""Examples for `--help`, for commands that show none of their own. Each is parsed by the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

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


def add(words: str, command: TyperCommand | TyperGroup) -> None:
    """Show the examples at the end of the help of a command and of those below it."""
    for name, below in (getattr(command, "commands", None) or {}).items():
        add(f"{words} {name}", below)
    given = EXAMPLES.get(words)
    text = command.help or ""
    if given and "\n  opsctl " not in f"\n{text}" and "Example" not in text:
        heading = "Example:" if len(given) == 1 else "Examples:"
        command.help = "\n\n".join([text.rstrip(), heading, *(f"  {line}" for line in given)])
