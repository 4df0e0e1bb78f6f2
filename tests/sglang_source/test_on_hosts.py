"""`opsctl patch sglang` and `opsctl source` over a real SSH connection, on the source of real releases."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsctl import this_machine
from opsctl.agent.core import durable
from opsctl.agent.source.patching import RECORD
from opsctl.cli.main import run
from opsctl.errors import Exit
from opsctl.inventory import load
from opsctl.remote.host import connect
from opsctl.sglang.patches import patchset
from opsctl.sglang.patches.patchset import FileEdit
from opsctl.sglang.source import tree
from opsctl.wire.protocol import Call
from tests.proxy import Proxy, fewest
from tests.sglang_source.conftest import MakeTree
from tests.sglang_source.releases import git
from tests.sshd import Sshd, free_port

MODELS = "python/sglang/srt/models"
KIMI, DRAFTER = f"{MODELS}/kimi_k25.py", f"{MODELS}/llama_eagle3.py"
RUNNER = "python/sglang/srt/model_executor/model_runner.py"
GRAPHS = "python/sglang/srt/model_executor/cuda_graph_runner.py"
TOUCHED = {KIMI, DRAFTER, RUNNER, GRAPHS}  # by all patches, on 0.5.9

Snapshot = dict[str, tuple[int, bytes]]


@dataclass
class Box:
    """A host behind SSH with the source of 0.5.9 as its checkout."""

    folder: Path
    tree: Path
    sshd: Sshd
    settings: dict[str, Any] = field(default_factory=dict)
    port: int | None = None
    serving: int = field(default_factory=free_port)  # where its server would listen

    @property
    def inventory(self) -> Path:
        """Written anew for every command."""
        sglang = {"checkout": str(self.tree), "python": sys.executable, "port": self.serving}
        sglang["env"] = {"PYTHONPATH": f"{self.tree}/python"}
        path = self.folder / "inventory.yaml"
        host = {
            "address": "127.0.0.1", "port": self.port or self.sshd.port, "user": self.sshd.user,
            "key": str(self.sshd.key_file), "host_key": str(self.sshd.host_key), "ssh_config": "none", "attempts": 1,
            "state_dir": str(self.folder / "state"), "sglang": {**sglang, **self.settings},
        }  # fmt: skip
        path.write_text(json.dumps({"hosts": {"box": host}}))
        return path

    def snapshot(self) -> Snapshot:
        """Every file of the tree, git's own left out."""
        files = (p for p in self.tree.rglob("*") if p.is_file() and ".git" not in p.relative_to(self.tree).parts)
        return {str(p.relative_to(self.tree)): (p.stat().st_mode, p.read_bytes()) for p in files}

    def commit(self) -> str:
        git(self.tree, "init", "-q")
        git(self.tree, "add", "--all", "--force")
        git(self.tree, "commit", "-qm", "as released")
        return git(self.tree, "rev-parse", "HEAD")


@pytest.fixture
def box(tmp_path: Path, sshd: Sshd, copy_of: MakeTree, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "local-state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Box(tmp_path, copy_of("0.5.9"), sshd)


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Said]


@pytest.fixture
def cli(box: Box, capfd: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str) -> Said:
        command = ["-i", str(box.inventory)]
        capfd.readouterr()
        code = run([*words, *command])
        return Said(code, *capfd.readouterr())

    return call


def statuses(said: Said) -> dict[str, str]:
    return {p["name"]: p["status"] for p in said.json["patches"]}


