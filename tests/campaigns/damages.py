"""Damage to the journal of a run: what is told of it, and that nothing is said to be undone that is not.

What is right is written down here, independently of how a journal is read:

- What a rollback says is undone is byte for byte as it was before the run; what it does not undo is as the run left it,
  never a third thing.
- A rollback that calls itself whole has restored everything.
- Where something is missing or changed, the list, the run itself, a rollback and going on with the run all say so, and
  what the rest of the journal has is undone all the same.
- Another run on the host can begin, change something and end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opsctl.agent.core import history, journal, runlog
from opsctl.agent.files import changes
from opsctl.remote import steps as wire
from opsctl.wire.protocol import AgentError, Call, Context
from tests.campaigns.campaign import Case
from tests.remote.steps import RUN, writing

SHORT = 16
BEFORE = {"old": b"before\n", "gone": b"thrown away\n", "bystander": b"nobody's\n"}
AFTER = {"new": b"made\n", "old": b"after\n", "bystander": b"nobody's\n", "folder/": b""}
PATHS = {1: "new", 2: "old", 3: "gone", 4: "folder/"}  # what each step changes
ALL = frozenset(PATHS.values())
Do = Callable[[Path], None]  # damages the run in this folder


@dataclasses.dataclass(frozen=True)
class Damage:
    """What is done to a journal, and what is right then.

    Attributes:
        harmless: nothing that matters is gone: it is whole, and so is its rollback.
        lost: paths that cannot be restored any more.
    """

    name: str
    do: Do
    harmless: bool = False
    lost: frozenset[str] = frozenset()


# How far the run came before it was damaged.


def ended(box: Path) -> None:
    _steps(box, 4)
    journal.finish(Context(), RUN, "failed")


def killed(box: Path) -> None:
    """Cut off after the last change was made, before it was marked."""
    _steps(box, 3)
    made = changes.mkdir

    def dying(call: Context, path: str, keep: str) -> None:
        made(call, path, keep=keep)
        os.kill(os.getpid(), signal.SIGKILL)

    changes.CALLS["mkdir"] = dying
    _step(box, 4)


def half_undone(box: Path) -> None:
    """A rollback was cut off when it had taken back the last two steps."""
    ended(box)
    restored, count = changes.CALLS["restore"], 0

    def dying(call: Context, path: str, keep: str) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return restored(call, path, keep)

    changes.CALLS["restore"] = dying
    journal.rollback(Context(), RUN)


COURSES = {"ended": ended, "killed": killed, "half undone": half_undone}


def _steps(box: Path, last: int) -> None:
    journal.begin(Context(), RUN, {"who": "ann", "playbook": "p.yaml"})
    for seq in range(1, last + 1):
        _step(box, seq)
    journal.checkpoint(Context(), RUN, {"registered": {"x": 1}})


def _step(box: Path, seq: int) -> None:
    path = box / PATHS[seq].rstrip("/")
    undo = [Call("files.restore", {"path": str(path), "keep": "it"})]
    removing = Call("files.remove", {"path": str(path), "keep": "it"})
    making = Call("files.mkdir", {"path": str(path), "keep": "it"})
    given = {
        1: lambda: writing(path, AFTER["new"], 1),
        2: lambda: writing(path, AFTER["old"], 2),
        3: lambda: wire.apply(RUN, 3, "remove", [removing], undo),
        4: lambda: wire.apply(RUN, 4, "make", [making], undo),
    }[seq]()
    call = Context()
    call.body = given.body
    journal.apply(call, **given.args)


# What is done to it.


def lines_of(name: str, change: Callable[[list[bytes], int], list[bytes]], at: int) -> Do:
    def do(run: Path) -> None:
        text = (run / name).read_bytes()
        content = text.rstrip(b"\0")
        lines = content.splitlines(keepends=True)
        changed = b"".join(change(lines, at % len(lines)))
        (run / name).write_bytes(changed + text[len(content) :])

    return do


def flipped(line: bytes) -> bytes:
    middle = len(line) // 2
    return line[:middle] + bytes([line[middle] ^ 1]) + line[middle + 1 :]


LINES: dict[str, Callable[[list[bytes], int], list[bytes]]] = {
    "removed": lambda lines, at: lines[:at] + lines[at + 1 :],
    "cut": lambda lines, at: [*lines[:at], lines[at][: len(lines[at]) // 2]],
    "flipped": lambda lines, at: [*lines[:at], flipped(lines[at]), *lines[at + 1 :]],
    "twice": lambda lines, at: [*lines[: at + 1], *lines[at:]],
    "swapped": lambda lines, at: _swapped(lines, at),
    "emptied": lambda lines, at: [*lines[:at], b"\n", *lines[at + 1 :]],
}
FILES: dict[str, Callable[[Path], Any]] = {
    "removed": lambda path: path.unlink(),
    "cut": lambda path: os.truncate(path, len(path.read_bytes().rstrip(b"\0 \n")) // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped": lambda path: path.write_bytes(flipped(path.read_bytes().rstrip(b"\0 "))),
    "replaced": lambda path: path.write_bytes(b'{"before": {"kind": "absent"}, "after": null}'),
    "a link": lambda path: _link(path),
    "writable for all": lambda path: path.chmod(0o666),
    "another user's": lambda path: os.chown(path, 65534, 65534),
}


def _swapped(lines: list[bytes], at: int) -> list[bytes]:
    at = min(at, len(lines) - 2)
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def file(name: str, kind: str) -> Do:
    return lambda run: FILES[kind](run / name)


def folder(name: str) -> Do:
    return lambda run: shutil.rmtree(run / name)


def garbage(name: str) -> Do:
    return lambda run: (run / name).write_bytes(b"\xff\0{garbage")


def torn(run: Path) -> None:
    text = (run / "log").read_bytes()
    content = text.rstrip(b"\0")
    (run / "log").write_bytes(content + b'{"n":99,"outcome":"rolled-back' + text[len(content) + 30 :])


def forged(run: Path) -> None:
    """Another run's last word, at the end of this log."""
    text = (run / "log").read_bytes().rstrip(b"\0")
    (run / "log").write_bytes(text + b'{"n":99,"outcome":"rolled-back","why":null,"at":1.0}\n')


