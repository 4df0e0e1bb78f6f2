"""Git in a checkout that somebody else owns: what is planted there never runs with root's rights."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.agent.core import rights, users
from opsctl.agent.git import ownership
from opsctl.agent.gpu import active
from opsctl.agent.logs.collect import bundle
from opsctl.agent.source import interpreter, patching, patchlook, source
from opsctl.sglang.logs.log_parts import Server, parts
from opsctl.sglang.patches import patchset
from opsctl.sglang.patches.patching import making
from opsctl.sglang.source.tree import DRAFTER, load
from opsctl.this_machine import call as here
from opsctl.wire.protocol import AgentError, Call, Context
from tests.logs.test_collect import Wire
from tests.modules.conftest import InProcess, Play
from tests.modules.test_files import Step
from tests.modules.test_git import Project, git
from tests.sglang_source.releases import checkout as checkout_of

OTHER, ANOTHER = 65534, 65533
PYTHON = "/usr/bin/python3"  # root's, and every user can run it
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a checkout to another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody reaches: those of pytest are ours alone."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def project(open_folder: Path, play: Play) -> Project:
    (open_folder / "host").mkdir()
    return Project(open_folder)


def noted(folder: Path) -> Path:
    """A file in which everybody can note which user ran something."""
    path = folder / "ran"
    path.touch()
    path.chmod(0o666)
    return path


def give(path: Path, uid: int) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)


class Traps:
    """Programs in a checkout that note which user ran them, one for each way by which git may be told to run one."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "ran"
        self.notes.mkdir()
        self.notes.chmod(0o777)
        self.program = folder / "trap"
        self.program.write_text(f"#!/bin/sh\nid -u > {self.notes}/$1.$$\nenv > {self.notes}/env.$$\ncat\n")
        self.program.chmod(0o755)

    def set(self, tree: Path) -> None:
        def run(name: str) -> str:
            return f"{self.program} {name}"

        settings = {
            "core.fsmonitor": run("fsmonitor"), "core.sshCommand": run("ssh"), "core.gitProxy": run("proxy"),
            "core.pager": run("pager"), "core.editor": run("editor"), "core.askPass": run("askpass"),
            "filter.x.clean": run("clean"), "filter.x.smudge": run("smudge"), "diff.x.textconv": run("textconv"),
            "diff.x.command": run("extdiff"), "diff.external": run("external"), "merge.x.driver": run("merge"),
            "credential.helper": f"!{run('credential')}", "core.hooksPath": str(tree / ".git/hooks"),
            "core.alternateRefsCommand": run("alternates"), "gpg.program": run("gpg"), "log.showSignature": "true",
            "remote.origin.uploadpack": run("uploadpack"), "uploadpack.packObjectsHook": run("pack"),
            "submodule.recurse": "true", "alias.status": f"!{run('alias')}",
        }  # fmt: skip
        for name, value in settings.items():
            git(tree, "config", name, value)
        git(tree, "config", "extensions.worktreeConfig", "true")
        lines = f'[filter "y"]\n\tclean = {run("worktree-clean")}\n[core]\n\tfsmonitor = {run("worktree-fsmonitor")}\n'
        (tree / ".git/config.worktree").write_text(lines)
        (tree / ".git/info/attributes").write_text("a.py filter=y\n*.py filter=x diff=x merge=x\n")
        for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "fsmonitor-watchman"):
            path = tree / ".git/hooks" / hook
            path.write_text(f"#!/bin/sh\n{run('hook')}\n")
            path.chmod(0o755)

    def users(self) -> set[str]:
        return {path.read_text().strip() for path in self.notes.iterdir() if not path.name.startswith("env.")}

    def environments(self) -> list[dict[str, str]]:
        notes = (path.read_text().splitlines() for path in self.notes.glob("env.*"))
        return [dict(line.split("=", 1) for line in lines if "=" in line) for lines in notes]


