"""Checkouts with real repositories: exact commits, nothing lost, everything put back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli.main import run
from opsctl.errors import Conflict, RemoteError
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import Play
from tests.modules.test_files import snapshot


def git(path: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *words], cwd=path, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(path: Path, **files: str | None) -> str:
    for name, content in files.items():
        target = path / name.replace("__", "/").replace("_py", ".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            target.unlink()
        else:
            target.write_text(content)
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "x")
    return git(path, "rev-parse", "HEAD")


class Project:
    """An upstream with three commits, and a checkout of the second on its branch."""

    def __init__(self, folder: Path) -> None:
        self.upstream = folder / "upstream"
        self.upstream.mkdir()
        git(self.upstream, "init", "-q", "-b", "main")
        git(self.upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
        self.first = commit(self.upstream, a_py="a = 1\n", b_py="b = 1\n", sub__c_py="c = 1\n")
        self.second = commit(self.upstream, a_py="a = 2\n", d_py="d = 2\n")
        self.clone = folder / "host" / "sglang"
        git(folder, "clone", "-q", str(self.upstream), str(self.clone))
        self.third = commit(self.upstream, a_py="a = 3\n", new_py="upstream's\n")
        git(self.upstream, "tag", "-a", "v3", "-m", "v3")

    def state(self) -> tuple[Any, ...]:
        """What a user notices: the files, what git says of them, where HEAD is."""
        files = {name: entry for name, entry in snapshot(self.clone).items() if not name.startswith(".git")}
        words = (["status", "--porcelain=v2", "--branch"], ["diff"], ["diff", "--cached"])
        return files, *(git(self.clone, *each) for each in words)


@pytest.fixture
def project(tmp_path: Path, play: Play) -> Project:
    return Project(tmp_path)


def test_a_short_id_goes_to_exactly_that_commit_and_back_to_the_branch(project: Project, play: Play) -> None:
    before = project.state()
    result = play.run("git", dest=str(project.clone), commit=project.first[:7])
    assert (result["before"], result["after"]) == (project.second, project.first)
    assert git(project.clone, "rev-parse", "HEAD") == project.first
    assert play.run("git", dest=str(project.clone), commit=project.first[:7])["changed"] is False
    play.rollback()
    assert project.state() == before
    play.rollback()
    assert project.state() == before


@pytest.mark.parametrize("how", ["ref", "tag", "commit"])
def test_what_is_not_here_yet_is_fetched_and_stays(project: Project, play: Play, how: str) -> None:
    wanted = {"ref": {"ref": "main"}, "tag": {"ref": "v3"}, "commit": {"commit": project.third[:8]}}[how]
    assert play.run("git", dest=str(project.clone), **wanted)["after"] == project.third
    assert play.run("git", dest=str(project.clone), **wanted)["changed"] is False
    tags = git(project.clone, "tag")
    play.rollback()
    assert git(project.clone, "rev-parse", "HEAD") == project.second
    assert git(project.clone, "cat-file", "-t", project.third) == "commit"
    assert git(project.clone, "tag") == tags == ("v3" if how == "commit" else "")  # a short id fetches all there is


def test_local_changes_of_every_kind_are_saved_and_come_back(project: Project, play: Play) -> None:
    clone = project.clone
    (clone / "a.py").write_text("a = 'mine'\n")
    (clone / "b.py").write_text("staged\n")
    git(clone, "add", "b.py")
    (clone / "b.py").write_text("staged, and changed again\n")
    git(clone, "mv", "sub/c.py", "sub/moved.py")
    (clone / "d.py").unlink()
    (clone / "added.py").write_text("added\n")
    git(clone, "add", "added.py")
    (clone / "new.py").write_text("mine, where upstream has one too\n")
    (clone / "notes").mkdir()
    (clone / "notes" / "with space ünd.txt").write_text("untracked\n")
    (clone / "link").symlink_to("a.py")
    (clone / "a.py").chmod(0o755)
    before = project.state()
    with pytest.raises(Conflict, match=r"local changes in a\.py, added\.py.*, which a checkout would touch"):
        play.run("git", dest=str(clone), ref="main")
    assert project.state() == before
    result = play.run("git", dest=str(clone), ref="main", keep_local_changes="save")
    assert git(clone, "rev-parse", "HEAD") == project.third
    assert (clone / "new.py").read_text() == "upstream's\n"
    assert (clone / "notes" / "with space ünd.txt").read_text() == "untracked\n"
    assert git(clone, "status", "--porcelain", "--untracked-files=no") == ""
    assert {"a.py", "b.py", "new.py"} <= set(result["saved"])
    assert git(clone, "for-each-ref", "refs/opsctl/saved")  # keeps what was staged
    patch = (play.steps[0][0] / "0.patch").read_text()
    assert "a = 'mine'" in patch
    assert "untracked" in patch
    play.rollback()
    assert project.state() == before
    assert git(clone, "show", ":b.py") == "staged"
    assert git(clone, "for-each-ref", "refs/opsctl/saved") == ""


@pytest.mark.parametrize("ignored", ["", "new.py\n"])
def test_an_untracked_file_in_the_way_is_not_overwritten(project: Project, play: Play, ignored: str) -> None:
    (project.clone / ".git/info/exclude").write_text(ignored)
    (project.clone / "new.py").write_text("mine\n")
    with pytest.raises(AgentError, match=r"does not track.*new\.py.*save") as caught:
        play.run("git", dest=str(project.clone), ref="main")
    assert caught.value.kind == "conflict"
    assert (project.clone / "new.py").read_text() == "mine\n"
    play.rollback()
    assert git(project.clone, "rev-parse", "HEAD") == project.second


def test_work_done_after_the_checkout_stops_the_undo(project: Project, play: Play) -> None:
    play.run("git", dest=str(project.clone), commit=project.first)
    (project.clone / "a.py").write_text("theirs\n")
    with pytest.raises(AgentError, match=r"has local changes since: a\.py"):
        play.rollback()
    assert (project.clone / "a.py").read_text() == "theirs\n"


@pytest.mark.parametrize("kind", ["folder", "mirror", "bundle", "shallow"])
def test_a_clone_from_any_source_and_its_undo(project: Project, play: Play, tmp_path: Path, kind: str) -> None:
    source = str(project.upstream)
    if kind == "mirror":
        source = str(tmp_path / "mirror.git")
        git(tmp_path, "clone", "-q", "--mirror", str(project.upstream), source)
    if kind == "bundle":
        source = str(tmp_path / "s.bundle")
        git(project.upstream, "bundle", "create", "-q", source, "--all")
    if kind == "shallow":
        source = f"file://{project.upstream}"
    dest = tmp_path / "host" / "fresh"
    how = {"repo": source, "dest": str(dest), "commit": project.first, **({"depth": 1} if kind == "shallow" else {})}
    play.run("git", **how)
    assert git(dest, "rev-parse", "HEAD") == project.first
    assert (dest / "a.py").read_text() == "a = 1\n"
    assert play.run("git", **how)["changed"] is False
    assert os.path.exists(dest / ".git" / "shallow") is (kind == "shallow")
    play.run("git", **{**how, "commit": project.second[:9]})
    assert git(dest, "rev-parse", "HEAD") == project.second
    play.rollback()
    assert not dest.exists()
    assert sorted(os.listdir(tmp_path / "host")) == ["sglang"]


def test_submodules_follow_the_commit_both_ways(project: Project, play: Play, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    commit(library, l_py="old\n")
    git(project.upstream, "submodule", "--quiet", "add", str(library), "lib")
    old = commit(project.upstream, z_py="1")
    commit(library, l_py="new\n")
    git(project.upstream / "lib", "pull", "-q")
    new = commit(project.upstream, z_py="2")
    play.run("git", dest=str(project.clone), commit=old, submodules=True)
    assert (project.clone / "lib" / "l.py").read_text() == "old\n"
    play.steps.clear()
    play.run("git", dest=str(project.clone), commit=new, submodules=True)
    assert (project.clone / "lib" / "l.py").read_text() == "new\n"
    play.rollback()
    assert (project.clone / "lib" / "l.py").read_text() == "old\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"ref": "no-such"}, "there is no branch or tag 'no-such'"),
        ({"commit": "ffffffff"}, "there is no commit ffffffff at"),
        ({"ref": "main", "repo": "/no/such/repo"}, "does not appear to be a git repository"),
    ],
)
def test_what_cannot_be_found_is_told(project: Project, play: Play, args: dict[str, Any], message: str) -> None:
    with pytest.raises((AgentError, RemoteError), match=message):
        play.run("git", dest=str(project.clone), **args)
    assert git(project.clone, "rev-parse", "HEAD") == project.second


def test_hooks_of_the_repository_are_not_run(project: Project, play: Play, tmp_path: Path) -> None:
    hook = project.clone / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hacked\n")
    hook.chmod(0o755)
    play.run("git", dest=str(project.clone), commit=project.first)
    assert not (tmp_path / "hacked").exists()


def test_what_git_was_told_not_to_look_at_is_not_lost(project: Project, play: Play) -> None:
    tree = project.clone
    git(tree, "update-index", "--skip-worktree", "a.py")
    git(tree, "update-index", "--assume-unchanged", "b.py")
    (tree / ".git/info/exclude").write_text("new.py\n")
    for name in ("a.py", "b.py", "new.py"):
        (tree / name).write_text("mine\n")
    before, flags = project.state(), git(tree, "ls-files", "-v")
    with pytest.raises(Conflict, match=r"a\.py, b\.py"):
        play.run("git", dest=str(tree), commit=project.third)
    assert project.state() == before
    done = play.run("git", dest=str(tree), commit=project.third, keep_local_changes="save")
    assert set(done["saved"]) == {"a.py", "b.py", "new.py"}
    assert [(tree / name).read_text() for name in ("a.py", "new.py")] == ["a = 3\n", "upstream's\n"]
    play.rollback()
    assert (project.state(), git(tree, "ls-files", "-v")) == (before, flags)


def test_files_and_folders_that_changed_places_come_back(project: Project, play: Play) -> None:
    tree, outside = project.clone, project.clone.parent / "outside"
    outside.mkdir()
    (outside / "c.py").write_text("not the checkout's\n")
    (tree / "sub/c.py").unlink()
    (tree / "sub").rmdir()
    (tree / "sub").symlink_to(outside)
    (tree / "a.py").unlink()
    (tree / "a.py").mkdir()
    (tree / "a.py/inside").write_text("untracked\n")
    before = project.state()
    play.run("git", dest=str(tree), commit=project.first, keep_local_changes="save")
    play.rollback()
    assert project.state() == before
    assert (outside / "c.py").read_text() == "not the checkout's\n"


def test_work_begun_after_going_back_by_hand_is_not_overwritten(project: Project, play: Play) -> None:
    (project.clone / "a.py").write_text("old work\n")
    play.run("git", dest=str(project.clone), commit=project.first, keep_local_changes="save")
    git(project.clone, "checkout", "-q", "main")
    (project.clone / "a.py").write_text("new work\n")
    with pytest.raises(AgentError, match=r"local changes since: a\.py"):
        play.rollback()
    assert (project.clone / "a.py").read_text() == "new work\n"


def test_a_checkout_that_died_half_way_is_taken_back(project: Project, play: Play) -> None:
    (project.clone / "b.py").write_text("local\n")
    before = project.state()
    play.run("git", dest=str(project.clone), commit=project.third, keep_local_changes="save")
    git(project.clone, "symbolic-ref", "HEAD", "refs/heads/main")  # HEAD is what git writes last
    play.rollback()
    assert project.state() == before


def test_a_checkout_without_a_commit_is_without_one_again(project: Project, play: Play, tmp_path: Path) -> None:
    empty = tmp_path / "host" / "empty"
    git(tmp_path, "init", "-q", str(empty))
    git(empty, "remote", "add", "origin", str(project.upstream))
    play.run("git", dest=str(empty), commit=project.first)
    assert (empty / "a.py").is_file()
    play.rollback()
    assert git(empty, "status", "--porcelain=v2", "--branch").startswith("# branch.oid (initial)")
    assert [path.name for path in empty.iterdir()] == [".git"]


def test_another_git_command_at_work_is_told(project: Project, play: Play) -> None:
    (project.clone / ".git/index.lock").touch()
    with pytest.raises(Conflict, match="another git command is under way") as error:
        play.run("git", dest=str(project.clone), commit=project.first)
    assert "index.lock" in (error.value.hint or "")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("state", ["edited", "staged", "merge", "rebase", "none"])
def test_what_somebody_has_begun_is_in_the_line_of_the_task(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str, there: bool
) -> None:
    """Whether the checkout is where it is to be, and so left as it is, or not, and so refused."""
    tree = project.clone
    wanted = project.second if there else project.first
    if state in ("merge", "rebase"):
        git(tree, "checkout", "-q", "-b", "theirs", project.first)
        commit(tree, a_py="a = 'theirs'\n")
        git(tree, "checkout", "-q", "--detach", project.second)
        with pytest.raises(subprocess.CalledProcessError):
            git(tree, *(["merge", "theirs"] if state == "merge" else ["rebase", "--onto", "HEAD", "HEAD", "theirs"]))
    elif state != "none":
        (tree / "b.py").write_text("mine\n")
        git(tree, "add", *(["b.py"] if state == "staged" else ["--refresh", "b.py"]))
    told = {
        "merge": "a merge is under way, unresolved conflicts in a.py",
        "rebase": "a rebase is under way, unresolved conflicts in a.py",
        "none": "",
    }.get(state, "local changes in b.py")
    (tmp_path / "inventory.yaml").write_text("hosts:\n  here:\n    connection: local\n")
    play = f"- name: p\n  hosts: all\n  tasks:\n    - name: source\n      git: {{dest: {tree}, commit: '{wanted}'}}\n"
    (tmp_path / "play.yaml").write_text(play)
    code = run(["run", str(tmp_path / "play.yaml"), "-i", str(tmp_path / "inventory.yaml")])
    out = "".join(capsys.readouterr())
    word = "ok" if there else "changed" if state == "none" else "FAILED"
    (line,) = (line for line in out.splitlines() if line.startswith(f"here: {word}: source"))
    assert told in line
    assert ("under way" in line) == (state in ("merge", "rebase"))
    assert (code == 0) == (word != "FAILED")


def test_an_address_that_is_a_command_is_not_run(project: Project, play: Play, tmp_path: Path) -> None:
    git(project.clone, "config", "protocol.ext.allow", "always")
    git(project.clone, "config", f"url.ext::touch {tmp_path}/hacked .insteadOf", str(project.upstream))
    with pytest.raises(AgentError, match="fetch from"):
        play.run("git", dest=str(project.clone), commit=project.third)
    assert not (tmp_path / "hacked").exists()
