"""Secrets named in YAML by where they come from: `!env NAME`, `!file PATH`, `!cmd [PROGRAM, ARGUMENT...]`.

What is at hand, an environment variable or a plain file, is looked up as soon as the file is read (`know`): what is
masked must be known before anything is said. A command may be slow or ask its user, so it runs first when a host is
about to be contacted that it is for. A secret that cannot be had is an error only where it is needed.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsctl.errors import Place, UsageError
from opsctl.localfiles import from_home, read_text
from opsctl.secret import Secret, remember, secrets_in
from opsctl.wire.secret_values import SHORTEST

_COMMAND_TIMEOUT = 60.0  # seconds; a password manager may have to ask its user
TAGS = ("!env", "!file", "!cmd")
VAULT_HINT = (
    "put the value alone into a file, `ansible-vault encrypt` it, and say "
    "!cmd [ansible-vault, view, --vault-password-file, PASSWORD_FILE, FILE]"
)


class LateSecret(Secret):
    """A secret that is looked up once, when it is first revealed. Raises UsageError if it cannot be had.

    `at_hand`: to look it up takes no time and asks nobody.
    """

    __slots__ = ("_found", "_lock", "_look_up", "at_hand", "described", "place")

    def __init__(self, look_up: Callable[[], str], described: str, place: Place, at_hand: bool) -> None:
        self._look_up, self.place, self.at_hand = look_up, place, at_hand
        self._found: str | None = None
        self._lock = threading.Lock()
        self.described = described

    def reveal(self) -> str:
        with self._lock:
            if self._found is None:
                self._found = self._look_up()
        remember(self._found)
        return self._found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self.reveal()

    def __hash__(self) -> int:
        return hash((LateSecret, self.described))


def late_secret(tag: str, words: list[str], place: Place) -> LateSecret:
    """The secret that `tag` (one of TAGS) with its `words` stands for. Relative paths are relative to the YAML file."""
    folder = Path(place.file).parent
    described = f"{tag} {' '.join(words)}"
    if tag == "!env":
        return LateSecret(lambda: _from_env(words[0], place), described, place, True)
    if tag == "!file":
        path = folder / from_home(words[0])
        return LateSecret(lambda: _from_file(path, place), described, place, path.is_file())
    return LateSecret(lambda: _from_command(words, folder, place), described, place, False)


def vaulted(place: Place) -> LateSecret:
    """A value in an Ansible vault, which nothing here opens."""

    def refuse() -> str:
        raise UsageError("the value is in an Ansible vault, which opsctl does not open", where=place, hint=VAULT_HINT)

    return LateSecret(refuse, "!vault", place, True)


def know(*values: Any) -> list[str]:
    """Look up every secret inside `values`, so that it is masked from now on. Gives those that can be had."""
    found = list(dict.fromkeys(secrets_in(values)))
    late = [secret for secret in found if isinstance(secret, LateSecret) and not secret.at_hand]
    if len(late) > 1:
        from concurrent.futures import ThreadPoolExecutor  # takes long to load

        with ThreadPoolExecutor(min(8, len(late)), thread_name_prefix="secret") as pool:
            list(pool.map(_had, late))
    return [value for secret in found if (value := _had(secret)) is not None]


def too_short(*values: Any) -> list[LateSecret]:
    """Of the secrets inside `values` that are at hand, those that are too short to be masked."""
    found = [secret for secret in secrets_in(values) if isinstance(secret, LateSecret) and secret.at_hand]
    return [secret for secret in found if 0 < len((_had(secret) or "").strip()) < SHORTEST]


def know_what_is_at_hand(*values: Any) -> None:
    """The same for those that need no command to run."""
    for secret in secrets_in(values):
        if getattr(secret, "at_hand", True):
            _had(secret)


def _had(secret: Secret) -> str | None:
    try:
        return secret.reveal()
    except UsageError:
        return None  # told where it is needed


def _from_env(name: str, place: Place) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise UsageError(
            f"the environment variable {name} is not set", where=place, hint=f"export {name}=... and run again"
        ) from None


def _from_file(path: Path, place: Place) -> str:
    try:
        return read_text(path, piped=True).rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"the secret file {path} cannot be read: {reason}", where=place) from None


def _from_command(words: list[str], folder: Path, place: Place) -> str:
    try:
        done = subprocess.run(  # the words are the user's own and go to no shell
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the secret command {words[0]!r} did not run: {error}", where=place) from None
    if done.returncode != 0:
        # Its output may hold the secret, so only the exit status is told.
        raise UsageError(f"the secret command {words[0]!r} ended with status {done.returncode}", where=place)
    return done.stdout.decode(errors="replace").rstrip("\n")
