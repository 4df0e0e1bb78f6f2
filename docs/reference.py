"""mkdocs hook: the reference pages are made from the program while the site is built, so that they cannot be stale."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from opsctl import modules
from opsctl.cli.doc import page

# Page -> its title, and the topics of `opsctl doc` that it consists of.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "commands": ("Commands", ("commands",)),
    "playbook": ("Playbook keys", ("play", "task", "block", "include", "gate", "param")),
    "modules": ("Modules", tuple(modules.names())),
    "inventory": ("Inventory keys", ("host", "group", "sglang", "timeouts")),
    "health-checks": ("Health checks", ("health-checks",)),
    "patches": ("Patches", ("patches",)),
    "lint": ("Lint rules", ("lint",)),
    "events": ("Events", ("events",)),
    "exit-codes": ("Exit codes", ("exit-codes",)),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in PAGES:
        files.append(File.generated(config, f"reference/{name}.md", content=text(name)))
    return files


def text(name: str) -> str:
    """The Markdown of a reference page."""
    title, topics = PAGES[name]
    return "\n".join([f"# {title}\n", *_body(topics)]) + "\n"


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
