"""Makes the reference pages and the schemas from the program: `make reference`. The tests say when they are stale."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from opsctl import modules
from opsctl.cli.doc import page
from opsctl.engine import schema

DOCS = Path(__file__).parent
# Page -> its title, and the topics of `opsctl doc` that it consists of.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "commands": ("Commands", ("commands",)),
    "playbook": ("Playbook keys", ("play", "task", "block", "include", "gate", "param")),
    "modules": ("Modules", tuple(modules.names())),
    "inventory": ("Inventory keys", ("host", "group", "sglang", "ssh", "timeouts")),
    "health-checks": ("Health checks", ("health-checks",)),
    "patches": ("Patches", ("patches",)),
    "lint": ("Lint rules", ("lint",)),
    "events": ("Events", ("events",)),
    "exit-codes": ("Exit codes", ("exit-codes",)),
}


def text(name: str) -> str:
    """The Markdown of a reference page."""
    title, topics = PAGES[name]
    whole = "\n".join([f"# {title}\n", *_body(topics)])
    return re.sub(r"\n{3,}", "\n\n", whole).rstrip("\n") + "\n"


def _body(topics: tuple[str, ...]) -> Iterator[str]:
    for topic in topics:
        whole = "\n".join(page(topic))
        # A topic that is a page of its own has its title from above; among others it is one section of the page.
        yield re.sub(r"^# .*\n+", "", whole) if len(topics) == 1 else _lower(whole)
        yield ""


def _lower(markdown: str) -> str:
    """One level down, outside code blocks; module arguments and examples need no entry in the table of contents."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(p if p.startswith("```") else re.sub(r"^(#+) ", r"#\1 ", p, flags=re.M) for p in parts)


if __name__ == "__main__":
    made = {DOCS / f"reference/{name}.md": text(name) for name in PAGES}
    for kind in (schema.playbook, schema.inventory, schema.patch):
        made[DOCS / f"schema/{kind.__name__}.schema.json"] = json.dumps(kind(), indent=2) + "\n"
    stale = [path for path, now in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != now]
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"stale: {', '.join(path.name for path in stale)}; `make reference` makes them anew" if stale else 0)
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
