"""Draft models staged on a host behind a real sshd: what appears there, what travels, and what is left by failures."""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opsctl import modules
from opsctl.drafter.staging import read_source
from opsctl.errors import Conflict, OpsctlError, RemoteError, TaskFailed, UsageError
from opsctl.modules.contract import Change, Module
from opsctl.remote import steps as journal
from opsctl.remote.host import RemoteHost
from opsctl.text import size
from opsctl.wire.chunking import BLOCK
from opsctl.wire.protocol import Call, Reply
from tests.drafter.build import Raw, write_safetensors
from tests.modules.conftest import site
from tests.proxy import Proxy
from tests.sshd import Sshd

MIB = 1 << 20
MakeHost = Callable[..., RemoteHost]


class Staging:
    """The module against a host, journaled as the engine does it."""

    def __init__(self, host: RemoteHost, top: Path) -> None:
        self.host, self.top, self.module = host, top, modules.get("drafter_stage")
        self.runs = 0
        self.site = site({"sglang": {"weights_root": str(top)}}, project=Path("/"))

    def plan(self, **args: Any) -> tuple[Any, list[Reply], Change | None]:
        assert isinstance(self.module, Module)
        parsed = self.module.args.model_validate({"name": "draft", **args})
        seen = self.host.batch(self.module.observe(parsed, self.site))
        return parsed, seen, self.module.plan(parsed, seen, self.site)

    def run(self, during: Callable[[str], None] = lambda text: None, **args: Any) -> dict[str, Any]:
        assert isinstance(self.module, Module)
        parsed, seen, change = self.plan(**args)
        if change is None:
            return {"changed": False, **self.module.result(parsed, seen, None, self.site)}
        assert change.transfer is not None
        moved = change.transfer(self.host, lambda text, fraction: during(text))
        self.runs += 1
        self.host.call(Call("journal.begin", {"run": f"r{self.runs}", "meta": {}}))
        step = journal.apply(f"r{self.runs}", 0, "stage", change.calls, change.undo, change.settle)
        done = journal.replies(self.host.call(step))
        result = self.module.result(parsed, seen, done, self.site)
        for call in change.after:
            self.host.call(call)
        return {"changed": True, "summary": change.summary, **change.values, **moved, **result}

    def rollback(self) -> dict[str, Any]:
        return dict(self.host.call(Call("journal.rollback", {"run": f"r{self.runs}", "why": "test"})).result)

    @property
    def releases(self) -> list[str]:
        folder = self.top / "releases" / "draft"
        return sorted(e for e in os.listdir(folder) if not e.startswith(".")) if folder.exists() else []


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "controller"))


@pytest.fixture
def staging(host: RemoteHost, tmp_path: Path) -> Staging:
    return Staging(host, tmp_path / "weights")


@cache
def noise(seed: str | int, size: int) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


def drafter(folder: Path, **seeds: int) -> Path:
    """Three tensors of 3, 9 and 2 MiB; a seed each decides their content."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"embed_tokens.weight": 9 * MIB, "fc.weight": 3 * MIB, "lm_head.weight": 2 * MIB}
    tensors = {
        name: Raw("U8", [size], noise(f"{name} {seeds.get(name.partition('.')[0], 0)}", size))
        for name, size in sizes.items()
    }
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text('{"hidden_size": 48}')
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    return folder


def once_at(mib: float, act: Callable[[], object]) -> Callable[[str], None]:
    """What does something during a staging, each time it is told that so many MiB or more have arrived."""

    def during(text: str) -> None:
        if " MiB of " in text and float(text.split()[0]) >= mib:
            act()

    return during


def contents(folder: str | Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).iterdir()
        if not path.name.startswith(".")
    }


def test_a_release_holds_the_same_bytes_and_is_readable_by_others(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    result = staging.run(path=str(source))
    assert result["changed"]
    assert Path(result["release"]).parent == tmp_path / "weights/releases/draft"
    assert contents(result["release"]) == contents(source)
    assert {oct(p.stat().st_mode & 0o777) for p in Path(result["release"]).iterdir()} == {"0o644"}
    assert result["sent"] == result["size"] == sum((source / name).stat().st_size for name in contents(source))


def test_what_is_there_is_neither_read_nor_sent_again(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    first = staging.run(path=str(source))
    again = staging.run(path=str(source))
    assert not again["changed"]
    assert again["release"] == first["release"]
    assert again["sent"] == 0


def test_check_mode_tells_what_would_travel(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    _, _, change = staging.plan(path=str(source))
    assert change is not None
    assert change.values["sent"] == change.values["size"]
    assert staging.releases == []


def test_check_mode_names_the_release_that_a_run_makes(staging: Staging, tmp_path: Path) -> None:
    """Although a run would read the source only while it is sent."""
    source = drafter(tmp_path / "source")
    run_site, staging.site = staging.site, replace(staging.site, check=True)
    parsed, seen, change = staging.plan(path=str(source))
    assert change is not None
    assert isinstance(staging.module, Module)
    told = staging.module.result(parsed, seen, None, staging.site)
    staging.site = run_site
    assert told["release"] == staging.run(path=str(source))["release"]
    assert f" as {told['release']}: " in change.summary


def test_what_another_controller_has_staged_is_recognised(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that remembers no digests and holds another copy of the files."""
    first = staging.run(path=str(drafter(tmp_path / "one")))
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "another"))
    again = staging.run(path=str(drafter(tmp_path / "two")))
    assert not again["changed"]
    assert (again["release"], again["digest"], again["sent"]) == (first["release"], first["digest"], 0)


