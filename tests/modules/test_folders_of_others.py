"""Root changes files in a folder of another user: nothing outside of it changes, nothing of root's becomes theirs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import filelook, files, filestate, keep, safepath
from opsctl.agent.protocol import AgentError, Context
from tests.modules.test_files import Step, snapshot

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")

OTHER = 65534
SECRET = b"root's own"


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder that every user can reach: `theirs` belongs to another one, `outside` is root's alone."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    (top / "outside" / "sub").mkdir(parents=True, mode=0o700)
    (top / "outside" / "secret").write_bytes(SECRET)
    for path, mode in (("outside", 0o700), ("outside/secret", 0o600), ("outside/sub", 0o700)):
        (top / path).chmod(mode)
    (top / "theirs").mkdir()
    os.chown(top / "theirs", OTHER, OTHER)
    yield top
    shutil.rmtree(top)


def plant(path: Path, target: Path) -> None:
    path.symlink_to(target)
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


CHANGES: dict[str, Callable[[Context, str], Any]] = {
    "write": lambda step, path: files.write(step, path, mode=0o644, owner=str(OTHER), keep="0"),
    "attributes": lambda step, path: files.attributes(step, path, mode=0o666, owner=str(OTHER), keep="0"),
    "mkdir": lambda step, path: files.mkdir(step, path + "/new", mode=0o777, owner=str(OTHER), keep="0"),
    "link": lambda step, path: files.link(step, path + ".link", "x", keep="0"),
    "remove": lambda step, path: files.remove(step, path, keep="0"),
    "stat": lambda step, path: filelook.stat(step, path, follow=True, content=100),
    "tree": lambda step, path: filelook.tree(step, path),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["secret", "sub", "none"])
def test_a_link_that_another_user_planted_on_the_way_is_refused_with_its_owner(
    ground: Path, tmp_path: Path, change: str, name: str
) -> None:
    plant(ground / "theirs" / "d", ground / "outside")
    before = snapshot(ground)
    with pytest.raises(AgentError) as caught:
        CHANGES[change](Step(tmp_path / "step", b"ours"), str(ground / "theirs" / "d" / name))
    assert caught.value.kind == "permission"
    assert "nobody" in caught.value.message
    assert str(ground / "theirs" / "d") in caught.value.message
    assert snapshot(ground) == before


@pytest.mark.parametrize("change", ["write", "attributes", "mkdir", "stat"])
def test_a_link_in_the_place_of_the_file_itself_is_not_followed(ground: Path, tmp_path: Path, change: str) -> None:
    plant(ground / "theirs" / "f", ground / "outside" / "secret")
    before = snapshot(ground)
    with pytest.raises(AgentError):
        CHANGES[change](Step(tmp_path / "step", b"ours"), str(ground / "theirs" / "f"))
    assert snapshot(ground) == before


def test_a_hard_link_that_may_be_another_file_is_not_changed(ground: Path, tmp_path: Path) -> None:
    os.link(ground / "outside" / "secret", ground / "theirs" / "f")
    with pytest.raises(AgentError, match="hard links"):
        CHANGES["attributes"](Step(tmp_path / "step"), str(ground / "theirs" / "f"))
    step = Step(tmp_path / "step", b"ours")
    files.write(step, str(ground / "theirs" / "f"), mode=0o644, owner=str(OTHER), keep="0")
    files.restore(step, str(ground / "theirs" / "f"), "0")
    secret = (ground / "outside" / "secret").stat()
    assert (secret.st_uid, stat.S_IMODE(secret.st_mode)) == (0, 0o600)
    assert (ground / "outside" / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("undo_of", ["write", "attributes", "mkdir", "link", "remove"])
def test_an_undo_follows_no_link_that_was_planted_meanwhile(ground: Path, tmp_path: Path, undo_of: str) -> None:
    folder = ground / "theirs" / "d"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    if undo_of != "mkdir":
        (folder / "secret").write_bytes(b"before")
    step = Step(tmp_path / "step", b"ours")
    CHANGES[undo_of](step, str(folder / "secret"))
    folder.rename(ground / "theirs" / "moved")
    plant(folder, ground / "outside")
    before = snapshot(ground)
    path = {"mkdir": "secret/new", "link": "secret.link"}.get(undo_of, "secret")
    with pytest.raises(AgentError, match="symbolic link of the user"):
        files.restore(step, str(folder / path), "0")
    assert snapshot(ground) == before


def test_what_lies_in_the_place_of_the_temporary_file_is_not_written_through(ground: Path, tmp_path: Path) -> None:
    step = Step(tmp_path / "step", b"ours")
    with safepath.place(str(ground / "theirs" / "f")) as at:
        plant(Path(filestate.beside(at, keep.place(step, "0")).path), ground / "outside" / "secret")
    files.write(step, str(ground / "theirs" / "f"), mode=0o644, owner=str(OTHER), keep="0")
    assert os.listdir(ground / "theirs") == ["f"]
    assert (ground / "outside" / "secret").read_bytes() == SECRET
    assert (ground / "outside" / "secret").stat().st_uid == 0


def test_links_of_root_and_of_the_acting_user_are_followed(ground: Path, tmp_path: Path) -> None:
    (ground / "releases" / "1").mkdir(parents=True)
    (ground / "current").symlink_to("releases/1")
    files.write(Step(tmp_path / "step", b"ours"), str(ground / "current" / "f"))
    assert (ground / "releases" / "1" / "f").read_bytes() == b"ours"
    assert filelook.stat(Context(), str(ground / "current"), follow=True).result["real"] == str(
        ground / "releases" / "1"
    )
    (ground / "theirs" / "link").symlink_to(ground / "releases")  # root's, but its folder is another user's
    with pytest.raises(AgentError, match="others can change"):
        files.write(Step(tmp_path / "step", b"ours"), str(ground / "theirs" / "link" / "f"))


ROUNDS = 10


def attack(theirs: str, secret: str, outside: str) -> None:
    """Put links to root's file in the place of all that appears, and swap a folder with a link to root's, for ever."""
    os.setgroups([])
    os.setgid(OTHER)
    os.setuid(OTHER)
    os.chdir(theirs)
    os.mkdir("d")
    while True:
        for folder in (".", "d"):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if ".opsctl-" in name:
                        os.rename(f"{folder}/{name}", f"{folder}/stolen")
                        os.symlink(secret, f"{folder}/{name}")
        with contextlib.suppress(OSError):
            os.rename("d", "e")
            os.symlink(outside, "d")
            os.unlink("d")
            os.rename("e", "d")


def test_whoever_swaps_names_in_their_folder_while_root_copies_into_it_wins_nothing(
    ground: Path, tmp_path: Path
) -> None:
    theirs, outside = ground / "theirs", ground / "outside"
    child = os.fork()
    if not child:
        try:
            attack(str(theirs), str(outside / "secret"), str(outside))
        finally:
            os._exit(1)
    before = snapshot(outside)
    try:
        for number in range(ROUNDS):
            for folder in (theirs, theirs / "d"):
                step = Step(tmp_path / f"{folder.name}{number}", SECRET)
                path = str(folder / f"f{number % 5}")
                made = path + "-new/a"
                for call, args, kept in (
                    (files.write, {"path": path, "mode": 0o600, "owner": "0"}, "0"),
                    (files.attributes, {"path": path, "mode": 0o640}, "1"),
                    (files.mkdir, {"path": made}, "2"),
                    (files.restore, {"path": made}, "2"),
                    (files.restore, {"path": path}, "1"),
                    (files.remove, {"path": path}, "3"),
                    (files.restore, {"path": path}, "3"),
                ):
                    with contextlib.suppress(AgentError):
                        call(step, keep=kept, **args)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert snapshot(outside) == before
    for found in theirs.rglob("*"):
        info = found.lstat()
        if stat.S_ISREG(info.st_mode) and found.read_bytes() == SECRET:
            assert (info.st_uid, info.st_mode & 0o007) == (0, 0)
