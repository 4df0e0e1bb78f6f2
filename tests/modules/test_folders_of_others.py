"""Root changes files in a folder of another user: nothing outside of it changes, nothing of root's becomes theirs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import rights, undo_record
from opsctl.agent.files import changes, look, safepath, states
from opsctl.agent.logs import logfiles, logtail
from opsctl.agent.source import interpreter
from opsctl.agent.stage import receive, stage
from opsctl.errors import OpsctlError, RemoteError
from opsctl.wire.chunking import key
from opsctl.wire.protocol import AgentError, Call, Context
from tests.modules.conftest import Play
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
    "write": lambda step, path: changes.write(step, path, mode=0o644, owner=str(OTHER), keep="0"),
    "attributes": lambda step, path: changes.attributes(step, path, mode=0o666, owner=str(OTHER), keep="0"),
    "mkdir": lambda step, path: changes.mkdir(step, path + "/new", mode=0o777, owner=str(OTHER), keep="0"),
    "link": lambda step, path: changes.link(step, path + ".link", "x", keep="0"),
    "remove": lambda step, path: changes.remove(step, path, keep="0"),
    "stat": lambda step, path: look.stat(step, path, follow=True, content=100),
    "tree": lambda step, path: look.tree(step, path),
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
    changes.write(step, str(ground / "theirs" / "f"), mode=0o644, owner=str(OTHER), keep="0")
    changes.restore(step, str(ground / "theirs" / "f"), "0")
    secret = (ground / "outside" / "secret").stat()
    assert (secret.st_uid, stat.S_IMODE(secret.st_mode)) == (0, 0o600)
    assert (ground / "outside" / "secret").read_bytes() == SECRET


def test_what_is_in_a_hard_link_to_another_file_is_neither_shown_nor_edited(ground: Path, play: Play) -> None:
    """Else a line in it, with an owner, would make them a copy of all of it."""
    os.link(ground / "outside" / "secret", ground / "theirs" / "conf")
    seen = look.stat(Context(), str(ground / "theirs" / "conf"), content=100)
    assert (seen.body, "content" in seen.result) == (b"", False)
    with pytest.raises(OpsctlError, match="may be a hard link"):
        play.run("line", path=str(ground / "theirs" / "conf"), line="a=1", owner=str(OTHER), mode="0644")
    assert (ground / "theirs" / "conf").read_bytes() == SECRET
    (ground / "theirs" / "own").write_text("b=2\n")
    os.chown(ground / "theirs" / "own", OTHER, OTHER)
    os.link(ground / "theirs" / "own", ground / "theirs" / "own2")
    play.run("line", path=str(ground / "theirs" / "own"), line="a=1")
    assert (ground / "theirs" / "own").read_text() == "b=2\na=1\n"


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
        changes.restore(step, str(folder / path), "0")
    assert snapshot(ground) == before


def test_what_lies_in_the_place_of_the_temporary_file_is_not_written_through(ground: Path, tmp_path: Path) -> None:
    step = Step(tmp_path / "step", b"ours")
    with safepath.place(str(ground / "theirs" / "f")) as at:
        plant(Path(states.beside(at, undo_record.place(step, "0")).path), ground / "outside" / "secret")
    changes.write(step, str(ground / "theirs" / "f"), mode=0o644, owner=str(OTHER), keep="0")
    assert os.listdir(ground / "theirs") == ["f"]
    assert (ground / "outside" / "secret").read_bytes() == SECRET
    assert (ground / "outside" / "secret").stat().st_uid == 0


def test_links_of_root_and_of_the_acting_user_are_followed(ground: Path, tmp_path: Path) -> None:
    (ground / "releases" / "1").mkdir(parents=True)
    (ground / "current").symlink_to("releases/1")
    changes.write(Step(tmp_path / "step", b"ours"), str(ground / "current" / "f"))
    assert (ground / "releases" / "1" / "f").read_bytes() == b"ours"
    assert look.stat(Context(), str(ground / "current"), follow=True).result["real"] == str(ground / "releases" / "1")
    (ground / "theirs" / "link").symlink_to(ground / "releases")  # root's, but its folder is another user's
    with pytest.raises(AgentError, match="others can change"):
        changes.write(Step(tmp_path / "step", b"ours"), str(ground / "theirs" / "link" / "f"))


def staged(root: Path, source: Path, step: Path) -> Any:
    """Stage a folder of this machine under `root`, as the module does."""
    where = {"root": str(root), "name": "draft"}
    told = stage.look(Context(), **where, source=str(source), follow_links=True).result["source"]
    where["key"] = key(told["stats"])
    sizes = {name: size for name, (size, _, _) in told["stats"].items()}
    partial = stage.prepare(Context(), **where, sizes=sizes)["partial"]
    stage.expect(Context(), **where, digest=told["digest"], files=told["files"])
    copies = [[f"{source}/{name}", 0, name, 0, size] for name, size in sizes.items()]
    stage.copy(Context(), **where, copies=copies)
    assert stat.S_IMODE(os.stat(partial).st_mode) == 0o700, "nobody looks in before it is verified"
    return stage.place(Step(step), **where, keep_as="0")


def test_a_release_is_not_staged_where_another_user_can_swap_names(ground: Path, tmp_path: Path) -> None:
    source = ground / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    release = Path(staged(ground / "theirs", source, tmp_path / "step")["release"])
    assert (release / "config.json").read_text() == "{}"
    assert stat.S_IMODE(release.stat().st_mode) == 0o755
    release.parent.rename(ground / "theirs" / "moved")
    for make in (lambda path: plant(path, ground / "outside"), Path.mkdir):
        make(ground / "theirs" / "draft")
        os.chown(ground / "theirs" / "draft", OTHER, OTHER, follow_symlinks=False)
        before = snapshot(ground / "outside")
        with pytest.raises(AgentError, match="nobody"):
            staged(ground / "theirs", source, tmp_path / "step")
        assert snapshot(ground / "outside") == before
        with pytest.raises(AgentError):
            receive.receive(Step(tmp_path / "step", b"x"), str(ground / "theirs" / "draft"), [["secret", 0, 1]])
        (ground / "theirs" / "draft").rename(ground / "theirs" / os.urandom(4).hex())


@pytest.mark.parametrize("open_to_all", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_release_does_not_publish_what_a_users_link_leads_to(
    ground: Path, tmp_path: Path, whole: bool, open_to_all: bool
) -> None:
    """Neither by a link in it nor by one in its place. That a file is open to all in a closed folder does not count."""
    (ground / "outside" / "secret").chmod(0o644 if open_to_all else 0o600)
    source = ground / "theirs" / "draft"
    if whole:
        plant(source, ground / "outside")
    else:
        source.mkdir()
        plant(source / "notes.txt", ground / "outside" / "secret")
    with pytest.raises(AgentError, match="Permission denied"):
        staged(ground / "releases", source, tmp_path / "step")
    assert not (ground / "releases").exists()


def closing_read(tail: logtail.Tail) -> bytes:
    with contextlib.closing(tail):
        return tail.read()


READERS: dict[str, Callable[[str], bytes]] = {
    "file": lambda path: look.read(Context(), path).body,
    "log": lambda path: b"".join(logfiles.blocks(path)),
    "last lines": lambda path: "".join(logtail.last_lines(path, 0, 9)).encode(),
    "tail": lambda path: closing_read(logtail.Tail(path, 0)),
    "digest": lambda path: {hashlib.sha256(SECRET).hexdigest(): SECRET}.get(states.sha256(path), b""),
}


@pytest.mark.parametrize("read", READERS)
def test_root_reads_by_a_users_link_only_what_that_user_may_read(ground: Path, read: str) -> None:
    """Else it stands in an error, in a bundle for a colleague, in a release."""
    (ground / "shared").write_bytes(SECRET)
    (ground / "outside" / "secret").chmod(0o644)
    plant(ground / "theirs" / "shared", ground / "shared")
    plant(ground / "theirs" / "secret", ground / "outside" / "secret")
    plant(ground / "theirs" / "folder", ground / "outside")
    (ground / "outside" / "secret.600").write_bytes(SECRET)
    (ground / "outside" / "secret.600").chmod(0o600)
    os.link(ground / "outside" / "secret.600", ground / "theirs" / "hard")
    assert READERS[read](str(ground / "theirs" / "shared")) == SECRET
    for name in ("secret", "folder/secret", "hard"):
        found = b""
        with contextlib.suppress(PermissionError, AgentError):
            found = READERS[read](str(ground / "theirs" / name))
        assert found == b"", name


@pytest.mark.parametrize("how", ["link", "hard", "folder", "pipe"])
def test_a_process_does_not_write_its_log_where_a_users_link_leads(ground: Path, play: Play, how: str) -> None:
    log = ground / "theirs" / "log"
    if how == "link":
        plant(log, ground / "outside" / "new")
    elif how == "hard":
        os.link(ground / "outside" / "secret", log)
    elif how == "folder":
        plant(ground / "theirs" / "d", ground / "outside")
        log = ground / "theirs" / "d" / "secret"
    else:
        os.mkfifo(log)
    before = snapshot(ground / "outside")
    with pytest.raises(RemoteError) as told:
        play.host.call(Call("process.start", {"name": "p", "argv": ["/bin/echo", "x"], "log": str(log)}))
    assert str(log).rpartition("/")[0] in str(told.value)
    assert snapshot(ground / "outside") == before


@pytest.mark.parametrize("whose", ["program", "above", "link", "imports"])
def test_root_does_not_run_an_interpreter_that_a_user_can_change(ground: Path, tmp_path: Path, whose: str) -> None:
    """Neither to ask it for its flags, which --check does, nor for a proof."""
    theirs, folder, place = ground / "theirs", ground / "venv", "/"
    if whose == "imports":
        (theirs / "json.py").write_text("import os\nloads = dumps = lambda *_: os.getuid()")
        python, place = Path(shutil.which("python3", path="/usr/bin") or sys.executable), str(theirs)
    else:
        folder = theirs / "venv" if whose == "above" else folder
        (folder / "bin").mkdir(parents=True)
        python = folder / "bin" / "python"
        python.write_text("#!/bin/sh\nid -u\n")
        python.chmod(0o755)
    if whose == "program":
        os.chown(python, OTHER, OTHER)
    elif whose == "link":
        plant(theirs / "python", python)
        python = theirs / "python"
    assert rights.of_program(str(python), place).uid == OTHER
    assert interpreter.answer(str(python), "import json; print(json.dumps(0))", place, dict(os.environ), 20) == OTHER
    theirs.chmod(0o777)
    os.chown(theirs, 0, 0)
    if whose in ("above", "imports"):  # all can change it: there is nobody whose rights it could get
        assert interpreter.answer(str(python), "print(0)", place, dict(os.environ), 20) is None