def test_root_runs_nothing_that_another_users_checkout_names(
    project: Project, play: Play, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at (which is all that --check does), read as source, collected, checked out, put back: as its owner."""
    for name, value in (
        ("ROOTS_TOKEN", "t"),
        ("https_proxy", "http://u:p@127.0.0.1"),
        ("http_proxy", "http://127.0.0.1"),
    ):
        monkeypatch.setenv(name, value)
    traps, tree = Traps(open_folder), project.clone
    (tree / "b.py").write_text("local\n")
    (tree / "python/sglang/srt/models").mkdir(parents=True)
    (tree / "python/sglang/srt/models/m.py").write_text("class M: pass\n")
    git(tree, "add", "python")
    git(tree, "config", "core.fsmonitor", "false")
    traps.set(tree)
    give(project.upstream, OTHER)
    give(tree, OTHER)
    before = (tree / "b.py").read_text()

    play.host.call(Call("git.look", {"path": str(tree), "ref": "main"}))
    told = play.host.call(Call("source.gather", {"root": str(tree), "files": []})).result
    assert (told["commit"], told["git_refused"]) == (project.second, None)
    assert "b.py" in told["dirty"]
    play.host.call(Call("servers.find", {"locate": True}))
    wire = Wire()
    bundle(wire, [part for part in parts(Server(source=str(tree)), 0.0) if part["name"].startswith("source-")])
    assert b"+local\n" in wire.files["source-changes.diff"]
    play.run("git", dest=str(tree), commit=project.first, keep_local_changes="save")
    assert (tree / "a.py").stat().st_uid == OTHER
    play.rollback()

    assert (tree / "b.py").read_text() == before
    assert (tree / "b.py").stat().st_uid == OTHER
    assert traps.users() == {str(OTHER)}  # some did run, so the traps are real
    for around in traps.environments():
        assert around["HOME"] == pwd.getpwuid(OTHER).pw_dir
        assert around["http_proxy"] == "http://127.0.0.1"
        assert not {"ROOTS_TOKEN", "https_proxy", "SSH_AUTH_SOCK", "VIRTUAL_ENV"} & set(around)


def test_the_trapped_worktree_setting_does_not_lead_root_out_of_the_checkout(
    project: Project, play: Play, open_folder: Path
) -> None:
    """core.worktree names root's folder: git gets no further there than its owner does."""
    mine = open_folder / "mine"
    mine.mkdir(mode=0o755)
    (mine / "a.py").write_text("root's\n")
    git(project.clone, "config", "core.worktree", str(mine))
    give(project.clone, OTHER)
    with pytest.raises(AgentError):
        play.run("git", dest=str(project.clone), commit=project.first, keep_local_changes="save")
    assert (mine / "a.py").read_text() == "root's\n"
    assert sorted(path.name for path in mine.iterdir()) == ["a.py"]


def test_what_is_put_back_does_not_follow_their_links(project: Project, play: Play, open_folder: Path) -> None:
    """A link in the place of the index, or of a folder, between the change and its undo."""
    tree, roots = project.clone, open_folder / "roots"
    roots.mkdir(mode=0o755)
    (roots / "index").write_text("root's\n")
    (tree / "sub/c.py").write_text("local\n")
    give(tree, OTHER)
    play.run("git", dest=str(tree), commit=project.first, keep_local_changes="save")
    (tree / ".git/index").unlink()
    (tree / ".git/index").symlink_to(roots / "index")
    shutil.rmtree(tree / "sub")
    (tree / "sub").symlink_to(roots)
    with pytest.raises(AgentError):
        play.rollback()
    assert (roots / "index").read_text() == "root's\n"
    assert [path.name for path in roots.iterdir()] == ["index"]


@pytest.mark.parametrize(
    "part", ["", ".git", ".git/config", "gitdir", "commondir", "mode", "parent", "link", "inner", "empty"]
)
def test_root_runs_git_only_in_what_is_roots_alone(project: Project, play: Play, open_folder: Path, part: str) -> None:
    """Of several owners, or root's where others can change or replace it: refused, naming path and owner."""
    tree, named = project.clone, str(OTHER)
    if part in ("gitdir", "commondir"):
        linked = open_folder / "host/linked"
        git(tree, "worktree", "add", "-q", str(linked))
        if part == "gitdir":
            give(tree / ".git/worktrees/linked", OTHER)
        else:
            os.chown(tree / ".git", OTHER, OTHER)
        tree = linked
    elif part == "mode":
        (tree / ".git/config").chmod(0o666)
        named = "mode 0666"
    elif part == "parent":
        (open_folder / "host").chmod(0o777)
        named = "mode 0777"
    elif part == "link":
        (open_folder / "theirs").mkdir()
        (open_folder / "theirs/link").symlink_to(tree)
        os.chown(open_folder / "theirs", OTHER, OTHER)
        tree = open_folder / "theirs/link"
    elif part == "inner":
        git(tree, "clone", "-q", str(project.upstream), "inner")
        git(tree, "add", "inner")
        give(tree / "inner", OTHER)
    elif part == "empty":
        git(tree, "update-index", "--add", "--cacheinfo", f"160000,{project.first},inner")
        (tree / "inner").mkdir()
        os.chown(tree / "inner", OTHER, OTHER)
    else:
        os.chown(tree / part, OTHER, OTHER)
    named = named if named != str(OTHER) else "nobody"
    with pytest.raises(Exception, match=named) as told:
        play.host.call(Call("git.look", {"path": str(tree)}))
    assert getattr(told.value, "kind", "") == "permission"
    assert str(open_folder) in str(told.value)


def test_a_bundle_runs_nothing_in_a_submodule_of_somebody_else(project: Project, open_folder: Path) -> None:
    """Git looks into the submodules of root's checkout, too, whoever they belong to; nor is their venv root's."""
    traps, tree = Traps(open_folder), project.clone
    git(tree, "clone", "-q", str(project.upstream), "inner")
    git(tree, "add", "inner")
    git(tree, "commit", "-qm", "inner")
    (tree / "a.py").write_text("local\n")
    git(tree / "inner", "config", "core.fsmonitor", "false")
    traps.set(tree / "inner")
    (tree / "inner/a.py").write_text("local\n")
    python = tree / "inner/python"
    python.symlink_to(traps.program)
    give(tree / "inner", OTHER)
    wire = Wire()
    server = Server(source=str(tree), python=str(python))
    bundle(wire, [part for part in parts(server, 0.0) if part["name"].startswith(("source-", "packages"))])
    assert b"+local\n" in wire.files["source-changes.diff"]
    assert traps.users() == {str(OTHER)}  # the interpreter


def test_a_folder_that_all_may_write_is_fine_where_it_is_sticky(
    project: Project, play: Play, open_folder: Path
) -> None:
    (open_folder / "host").chmod(0o1777)
    assert play.host.call(Call("git.look", {"path": str(project.clone)})).result["head"] == project.second


def test_root_does_not_fetch_from_a_folder_of_somebody_else(project: Project, play: Play, open_folder: Path) -> None:
    """git runs in the folder that it fetches from, too."""
    give(project.upstream, OTHER)
    for how in ({"dest": str(project.clone)}, {"dest": str(open_folder / "host/new"), "repo": str(project.upstream)}):
        with pytest.raises(Exception, match=r"upstream belongs to nobody: root does not fetch from there"):
            play.run("git", ref="main", **how)


def test_a_clone_belongs_to_the_owner_of_the_folder_it_is_made_in(
    project: Project, play: Play, open_folder: Path
) -> None:
    theirs = open_folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    give(project.upstream, OTHER)
    play.run("git", repo=str(project.upstream), dest=str(theirs / "new"), ref="main")
    assert {path.lstat().st_uid for path in (theirs / "new").rglob("*")} == {OTHER}
    play.rollback()
    assert list(theirs.iterdir()) == []


def test_who_is_not_root_is_refused_in_a_checkout_of_somebody_else(project: Project) -> None:
    """They would run what its configuration names as themselves; root's they may read, root can do all of it anyway."""
    give(project.clone, ANOTHER)
    told = _as_other(lambda: ownership.owner(str(project.clone)))
    assert "belongs to uid 65533, and we are nobody" in told
    give(project.clone, 0)
    assert _as_other(lambda: ownership.command(str(project.clone), ["status"])) == "fine"


def test_who_touches_files_as_another_user_has_none_of_roots_groups(open_folder: Path) -> None:
    """/etc/sudoers is such a file: of root's group, and readable by it."""
    roots = open_folder / "roots"
    roots.write_text("root's\n")
    roots.chmod(0o640)

    def read() -> None:
        os.setgroups([0])
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(os.getgroups).result() == [0]  # its thread is there before we act
            with users.acting(users.user(OTHER, OTHER)):
                with pytest.raises(PermissionError):
                    roots.read_text()
                assert pool.submit(roots.read_text).result()
        assert os.getgroups() == [0]
        assert roots.read_text()

    assert _in_child(read) == "fine"


@pytest.mark.parametrize("who", [OTHER, ANOTHER], ids=["known", "unknown"])
def test_a_program_of_another_user_has_their_rights_and_groups_and_no_way_back(who: int) -> None:
    user = users.user(who, who)
    argv = [*rights.words(user), "cat", "/proc/self/status"]
    done = subprocess.run(argv, env=rights.environment(user), capture_output=True, text=True, check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines())
    assert [status[name].split() for name in ("Uid", "Gid")] == [[str(user.uid)] * 4, [str(user.gid)] * 4]
    assert status["Groups"].split() == [str(group) for group in user.groups]
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff")} == {0}
    assert not int(status["SigIgn"], 16) & (1 << (signal.SIGPIPE - 1))
    assert status["NoNewPrivs"] == "1"


def _as_other(ask: Callable[[], object]) -> str:
    """What a child says that has become another user."""

    def become() -> None:
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        ask()

    return _in_child(become)


def _in_child(ask: Callable[[], object]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ask()
            said = "fine"
        except AgentError as error:
            said = error.message
        except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not go on with the tests
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("whose", ["interpreter", "link", "code", "above"])
def test_a_proof_runs_with_the_rights_of_whoever_its_interpreter_or_code_belongs_to(
    open_folder: Path, whose: str
) -> None:
    python, code = open_folder / "venv/bin/python", open_folder / "up/tree/llama.py"
    for path in (python, code):
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\nid -u\n")
        path.chmod(0o755)
    if whose == "link":
        (open_folder / "theirs").mkdir()
        (open_folder / "theirs/python").symlink_to(python)
        (open_folder / "venv/bin/python3").symlink_to(open_folder / "theirs/python")
        python = open_folder / "venv/bin/python3"
    theirs = {"interpreter": python, "link": open_folder / "theirs", "code": code, "above": open_folder / "up"}[whose]
    assert source.prove(InProcess(), "", str(python), [str(code)]) == 0
    os.chown(theirs, OTHER, OTHER)
    assert source.prove(InProcess(), "", str(python), [str(code)]) == OTHER
    os.chown(open_folder / "up/tree", ANOTHER, ANOTHER)
    with pytest.raises(AgentError, match="is not run as root: others can change"):
        source.prove(InProcess(), "", str(python), [str(code)])


def test_root_proves_a_patch_of_another_users_checkout_with_their_rights(open_folder: Path) -> None:
    """The interpreter is root's. A default of an argument is computed as the function is made."""
    ran = noted(open_folder)
    root = checkout_of("0.5.9", open_folder / "sglang")
    tree = load(here, str(root))
    path = root / tree.prefix / DRAFTER
    text, default = path.read_text(), "input_embeds: torch.Tensor = "
    assert default + "None" in text
    trap = f"(open({str(ran)!r}, 'a').write(str(__import__('os').getuid()) + chr(10)), None)[1]"
    path.write_text(text.replace(default + "None", default + trap))
    give(root, OTHER)
    tree = load(here, str(root))
    plan = patchset.plan(tree, patchset.select(["eagle3-fc-guard"]))
    made = making(tree, plan.edits, plan.applied, PYTHON)
    patching.apply(Step(open_folder / "step", made.body), **made.args)
    assert set(ran.read_text().split()) == {str(OTHER)}


def test_root_asks_no_interpreter_what_it_imports_where_others_decide_what_that_is(open_folder: Path) -> None:
    """Its own one, in a folder or with a PYTHONPATH of another user's, whose json.py is what it would import."""
    theirs, ran = open_folder / "theirs", noted(open_folder)
    (theirs / "sglang/srt").mkdir(parents=True)
    (theirs / "sglang/__init__.py").touch()
    (theirs / "json.py").write_text(f"import os\nopen({str(ran)!r}, 'a').write('%d\\n' % os.getuid())\n")
    give(theirs, OTHER)
    interpreter.known(Context(), PYTHON, cwd=str(theirs))
    interpreter.known(Context(), PYTHON, cwd="/", path=str(theirs))
    with contextlib.suppress(AgentError):
        patchlook.look(Context(), None, [], python=PYTHON, path=str(theirs))
    assert ran.read_text().split() == [str(OTHER)] * 3


def test_a_test_of_the_gpus_does_not_run_as_root_where_another_user_decides_what_it_is(open_folder: Path) -> None:
    for name in ("nvbandwidth", "python"):
        program = open_folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\nid -u\ntouch "$(dirname "$5")/meeting" && echo $NCCL_DEBUG\n')
        program.chmod(0o755)
    give(open_folder / "bin", OTHER)
    programs, python = [str(open_folder / "bin")], str(open_folder / "bin/python")
    told = {one["test"]: one for one in active.run(Context(), 2, 60.0, python, {"NCCL_DEBUG": "WARN"}, programs)}
    assert told["nvbandwidth"]["text"].split()[0] == str(OTHER)
    assert told["torch"]["text"].split() == [str(OTHER), "WARN"]
