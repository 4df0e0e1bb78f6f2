"""Steps for journal tests: writing files, and what a host's folder holds."""

from __future__ import annotations

from pathlib import Path

from opsctl.remote import steps as journal
from opsctl.wire.protocol import Call

RUN = "20260101-test"


def begin(run: str = RUN) -> Call:
    return Call("journal.begin", {"run": run, "meta": {"who": "ann", "playbook": "p.yaml"}})


def writing(path: Path, content: bytes, seq: int = 1, run: str = RUN) -> Call:
    """A step that writes a file and can take it back."""
    keep = "it"
    do = Call("files.write", {"path": str(path), "mode": 0o600, "keep": keep}, content)
    undo = Call("files.restore", {"path": str(path), "keep": keep})
    return journal.apply(run, seq, f"write {path.name}", [do], [undo])


def supervised(path: Path, content: bytes, confirm_within: float, *more: Call, seq: int = 2, run: str = RUN) -> Call:
    """The same under a supervisor; `more` calls follow the writing."""
    keep = "it"
    do = Call("files.write", {"path": str(path), "mode": 0o600, "keep": keep}, content)
    undo = Call("files.restore", {"path": str(path), "keep": keep})
    return journal.supervise(run, seq, f"switch {path.name}", [do, *more], [undo], [], confirm_within)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones too, by its relative path."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}