def changed(before: Snapshot, after: Snapshot) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def test_needed_applied_nothing_left_and_back(box: Box, cli: Cli) -> None:
    commit = box.commit()
    (box.tree / DRAFTER).chmod(0o640)
    before = box.snapshot()
    said = cli("patch", "sglang", "--status", "--json")
    assert said.code == Exit.CHANGES
    assert {k: said.json[k] for k in ("tree", "commit", "version", "host", "serves_this_tree")} == {
        "tree": str(box.tree), "commit": commit, "version": "0.5.9", "host": "box", "serves_this_tree": True,
    }  # fmt: skip
    assert set(statuses(said).values()) == {"needed"}

    said = cli("patch", "sglang", "--check", "--diff", "--exit-code")
    assert said.code == Exit.CHANGES
    assert "set_eagle3_layers_to_capture" in said.out
    assert box.snapshot() == before

    assert cli("patch", "sglang").code == Exit.DONE
    patched = box.snapshot()
    assert changed(before, patched) == TOUCHED
    assert patched[DRAFTER][0] == before[DRAFTER][0]
    said = cli("patch", "sglang", "--status", "--json")
    assert (said.code, set(statuses(said).values())) == (Exit.DONE, {"applied"})
    assert set(said.json["dirty"]) == TOUCHED

    again = cli("patch", "sglang")
    assert (again.code, box.snapshot()) == (Exit.DONE, patched)
    assert "changed: Patch" not in again.out

    assert cli("patch", "sglang", "--revert", "--check").code == Exit.DONE
    assert box.snapshot() == patched
    said = cli("patch", "sglang", "--revert")
    assert said.code == Exit.DONE, said.out + said.err
    assert box.snapshot() == before
    assert git(box.tree, "status", "--porcelain").split() == []


def test_one_patch_goes_and_the_others_stay(box: Box, cli: Cli) -> None:
    """Also where there is no git to compare with, over several runs, and where a revert is reverted."""
    before = box.snapshot()
    assert cli("patch", "sglang", "kimi-k25-eagle3", "eagle3-loader-names").code == Exit.DONE
    two = box.snapshot()
    assert cli("patch", "sglang", "eagle3-fc-guard", "eagle3-d2t-guard").code == Exit.DONE
    assert cli("patch", "sglang", "--revert", "eagle3-fc-guard", "eagle3-d2t-guard").code == Exit.DONE
    assert box.snapshot() == two
    said = cli("patch", "sglang", "--revert", "eagle3-loader-names")
    assert said.code == Exit.DONE
    assert changed(before, box.snapshot()) == {KIMI}
    assert cli("patch", "sglang", "--revert", "eagle3-loader-names").code == Exit.DONE  # it is gone
    assert changed(before, box.snapshot()) == {KIMI}
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before


def test_a_journal_that_names_no_patches_by_file_is_gone_back_by(box: Box, cli: Cli) -> None:
    """As it was written before each file was recorded with its own; there is no git to ask."""
    before = box.snapshot()
    assert cli("patch", "sglang", "kimi-k25-eagle3", "eagle3-loader-names").code == Exit.DONE
    (record,) = (box.folder / "state").rglob(f"{RECORD}.json")
    kept = durable.unpack(record.read_bytes())
    assert kept is not None
    del kept["sum"]
    kept["patches"] = sorted({name for names in kept["patches"].values() for name in names})
    record.write_bytes(durable.pack(kept))
    said = cli("patch", "sglang", "--revert", "eagle3-loader-names")
    assert (said.code, changed(before, box.snapshot())) == (Exit.DONE, {KIMI}), said.out + said.err
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before


def test_without_a_journal_git_tells_what_was_there(box: Box, cli: Cli) -> None:
    box.commit()
    before = box.snapshot()
    assert cli("patch", "sglang").code == Exit.DONE
    shutil.rmtree(box.folder / "state")
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before


def own_diff(box: Box, name: str, path: str, old: str, new: str) -> Path:
    """The folder of the project's own patches, with a diff of this change, which is not made."""
    folder, text = box.folder / "own", (box.tree / path).read_text()
    folder.mkdir(exist_ok=True)
    assert old in text
    edit = FileEdit(path, text.encode(), text.replace(old, new).encode())
    (folder / f"{name}.patch").write_text(edit.diff())
    return folder


ELSEWHERE = ("EAGLE3 currently only supports 1 layer", "one layer only")


