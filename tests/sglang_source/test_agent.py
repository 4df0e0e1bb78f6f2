"""What runs on the host: compiling and proving with its own interpreter, and what arrives damaged."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import pytest

from opsctl.agent.source import source
from opsctl.errors import RemoteError, UsageError
from opsctl.sglang.patches import patching, patchset, proofs, reverting
from opsctl.sglang.source.tree import DRAFTER, SourceTree, load, received, request
from opsctl.this_machine import call as here
from opsctl.wire.protocol import AgentError, Call, Reply
from tests.sglang_source.conftest import MakeTree


def patched(root: Path, *names: str) -> tuple[SourceTree, patchset.Plan]:
    tree = load(here, str(root))
    plan = patchset.plan(tree, patchset.select(names))
    return tree.having({tree.inside(e.path): e.after for e in plan.edits}), plan


def test_compile_names_the_file_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "bad.py").write_text("x = (\n")
    found = source.compile_files(str(tmp_path), ["good.py", "bad.py"], sys.executable)
    assert [f["path"] for f in found["failed"]] == ["bad.py"]
    assert "bad.py, line 1" in found["failed"][0]["message"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.py", "good.py"]


def test_a_search_passes_over_pipes_and_links_that_lead_nowhere(tmp_path: Path) -> None:
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "llama.py").write_text("class Llama: pass\n")
    (models / "gone.py").symlink_to("/nonexistent")
    os.mkfifo(models.parent / "pipe.py")
    found = here(Call("source.grep", {"root": str(tmp_path), "pattern": "class"})).result
    assert [match["path"] for match in found["matches"]] == ["sglang/srt/models/llama.py"]


def test_a_tree_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "llama.py").write_text("class Llama: pass\n")
    for huge in (tmp_path / "sglang" / "weights.bin", models / "huge.py"):  # reading them would take all memory
        huge.touch()
    os.truncate(tmp_path / "sglang" / "weights.bin", 1 << 42)
    with pytest.raises(RemoteError, match=r"weights\.bin.* too large"):
        load(here, str(tmp_path), files=["weights.bin"])
    os.truncate(models / "huge.py", 1 << 42)
    with pytest.raises(UsageError, match="more than 256 MiB"):
        load(here, str(tmp_path))


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("eagle3-loader-names", b'"midlayer.")', b'"midlayers.")', "does not fill the draft layer"),
        ("eagle3-loader-strict", b"if missing or unused:", b"if missing:", "a surplus tensor"),
        ("eagle3-loader-strict", b"if missing or unused:", b"if unused:", "no head"),
        ("eagle3-loader-strict", b'provided.append("embed_tokens.")', b"pass", "does not load"),
        ("eagle3-d2t-guard", b"if repeated:", b"if False:", "'repeats'"),
        ("eagle3-d2t-guard", b"0 <= target_id < vocab_size", b"0 <= target_id", "'vocabulary'"),
        ("eagle3-fc-guard", b"!= self.fc.in_features", b"> self.fc.in_features", "do not raise"),
        ("eagle3-fc-guard", b"not forward_batch.forward_mode.is_decode_or_idle()", b"True", "while drafting"),
        (
            "eagle3-graph-layer-ids",
            b"(\n                self.model_runner.eagle_aux",
            b"(\n                not self.model_runner.eagle_aux",
            "instead of the configured",
        ),
        (
            "kimi-k25-eagle3",
            b"return self.language_model.get_embed",
            b"self.language_model.get_embed",
            "get_embed_and_head",
        ),
    ],
)
def test_a_proof_fails_where_the_code_does_not_behave(
    name: str, old: bytes, new: bytes, told: str, release: MakeTree
) -> None:
    tree, plan = patched(release("0.5.9"), name)
    sound = proofs.request(tree, plan.applied)
    assert sound is not None
    assert proofs.failures(here(sound)) == ()
    paths = [tree.inside(e.path) for e in plan.edits if old in e.after]
    assert paths
    broken = tree.having({path: tree.files[path].replace(old, new) for path in paths})
    asked = proofs.request(broken, plan.applied)
    assert asked is not None
    assert any(told in failure for failure in proofs.failures(here(asked)))


def test_a_proof_that_cannot_run_is_a_failure(release: MakeTree) -> None:
    tree, plan = patched(release("0.5.9"), "eagle3-fc-guard")
    asked = proofs.request(
        tree.having({DRAFTER: tree.files[DRAFTER].replace(b"self.has_fc\n", b"self.has_it\n")}), plan.applied
    )
    assert asked is not None
    assert "AttributeError" in proofs.failures(here(asked))[0]
    with pytest.raises(AgentError, match="not on this host"):
        here(Call("source.prove", {"script": "", "python": "/nowhere/python3"}))


def test_damaged_and_oversized_answers_are_refused(release: MakeTree) -> None:
    answer = here(request(str(release("0.5.9"))))
    data = zlib.decompress(answer.body)
    with pytest.raises(RemoteError, match="damaged"):
        received(Reply(answer.result, zlib.compress(b"x" + data[1:])))
    bomb = {**answer.result, "files": [{"path": "a.py", "size": 1 << 40, "sha256": "", "head": False}]}
    with pytest.raises(RemoteError, match="more than"):
        received(Reply(bomb, zlib.compress(bytes(1 << 20))))


@pytest.mark.parametrize("body", [zlib.compress(bytes(11)), zlib.compress(bytes(9)), b"no zlib"])
def test_other_bytes_than_announced_are_refused(body: bytes) -> None:
    change = {"path": "a.py", "before": None, "mode": None, "old": 4, "new": 6}
    with pytest.raises(RemoteError, match="damaged"):
        patching.tried(
            ["a"],
            Reply(
                {"diffs": [{"applies": True, "already": False, "message": "", "paths": []}], "changes": [change]}, body
            ),
        )
    with pytest.raises(RemoteError, match="damaged"):
        reverting.received(Reply({"steps": [], "now": {}, "images": [["0", 10]]}, body))
