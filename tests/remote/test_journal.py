"""What a run leaves on the host, and taking it back from any point."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import durable, history, undo_record
from opsctl.agent.core import journal as agent_journal
from opsctl.agent.core.durable import state_dir
from opsctl.agent.files.safepath import told
from opsctl.errors import Locked, RemoteError
from opsctl.remote import steps as journal
from opsctl.remote.host import RemoteHost
from opsctl.wire import undo as operations
from opsctl.wire.calls import declaration
from opsctl.wire.protocol import AgentError, Call, Context
from tests.campaigns.damages import child
from tests.conftest import MakeHost
from tests.remote.steps import RUN, begin, tree, writing
from tests.sshd import Sshd, eventually

REPOSITORY = Path(__file__).parents[2]


def state_of(host: RemoteHost, run: str = RUN) -> str:
    runs = {one["run"]: one for one in host.call(Call("history.list")).result["runs"]}
    return str(runs[run]["state"])


def test_a_run_cut_off_is_found_and_taken_back_by_the_next(make_host: MakeHost, sshd: Sshd, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    (box / "a").write_bytes(b"before")
    host = make_host()
    host.batch([begin()])
    host.call(writing(box / "a", b"after", 1))
    host.call(writing(box / "b", b"new", 2))
    host.call(Call("journal.checkpoint", {"run": RUN, "data": {"registered": {"x": 1}}}))
    assert tree(box) == {"a": b"after", "b": b"new"}
    assert state_of(host) == "running"
    sshd.drop()

    following = make_host()
    eventually(lambda: state_of(following) == "unfinished")
    found = following.call(Call("history.show", {"run": RUN, "checkpoint": True})).result
    assert found["meta"] == {"who": "ann", "playbook": "p.yaml"}
    assert found["checkpoint"] == {"registered": {"x": 1}}
    assert [(step["task"], step["state"]) for step in found["log"]] == [("write a", "done"), ("write b", "done")]
    report = following.call(Call("journal.rollback", {"run": RUN})).result
    assert tree(box) == {"a": b"before"}
    assert [(step["seq"], step["status"]) for step in report["steps"]] == [(2, "undone"), (1, "undone")]
    assert following.call(Call("journal.rollback", {"run": RUN})).result == report
    assert state_of(make_host()) == "ended"


def test_killed_at_every_write_a_run_can_still_be_taken_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.remote.crash", str(tmp_path / "state"), str(tmp_path / "box")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["places"] > 30


def test_a_call_that_fails_ends_the_step_and_tells_what_went_before(host: RemoteHost, tmp_path: Path) -> None:
    path = tmp_path / "a"
    step = journal.apply(
        RUN,
        1,
        "two writes",
        [
            Call("files.write", {"path": str(path), "keep": "a"}, b"one"),
            Call("files.write", {"path": str(tmp_path / "none" / "b"), "keep": "b"}, b"two"),
        ],
        [
            Call("files.restore", {"path": str(tmp_path / "none" / "b"), "keep": "b"}),
            Call("files.restore", {"path": str(path), "keep": "a"}),
        ],
    )
    host.call(begin())
    with pytest.raises(RemoteError) as caught:
        host.call(step)
    assert caught.value.kind == "not-found"
    assert caught.value.fields["call"] == "files.write"
    assert len(caught.value.fields["replies"]) == 1
    assert path.read_bytes() == b"one"
    report = host.call(Call("journal.rollback", {"run": RUN})).result
    assert report["outcome"] == "rolled-back"
    assert tree(tmp_path / "none") == {}
    assert not path.exists()


def test_what_cannot_be_taken_back_is_told_and_the_rest_is(host: RemoteHost, tmp_path: Path) -> None:
    path, foreign = tmp_path / "a", tmp_path / "f"
    host.call(begin())
    host.call(writing(path, b"one", 1))
    host.call(journal.apply(RUN, 2, "irreversible", [Call("filelook.stat", {"path": str(tmp_path)})], None))
    host.call(writing(foreign, b"ours", 3))
    foreign.write_bytes(b"theirs")
    report = host.call(Call("journal.rollback", {"run": RUN})).result
    assert report["outcome"] == "rolled-back-partly"
    assert [(s["seq"], s["status"]) for s in report["steps"]] == [(3, "failed"), (2, "kept"), (1, "undone")]
    assert report["steps"][0]["error"]["kind"] == "conflict"
    assert not path.exists()
    assert foreign.read_bytes() == b"theirs"


def test_settle_calls_run_once_each_after_everything_is_undone(host: RemoteHost, tmp_path: Path) -> None:
    path, log = tmp_path / "served", tmp_path / "log"
    path.write_bytes(b"old")
    note = Call("proc.run", {"argv": f"cat {path} >> {log}; echo >> {log}"})
    other = Call("proc.run", {"argv": f"echo other >> {log}"})
    host.call(begin())
    for seq, settle in ((1, [note]), (2, [other, note])):
        step = Call("files.write", {"path": str(path), "keep": "k"}, b"new %d" % seq)
        undo = Call("files.restore", {"path": str(path), "keep": "k"})
        host.call(journal.apply(RUN, seq, "switch", [step], [undo], settle))
    for _ in range(2):
        host.call(Call("journal.rollback", {"run": RUN}))
    assert log.read_text().split() == ["old", "other"]


def test_a_run_is_worked_on_by_one_at_a_time(make_host: MakeHost, tmp_path: Path) -> None:
    first, second = make_host(), make_host()
    first.call(begin())
    first.call(writing(tmp_path / "a", b"x"))
    with pytest.raises(Locked) as caught:
        second.call(Call("journal.rollback", {"run": RUN}))
    assert caught.value.holder["who"] == "ann"
    assert (tmp_path / "a").exists()


def test_a_rollback_says_which_step_it_waits_for_and_for_how_long_it_will(host: RemoteHost, tmp_path: Path) -> None:
    host.call(begin())
    gate = tmp_path / "gate"
    stuck = Call("proc.run", {"argv": f"until [ -e {gate} ]; do sleep 0.05; done"})
    [step] = host.send([journal.apply(RUN, 1, "restart the server", [stuck])])
    eventually(lambda: (host.call(Call("history.show", {"run": RUN})).result)["log"])
    with pytest.raises(RemoteError, match=r"step 1, restart the server \(pid \d+, for 0:\d\d min\)") as caught:
        host.call(Call("journal.rollback", {"run": RUN, "wait": 0.1}), timeout=20)
    assert caught.value.kind == "busy"

    said: list[str] = []

    def on_progress(data: object, body: bytes) -> None:
        said.append(str(data))
        gate.touch()

    report = host.call(Call("journal.rollback", {"run": RUN}), timeout=20, on_progress=on_progress).result
    assert report["outcome"] == "rolled-back"
    assert "waiting for step 1, restart the server" in said[0]
    step.wait(120)


def test_state_directory_that_cannot_be_written_is_named(make_host: MakeHost, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(RemoteError) as caught:
        make_host(state_dir=str(blocked / "state")).call(begin())
    assert str(blocked) in caught.value.message
    assert "state_dir" in str(caught.value.hint)


def test_state_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        state_dir("runs")
    finally:
        os.umask(before)
    assert [(tmp_path / part).stat().st_mode & 0o777 for part in ("state", "state/runs")] == [0o700, 0o700]


def test_threads_that_write_the_same_file_leave_one_of_them_whole(tmp_path: Path) -> None:
    contents = [bytes([65 + n]) * (10_000 * n) for n in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda content: durable.write(str(tmp_path / "file"), content), contents * 10))
    assert (tmp_path / "file").read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]


def test_a_state_directory_that_fills_up_later_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Context()
    step.blobs = str(tmp_path / "step")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), step.blobs)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AgentError) as caught, told("write", "/etc/theirs"):
        undo_record.save(step, "0", {})
    assert (caught.value.kind, caught.value.fields["state"]) == ("no-space", True)
    assert "/etc/theirs" not in caught.value.message


def test_old_runs_are_removed_when_one_ends(host: RemoteHost, tmp_path: Path) -> None:
    for run in ("one", "two", "three"):
        host.call(begin(run))
        host.call(Call("journal.finish", {"run": run, "outcome": "done", "keep": 2}))
    assert [one["run"] for one in host.call(Call("history.list")).result["runs"]] == ["three", "two"]


def test_what_may_still_be_needed_is_not_pruned(host: RemoteHost, tmp_path: Path) -> None:
    host.call(begin("stopped"))
    host.call(writing(tmp_path / "a", b"x", 1, "stopped"))
    host.call(Call("journal.finish", {"run": "stopped", "outcome": "failed"}))
    for run in ("one", "two"):
        host.call(begin(run))
        host.call(Call("journal.finish", {"run": run, "outcome": "done", "keep": 1}))
    assert [one["run"] for one in host.call(Call("history.list")).result["runs"]] == ["two", "stopped"]
    assert host.call(Call("journal.rollback", {"run": "stopped"})).result["outcome"] == "rolled-back"


def test_the_order_of_runs_does_not_hang_on_the_clock(tmp_path: Path) -> None:
    def begun(run: str, at: float) -> None:
        time.time = lambda: at  # in a process of its own
        agent_journal.begin(Context(), run, {})
        agent_journal.finish(Context(), run, "done", keep=2)

    for run, at in (("b", 3e9), ("c", 2e9), ("a", 1e9)):  # the clock goes backwards
        child(tmp_path, partial(begun, run, at))
    told = child(tmp_path, lambda: history.newest(Context()))
    assert told is not None
    assert [one["run"] for one in told["runs"]] == ["a", "c"], "the newest first, and the oldest pruned"


FORMAT_1 = REPOSITORY / "tests/data/journal/format-1.json"  # written by the last opsctl that had it


def planted(top: Path, change: Callable[[dict[str, str]], object] = lambda kept: None) -> tuple[Path, str]:
    """A box as a run has left it, and the journal of the run in format 1, in a state folder."""
    box, run = top / "box", "20260101-120000-aaaa"
    box.mkdir()
    (box / "new").write_bytes(b"new\n")
    (box / "old").write_bytes(b"after\n")
    for name in ("new", "old"):
        (box / name).chmod(0o600)
    folder = top / "state/runs" / run
    kept = json.loads(FORMAT_1.read_text())
    change(kept)
    for part in (top / "state", top / "state/runs", folder, *(folder / name for name in kept if name.endswith("/"))):
        part.mkdir(mode=0o700)
    ids = {"@BOX@": str(box), "@UID@": str(os.getuid()), "@GID@": str(os.getgid())}
    for name, text in kept.items():
        if text is not None:
            for word, value in ids.items():
                text = text.replace(word, value)
            (folder / name).write_text(text)
            (folder / name).chmod(0o644 if name == "steps/2/it" else 0o600)
    return box, run


def test_a_journal_of_the_format_before_is_taken_back(tmp_path: Path) -> None:
    box, run = planted(tmp_path)
    for _ in range(2):
        report = child(tmp_path, lambda: agent_journal.rollback(Context(), run))
        assert report is not None
        assert (report["outcome"], report["damage"]) == ("rolled-back", [])
        assert tree(box) == {"old": b"before\n", "settled": b""}


@pytest.mark.parametrize("what", ["a step", "what a step kept", "the log"])
def test_a_damaged_journal_of_the_format_before_is_not_said_to_be_undone(what: str, tmp_path: Path) -> None:
    def change(kept: dict[str, str]) -> None:
        lines = kept["log"].splitlines(keepends=True)
        if what == "a step":
            kept["log"] = "".join(line for line in lines if '"step":2' not in line)
        elif what == "the log":
            kept["log"] = ""
        else:
            for name in [name for name in kept if name.startswith("steps/2/")]:
                del kept[name]

    box, run = planted(tmp_path, change)
    report = child(tmp_path, lambda: agent_journal.rollback(Context(), run))
    assert report is not None
    assert (report["outcome"], bool(report["damage"])) == ("rolled-back-partly", True)
    assert [step["status"] for step in report["steps"] if step["seq"] == 2] in ([], ["failed"])
    assert ((box / "new").exists(), (box / "old").read_bytes()) == (what == "the log", b"after\n")


FORMAT_2 = REPOSITORY / "tests/data/journal/format-2.json"  # a run of tasks, made by opsctl at commit 536e218


def sealed(kept: dict[str, str]) -> dict[str, str]:
    """A journal of format 2 with the sums that its records have once words in them were replaced."""
    sums: dict[str, str] = {}

    def again(line: str) -> str:
        record = json.loads(line)
        old, record["undo"] = record.pop("sum"), record.get("undo")
        if isinstance(record["undo"], str):
            record["undo"] = sums[record["undo"]]
        elif record["undo"] is None and '"undo":' not in line:
            del record["undo"]
        new = durable.pack(record).decode()
        sums[old] = json.loads(new)["sum"]
        return new

    for name in ("undo", "log", "end", *(name for name in kept if name.endswith("/0.json"))):
        kept[name] = "".join(again(line) for line in kept[name].splitlines())
    return kept


def test_a_run_of_the_release_before_is_taken_back(tmp_path: Path) -> None:
    box, run = tmp_path / "box", "20260101-120000-bbbb"
    folder = tmp_path / "state/runs" / run
    kept = json.loads(FORMAT_2.read_text())
    for part in (tmp_path / "state", tmp_path / "state/runs", folder, *(folder / n for n in kept if n.endswith("/"))):
        part.mkdir(mode=0o700)
    ids = {"@BOX@": str(box), "@UID@": str(os.getuid()), "@GID@": str(os.getgid()), "@PROJECT@": "/home/ann"}
    ids |= {"@OWNER@": pwd.getpwuid(os.getuid()).pw_name, "@GROUP@": grp.getgrgid(os.getgid()).gr_name}
    texts = {name: text for name, text in kept.items() if text is not None}
    for word, value in ids.items():
        texts = {name: text.replace(word, value) for name, text in texts.items()}
    modes = {"steps/1/0": 0o640, "steps/3/0": 0o644, "steps/6/0": 0o644}
    for name, text in sealed(texts).items():
        (folder / name).write_text(text)
        (folder / name).chmod(modes.get(name, 0o600))
    for place in (box, box / "gone", box / "d"):
        place.mkdir(mode=0o700 if place.name == "d" else 0o755)
    for name, text, mode in (("a", "new\n", 0o600), ("b", "b\n", 0o644), ("c", "", 0o644)):
        (box / name).write_text(text)
        (box / name).chmod(mode)
    (box / "lines").write_text("one\ntwo\nthree\n")
    (box / "l").symlink_to(box / "a")

    def rolled_back() -> Any:
        (shown,) = history.newest(Context())["runs"]
        assert (shown["state"], shown["damage"], shown["steps"]) == ("ended", [], 7)
        return agent_journal.rollback(Context(), run)

    report = child(tmp_path, rolled_back)
    assert report is not None
    assert (report["outcome"], report["damage"]) == ("rolled-back", [])
    assert [step["status"] for step in report["steps"]] == ["undone"] * 7
    assert os.readlink(box / "l") == "/nowhere"
    (box / "l").unlink()
    assert tree(box) == {"a": b"old\n", "gone/x": b"x\n", "lines": b"one\ntwo\n"}
    assert (box / "a").stat().st_mode & 0o777 == 0o640


def test_an_undo_that_this_opsctl_does_not_know_is_told_with_the_version_that_does(tmp_path: Path) -> None:
    def later() -> None:
        agent_journal.begin(Context(), RUN, {"version": "7.1"})
        args = {"path": str(tmp_path / "a"), "keep": "0"}
        agent_journal.apply(Context(), RUN, 1, [], "write", [["files.restore", args]])
        path = tmp_path / "state/runs" / RUN
        entry = durable.unpack((path / "undo").read_bytes())
        assert entry is not None
        assert entry["undo"] == [["files.restore", 1, args]]
        entry["undo"] = [["files.restore", 2, args]]
        old = entry.pop("sum")
        packed = durable.pack(entry)
        (path / "undo").write_bytes(packed)
        lines = [json.loads(line) for line in (path / "log").read_bytes().rstrip(b"\0").splitlines()]
        for line in lines:
            line.pop("sum")
            line.update({"undo": json.loads(packed)["sum"]} if line.get("undo") == old else {})
        (path / "log").write_bytes(b"".join(map(durable.pack, lines)))

    child(tmp_path, later)
    report = child(tmp_path, lambda: agent_journal.rollback(Context(), RUN))
    assert report is not None
    assert report["outcome"] == "rolled-back-partly"
    (step,) = report["steps"]
    assert "(files.restore, version 2) is not known" in step["error"]["message"]
    assert "use opsctl 7.1 or later" in step["error"]["message"]


def test_every_undo_operation_is_one_of_a_call() -> None:
    for how in operations.OPERATIONS.values():
        assert how.takes <= signature(declaration(how.call)).parameters.keys()


def test_a_journal_of_a_later_format_is_refused_with_the_version_that_reads_it(tmp_path: Path) -> None:
    def later() -> None:
        agent_journal.begin(Context(), RUN, {"version": "7.1"})
        log = tmp_path / "state/runs" / RUN / "log"
        line = json.loads(log.read_bytes().split(b"\n")[0])
        line.pop("sum")
        log.write_bytes(durable.pack(dict(line, format=4)))

    def refused() -> str:
        assert [one["state"] for one in history.newest(Context())["runs"]] == ["unreadable"]
        with pytest.raises(AgentError) as caught:
            agent_journal.rollback(Context(), RUN)
        return caught.value.message

    child(tmp_path, later)
    assert "format 4, and this opsctl reads up to 3: use opsctl 7.1 or later" in str(child(tmp_path, refused))


def test_what_an_undo_needs_lies_apart_from_the_log_and_goes_when_nothing_is_left(
    host: RemoteHost, state: Path, tmp_path: Path
) -> None:
    """What an undo needs lies in files of its own, 0600, and is removed as soon as the run can no longer be undone."""
    word = "k3y-of-the-undo"
    path = tmp_path / "a"
    path.write_text(word)
    do = Call("files.write", {"path": str(path), "keep": "it"}, b"x")
    undo = [Call("files.restore", {"path": str(path), "keep": "it"}), Call("proc.run", {"argv": ["true", word]})]
    settle = [Call("proc.run", {"argv": ["true", "settling", word]})]
    host.call(begin())
    host.call(journal.apply(RUN, 1, "write", [do], undo, settle))
    host.call(Call("journal.checkpoint", {"run": RUN, "data": {"registered": {"it": word}}}))
    folder = state / "runs" / RUN
    assert holding(folder, word) == {"undo", "steps/1/it", "checkpoint.json"}
    assert {oct((folder / name).stat().st_mode & 0o777) for name in ("undo", "checkpoint.json")} == {"0o600"}
    told = [host.call(call).result for call in (Call("history.list"), Call("history.show", {"run": RUN}))]
    assert word not in json.dumps(told)
    host.call(Call("journal.rollback", {"run": RUN}))
    assert holding(folder, word) == set()


def holding(folder: Path, word: str) -> set[str]:
    """The files that have this word in them."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if word.encode() in path.read_bytes()}


def test_a_run_that_failed_can_be_gone_on_with_and_one_that_is_done_cannot(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host()
    host.call(begin())
    host.call(writing(tmp_path / "a", b"one", 1))
    host.call(Call("journal.checkpoint", {"run": RUN, "data": {"pending": ["restart"]}}))
    host.call(Call("journal.finish", {"run": RUN, "outcome": "failed"}))
    host.close()

    later = make_host()
    [found] = later.call(Call("history.list", {"checkpoints": True})).result["runs"]
    assert (found["outcome"], found["checkpoint"], found["last"]) == ("failed", {"pending": ["restart"]}, 1)
    later.call(Call("journal.begin", {"run": RUN, "meta": {}, "resume": True}))
    later.call(writing(tmp_path / "b", b"two", 2))
    later.call(Call("journal.finish", {"run": RUN, "outcome": "done"}))
    shown = later.call(Call("history.show", {"run": RUN})).result
    assert (shown["outcome"], shown["meta"]["who"], len(shown["log"])) == ("done", "ann", 2)
    with pytest.raises(RemoteError, match="has ended: done"):
        later.call(Call("journal.begin", {"run": RUN, "meta": {}, "resume": True}))