@pytest.mark.parametrize("under_git", [True, False])
def test_one_patch_goes_while_a_diff_of_ones_own_stays(under_git: bool, box: Box, cli: Cli) -> None:
    """In another file, and in the same one: what was applied together, and in any order, goes by itself."""
    if under_git:
        box.commit()
    before = box.snapshot()
    own_diff(box, "in-version", "python/sglang/version.py", "0.0.0.dev0", "0.0.0.dev1")
    folder = own_diff(box, "in-drafter", DRAFTER, *ELSEWHERE)
    assert cli("patch", "sglang", "--own", str(folder), "in-version", "in-drafter").code == Exit.DONE
    diffs_alone = box.snapshot()
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before

    assert cli("patch", "sglang", "--own", str(folder)).code == Exit.DONE
    everything = box.snapshot()
    for name in ("kimi-k25-eagle3", "eagle3-graph-layer-ids", "eagle3-fc-guard"):  # without --own
        said = cli("patch", "sglang", "--revert", name)
        assert said.code == Exit.DONE, said.out + said.err
    assert changed(before, box.snapshot()) == {DRAFTER, "python/sglang/version.py"}
    assert cli("patch", "sglang", "--revert", "in-version").code == Exit.DONE
    assert changed(before, box.snapshot()) == {DRAFTER}
    said = cli("patch", "sglang", "--status", "--json")
    assert {n for n, s in statuses(said).items() if s == "needed"} == {
        "kimi-k25-eagle3", "eagle3-graph-layer-ids", "eagle3-fc-guard",
    }  # fmt: skip
    names = ("eagle3-loader-names", "eagle3-loader-strict", "eagle3-d2t-guard")
    assert cli("patch", "sglang", "--revert", *names).code == Exit.DONE
    assert (box.tree / DRAFTER).read_bytes() == diffs_alone[DRAFTER][1] != everything[DRAFTER][1]
    assert cli("patch", "sglang", "--revert", "in-drafter").code == Exit.DONE
    assert box.snapshot() == before


def test_what_was_edited_since_stays_when_a_patch_goes(box: Box, cli: Cli) -> None:
    """Edits before, between and after our runs, in the files that we patched."""
    before = box.snapshot()
    kimi, drafter = box.tree / KIMI, box.tree / DRAFTER
    assert cli("patch", "sglang", "kimi-k25-eagle3", "eagle3-loader-strict", "eagle3-d2t-guard").code == Exit.DONE
    drafter.write_text(drafter.read_text().replace(*ELSEWHERE))
    assert cli("patch", "sglang", "eagle3-fc-guard").code == Exit.DONE
    kimi.write_bytes(kimi.read_bytes() + b"# mine\n")
    assert cli("patch", "sglang", "--revert", "kimi-k25-eagle3").code == Exit.DONE
    assert kimi.read_bytes() == before[KIMI][1] + b"# mine\n"
    said = cli("patch", "sglang", "--revert", "eagle3-loader-strict")
    assert said.code == Exit.DONE, said.out + said.err
    assert cli("patch", "sglang", "--revert", "eagle3-fc-guard", "eagle3-d2t-guard").code == Exit.DONE
    assert drafter.read_text() == before[DRAFTER][1].decode().replace(*ELSEWHERE)


def test_a_patch_goes_beside_one_that_was_edited_and_stays(box: Box, cli: Cli) -> None:
    drafter, message = box.tree / DRAFTER, ("d2t is not integer", "d2t has floats")
    (d2t_guard,) = patchset.plan(
        tree.load(this_machine.call, str(box.tree)), patchset.select(["eagle3-d2t-guard"])
    ).edits
    assert cli("patch", "sglang", "eagle3-fc-guard").code == Exit.DONE
    assert cli("patch", "sglang", "eagle3-d2t-guard").code == Exit.DONE
    drafter.write_text(drafter.read_text().replace(*message))
    assert cli("patch", "sglang", "--revert", "eagle3-fc-guard").code == Exit.DONE
    assert d2t_guard.after is not None
    assert drafter.read_text() == d2t_guard.after.decode().replace(*message)


