"""Imports point down only: which package may know which, and what the modules may share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.modules import MODULES

PACKAGE = Path(__file__).parents[1] / "opsctl"

# Plain files at the top that anybody but the agent may use.
SHARED = {
    *("__version__", "answers", "errors", "findings", "http_client", "quantities", "runname", "schema_errors"),
    *("localfiles", "patterns", "secret", "secret_sources", "text", "this_machine"),
}
DOMAIN = {"drafter", "gpu", "sglang", "wire"}
MAY_KNOW = {
    "wire": set(),
    "agent": {"wire"},
    "remote": {"wire"},
    "drafter": {"wire", "sglang.releases"},  # facts of the releases; their room knows nothing of the rest
    "gpu": {"inventory", "wire"},
    "sglang": {"drafter", "gpu", "inventory", "wire"},
    "survey": {"gpu", "sglang", "wire"},
    "inventory": {"remote", "wire", "yaml_source"},
    "practice": set(),
    "modules": {*DOMAIN, "inventory", "remote", "patchfiles", "yaml_source"},
    "engine": {"wire", "inventory", "modules", "patchfiles", "remote", "yaml_source"},
    "report": {*DOMAIN, "engine", "modules"},
    "verbs": {*DOMAIN, "remote", "inventory", "survey", "modules", "patchfiles", "engine"},
    "cli": {*DOMAIN, "inventory", "survey", "modules", "patchfiles", "engine", "report", "verbs", "practice"},
}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of everything of opsctl that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "opsctl":
            yield from ((node.lineno, f"opsctl.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opsctl."):
            # `from opsctl.modules import x` may mean the file x
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("opsctl."))


def sources(package: str) -> Iterator[Path]:
    return (PACKAGE / package).rglob("*.py")


@pytest.mark.parametrize("package", MAY_KNOW)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    allowed = MAY_KNOW[package] | {package} | (SHARED if package not in ("agent", "wire") else set())
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imported(path)
        if not any(f"{name}.".startswith(f"opsctl.{known}.") for known in allowed)
    ]
    assert wrong == []


def test_only_who_runs_it_in_this_process_imports_the_agent() -> None:
    """Hosts are sent its source as text (remote/bundle.py); what both ends share lies in wire."""
    importers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for _, name in imported(path)
        if f"{name}.".startswith("opsctl.agent.") and PACKAGE / "agent" not in path.parents
    }
    assert importers == {"this_machine.py"}


def test_what_both_ends_share_leaves_the_operating_system_alone() -> None:
    system = {
        "fcntl",
        "grp",
        "os",
        "pathlib",
        "pwd",
        "resource",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
    }
    importers = set()
    for path in sources("wire"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            importers |= {path.name for name in names if name.partition(".")[0] in system}
    assert importers == set()


def test_facts_of_releases_know_nothing_above_them() -> None:
    readers = {"generate.py", "__main__.py"}  # they write the facts, by reading source as the rest does
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in sources("sglang/releases")
        for line, name in imported(path)
        if path.name not in readers and not name.startswith(("opsctl.sglang.releases", "opsctl.errors"))
    ]
    assert wrong == []


def test_every_package_has_its_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(MAY_KNOW)


def test_modules_do_not_know_each_other() -> None:
    files = {where.partition(":")[0] for where in MODULES.values()}
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in sources("modules")
        for line, name in imported(path)
        if name.startswith("opsctl.modules.") and name.split(".")[2] in files - {path.stem}
    ]
    assert wrong == []


def test_the_engine_asks_modules_and_names_none() -> None:
    named = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sources("engine")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and ".module" in ast.unparse(node.left)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in MODULES
    ]
    assert named == []
