"""The agent's file calls on real folders: what is applied, refused and taken back."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.agent.core import undo_record
from opsctl.agent.files import changes, look, safepath
from opsctl.wire.protocol import AgentError, Context


class Step(Context):
    """One journal step: a folder for what is kept, and a body."""

    def __init__(self, blobs: Path, body: bytes = b"") -> None:
        self.blobs = str(blobs)
        self.body = body


def snapshot(top: Path) -> dict[str, Any]:
    """Everything a user could notice about a tree."""
    seen: dict[str, Any] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        info = path.lstat()
        what: Any = None
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            what = path.read_bytes()
        mode = None if path.is_symlink() else stat.S_IMODE(info.st_mode)
        seen[str(path.relative_to(top))] = (stat.S_IFMT(info.st_mode), mode, info.st_uid, info.st_gid, what)
    return seen


MODES = st.sampled_from([0o600, 0o644, 0o755, 0o4755, 0o400, 0o000])
TREE = st.dictionaries(
    st.sampled_from(["a", "b", "d/c", "d/e/f", "g"]),
    st.one_of(
        st.tuples(st.just("file"), st.binary(max_size=40), MODES),
        st.tuples(st.just("link"), st.sampled_from(["a", "nowhere", "/etc/hostname"]), st.none()),
    ),
    max_size=5,
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["a", "b", "d/c", "new"]), st.binary(max_size=40), MODES),
        st.tuples(st.just("attributes"), st.sampled_from(["a", "b", "d", "d/c"]), st.none(), MODES),
        st.tuples(st.just("mkdir"), st.sampled_from(["x/y/z", "x", "d/new"]), st.none(), MODES),
        st.tuples(st.just("link"), st.sampled_from(["a", "b", "current"]), st.just("d"), st.none()),
        st.tuples(st.just("remove"), st.sampled_from(["a", "b", "d", "d/e", "g", "x"]), st.none(), st.none()),
    ),
    max_size=6,
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREE, operations=OPERATIONS, again=st.booleans())
def test_undo_restores_every_byte_mode_link_and_owner(
    tmp_path_factory: pytest.TempPathFactory, tree: Any, operations: Any, again: bool
) -> None:
    base = tmp_path_factory.mktemp("undo")
    top = base / "host"
    top.mkdir()
    for name, (kind, content, mode) in tree.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_bytes(content)
            path.chmod(mode)
            if os.geteuid() == 0:
                os.chown(path, 12345, 54321)
        else:
            path.symlink_to(content)
    before = snapshot(top)
    undo = []
    for number, (name, path, content, mode) in enumerate(operations):
        step = base / f"step{number}"
        args: dict[str, Any] = {"path": str(top / path), "keep": "0"}
        if name == "link":
            args["target"] = content
        elif name != "remove":
            args["mode"] = mode
        undo.append((step, args["path"]))
        with contextlib.suppress(AgentError):  # where it is refused, its undo must find nothing to do
            changes.CALLS[name](Step(step, content if name == "write" else b""), **args)
    for step, path in reversed(undo):
        for _ in range(2 if again else 1):
            changes.restore(Step(step), path=path, keep="0")
    assert snapshot(top) == before


def test_a_write_refuses_what_changed_since_it_was_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("seen")
    seen = look.stat(Context(), str(path)).result
    path.write_text("theirs")
    with pytest.raises(AgentError, match="has changed since") as caught:
        changes.write(Step(tmp_path / "step", b"ours"), str(path), expect=seen, keep="0")
    assert caught.value.kind == "conflict"
    assert path.read_text() == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["f", "step"]


@pytest.mark.parametrize("undo_of", ["write", "link", "mkdir", "remove"])
def test_undo_leaves_a_third_partys_change_alone(tmp_path: Path, undo_of: str) -> None:
    step = Step(tmp_path / "step", b"ours")
    path = tmp_path / "host" / "thing"
    path.parent.mkdir()
    if undo_of == "write":
        changes.write(step, str(path), keep="0")
        path.write_text("theirs")
    elif undo_of == "link":
        changes.link(step, str(path), "ours", keep="0")
        path.unlink()
        path.symlink_to("theirs")
    elif undo_of == "mkdir":
        changes.mkdir(step, str(path), keep="0")
        (path / "theirs").write_text("")
    else:
        path.write_text("before")
        changes.remove(step, str(path), keep="0")
        path.write_text("theirs")
    theirs = snapshot(path.parent)
    with pytest.raises(AgentError) as caught:
        changes.restore(step, str(path), keep="0")
    assert caught.value.kind == "conflict"
    assert snapshot(path.parent) == theirs


def test_names_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)  # 254 bytes of 255
    changes.write(Step(tmp_path / "step", b"new"), str(path))
    assert path.read_bytes() == b"new"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AgentError) as caught:
        changes.write(Step(tmp_path / "step", b"new"), str(path))
    assert caught.value.kind == "no-space"
    assert str(path) in caught.value.message
    assert os.listdir(tmp_path) == ["f"]
    assert path.read_text() == "old"


def test_a_name_that_cannot_be_replaced_is_overwritten_and_said_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mounted"
    path.write_text("a longer text than before")
    inode = path.stat().st_ino
    step = Step(tmp_path / "step", b"new")
    replace = os.replace

    def busy(source: str, target: str, **folders: int) -> None:
        if target == path.name:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", busy)
    told = changes.write(step, str(path), keep="0")
    assert "overwritten" in told["warning"]
    assert (path.read_text(), path.stat().st_ino) == ("new", inode)
    changes.restore(step, str(path), keep="0")
    assert (path.read_text(), path.stat().st_ino) == ("a longer text than before", inode)


def test_across_file_systems_a_tree_is_copied_whole_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "host"
    (top / "tree" / "sub").mkdir(parents=True)
    (top / "tree" / "sub" / "f").write_bytes(b"\0weights")
    (top / "tree" / "sub").chmod(0o500)
    (top / "tree" / "l").symlink_to("sub/f")
    before = snapshot(top)
    step = Step(tmp_path / "other")
    replace = os.replace

    def apart(source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        if src_dir_fd != dst_dir_fd:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", apart)
    changes.remove(step, str(top / "tree"), keep="0")
    assert os.listdir(top) == []
    changes.restore(step, str(top / "tree"), keep="0")
    assert snapshot(top) == before


@pytest.mark.parametrize("path", ["/", "/usr", "~", "relative"])
def test_what_must_never_be_removed(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AgentError) as caught:
        changes.remove(Step(tmp_path / "step"), path, keep="0")
    assert caught.value.kind == "invalid"
    assert tmp_path.is_dir()


def test_extended_attributes_survive_a_replacement(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    try:
        os.setxattr(path, "user.origin", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    step = Step(tmp_path / "step", b"new")
    changes.write(step, str(path), keep="0")
    assert os.getxattr(path, "user.origin") == b"kept"
    os.setxattr(path, "user.origin", b"changed")
    changes.restore(step, str(path), keep="0")
    assert os.getxattr(path, "user.origin") == b"kept"


def test_what_a_crash_left_beside_the_file_goes_with_the_undo(tmp_path: Path) -> None:
    path = tmp_path / "host" / "f"
    path.parent.mkdir()
    step = Step(tmp_path / "step", b"new")
    kept = undo_record.place(step, "0")
    Path(changes.states.beside(safepath.Place(0, "f", str(path)), kept).path).write_text("half of it")
    changes.restore(step, str(path), keep="0")
    assert os.listdir(path.parent) == []


def test_a_damaged_before_image_is_never_put_back(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    step = Step(tmp_path / "step", b"new")
    changes.write(step, str(path), keep="0")
    Path(undo_record.place(step, "0")).write_text("rotten")
    with pytest.raises(AgentError, match="damaged"):
        changes.restore(step, str(path), keep="0")
    assert path.read_text() == "new"


def test_content_comes_with_the_state_only_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert look.stat(Context(), str(path), content=5).body == b"12345"
    assert look.stat(Context(), str(path), content=4).body == b""
    link = tmp_path / "l"
    link.symlink_to(path)
    assert look.stat(Context(), str(link), content=5).result["kind"] == "link"
    assert look.stat(Context(), str(link), content=5, follow=True).body == b"12345"


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal lies on another file system than the files."""
    replace, link = os.replace, os.link

    def other_disk(do: Any) -> Any:
        def done(source: Any, target: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None, **how: Any) -> Any:
            folders = [os.readlink(f"/proc/self/fd/{fd}") if fd is not None else "" for fd in (src_dir_fd, dst_dir_fd)]
            if len({"/step" in folder for folder in folders}) == 2:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            return do(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **how)

        return done

    monkeypatch.setattr(os, "replace", other_disk(replace))
    monkeypatch.setattr(os, "link", other_disk(link))