def test_what_was_edited_in_the_lines_of_a_patch_is_not_overwritten(box: Box, cli: Cli) -> None:
    folder = own_diff(box, "mine", DRAFTER, *ELSEWHERE)
    assert cli("patch", "sglang", "--own", str(folder)).code == Exit.DONE
    edits = {
        "kimi-k25-eagle3": (KIMI, "def get_embed_and_head(self)", "def get_embed_and_head(self, *_)"),
        "mine": (DRAFTER, ELSEWHERE[1], "a single layer"),
    }
    for name, (path, old, new) in edits.items():
        text = (box.tree / path).read_text()
        assert text.count(old) == 1
        (box.tree / path).write_text(text.replace(old, new))
        edited = box.snapshot()
        said = cli("patch", "sglang", "--revert", name)
        assert said.code not in (Exit.DONE, Exit.BUG)
        assert f"{name} cannot be taken out of {path}: " in said.out
        assert "changed since" in said.out
        assert box.snapshot() == edited

    # Other patches of that file go, though their lines lie among those of others and it is edited all the time.
    drafter = box.tree / DRAFTER
    for name, left in (("eagle3-fc-guard", "has_fc"), ("eagle3-d2t-guard", "_check_d2t")):
        assert left in drafter.read_text()
        assert cli("patch", "sglang", "--revert", name).code == Exit.DONE
        assert left not in drafter.read_text()
        assert "a single layer" in drafter.read_text()
        drafter.write_text(f"# {name} is gone\n{drafter.read_text()}")


def test_a_pin_saves_local_changes_and_revert_brings_them_back(box: Box, cli: Cli) -> None:
    first = box.commit()
    path = box.tree / "python/sglang/version.py"
    path.write_text("changed = 1\n")
    git(box.tree, "add", "--all", "--force")
    git(box.tree, "commit", "-qm", "another")
    path.write_text("local = 1\n")
    before = box.snapshot()
    said = cli("patch", "sglang", "--commit", first[:9])
    assert said.code not in (Exit.DONE, Exit.BUG)
    assert "version.py" in said.out
    assert box.snapshot() == before

    said = cli("patch", "sglang", "--commit", first[:9], "--keep-local-changes", "save")
    assert said.code == Exit.DONE, said.out + said.err
    assert git(box.tree, "rev-parse", "HEAD") == first
    assert {KIMI, DRAFTER} <= changed(before, box.snapshot())
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before
    assert git(box.tree, "rev-parse", "HEAD") != first


def test_a_conflict_names_the_line_and_touches_nothing(box: Box, cli: Cli) -> None:
    path = box.tree / KIMI
    path.write_text(path.read_text() + "\n\nclass KimiK25ForConditionalGeneration:\n    pass\n")
    before = box.snapshot()
    said = cli("patch", "sglang", "--status", "--json")
    assert said.code == Exit.CONFLICT
    (entry,) = [p for p in said.json["patches"] if p["status"] == "conflict"]
    assert (entry["name"], entry["file"]) == ("kimi-k25-eagle3", KIMI)
    said = cli("patch", "sglang")
    assert said.code not in (Exit.DONE, Exit.BUG)
    assert f"{KIMI}:{entry['line']}" in said.out
    assert box.snapshot() == before
    assert cli("patch", "sglang", "eagle3-loader-names").code == Exit.DONE
    assert changed(before, box.snapshot()) == {DRAFTER}


def test_a_syntax_error_that_was_there_is_told_and_left(box: Box, cli: Cli) -> None:
    path = box.tree / DRAFTER
    path.write_text(path.read_text() + "def broken(:\n")
    line = path.read_text().count("\n")
    before = box.snapshot()
    said = cli("patch", "sglang", "--check")
    assert said.code not in (Exit.DONE, Exit.BUG)
    assert f"{DRAFTER}:{line}" in said.out
    assert "before any patch" in said.out
    assert box.snapshot() == before