def damages(records: int, undone: int) -> Iterator[Damage]:
    """Every kind of damage there is, to a log of so many records; the last `undone` steps are taken back already."""
    for at in range(records):
        for kind, change in LINES.items():
            yield Damage(f"log, record {at + 1}: {kind}", lines_of("log", change, at))
    for seq, path in PATHS.items():
        for kind in ("removed", "flipped", "emptied", "cut"):
            lost = frozenset(PATHS[n] for n in PATHS if n >= seq) if kind == "cut" else frozenset({path})
            yield Damage(f"undo of step {seq}: {kind}", lines_of("undo", LINES[kind], seq - 1), lost=lost)
        needed = frozenset({path}) if seq <= len(PATHS) - undone else frozenset()
        for kind in FILES:
            kept = file(f"steps/{seq}/it.json", kind)
            yield Damage(f"kept by step {seq}: {kind}", kept, harmless=not needed, lost=needed)
        yield Damage(f"folder of step {seq}: removed", folder(f"steps/{seq}"), harmless=not needed, lost=needed)
    for kind in ("removed", "cut", "emptied", "flipped", "replaced"):
        yield Damage(f"image of step 2: {kind}", file("steps/2/it", kind), lost=frozenset({"old"}))
    for kind in ("removed", "cut", "emptied", "flipped") if undone < 2 else ():
        yield Damage(f"image of step 3: {kind}", file("steps/3/it", kind), lost=frozenset({"gone"}))
    for kind in FILES:
        nothing = kind in ("a link", "writable for all", "another user's")  # then it may be anybody's work
        yield Damage(f"log: {kind}", file("log", kind), lost=ALL if nothing else frozenset())
        yield Damage(f"end: {kind}", file("end", kind), lost=ALL if nothing else frozenset())
        yield Damage(f"undo: {kind}", file("undo", kind), lost=ALL)
    yield Damage("log: forged", forged)
    yield Damage("steps: removed", folder("steps"), lost=ALL)
    yield Damage("the run's folder: writable for all", lambda run: run.chmod(0o777), lost=ALL)
    yield Damage("the run's folder: another user's", lambda run: os.chown(run, 65534, 65534), lost=ALL)
    yield Damage("log: torn at its end", torn, harmless=True)
    for name in ("checkpoint.json", "turn", "lock", "attended", *(["reserve"] if not undone else [])):
        yield Damage(f"{name}: removed", file(name, "removed"), harmless=True)
    for name in ("checkpoint.json", "turn"):
        yield Damage(f"{name}: garbage", garbage(name), harmless=True)
    for name in ("verdict", "events", "modules.json"):
        yield Damage(f"{name}: garbage", garbage(name), harmless=True)
    yield Damage("order of runs: removed", lambda run: (run.parents[1] / "order").unlink(), harmless=True)
    yield Damage("order of runs: garbage", lambda run: garbage("order")(run.parents[1]), harmless=True)


RECORDS = {"ended": (14, 0), "killed": (12, 0), "half undone": (19, 2)}  # of the log, and steps that are undone


