"""What README.md and the pages of docs/ show: commands and code blocks, with the place where each stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"`(opsctl [^`]+)`")


@dataclass(frozen=True)
class Block:
    place: str
    kind: str  # language, and what else stands behind the fence
    text: str

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True)
class Line:
    """A command line; `ends` are the exit codes that its comment announces."""

    place: str
    words: tuple[str, ...]
    ends: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.place} {' '.join(self.words)}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(f"{page.relative_to(ROOT)}:{line}", found["kind"].strip(), found["text"])


def commands(page: Path) -> Iterator[Line]:
    """Every `opsctl ...` of the page's shell blocks, in order."""
    for block in blocks(page):
        prompt = {"": "", "sh": "", "console": "$ "}.get(block.kind)
        if prompt is not None:
            file, _, first = block.place.rpartition(":")
            for n, text in enumerate(block.text.splitlines(), int(first)):
                if text.startswith(f"{prompt}opsctl "):
                    yield line(f"{file}:{n}", text.removeprefix(prompt))


def inline(page: Path) -> Iterator[Line]:
    """Every `opsctl ...` in running text; those with an ellipsis or a COMMAND are about commands in general."""
    text = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), page.read_text())
    for found in _INLINE.finditer(text):
        if "..." not in found[1] and "COMMAND" not in found[1]:
            number = text.count("\n", 0, found.start()) + 1
            yield line(f"{page.relative_to(ROOT)}:{number}", " ".join(found[1].split()))


def line(place: str, text: str) -> Line:
    command, _, comment = text.partition(" #")
    announced = re.search(r"ends with (\d+(?: or \d+)*)", comment)
    ends = tuple(int(n) for n in re.findall(r"\d+", announced[1])) if announced else (0,)
    words = shlex.split(command)
    for mark in (">", "<", "|"):
        if mark in words:
            words = words[: words.index(mark)]
    return Line(place, tuple(words[1:]), ends)
