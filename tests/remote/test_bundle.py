"""What is sent of the agent is the agent."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import opsctl
from opsctl.remote import bundle
from opsctl.wire.protocol import Call

PACKAGE = Path(opsctl.__file__).parent
MODULES = [path for room in ("agent", "wire") for path in sorted((PACKAGE / room).rglob("*.py"))]


def meaning(text: str) -> str:
    """The syntax tree with the line of every node, docstrings blank."""
    tree = ast.parse(text)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    for node in ast.walk(tree):
        for field in ("end_lineno", "end_col_offset"):  # of what holds a docstring
            vars(node).pop(field, None)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            first.value = ast.Constant("", lineno=first.lineno, col_offset=first.col_offset)
    return ast.dump(tree, include_attributes=True)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_travels_means_the_same_on_the_same_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert meaning(bundle.slim(text)) == meaning(text)


def test_the_first_calls_of_a_run_fit_the_first_flights_of_a_connection() -> None:
    """Lock, journal and looking at files: Linux sends ten segments before it waits for an acknowledgement, then 20."""
    known = {bundle.LOADER, *bundle.CORE}
    calls = [Call("lock.take"), Call("history.list"), Call("filelook.stat"), Call("filelook.read")]
    assert len(bundle.boot({})) < 8_000
    # One after the other, as a run does; what is left of 14,480 bytes is for the calls themselves.
    assert sum(len(bundle.load_frames([call], known)) for call in calls) < 14_000
    assert bundle.load_frames(calls, known) == b"", "sent twice"