def test_only_tensors_that_changed_travel(staging: Staging, tmp_path: Path) -> None:
    staging.run(path=str(drafter(tmp_path / "one")))
    tuned = drafter(tmp_path / "two", fc=1)
    result = staging.run(path=str(tuned))
    assert contents(result["release"]) == contents(tuned)
    # One tensor of 3 MiB, with its neighbours in one chunk, of 14 MiB.
    assert 3 * MIB <= result["sent"] <= 6 * MIB
    assert result["kept"] >= 8 * MIB


def test_of_scattered_changes_only_the_blocks_travel(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    staging.run(path=str(source))
    with open(source / "model.safetensors", "r+b") as file:
        for at in (MIB, 6 * MIB, 13 * MIB):
            file.seek(at)
            file.write(b"changed")
    result = staging.run(path=str(source))
    assert contents(result["release"]) == contents(source)
    assert result["sent"] == 3 * BLOCK


def test_whole_files_are_shared_between_releases(staging: Staging, tmp_path: Path) -> None:
    one = staging.run(path=str(drafter(tmp_path / "one")))
    other = drafter(tmp_path / "two")
    (other / "config.json").write_text('{"hidden_size": 64}')
    two = staging.run(path=str(other))
    assert two["sent"] == len('{"hidden_size": 64}')
    inodes = {os.stat(f"{result['release']}/model.safetensors").st_ino for result in (one, two)}
    assert len(inodes) == 1


def test_a_changed_release_is_not_trusted_and_is_staged_again(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    release = staging.run(path=str(source))["release"]
    with open(f"{release}/model.safetensors", "r+b") as file:
        file.seek(5 * MIB)
        file.write(b"overwritten")
    assert staging.run(path=str(source))["changed"]
    assert contents(release) == contents(source)


def test_a_changed_release_in_service_is_left_alone(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    release = staging.run(path=str(source))["release"]
    os.symlink(os.path.basename(release), os.path.join(os.path.dirname(release), "current"))
    Path(release, "extra.safetensors").write_bytes(b"x")
    with pytest.raises(Conflict, match="in service"):
        staging.run(path=str(source))
    assert Path(release, "extra.safetensors").exists()


@pytest.mark.parametrize("then", ["as it was", "touched", "changed"])
def test_a_cut_connection_leaves_nothing_visible_and_the_next_run_goes_on(
    make_host: MakeHost, slow_link: Callable[[float], Proxy], sshd: Sshd, tmp_path: Path, then: str
) -> None:
    source = drafter(tmp_path / "source")
    (source / "more.bin").write_bytes(noise(1, 96 * MIB))
    proxy = slow_link(0.0)
    lossy = Staging(make_host(port=proxy.port, host_key=str(sshd.host_key)), tmp_path / "weights")

    with pytest.raises(OpsctlError):
        lossy.run(once_at(60, proxy.cut), path=str(source))
    assert lossy.releases == []
    if then == "touched":
        for file in source.iterdir():
            os.utime(file)
    if then == "changed":
        (source / "more.bin").write_bytes(noise(2, 96 * MIB))
    result = Staging(make_host(), tmp_path / "weights").run(path=str(source))
    assert contents(result["release"]) == contents(source)
    # Of 110 MiB 60 had arrived; what was cut in the middle of a chunk travels again.
    assert then == "changed" or result["sent"] <= 80 * MIB
    assert result["sent"] + result["kept"] == result["size"]
    if then == "as it was":
        assert f": {size(result['sent'])} to send; goes on with " in result["summary"]


def test_bytes_that_went_bad_on_the_way_are_found_and_sent_again(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")

    def spoil(text: str) -> None:
        for partial in (tmp_path / "weights/releases/draft").glob(".partial-*/config.json"):
            partial.write_text('{"hidden_size": 00}')

    with pytest.raises(RemoteError, match=r"config\.json is not what was sent"):
        staging.run(spoil, path=str(source))
    assert staging.releases == []
    assert contents(staging.run(path=str(source))["release"]) == contents(source)


def test_a_source_that_changes_meanwhile_is_an_error_and_not_a_release(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")

    def change(text: str) -> None:
        (source / "config.json").write_text('{"hidden_size": 96}')

    with pytest.raises(UsageError, match=r"config\.json was changed while it was being staged"):
        staging.run(change, path=str(source))
    assert staging.releases == []


def test_a_file_that_comes_while_the_others_are_sent_is_an_error_and_not_a_release(
    staging: Staging, tmp_path: Path
) -> None:
    source = drafter(tmp_path / "source")
    read_source(source)  # it is remembered, and not read again while it is sent

    def add(text: str) -> None:
        (source / "new.json").write_text("{}")

    with pytest.raises(UsageError, match=r"new\.json was changed while it was being staged"):
        staging.run(add, path=str(source))
    assert staging.releases == []


def test_a_file_that_comes_before_the_source_is_read_is_an_error_and_not_a_release(
    staging: Staging, tmp_path: Path
) -> None:
    source = drafter(tmp_path / "source")
    _, _, change = staging.plan(path=str(source))
    (source / "new.json").write_text("{}")
    assert change is not None
    assert change.transfer is not None
    with pytest.raises(UsageError, match=r"new\.json was changed while it was being staged"):
        change.transfer(staging.host, lambda text, fraction: None)


@pytest.mark.parametrize(
    "how", ["the system's ssh", "with a TMPDIR that no socket can lie in", "with none to write to", "channels alone"]
)
def test_much_travels_over_connections_of_their_own_where_ssh_is_there(
    staging: Staging, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("opsctl.remote.parts.MUCH", 12 * MIB)
    source = drafter(tmp_path / "source")
    (source / "more.bin").write_bytes(noise(1, 24 * MIB))
    if how == "channels alone":
        monkeypatch.setenv("PATH", str(tmp_path))
    if "TMPDIR" in how:
        odd = tmp_path / ("50%h \"'${HOME}" + "x" * 100)
        odd.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(odd))
    if how == "with none to write to":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    before = sshd.log.read_text().count("Accepted publickey")
    result = staging.run(path=str(source))
    assert contents(result["release"]) == contents(source)
    connections = sshd.log.read_text().count("Accepted publickey") - before
    apart = how in ("the system's ssh", "with a TMPDIR that no socket can lie in")
    assert connections >= 2 if apart else connections == 0  # more to one that answers late


@pytest.mark.parametrize("damage", ["", "{}", '{"digest": "x", "files": {"a": {"stat": [1], "chunks": [[0, "1"]]}}}'])
def test_a_release_that_does_not_say_what_it_holds_is_told_and_not_taken_from(
    staging: Staging, tmp_path: Path, damage: str
) -> None:
    release = Path(staging.run(path=str(drafter(tmp_path / "one")))["release"])
    (release / ".release").write_text(damage)
    _, _, change = staging.plan(path=str(drafter(tmp_path / "two", fc=1)))
    assert change is not None
    assert f"{release} does not say any more what it holds" in change.summary
    assert change.values["kept"] == 0
    again = staging.run(path=str(tmp_path / "one"))  # of the same name: made anew
    assert contents(again["release"]) == contents(tmp_path / "one")


@pytest.mark.parametrize("kept", [0, 100, None])
def test_damaged_digests_of_blocks_cost_time_only(staging: Staging, tmp_path: Path, kept: int | None) -> None:
    file = Path(staging.run(path=str(drafter(tmp_path / "one")))["release"]) / ".blocks"
    file.write_bytes(bytes(file.stat().st_size) if kept is None else file.read_bytes()[:kept])
    tuned = drafter(tmp_path / "two", fc=1)
    result = staging.run(path=str(tuned))
    assert contents(result["release"]) == contents(tuned)
    assert result["kept"] >= 8 * MIB


def test_undo_removes_the_release_it_made_and_no_other(staging: Staging, tmp_path: Path) -> None:
    first = staging.run(path=str(drafter(tmp_path / "one")))
    staging.run(path=str(drafter(tmp_path / "two", fc=1)))
    assert staging.rollback()["outcome"] == "rolled-back"
    assert staging.releases == [os.path.basename(first["release"])]
    assert contents(first["release"]) == contents(tmp_path / "one")


def test_undo_leaves_a_release_that_serves(staging: Staging, tmp_path: Path) -> None:
    release = staging.run(path=str(drafter(tmp_path / "one")))["release"]
    os.symlink(release, tmp_path / "weights/releases/current")
    assert staging.rollback()["outcome"] == "rolled-back-partly"
    assert Path(release, "model.safetensors").exists()


def test_old_releases_go_but_never_one_in_service(staging: Staging, tmp_path: Path) -> None:
    made = []
    for seed in range(4):
        made.append(os.path.basename(staging.run(path=str(drafter(tmp_path / str(seed), fc=seed)), keep=1)["release"]))
        os.utime(tmp_path / "weights/releases/draft" / made[-1], (seed, seed))
        if seed == 0:
            os.symlink(made[0], tmp_path / "weights/releases/draft/current")
    assert staging.releases == sorted([made[0], "current", made[2], made[3]])


def test_releases_that_a_rollback_may_need_stay_until_it_is_done(staging: Staging, tmp_path: Path) -> None:
    """As many rollbacks as there were deploys, though fewer releases are to be kept: each brings back what served."""
    current, served = tmp_path / "weights/releases/draft/current", []
    for seed in range(5):
        made = os.path.basename(staging.run(path=str(drafter(tmp_path / str(seed), fc=seed)), keep=1)["release"])
        run, served = f"r{staging.runs}", [*served, made]
        link = Call("files.link", {"path": str(current), "target": made, "keep": "link"})
        undo = Call("files.restore", {"path": str(current), "keep": "link"})
        staging.host.call(journal.apply(run, 1, "switch", [link], [undo]))
    assert staging.releases == sorted([*served, "current"])
    for last in range(4, 0, -1):
        staging.runs = last + 1
        assert staging.rollback()["outcome"] == "rolled-back"
        assert os.readlink(current) == served[last - 1]
        assert contents(current.resolve()) == contents(tmp_path / str(last - 1))
        assert staging.releases == sorted([*served[:last], "current"])  # what the run made is gone


def test_what_is_pruned_is_foretold_and_never_what_has_come_into_use_since(staging: Staging, tmp_path: Path) -> None:
    names = []
    for seed in range(3):
        names.append(os.path.basename(staging.run(path=str(drafter(tmp_path / str(seed), fc=seed)))["release"]))
        os.utime(tmp_path / "weights/releases/draft" / names[-1], (seed, seed))
    _, _, change = staging.plan(path=str(drafter(tmp_path / "new", fc=9)), keep=1)
    assert change is not None
    assert f"; when the run has ended well, remove {names[1]}, {names[0]}" in change.summary
    os.symlink(names[1], tmp_path / "weights/releases/draft/current")
    [prune] = change.after
    assert staging.host.call(prune).result == {"removed": [str(tmp_path / "weights/releases/draft" / names[0])]}


def test_a_folder_of_the_host_becomes_a_release_without_a_byte_over_the_wire(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "there")
    result = staging.run(host_path=str(source))
    assert result["sent"] == 0
    assert contents(result["release"]) == contents(source)
    (source / "config.json").write_text("{}")  # the release must not share files that others may write
    assert contents(result["release"]) != contents(source)
    assert staging.run(path=str(drafter(tmp_path / "here")))["release"] == result["release"]


def test_a_full_disk_is_told_before_anything_is_sent(staging: Staging, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    assert isinstance(staging.module, Module)
    parsed, seen, _ = staging.plan(path=str(source))
    full = Reply({**seen[0].result, "free": 10 * MIB})
    with pytest.raises(TaskFailed, match=r"14\.0 MiB are needed, 10\.0 MiB are free"):
        staging.module.plan(parsed, [full], site({"sglang": {"weights_root": "/w"}}, project=Path("/")))


@pytest.mark.parametrize(
    ("name", "told"),
    [("empty", "nothing in the folder"), ("link", "leaves the folder"), ("missing", "no such folder")],
)
def test_folders_that_cannot_be_staged(staging: Staging, tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "model.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match=told if name != "missing" else "there is no"):
        staging.run(path=str(tmp_path / name))
