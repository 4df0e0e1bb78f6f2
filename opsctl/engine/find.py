"""Where playbooks, templates and files are looked for: the project's own first, then what opsctl ships."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opsctl.errors import UsageError
from opsctl.localfiles import from_home, shipped
from opsctl.text import did_you_mean


def playbook(name: str) -> Path:
    """The playbook file for a path or a name (`health`). Raises UsageError with the nearest name."""
    given = Path(name)
    if given.is_file():
        return given
    folders = [Path("playbooks"), shipped("playbooks")]
    if given.parent == Path():
        for folder in folders:
            for file in (folder / name, folder / f"{name}.yaml", folder / f"{name}.yml"):
                if file.is_file():
                    return file
    known = sorted({file.stem for folder in folders if folder.is_dir() for file in folder.glob("*.y*ml")})
    looked = "" if given.parent != Path() else f" here, in {' or '.join(str(f) for f in folders)}"
    raise UsageError(f"there is no playbook {name!r}{looked}", hint=did_you_mean(given.stem, known) if known else None)


def word_for(path: Path) -> str:
    """What `playbook` finds this file by, from here: its name where that leads to it, else its path."""
    try:
        return path.stem if playbook(path.stem).samefile(path) else str(path)
    except (UsageError, OSError):
        return str(path)


def file(kind: str, path: str, playbook: Path) -> Path:
    """The local file (or folder) that a task means by `path`; `kind` is "files" or "templates". Raises UsageError."""
    given = from_home(path)
    candidates = [given] if given.is_absolute() else list(_candidates(kind, given, playbook))
    for candidate in candidates:
        if candidate.exists():
            return candidate
    places = ", ".join(str(c.parent) for c in candidates)
    raise UsageError(f"there is no {path!r} on this machine", hint=f"looked in {places}")


def _candidates(kind: str, path: Path, playbook: Path) -> Iterator[Path]:
    beside = playbook.parent
    yield beside / path
    yield beside / kind / path
    project = beside.parent if beside.name == "playbooks" else Path()
    if project != beside:
        yield project / kind / path
    yield shipped(kind) / path