def cases(rng: random.Random) -> Iterator[Case]:
    found = [
        Case(f"{course}; {one.name}", lambda top, course=course, one=one: hold(top, course, one))  # type: ignore[misc]
        for course in COURSES
        for one in damages(*RECORDS[course])
        if os.geteuid() == 0 or "another user's" not in one.name
    ]
    rng.shuffle(found)
    yield from found


def hold(top: Path, course: str, damage: Damage) -> None:
    box = top / "box"
    box.mkdir()
    for name, content in BEFORE.items():
        (box / name).write_bytes(content)
    child(top, lambda: COURSES[course](box))
    run = top / "state/runs" / RUN
    assert len((run / "log").read_bytes().splitlines()) - 1 == RECORDS[course][0], "the table above is out of date"
    was = tree(box)
    damage.do(run)
    told = child(top, look)
    assert told is not None
    again = child(top, look)
    judge(damage, course, was, tree(box), told)
    assert again is not None
    assert (again["rollback"] == told["rollback"]) or not damage.harmless, "a second rollback says something else"
    assert damage.harmless or again["damaged"], "a damaged run has become a whole one"
    child(top, lambda: another(box))
    assert (box / "other").read_bytes() == b"other", "another run cannot change anything"


def look() -> dict[str, Any]:
    """All that is said of the run: by the list, by itself, when it is gone on with, and by a rollback."""
    [listed] = [one for one in history.newest(Context())["runs"] if one["run"] == RUN]
    shown = history.show(Context(), RUN)
    resumed = None
    try:
        if listed["outcome"] != "rolled-back-partly":
            journal.begin(Context(), RUN, {}, resume=True)
            runlog.disown(RUN)
    except AgentError as error:
        resumed = error.kind
    try:
        report = journal.rollback(Context(), RUN)
    except AgentError as error:
        report = {"outcome": error.kind, "steps": [], "damage": [error.message]}
    undone = [step["seq"] for step in report["steps"] if step["status"] == "undone"]
    return {
        "listed": bool(listed["damage"]), "shown": bool(shown["damage"]), "state": listed["state"], "resumed": resumed,
        "rollback": report["outcome"], "damaged": bool(report["damage"]), "undone": undone, "report": report,
    }  # fmt: skip


def another(box: Path) -> None:
    journal.begin(Context(), "another", {"who": "bob"})
    step = writing(box / "other", b"other", 1, "another")
    call = Context()
    call.body = step.body
    journal.apply(call, **step.args)
    journal.finish(Context(), "another", "done")
    newest = history.newest(Context())["runs"]
    assert [one["run"] for one in newest] == ["another", RUN], "the newest run is not the last one that began"


def judge(damage: Damage, course: str, was: dict[str, bytes], now: dict[str, bytes], told: dict[str, Any]) -> None:
    restored = {path for path in ALL if now.get(path) == BEFORE.get(path)}
    for path in ALL - restored:
        assert now.get(path) == was.get(path), f"{path} is neither as it was nor as the run left it"
    assert now["bystander"] == BEFORE["bystander"]
    untrue = [PATHS[seq] for seq in told["undone"] if PATHS[seq] not in restored]
    assert not untrue, f"{untrue} is said to be undone, and is not: {told}"
    if told["rollback"] == "rolled-back":
        assert restored == ALL, f"it calls itself rolled back, and {ALL - restored} is not: {told}"
    assert ALL - restored <= damage.lost, f"{ALL - restored - damage.lost} could have been restored: {told}"
    if damage.harmless:
        assert (told["rollback"], told["damaged"], told["listed"]) == ("rolled-back", False, False), told
    else:
        assert told["rollback"] != "rolled-back", told
        assert told["damaged"], f"a rollback does not tell of the damage: {told}"


def tree(box: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(box)): path.read_bytes() for path in box.rglob("*") if path.is_file()}
    return found | {f"{path.relative_to(box)}/": b"" for path in box.rglob("*") if path.is_dir()}


def child(top: Path, work: Callable[[], Any]) -> dict[str, Any] | None:
    """What `work` gives, done by a process of its own, which keeps no locks when it has ended."""
    reading, answering = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ["OPSCTL_STATE_DIR"] = str(top / "state")
        try:
            answer = {"said": work()}
        except BaseException as error:  # noqa: BLE001  told by the parent
            answer = {"failed": f"{type(error).__name__}: {error}"}
        with os.fdopen(answering, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)
    os.close(answering)
    with os.fdopen(reading) as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None
    answer = json.loads(text)
    assert "failed" not in answer, answer["failed"]
    said: dict[str, Any] | None = answer["said"]
    return said