@pytest.mark.parametrize("change", ["write", "remove", "attributes"])
@pytest.mark.parametrize("disk", ["same", "other"])
def test_a_hard_link_is_one_again_or_is_said_not_to_be(
    tmp_path: Path, change: str, disk: str, request: pytest.FixtureRequest
) -> None:
    if disk == "other":
        request.getfixturevalue("apart")
    path, twin = tmp_path / "f", tmp_path / "twin"
    path.write_text("before")
    twin.hardlink_to(path)
    step = Step(tmp_path / "step", b"new")
    args: dict[str, Any] = {"mode": 0o600} if change == "attributes" else {}
    told = changes.CALLS[change](step, path=str(path), keep="0", **args)
    assert twin.read_text() == "before"
    changes.restore(step, str(path), "0")
    assert path.read_text() == "before"
    joined = path.samefile(twin)
    assert joined == (disk == "same" or change == "attributes")
    assert ("cannot make" in told.get("warning", "")) == (not joined)


def test_hard_links_within_a_tree_stay_so_across_file_systems(tmp_path: Path, apart: None) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a").write_text("x")
    (tree / "sub" / "b").hardlink_to(tree / "a")
    step = Step(tmp_path / "step")
    assert "warning" not in changes.remove(step, str(tree), keep="0")
    changes.restore(step, str(tree), "0")
    assert (tree / "a").samefile(tree / "sub" / "b")


CAPABILITY = bytes.fromhex("0100000200040000" + "00" * 12)  # cap_net_bind_service


@pytest.mark.parametrize("change", ["write", "remove", "attributes"])
@pytest.mark.parametrize("disk", ["same", "other"])
def test_file_capabilities_and_set_user_id_come_back(
    tmp_path: Path, change: str, disk: str, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "f"
    path.write_text("before")
    path.chmod(0o4755)
    try:
        os.setxattr(path, "security.capability", CAPABILITY)
    except OSError:
        pytest.skip("capabilities cannot be set here")
    if disk == "other":
        request.getfixturevalue("apart")
    step = Step(tmp_path / "step", b"new")
    args: dict[str, Any] = {"owner": "12345"} if change == "attributes" else {}
    changes.CALLS[change](step, path=str(path), keep="0", **args)
    changes.restore(step, str(path), "0")
    assert os.getxattr(path, "security.capability") == CAPABILITY
    assert (path.stat().st_mode & 0o7777, path.stat().st_uid) == (0o4755, os.geteuid())
