"""Trees as they are found: edited by hand, broken, with other line ends, with and without git. The source is 0.5.9."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.agent.core.dispatch import invoke
from opsctl.errors import Exit
from opsctl.sglang.patches import patching, patchset
from opsctl.sglang.patches.patchset import FileEdit, Plan, Report
from opsctl.sglang.source.tree import load
from opsctl.this_machine import call as here
from opsctl.wire.protocol import AgentError, Context
from tests.sglang_source.conftest import MakeTree
from tests.sglang_source.releases import git

MODELS = "python/sglang/srt/models"
KIMI = f"{MODELS}/kimi_k25.py"
DRAFTER = f"{MODELS}/llama_eagle3.py"
RUNNER = "python/sglang/srt/model_executor/model_runner.py"
GRAPHS = "python/sglang/srt/model_executor/cuda_graph_runner.py"

END_OF_KIMI = "            self.language_model.load_weights(language_weights)\n"
LOOP = '        for name, loaded_weight in weights:\n            if "d2t" in name:\n'
TAKEN = "        hidden_states = forward_batch.spec_info.hidden_states\n"
D2T = "                self.hot_token_id = loaded_weight + torch.arange(loaded_weight.shape[0])\n"
GRAPH_CALL = "self.model_runner.model.set_eagle3_layers_to_capture()"

THREE_BY_HAND = '''
    def get_embed_and_head(self):
        """Same as the language model's."""
        lm = self.language_model
        return self.language_model.get_embed_and_head()

    def set_embed_and_head(self, *args, **kwargs):
        return self.language_model.set_embed_and_head(*args, **kwargs)

    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None) -> None:
        logger.info("capturing %s", layer_ids)
        self.language_model.set_eagle3_layers_to_capture(layer_ids=layer_ids)