def test_line_ends_and_a_neighbour_edited_by_hand_are_kept(box: Box, cli: Cli) -> None:
    kimi, drafter = box.tree / KIMI, box.tree / DRAFTER
    kimi.write_bytes(kimi.read_bytes().replace(b"\n", b"\r\n"))
    drafter.write_text(
        drafter.read_text().replace(
            "for name, loaded_weight in weights:", "for name, loaded_weight in weights:  # mine"
        )
    )
    before = box.snapshot()
    assert cli("patch", "sglang").code == Exit.DONE
    new = kimi.read_bytes()
    assert new.count(b"\r\n") == new.count(b"\n") > before[KIMI][1].count(b"\n")
    assert "# mine" in drafter.read_text()
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before


def test_a_linked_tree_and_a_linked_file(box: Box, cli: Cli) -> None:
    link = box.folder / "current"
    link.symlink_to(box.tree)
    real = box.tree / MODELS / "kimi_k25_real.py"
    (box.tree / KIMI).rename(real)
    (box.tree / KIMI).symlink_to(real.name)
    box.settings["checkout"] = str(link)
    before = box.snapshot()
    said = cli("patch", "sglang")
    assert said.code == Exit.DONE, said.out + said.err
    assert (box.tree / KIMI).is_symlink()
    assert b"set_eagle3_layers_to_capture" in real.read_bytes()
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before
    assert (box.tree / KIMI).is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")
def test_a_read_only_tree_is_told_before_anything_is_tried(box: Box, cli: Cli) -> None:
    mounted = subprocess.run(["mount", "--bind", str(box.tree), str(box.tree)], capture_output=True)
    if (
        mounted.returncode
        or subprocess.run(["mount", "-o", "remount,ro,bind", str(box.tree)], capture_output=True).returncode
    ):
        subprocess.run(["umount", str(box.tree)], capture_output=True)
        pytest.skip("this machine does not let us mount")
    try:
        assert cli("patch", "sglang", "--status").code == Exit.CHANGES
        for words in (("--check",), ()):
            said = cli("patch", "sglang", *words)
            assert said.code not in (Exit.DONE, Exit.BUG)
            assert "read-only" in said.out
    finally:
        subprocess.run(["umount", str(box.tree)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")
def test_without_space_everything_is_as_before(box: Box, cli: Cli) -> None:
    small = box.folder / "small"
    small.mkdir()
    size = sum(p.stat().st_blocks * 512 for p in box.tree.rglob("*")) + (80 << 10)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(small)], capture_output=True
    ).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        shutil.copytree(box.tree, small / "sglang")
        free = os.statvfs(small)
        (small / "filler").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - (80 << 10))))
        box.tree = small / "sglang"
        before = box.snapshot()
        said = cli("patch", "sglang")
        assert said.code not in (Exit.DONE, Exit.BUG), said.out
        assert "No space left" in said.out
        assert box.snapshot() == before
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_failed_proof_puts_everything_back(box: Box, cli: Cli) -> None:
    """The interpreter that serves is one in which the patched code does not behave."""
    python = box.folder / "python3"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} "$@" | sed \'s/"failures": \\[\\]/"failures": ["it does nothing"]/\'\n'
    )
    python.chmod(0o755)
    box.settings["python"] = str(python)
    before = box.snapshot()
    said = cli("patch", "sglang")
    assert said.code == Exit.ROLLED_BACK
    assert "it does nothing" in said.out
    assert "everything was put back" in said.out
    assert box.snapshot() == before


def test_another_tree_that_is_served_is_named(box: Box, cli: Cli) -> None:
    served = box.folder / "site-packages"
    shutil.copytree(box.tree / "python", served)
    box.settings["env"] = {"PYTHONPATH": str(served)}
    before = box.snapshot()
    said = cli("patch", "sglang", "--status", "--json")
    assert said.json["serves_this_tree"] is False
    assert said.json["imported"] == str(served / "sglang")
    said = cli("patch", "sglang")
    assert said.code not in (Exit.DONE, Exit.BUG)
    assert str(served / "sglang") in said.out
    assert box.snapshot() == before
    assert cli("patch", "sglang", "--tree", str(served)).code == Exit.DONE
    assert b"set_eagle3_layers_to_capture" in (served / "sglang/srt/models/kimi_k25.py").read_bytes()
    assert cli("patch", "sglang", "--tree", str(box.tree)).code == Exit.DONE  # when it is asked for by name
    assert changed(before, box.snapshot()) == TOUCHED


