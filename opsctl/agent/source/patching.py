"""Patching a source tree on its host: edits that are made all or not at all. What bears on them: `patchlook`."""

from __future__ import annotations

import hashlib
import os
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from opsctl.agent.core import runs
from opsctl.agent.core.journal import Nested
from opsctl.agent.core.runs import Record
from opsctl.agent.core.undo_record import load, save
from opsctl.agent.files import changes, states
from opsctl.agent.files.safepath import opened, whole
from opsctl.agent.source import source
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.files import State
    from opsctl.wire.calls.source import About, Applied, Edit, PatchStep, Restored, Written

RECORD = "patching"  # of a journal step: which tree, which patches, which files
_MOST = 64 << 20  # bytes of before-images that are sent back


def apply(
    call: Context,
    root: str,
    edits: List[Edit],
    about: Optional[Dict[str, Any]] = None,
    python: str = "",
    script: Optional[str] = None,
    code: Tuple[str, ...] = (),
) -> Written:
    """Make edits, compile and prove them with the interpreter `python`; where anything fails, everything is put back.

    edits: [{path (relative to root), before: sha256 | None (absent), size: of the new content | None (remove), mode}],
    the new contents one after the other in the body, then the input of the proof `script`. `code`: the files whose
    functions that one runs. `about` is kept with them.
    """
    root = os.path.realpath(root)
    parts, offset = [], 0
    for edit in edits:
        parts.append(call.body[offset : offset + (edit["size"] or 0)])
        offset += edit["size"] or 0
    places = [_inside(root, edit["path"]) for edit in edits]
    for place, edit in zip(places, edits):
        states.demand(place, states.state(place), _state(edit["before"]))
    save(call, RECORD, dict(about or {}, root=root, paths=[edit["path"] for edit in edits], places=places))
    try:
        for number, (place, edit, content) in enumerate(zip(places, edits, parts)):
            _make(call, str(number), place, edit, content)
        _prove(call, root, edits, parts, python, script, code, call.body[offset:])
    except BaseException as error:
        left = _restore(call, places)
        if isinstance(error, AgentError):
            what = "; everything was put back" if not left else "; NOT put back: %s" % left[0].message
            raise AgentError(error.kind, error.message + what, **error.fields) from error
        raise
    return {"written": [edit["path"] for edit in edits]}


def restore(call: Context) -> Restored:
    """Put the files of this journal step back as they were. What someone else has changed since is a conflict."""
    record = load(call, RECORD)
    errors = _restore(call, record["places"]) if record else []
    if errors:
        raise errors[0]
    return {"restored": bool(record)}


def applied(call: Context, root: str) -> Reply[Applied]:
    """Journal steps that have patched this tree and stand, oldest first, and its files as they are now.

    Body: the before-images and the files as they are, zlib.
    """
    root = os.path.realpath(os.path.expanduser(root))
    steps: List[PatchStep] = []
    images: Dict[str, bytes] = {}
    now: Dict[str, Optional[str]] = {}
    records = [runs.read(name) for name in reversed(runs.names())]
    for step in (step for record in records for step in _standing(call, record, root)):
        folder, record = step
        about: About = {"patches": record.get("patches", {}), "reverted": record.get("reverted", [])}
        changed: Dict[str, Tuple[Optional[str], Optional[str]]] = {}
        for number, (path, place) in enumerate(zip(record["paths"], record["places"])):
            kept = load(Nested(call, b"", folder), str(number))
            if kept is None or kept["after"] is None:
                continue
            changed[path] = (kept["before"].get("sha256"), kept["after"].get("sha256"))
            now[path] = _image(place, images)
            if kept["before"].get("sha256") not in (None, *images):
                _image(os.path.join(folder, str(number)), images)
        steps.append({"about": about, "files": changed})
    told: Applied = {"steps": steps, "now": now, "images": [(sha256, len(data)) for sha256, data in images.items()]}
    return Reply(told, zlib.compress(b"".join(images.values()), 6))


def _standing(call: Context, record: Record, root: str) -> List[Tuple[str, Dict[str, Any]]]:
    found = []
    for step in record.steps:
        if step.state == "done" and not step.undone and "patching.apply" in step.calls:
            folder = runs.step_folder(record.run, step.seq)
            try:
                kept = load(Nested(call, b"", folder), RECORD)
            except (OSError, AgentError):  # what cannot be read cannot be gone back to
                continue
            if kept and kept["root"] == root:
                kept.pop("sum", None)
                found.append((folder, kept))
    return found


def _image(path: str, images: Dict[str, bytes]) -> Optional[str]:
    """The digest of a file, which is put among the images; None where there is none."""
    room = _MOST - sum(map(len, images.values()))
    try:
        with opened(path) as stream:
            data = whole(stream, room + 1)
    except OSError:
        return None
    if len(data) > room:
        raise AgentError("failed", "%s and what the journal keeps have more than %d bytes" % (path, _MOST), path=path)
    sha256 = hashlib.sha256(data).hexdigest()
    images[sha256] = data
    return sha256


def _make(call: Context, keep: str, place: str, edit: Edit, content: bytes) -> None:
    inner = Nested(call, content, call.blobs or "")
    if edit["size"] is None:
        changes.remove(inner, place, expect=_state(edit["before"]), keep=keep)
        return
    if edit["before"] is None and not os.path.isdir(os.path.dirname(place)):
        changes.mkdir(inner, os.path.dirname(place), keep=keep + "-folder")
    changes.write(inner, place, mode=edit.get("mode"), expect=_state(edit["before"]), keep=keep)


def _prove(
    call: Context,
    root: str,
    edits: List[Edit],
    parts: List[bytes],
    python: str,
    script: Optional[str],
    code: Tuple[str, ...],
    data: bytes,
) -> None:
    written = [edit["path"] for edit in edits if edit["size"] is not None]
    for edit, content in zip(edits, parts):
        now = states.state(_inside(root, edit["path"])).get("sha256")
        if now != (None if edit["size"] is None else hashlib.sha256(content).hexdigest()):
            raise AgentError("conflict", "%s is not what was written" % edit["path"], path=edit["path"])
    compiled = source.compile_files(root, [path for path in written if path.endswith(".py")], python)
    failures = ["%s: %s" % (one["path"], one["message"]) for one in compiled["failed"]]
    if script is not None and not failures:
        proved = source.prove(Nested(call, data, call.blobs or ""), script, python, code)
        failures = ["%s: %s" % (one["proof"].replace("_", " "), text) for one in proved for text in one["failures"]]
    if failures:
        raise AgentError("failed", "the proof failed: %s" % "; ".join(failures[:5]))


def _restore(call: Context, places: List[str]) -> List[AgentError]:
    errors = []
    for number in reversed(range(len(places))):
        for keep, place in ((str(number), places[number]), ("%d-folder" % number, os.path.dirname(places[number]))):
            try:
                changes.restore(Nested(call, b"", call.blobs or "", to_the_end=True), place, keep)
            except AgentError as error:
                errors.append(error)
    return errors


def _state(sha256: Optional[str]) -> State:
    return states.ABSENT.copy() if sha256 is None else {"kind": "file", "sha256": sha256}


def _inside(root: str, path: str) -> str:
    """The file itself behind a path of the tree: a link stays one, and what it points at is replaced."""
    place = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath([root, place]) != root:
        raise AgentError("invalid", "%s leads out of the tree, to %s" % (path, place), path=path)
    return place


CALLS = {"apply": apply, "restore": restore, "applied": applied}
