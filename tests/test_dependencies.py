"""What opsctl imports is what its package says it needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator

from tests.lowest import PYPROJECT
from tests.test_layering import PACKAGE

# Imports that do not bear the name of what is installed for them.
INSTALLED_AS = {"yaml": "pyyaml"}

# The agent meets these on a host that serves, or does without.
OF_THE_HOST = {"torch", "sglang"}


def imports() -> Iterator[tuple[str, str]]:
    """File and top-level name of each import of something that is neither ours nor Python's."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"opsctl"}:
                yield str(path.relative_to(PACKAGE)), name


def test_every_import_is_declared() -> None:
    required = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    declared = {re.split("[>=<,]", each)[0].replace("-", "_") for each in required}
    missing = {(file, name) for file, name in imports() if INSTALLED_AS.get(name, name) not in declared}
    assert {(file, name) for file, name in missing if name not in OF_THE_HOST} == set()


def test_no_private_module_of_another_package_is_used() -> None:
    private = re.compile(r"^\s*(?:from|import) (?!opsctl|__future__)(\w+(?:\.\w+)*\._\w+|_(?!_)\w+)", re.M)
    found = {path.name: private.findall(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}