def test_the_target_decides_what_is_needed(box: Box, cli: Cli) -> None:
    model = box.folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["InternVLChatModel"]}')
    box.settings["model_path"] = str(model)
    found = statuses(cli("patch", "sglang", "--status", "--json"))
    assert found["kimi-k25-eagle3"] == "not-applicable"
    assert found["eagle3-capture InternVLChatModel"] == "needed"
    assert found["eagle3-loader-names"] == "needed"


def test_the_server_that_runs_tells_the_target(box: Box, cli: Cli) -> None:
    for name, architecture in (("first", "Other"), ("last", "InternVLChatModel")):
        (box.folder / name).mkdir()
        (box.folder / name / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    words = ["-m", "sglang.launch_server", "--port", str(box.serving)]
    words += ["--model-path", str(box.folder / "first"), f"--model={box.folder / 'last'}"]  # the last one counts
    with subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE):
        found = statuses(cli("patch", "sglang", "--status", "--json"))
    assert found["eagle3-capture InternVLChatModel"] == "needed"


def test_own_patches_and_diffs_in_one_transaction(box: Box, cli: Cli) -> None:
    box.commit()
    own = box.folder / "patches"
    own.mkdir()
    (own / "describe.yaml").write_text(
        "reason: a test\nfile: srt/models/llama_eagle3.py\nclass: LlamaForCausalLMEagle3\nfunctions:\n"
        '  - code: |\n      def describe(self):\n          return "eagle3"\n'
    )
    path = box.tree / DRAFTER
    stock = path.read_text()
    path.write_text(stock.replace("EAGLE3 currently only supports 1 layer", "one layer only"))
    (own / "wording.patch").write_text(git(box.tree, "diff") + "\n")
    path.write_text(stock)
    before = box.snapshot()
    said = cli("patch", "sglang", "--own", str(own), "--status", "--json")
    assert {statuses(said)[name] for name in ("describe", "wording")} == {"needed"}
    said = cli("patch", "sglang", "--own", str(own))
    assert said.code == Exit.DONE, said.out + said.err
    text = path.read_text()
    assert "one layer only" in text
    assert "def describe" in text
    assert '"midlayer."' in text
    assert cli("patch", "sglang", "--own", str(own), "--status").code == Exit.DONE
    said = cli("patch", "sglang", "--revert", "wordin")
    assert (said.code, "no patch is called 'wordin'" in said.out + said.err) == (Exit.USAGE, True)
    shutil.rmtree(own)  # the journal knows what they were
    said = cli("patch", "sglang", "--revert", "wording", "describe")
    assert said.code == Exit.DONE, said.out + said.err
    text = path.read_text()
    assert ("one layer only" in text, "def describe" in text, '"midlayer."' in text) == (False, False, True)
    assert cli("patch", "sglang", "--revert").code == Exit.DONE
    assert box.snapshot() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["eagle3-loader-name"], "eagle3-loader-names"),
        (["--json"], "--status"),
        (["--status", "--revert"], "two things"),
    ],
)
def test_mistakes_are_told_before_any_host_is_touched(box: Box, cli: Cli, words: list[str], told: str) -> None:
    box.port = 1  # nobody listens there
    said = cli("patch", "sglang", *words)
    assert said.code == Exit.USAGE
    assert told in said.err


def test_a_folder_without_sglang_is_told(box: Box, cli: Cli) -> None:
    said = cli("patch", "sglang", "--status", "--tree", str(box.folder))
    assert said.code not in (Exit.DONE, Exit.BUG)
    assert "no SGLang source" in said.err


