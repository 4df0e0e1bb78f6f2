"""A project's own patches: end states and diffs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opsctl import patchfiles
from opsctl.cli.patch import app
from opsctl.errors import UsageError
from opsctl.sglang.patches import patching, patchset
from opsctl.sglang.source.tree import load
from opsctl.this_machine import call as here
from tests.sglang_source.conftest import MakeTree
from tests.sglang_source.releases import git

FILE = "python/sglang/srt/models/llama_eagle3.py"
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-patch.md"

ADD = """
reason: a test
file: srt/models/llama_eagle3.py
class: LlamaForCausalLMEagle3
functions:
  - code: |
      def describe(self):
          return "eagle3"
"""
REPLACE = """
reason: a test
file: python/sglang/srt/models/llama_eagle3.py
class: LlamaForCausalLMEagle3
functions:
  - instead_of: |
      def get_hot_token_id(self):
          return self.hot_token_id
    code: |
      def get_hot_token_id(self):
          return self.hot_token_id.clone()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "patches"
    made.mkdir()
    return made


def word(root: Path, folder: Path) -> list[str]:
    states = patchfiles.read(folder).states
    return [e.status.value for e in patchset.status(load(here, str(root), (), patchset.files(states)), states).entries]


@pytest.mark.parametrize("text", [ADD, REPLACE], ids=["add", "replace"])
def test_an_end_state_is_applied_once(text: str, folder: Path, copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    (folder / "mine.yaml").write_text(text)
    states = patchfiles.read(folder).states
    plan = patchset.plan(load(here, str(root)), states)
    (edit,) = plan.edits
    assert edit.path == FILE
    (root / FILE).write_bytes(edit.after)
    assert word(root, folder) == ["applied"]
    (root / FILE).write_bytes(
        edit.after.replace(b"    def describe(self):\n", b"    def describe(self):  # hand-made\n\n")
    )
    assert word(root, folder) == ["applied"]


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        (ADD, "    def describe(self):\n        return 1\n\n    def get_hot_token_id", "conflict"),
        (REPLACE, "    def get_hot_token_id(self):\n        return 7\n\n    def other", "conflict"),
        (REPLACE, "    def other", "conflict"),
        (ADD.replace("LlamaForCausalLMEagle3", "Nowhere"), "    def get_hot_token_id", "not-applicable"),
        (ADD.replace("llama_eagle3.py", "nowhere.py"), "    def get_hot_token_id", "not-applicable"),
    ],
)
def test_an_end_state_that_does_not_fit(text: str, found: str, expected: str, folder: Path, copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    (folder / "mine.yaml").write_text(text)
    source = (root / FILE).read_text()
    (root / FILE).write_text(source.replace("    def get_hot_token_id", found))
    assert word(root, folder) == [expected]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ADD.replace("class:", "clas:"), r"mine\.yaml:4:1.*clas"),
        (
            ADD.replace('def describe(self):\n          return "eagle3"', "x = 1"),
            r"mine\.yaml:6:11.*not one Python function",
        ),
        (
            REPLACE.replace(
                "def get_hot_token_id(self):\n          return self.hot_token_id\n    code", "def x(): 0\n    code"
            ),
            "another name",
        ),
        ("reason: [", "malformed YAML"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(text: str, told: str, folder: Path) -> None:
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        patchfiles.read(folder)
    assert re.search(told, f"{caught.value} {caught.value.hint}"), caught.value


def test_a_folder_without_patches_is_no_folder_of_patches(folder: Path) -> None:
    (folder / "mine.yml").write_text(ADD)
    with pytest.raises(UsageError, match="holds no patches"):
        patchfiles.read(folder)


def test_the_examples_of_the_guide_work(folder: Path, copy_of: MakeTree) -> None:
    first, second = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (folder / "a.yaml").write_text(first)
    (folder / "b.yaml").write_text(
        f"reason: a test\nfile: srt/models/llama_eagle3.py\nclass: LlamaForCausalLMEagle3\n{second}"
    )
    assert word(copy_of("0.5.9"), folder) == ["not-applicable", "needed"]


def attempt(root: Path, diff: bytes) -> tuple[str, bytes | None]:
    """The word for a diff on a tree, and what the file would become; the tree is as before."""
    before = {p: p.read_bytes() for p in (*root.rglob("*.py"), *root.rglob(".git/index"))}
    (entry,), edits = patching.tried(["diff"], here(patching.trying(str(root), [diff])))
    assert {p: p.read_bytes() for p in (*root.rglob("*.py"), *root.rglob(".git/index"))} == before
    return entry.status.value, edits[0].after if edits else None


@pytest.mark.parametrize("under_git", [True, False])
def test_a_diff_applies_once(under_git: bool, copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    if under_git:
        git(root, "init", "-q")
        git(root, "add", ".")
        git(root, "commit", "-qm", "as released")
    (edit,) = patchset.plan(load(here, str(root)), patchset.select(["eagle3-loader-names"])).edits
    assert attempt(root, edit.diff().encode()) == ("needed", edit.after)
    assert edit.after is not None
    (root / FILE).write_bytes(edit.after)
    assert attempt(root, edit.diff().encode()) == ("applied", None)


def test_a_diff_of_an_older_file_is_merged_by_git(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "as released")
    path = root / FILE
    stock = path.read_text()
    path.write_text(stock.replace("EAGLE3 currently only supports 1 layer", "one layer only"))
    diff = git(root, "diff").encode() + b"\n"
    # The tree has moved on: the lines around the change are others now.
    moved = stock.replace("        self.pp_group = get_pp_group()\n\n", "        self.pp_group = get_pp_group()\n")
    path.write_text(moved)
    wanted = moved.replace("EAGLE3 currently only supports 1 layer", "one layer only").encode()
    assert attempt(root, diff) == ("needed", wanted)  # also where that is not committed

    path.write_text(stock.replace("EAGLE3 currently only supports 1 layer", "another text"))
    git(root, "commit", "-qam", "other text")
    assert attempt(root, diff)[0] == "conflict"


def test_a_diff_adds_removes_and_renames(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    diff = (
        b"diff --git a/notes/new.txt b/notes/new.txt\nnew file mode 100755\n--- /dev/null\n+++ b/notes/new.txt\n"
        b"@@ -0,0 +1 @@\n+hello\n"
        b"diff --git a/python/sglang/version.py b/python/sglang/release.py\nsimilarity index 100%\n"
        b"rename from python/sglang/version.py\nrename to python/sglang/release.py\n"
    )
    (root / "python/sglang/version.py").write_text("x = 1\n")
    _, edits = patching.tried(["diff"], here(patching.trying(str(root), [diff])))
    assert {(e.path, e.before, e.after) for e in edits} == {
        ("notes/new.txt", None, b"hello\n"),
        ("python/sglang/release.py", None, b"x = 1\n"),
        ("python/sglang/version.py", b"x = 1\n", None),
    }
    assert next(e.mode for e in edits if e.path == "notes/new.txt") == 0o755


NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x\n"


@pytest.mark.parametrize(
    ("diff", "told"),
    [
        (NEW.format("../out.py", 100644), "../out.py leads out of the tree"),
        (NEW.format("/etc/hostname", 100644), "/etc/hostname leads out of the tree"),
        (NEW.format("link/x.py", 100644), "link/x.py leads out of the tree"),
        (NEW.format(".git/hooks/post-checkout", 100755), "invalid path '.git/hooks/post-checkout'"),
        (NEW.format("new", 120000), "new is no regular file"),
        ("diff --git a/tool b/tool\nold mode 100644\nnew mode 100755\n", "it changes the mode of a file"),
        ("--- a/tool.py\n+++ b/tool.py\n@@ -1 +1 @@\n-x\n+y\n", "tool.py: is not in the tree; paths begin at its root"),
        ("--- a/tool\n+++ b/tool\n@@ -1,9 +1 @@\n-x\n", "not a diff that git takes: error: corrupt patch"),
    ],
)
def test_a_diff_that_cannot_be_is_told_beside_the_others(
    diff: str, told: str, copy_of: MakeTree, tmp_path: Path
) -> None:
    root = copy_of("0.5.9")
    git(root, "init", "-q")
    (root / "link").symlink_to(tmp_path)
    (root / "tool").write_text("#!/bin/sh\n")
    good = NEW.format("good.py", 100644)
    (bad, fits), edits = patching.tried(
        ["bad", "fits"], here(patching.trying(str(root), [diff.encode(), good.encode()]))
    )
    assert (bad.status.value, fits.status.value) == ("conflict", "needed")
    assert told in bad.reason
    assert [edit.path for edit in edits] == ["good.py"]


def test_a_diff_that_clashes_names_the_line_and_spoils_no_other(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "as released")
    path = root / FILE
    stock = path.read_text()
    line = stock[: stock.index("EAGLE3 currently only supports 1 layer")].count("\n") + 1
    diffs = []
    for text in ("one layer only", "a single layer"):
        path.write_text(stock.replace("EAGLE3 currently only supports 1 layer", text))
        diffs.append(git(root, "diff").encode() + b"\n")
    path.write_text(stock)
    (first, second), edits = patching.tried(["first", "second"], here(patching.trying(str(root), diffs)))
    assert (first.status.value, second.status.value, second.file, second.line) == ("needed", "conflict", FILE, line)
    assert [edit.after for edit in edits] == [
        stock.replace("EAGLE3 currently only supports 1 layer", "one layer only").encode()
    ]
    found = patching.plan(load(here, str(root)), patchset.select(["eagle3-loader-names"]), (first, second), edits)
    assert [e.name for e in found.report.entries if e.status.value == "conflict"] == ["second"]


def test_check_with_own_patches(folder: Path, copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    (folder / "state.yaml").write_text(ADD)
    diff = patchset.plan(load(here, str(root)), patchset.select(["eagle3-loader-names"])).diff()
    (folder / "fits.patch").write_text(diff)
    (folder / "stale.patch").write_text(
        diff.replace("        for name, loaded_weight in weights:", "        for tensor in weights:")
    )
    result = CliRunner().invoke(
        app, ["check", "--tree", str(root), "--own", str(folder), "--json"], standalone_mode=False
    )
    entries = {p["name"]: p for p in json.loads(result.stdout)["patches"]}
    assert {name: entries[name]["status"] for name in ("state", "fits", "stale")} == {
        "state": "needed",
        "fits": "needed",
        "stale": "conflict",
    }
    assert entries["stale"]["file"] == FILE
    assert result.return_value == 8