'''

THREE_BY_OTHER_NAMES = """
    def get_embed_and_head(self):
        lm = self.language_model
        return lm.get_embed_and_head()

    def set_embed_and_head(self, embed, head):
        getattr(self, "language_model").set_embed_and_head(embed, head)

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        lm = getattr(self, "language_model")
        lm.set_eagle3_layers_to_capture(layer_ids)
"""

# (what, file, text, its replacement, patch, status, part of the reason)
EDITS = [
    ("equivalent methods", KIMI, END_OF_KIMI, END_OF_KIMI + THREE_BY_HAND, "kimi-k25-eagle3", "applied", "has"),
    ("by other names", KIMI, END_OF_KIMI, END_OF_KIMI + THREE_BY_OTHER_NAMES, "kimi-k25-eagle3", "applied", "has"),
    (
        "one of three methods",
        KIMI,
        END_OF_KIMI,
        END_OF_KIMI + "\n    def get_embed_and_head(self):\n        return self.language_model.get_embed_and_head()\n",
        "kimi-k25-eagle3",
        "needed",
        "lacks set_eagle3_layers_to_capture, set_embed_and_head;",
    ),
    (
        "an async method",
        KIMI,
        END_OF_KIMI,
        END_OF_KIMI + "\n    async def get_embed_and_head(self):\n        return None, None\n",
        "kimi-k25-eagle3",
        "conflict",
        "looked for a plain method, found an async one",
    ),
    (
        "a method that does something else",
        KIMI,
        END_OF_KIMI,
        END_OF_KIMI + "\n    def get_embed_and_head(self):\n        return self.vision_tower.weight, None\n",
        "kimi-k25-eagle3",
        "conflict",
        "KimiK25ForConditionalGeneration.get_embed_and_head: looked for a call of the same method",
    ),
    (
        "a method that drops the ids",
        KIMI,
        END_OF_KIMI,
        END_OF_KIMI
        + "\n    def set_eagle3_layers_to_capture(self, layer_ids=None):\n"
        + "        self.language_model.set_eagle3_layers_to_capture()\n",
        "kimi-k25-eagle3",
        "conflict",
        "set_eagle3_layers_to_capture: looked for a call",
    ),
    (
        "a method that requires the ids",
        KIMI,
        END_OF_KIMI,
        END_OF_KIMI
        + "\n    def set_eagle3_layers_to_capture(self, layer_ids):\n"
        + "        self.language_model.set_eagle3_layers_to_capture(layer_ids)\n",
        "kimi-k25-eagle3",
        "conflict",
        "can be called with (layer_ids) and ()",
    ),
    (
        "two classes of the name",
        KIMI,
        "EntryClass = ",
        "class KimiK25ForConditionalGeneration(nn.Module):\n    pass\n\n\nEntryClass = ",
        "kimi-k25-eagle3",
        "conflict",
        "found 2",
    ),
    (
        "a syntax error",
        KIMI,
        "    def pad_input_ids(",
        "    def pad_input_ids((",
        "kimi-k25-eagle3",
        "conflict",
        "not valid Python",
    ),
    (
        "a syntax error in the language model",
        f"{MODELS}/deepseek_v2.py",
        "class DeepseekV2ForCausalLM(",
        "class DeepseekV2ForCausalLM((",
        "kimi-k25-eagle3",
        "conflict",
        "not valid Python",
    ),
    (
        "another inner class",
        KIMI,
        "self.language_model = DeepseekV3ForCausalLM(",
        "self.language_model = K2VLMultiModalProjector(",
        "kimi-k25-eagle3",
        "not-applicable",
        "and so does its self.language_model, a K2VLMultiModalProjector",
    ),
    (
        "a mapping of names",
        DRAFTER,
        LOOP,
        "        for name, loaded_weight in weights:\n"
        "            for old, new in {'layers.0': 'midlayer'}.items():\n"
        "                name = name.replace(old, new)\n"
        '            if "d2t" in name:\n',
        "eagle3-loader-names",
        "applied",
        "mapped to midlayer",
    ),
    (
        "layers.0 used for something else",
        DRAFTER,
        LOOP,
        LOOP.replace("weights:\n", "weights:\n            if 'layers.0' in name:\n                continue\n"),
        "eagle3-loader-names",
        "conflict",
        "used otherwise",
    ),
    (
        "a loader of another shape",
        DRAFTER,
        LOOP,
        LOOP.replace("for name, loaded_weight in weights", "for item in weights"),
        "eagle3-loader-strict",
        "conflict",
        "looked for a loop over (name, tensor)",
    ),
    (
        "d2t as absolute ids",
        DRAFTER,
        D2T,
        "                self.hot_token_id = loaded_weight\n",
        "eagle3-d2t-guard",
        "conflict",
        "found `self.hot_token_id = loaded_weight`",
    ),
    (
        "a check of d2t's length alone",
        DRAFTER,
        D2T,
        "                assert loaded_weight.shape[0] == self.config.draft_vocab_size\n" + D2T,
        "eagle3-d2t-guard",
        "conflict",
        "repeated ids",
    ),
    (
        "a full check of d2t",
        DRAFTER,
        D2T,
        "                assert not loaded_weight.is_floating_point()\n"
        "                assert loaded_weight.numel() == self.config.draft_vocab_size\n"
        "                ids = loaded_weight + torch.arange(loaded_weight.shape[0])\n"
        "                if ids.max() >= self.config.vocab_size or ids.unique().numel() != ids.numel():\n"
        "                    raise ValueError('bad d2t')\n" + D2T,
        "eagle3-d2t-guard",
        "applied",
        "checked before it is used",
    ),
    (
        "another guard of fc",
        DRAFTER,
        TAKEN,
        TAKEN
        + "        if forward_batch.forward_mode.is_extend():\n"
        + "            assert hidden_states.shape[-1] == self.fc.in_features\n",
        "eagle3-fc-guard",
        "applied",
        "before fc",
    ),
    (
        "an assertion about something else",
        DRAFTER,
        TAKEN,
        "        assert forward_batch.spec_info is not None\n" + TAKEN,
        "eagle3-fc-guard",
        "needed",
        "pass fc by unseen",
    ),
    (
        "features from elsewhere",
        DRAFTER,
        TAKEN,
        "        hidden_states = self.features(forward_batch)\n",
        "eagle3-fc-guard",
        "conflict",
        "looked for hidden_states = forward_batch.spec_info.hidden_states",
    ),
    (
        "the graph runner alone",
        GRAPHS,
        GRAPH_CALL,
        "self.model_runner.model.set_eagle3_layers_to_capture(\n"
        "                self.model_runner.eagle_aux_hidden_state_layer_ids)",
        "eagle3-graph-layer-ids",
        "needed",  # the dummy run of the model runner still resets the layers
        "without ids",
    ),
    (
        "fixed ids",
        GRAPHS,
        GRAPH_CALL,
        "self.model_runner.model.set_eagle3_layers_to_capture([1, 29, 57])",
        "eagle3-graph-layer-ids",
        "conflict",
        "found [1, 29, 57]",
    ),
]


def status(root: Path, *names: str) -> Report:
    return patchset.status(load(here, str(root)), patchset.select(names))


def plan(root: Path, *names: str) -> Plan:
    return patchset.plan(load(here, str(root)), patchset.select(names))


def write(root: Path, *edits: FileEdit) -> None:
    """Make the edits as a journal step; where that is kept is no part of the tree."""
    call = patching.making(load(here, str(root)), edits, (), sys.executable)
    context = Context()
    context.body, context.blobs = call.body, f"{root}-step-{len(list(root.parent.iterdir()))}"
    invoke(call.name, call.args, context)


@pytest.mark.parametrize(
    ("path", "old", "new", "patch", "word", "reason"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS]
)
def test_edited_by_hand(copy_of: MakeTree, path: str, old: str, new: str, patch: str, word: str, reason: str) -> None:
    root = copy_of("0.5.9")
    text = (root / path).read_text()
    assert text.count(old) == 1
    (root / path).write_text(text.replace(old, new))
    if "fixed ids" in reason or (word == "conflict" and path == GRAPHS):
        runner = root / RUNNER
        runner.write_text(
            runner.read_text().replace("set_eagle3_layers_to_capture()", "set_eagle3_layers_to_capture(None)")
        )

    (entry,) = status(root, patch).entries
    assert entry.status == word, entry.reason
    assert reason in entry.reason
    if word == "conflict":
        assert entry.file == path
        assert entry.line
        before = (root / path).read_bytes()
        found = plan(root)
        assert found.report.exit_code is Exit.CONFLICT
        assert found.edits == ()
        assert (root / path).read_bytes() == before
    elif word == "needed":
        found = plan(root, patch)
        write(root, *found.edits)
        assert [e.status for e in status(root, patch).entries] == ["applied"]


def test_a_file_indented_with_tabs_is_told_so_and_left(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    text = (root / DRAFTER).read_text()
    (root / DRAFTER).write_text(re.sub(r"(?m)^(    )+", lambda spaces: "\t" * (len(spaces[0]) // 4), text))
    found = plan(root)
    assert found.edits == ()
    wrong = [entry for entry in found.report.entries if entry.status == "conflict"]
    assert {entry.file for entry in wrong} == {DRAFTER}
    assert all("indented with tabs" in entry.reason for entry in wrong)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_apply_and_revert_byte_for_byte(copy_of: MakeTree, line_end: str) -> None:
    root = copy_of("0.5.9")
    for path in (KIMI, DRAFTER, RUNNER, GRAPHS):
        (root / path).write_bytes((root / path).read_bytes().replace(b"\n", line_end.encode()))
    (root / KIMI).write_bytes((root / KIMI).read_bytes().rstrip())  # no line end at the end of the file
    (root / DRAFTER).chmod(0o640)
    before = {p: p.read_bytes() for p in root.rglob("*.py")}

    found = plan(root)
    assert {edit.path for edit in found.edits} == {KIMI, DRAFTER, RUNNER, GRAPHS}
    write(root, *found.edits)
    for edit in found.edits:
        new = (root / edit.path).read_bytes()
        assert new == edit.after
        assert new.count(b"\r\n") == (new.count(b"\n") if line_end == "\r\n" else 0)
        old_lines, new_lines = edit.before.split(b"\n"), new.split(b"\n")
        kept = [line for line in new_lines if line in set(old_lines)]
        assert len(kept) >= len(old_lines) - 6  # what is not edited stays
    assert (root / DRAFTER).stat().st_mode & 0o777 == 0o640
    assert plan(root).edits == ()
    assert status(root, "kimi-k25-eagle3").exit_code is Exit.DONE

    write(root, *(FileEdit(e.path, e.after, e.before) for e in found.edits))
    assert {p: p.read_bytes() for p in root.rglob("*.py")} == before


def test_a_diff_is_what_git_applies(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    git(root, "init", "-q")
    found = plan(root)
    subprocess.run(["git", "-C", str(root), "apply", "-"], input=found.diff().encode(), check=True)
    assert all((root / edit.path).read_bytes() == edit.after for edit in found.edits)


def test_git_tells_commit_changes_and_what_was_put_there(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    assert status(root, "kimi-k25-eagle3").to_json()["commit"] is None
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "as released")
    told = status(root, "kimi-k25-eagle3").to_json()
    assert told["commit"] == git(root, "rev-parse", "HEAD")
    assert told["dirty"] == []

    write(root, *plan(root, "kimi-k25-eagle3").edits)
    told = status(root, "kimi-k25-eagle3").to_json()
    assert told["dirty"] == [KIMI]
    assert [p["status"] for p in told["patches"]] == ["applied"]


def test_methods_that_the_commit_has_are_upstream(copy_of: MakeTree) -> None:
    # A wrapper of a class that no table knows: only git tells whose the methods are.
    root = copy_of("0.5.9")
    typed = "\n    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None):\n"
    typed += "        self.language_model.set_eagle3_layers_to_capture(layer_ids)\n"
    typed += "\n    def get_embed_and_head(self):\n        return self.language_model.get_embed_and_head()\n"
    path = root / MODELS / "internvl.py"
    stock = path.read_text()
    patched = stock.replace("\n\nEntryClass = InternVLChatModel", f"{typed}\n\nEntryClass = InternVLChatModel")
    assert patched != stock
    patch = [patchset.eagle3_capture("InternVLChatModel")]

    def word() -> str:
        return patchset.status(load(here, str(root), ["InternVLChatModel"]), patch).entries[0].status

    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "as released")
    path.write_text(patched)
    assert word() == "applied"
    git(root, "commit", "-qam", "as upstream would")
    assert word() == "upstream"


def test_a_change_behind_our_back_stops_the_write(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    found = plan(root)
    (root / RUNNER).write_text((root / RUNNER).read_text() + "# changed meanwhile\n")
    before = {p: p.read_bytes() for p in root.rglob("*.py")}
    with pytest.raises(AgentError) as caught:
        write(root, *found.edits)
    assert caught.value.kind == "conflict"
    assert {p: p.read_bytes() for p in root.rglob("*.py")} == before


def test_a_write_that_fails_half_way_is_taken_back(copy_of: MakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("0.5.9")
    found = plan(root)
    before = {p: p.read_bytes() for p in root.rglob("*.py")}
    real = os.fsync
    calls = []

    def full(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AgentError) as caught:
        write(root, *found.edits)
    assert caught.value.kind == "no-space"
    assert {p: p.read_bytes() for p in root.rglob("*.py")} == before
    assert not list(root.rglob(".opsctl-*"))


def test_a_symlinked_tree_and_a_symlinked_file(copy_of: MakeTree, tmp_path: Path) -> None:
    root = copy_of("0.5.9")
    kept = root / "kept.py"
    shutil.move(root / KIMI, kept)
    (root / KIMI).symlink_to(kept)
    link = tmp_path / "link"
    link.symlink_to(root)
    write(link, *plan(link, "kimi-k25-eagle3").edits)
    assert (root / KIMI).is_symlink()
    assert "set_eagle3_layers_to_capture" in kept.read_text()
    assert status(link, "kimi-k25-eagle3").to_json()["tree"] == str(root)


def test_a_file_that_leads_out_of_the_tree_is_not_written(copy_of: MakeTree, tmp_path: Path) -> None:
    root = copy_of("0.5.9")
    outside = tmp_path / "outside.py"
    shutil.move(root / KIMI, outside)
    (root / KIMI).symlink_to(outside)
    with pytest.raises(AgentError, match="leads out of the tree"):
        write(root, *plan(root, "kimi-k25-eagle3").edits)


def test_a_stale_version_file_is_not_believed(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    (root / "python/sglang/_version.py").write_text("__version__ = version = '0.5.10'\n")
    report = status(root)
    assert report.to_json()["version"] == ">=0.5.9,<0.5.10"
    (root / "python/sglang/_version.py").unlink()
    assert status(root).to_json()["version"] == ">=0.5.9,<0.5.10"


def test_methods_of_a_later_release_copied_into_an_older_one_are_applied(copy_of: MakeTree, release: MakeTree) -> None:
    root = copy_of("0.5.9")
    newer = (release("0.5.10") / KIMI).read_text()
    methods = newer[newer.index("    def set_eagle3_layers_to_capture(") : newer.index("\n\nEntryClass")]
    text = (root / KIMI).read_text()
    (root / KIMI).write_text(text.replace("\n\nEntryClass", f"\n{methods}\n\nEntryClass"))
    (entry,) = status(root, "kimi-k25-eagle3").entries
    assert entry.status == "applied"


def test_installed_as_a_package(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    site = root / "python"
    (entry,) = status(site, "kimi-k25-eagle3").entries
    assert (entry.status, entry.file) == ("needed", "sglang/srt/models/kimi_k25.py")