def test_source_is_read_where_it_lies(box: Box, cli: Cli) -> None:
    found = cli("source", "grep", "set_embed|get_embed", "--glob", "*/models/llama.py", "--json").json
    assert [m["line"] for m in found["matches"]] == [509, 525, 749, 752, 760, 763]
    said = cli("source", "show", "LlamaForCausalLMEagle3.set_embed", "--host", "box")
    assert said.code == Exit.DONE
    assert f"{MODELS}/llama.py:" in said.out  # the parent defines it
    words = ("source", "facts", "--for-target", "KimiK25ForConditionalGeneration", "--json")
    there, here = cli(*words), cli(*words, "--tree", str(box.tree))
    assert there.json["tree"] == str(box.tree)
    assert there.json == here.json


def test_source_on_a_host_without_a_checkout_asks_for_one(box: Box, cli: Cli) -> None:
    box.settings["checkout"] = None
    said = cli("source", "grep", "x")
    assert said.code == Exit.USAGE
    assert "checkout" in said.err


def test_a_status_costs_one_look(box: Box, cli: Cli, slow_link: Callable[..., Proxy]) -> None:
    proxy = slow_link(gather=0.25)
    box.port = proxy.port
    inventory = box.inventory
    (host,) = load(str(inventory)).select("box")
    with connect(host.connection()) as remote:
        remote.call(Call("filelook.stat", {"path": "/"}))
    alone = proxy.turns_until_closed()

    def status() -> int:
        assert cli("patch", "sglang", "--status").code == Exit.CHANGES
        return proxy.turns_until_closed()

    assert fewest(status, alone + 1) <= alone + 1  # agent modules may be asked for


def a_drafter(folder: Path, architecture: str, tensor: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    header = json.dumps({tensor: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    return folder


@pytest.mark.parametrize(
    ("architecture", "tensor", "not_needed"),
    [
        ("LlamaForCausalLMEagle3", "model.layers.0.hidden_norm.weight", set()),
        ("LlamaForCausalLMEagle3", "midlayer.hidden_norm.weight", {"eagle3-loader-names"}),
        (
            "Eagle3DeepseekV2ForCausalLM",
            "layers.0.hidden_norm.weight",
            {"eagle3-loader-names", "eagle3-loader-strict", "eagle3-d2t-guard", "eagle3-fc-guard"},
        ),
    ],
)
def test_the_draft_model_says_which_of_its_patches_are_needed(
    box: Box, cli: Cli, architecture: str, tensor: str, not_needed: set[str]
) -> None:
    drafter = a_drafter(box.folder / "drafter", architecture, tensor)
    box.settings = {"launch": {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": str(drafter)}}
    said = cli("patch", "sglang", "--status", "--json")
    assert {name for name, word in statuses(said).items() if word == "not-applicable"} == not_needed
    assert all(str(drafter) in p["reason"] for p in said.json["patches"] if p["name"] in not_needed)
    assert cli("patch", "sglang").code == Exit.DONE
    applied = {
        name for name, word in statuses(cli("patch", "sglang", "--status", "--json")).items() if word == "applied"
    }
    assert applied == set(statuses(said)) - not_needed
    if not_needed:  # by its name it is to be had all the same
        assert statuses(cli("patch", "sglang", "--status", "--json", "eagle3-loader-names")) == {
            "eagle3-loader-names": "needed"
        }


def test_a_relative_draft_model_is_looked_for_where_the_server_is_started(box: Box, cli: Cli) -> None:
    a_drafter(box.tree / "drafter", "Eagle3DeepseekV2ForCausalLM", "layers.0.hidden_norm.weight")
    box.settings = {"launch": {"speculative-draft-model-path": "./drafter"}}
    said = cli("patch", "sglang", "--status", "--json")
    assert statuses(said)["eagle3-loader-names"] == "not-applicable"


def test_a_draft_model_that_is_not_there_leaves_nothing_out(box: Box, cli: Cli) -> None:
    box.settings = {"launch": {"speculative-draft-model-path": "lmsys/on-the-hub"}}
    assert set(statuses(cli("patch", "sglang", "--status", "--json")).values()) == {"needed"}
