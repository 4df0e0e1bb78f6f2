"""What check mode says of a change is what becomes of it: rights, parents, room, and what cannot be copied."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl import modules
from opsctl.agent.files import changes, look
from opsctl.errors import Exit, RemoteError, UsageError
from opsctl.modules.contract import Module
from opsctl.wire.protocol import AgentError, Context, Reply
from tests.engine.world import Project
from tests.modules.conftest import site
from tests.modules.test_files import Step

OTHER = 65534
APT = {
    "absent": ("write", "mkdir", "link"),
    "file": ("write", "attributes", "remove", "own"),
    "dir": ("attributes", "remove", "own"),
}
CHANGES = ("write", "attributes", "mkdir", "link", "remove", "own")


@pytest.fixture
def ground() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    for folder, mode in (("mine", 0o755), ("open", 0o777), ("sticky", 0o1777)):
        (top / folder).mkdir()
        (top / folder).chmod(mode)
        (top / folder / "f").write_text("before")
        (top / folder / "g").write_text("before")
        (top / folder / "g").chmod(0o666)
        (top / folder / "d").mkdir()
    yield top
    shutil.rmtree(top)


def try_all(top: Path, place: str, step: Path) -> dict[str, list[bool]]:
    """For each change: whether it was foretold to fail, and whether it did. Each is taken back."""
    found = {}
    for change in CHANGES:
        path = str(top / place)
        owner = "3" if change == "own" else None
        call = "attributes" if change == "own" else change
        seen = look.stat(Context(), path, owner=owner).result
        if change not in APT[seen["kind"]]:
            continue
        args: dict[str, Any] = {"path": path, "keep": "0"}
        if call == "link":
            args["target"] = "x"
        if call == "attributes":
            args.update({"mode": 0o700} if change == "attributes" else {"owner": owner})
        kept = Step(step / change, b"new")
        try:
            changes.CALLS[call](kept, **args)
            failed = False
            changes.restore(kept, path, "0")
        except AgentError:
            failed = True
        found[change] = [bool({call, "owner"} & set(seen["barred"])), failed]
    return found


def as_other(do: Callable[[], Any]) -> Any:
    """What a function gives that another user calls, as JSON."""
    if os.geteuid():
        return do()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.write(write, json.dumps(do()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as stream:
        return json.load(stream)


PLACES = [f"{folder}/{name}" for folder in ("mine", "open", "sticky") for name in ("f", "g", "d", "none", "none/x")]


@pytest.mark.parametrize("place", [*PLACES, "mine/f/below"])
@pytest.mark.parametrize("who", ["us", "other"])
def test_what_is_foretold_to_fail_fails_and_nothing_else(ground: Path, place: str, who: str) -> None:
    step = ground / "step"
    step.mkdir(mode=0o777)
    step.chmod(0o777)
    found = as_other(lambda: try_all(ground, place, step)) if who == "other" else try_all(ground, place, step)
    assert found
    assert {change: foretold for change, (foretold, _) in found.items()} == {
        change: failed for change, (_, failed) in found.items()
    }


def test_a_file_system_that_is_read_only_is_told(ground: Path, tmp_path: Path) -> None:
    if os.geteuid() or subprocess.run(["mount", "--bind", ground, ground], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", ground], check=True)
        for place in ("mine/f", "mine/none"):
            found = try_all(ground, place, tmp_path)
            assert all(pair == [True, True] for pair in found.values()), found
    finally:
        subprocess.run(["umount", "-l", ground], check=True)


def test_what_cannot_be_written_fails_in_check_mode_with_the_reason(tmp_path: Path) -> None:
    module = modules.get("copy")
    assert isinstance(module, Module)
    args = module.args.model_validate({"content": "x", "dest": str(tmp_path / "none" / "f")})
    seen = [look.stat(Context(), **call.args) for call in module.observe(args, site())]
    with pytest.raises(RemoteError, match=r"the folder .*/none does not exist"):
        module.plan(args, seen, site())
    full = Reply(dict(look.stat(Context(), str(tmp_path / "f")).result, free=0))
    args = module.args.model_validate({"content": "x", "dest": str(tmp_path / "f")})
    with pytest.raises(RemoteError, match="there is room for 0 B") as caught:
        module.plan(args, [full], site())
    assert caught.value.kind == "no-space"


def odd_folder(top: Path) -> Path:
    """A local folder with one of each that cannot be copied."""
    source = top / "tree"
    (source / "sub").mkdir(parents=True)
    (source / "good").write_text("x")
    (source / "dangling").symlink_to("nowhere")
    (source / "sub" / "loop").symlink_to("..")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "sock"))
    return source


def test_all_of_a_folder_that_cannot_be_copied_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    source = odd_folder(tmp_path)
    copy = modules.get("copy")
    assert isinstance(copy, Module)
    args = copy.args.model_validate({"src": "tree", "dest": "/x"})
    with pytest.raises(UsageError) as caught:
        copy.observe(args, site(project=tmp_path))
    for told in (
        "dangling: a link to nothing (nowhere)",
        "fifo: it is a pipe",
        "sock: it is a socket",
        "loop: a link to a folder",
    ):
        assert told in caught.value.message
    for name in ("fifo", "sock"):
        (source / name).unlink()
    args = copy.args.model_validate({"src": "tree", "dest": str(tmp_path / "to"), "local_follow": False})
    here = site(project=tmp_path)
    seen = [Reply(look.tree(Context(), **call.args)) for call in copy.observe(args, here)]
    change = copy.plan(args, seen, here)
    assert change is not None
    for call in change.calls:
        changes.CALLS[call.name.partition(".")[2]](Step(tmp_path / "step", call.body), **call.args)
    assert os.readlink(tmp_path / "to" / "dangling") == "nowhere"
    assert os.readlink(tmp_path / "to" / "sub" / "loop") == ".."
    seen = [Reply(look.tree(Context(), **call.args)) for call in copy.observe(args, here)]
    assert copy.plan(args, seen, here) is None


def test_check_mode_fails_where_the_run_does_and_not_where_an_earlier_task_makes_the_folder(tmp_path: Path) -> None:
    project = Project(tmp_path)
    missing = "hosts: here\ntasks:\n- {name: lost, copy: {content: x, dest: OUT/none/f}}\n"
    assert project.run(missing, check=True).code == project.run(missing).code == Exit.FAILED
    made = "hosts: here\ntasks:\n- {name: folder, file: {path: OUT/made/here, state: directory}}\n"
    made += "- {name: inside, copy: {content: x, dest: OUT/made/here/f}}\n"
    made += "- {name: lost, copy: {content: x, dest: OUT/made/none/f}}\n"
    assert project.run(made, check=True).statuses() == {"folder": "changed", "inside": "changed", "lost": "unknown"}


def test_a_task_says_that_it_took_a_hard_link_apart(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.out / "f").write_text("before")
    (project.out / "twin").hardlink_to(project.out / "f")
    ran = project.run("hosts: here\ntasks:\n- {name: write, copy: {content: x, dest: OUT/f}}\n")
    assert "was one of 2 hard links" in ran.lines("write")[0]
