"""Root changes files in a folder whose owner swaps names in it all the while: they win nothing. Needs root."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from opsctl.agent.files import changes
from opsctl.wire.protocol import AgentError
from tests.campaigns.campaign import Case
from tests.modules.test_files import Step, snapshot

SHORT = 6
STEPS = 30  # changes in one case
OTHER = 65534
SECRET = b"root's own"


def cases(rng: random.Random) -> Iterator[Case]:
    """Changes in random order, while another user plants links. None for who is not root."""
    while not os.geteuid():
        seed = rng.getrandbits(32)
        yield Case(f"order {seed:08x}", lambda folder, seed=seed: _hold(folder, random.Random(seed)))  # type: ignore[misc]


def _hold(folder: Path, rng: random.Random) -> None:
    top = Path(tempfile.mkdtemp())  # one that the other user can reach
    top.chmod(0o755)
    theirs, outside = top / "theirs", top / "outside"
    (outside / "sub").mkdir(parents=True)
    outside.chmod(0o700)
    (outside / "secret").write_bytes(SECRET)
    (outside / "secret").chmod(0o600)
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    before = snapshot(outside)
    child = os.fork()
    if not child:
        try:
            _attack(str(theirs), str(outside / "secret"), str(outside))
        finally:
            os._exit(1)
    try:
        for number in range(STEPS):
            _change(rng, theirs, folder / str(number))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        assert snapshot(outside) == before
        for found in theirs.rglob("*"):
            info = found.lstat()
            if stat.S_ISREG(info.st_mode) and found.read_bytes() == SECRET:
                assert (info.st_uid, info.st_mode & 0o007) == (0, 0), found
    finally:
        shutil.rmtree(top)


def _change(rng: random.Random, theirs: Path, step: Path) -> None:
    """One change, and perhaps its undo. That it is refused is all right."""
    path = str(rng.choice((theirs, theirs / "d")) / f"f{rng.randrange(3)}")
    call, args = rng.choice(
        (
            (changes.write, {"path": path, "mode": 0o600, "owner": "0"}),
            (changes.attributes, {"path": path, "mode": 0o640}),
            (changes.mkdir, {"path": path + "-new/a"}),
            (changes.link, {"path": path + "-link", "target": "x"}),
            (changes.remove, {"path": path}),
        )
    )
    kept = Step(step, SECRET)
    with contextlib.suppress(AgentError):
        call(kept, keep="0", **args)
    if rng.random() < 0.5:
        with contextlib.suppress(AgentError):
            changes.restore(kept, str(args["path"]), "0")


def _attack(theirs: str, secret: str, outside: str) -> None:
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
