"""A log bundle on this side: takes the pieces a host sends, keeps them on disk, and packs them into one file."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from opsctl.errors import Unreadable, UsageError

MOST_PIECE = 16 << 20  # bytes of one unpacked piece; the agent sends one of them per MiB read
MOST_PART = 256 << 20
_LEVEL = 9


class Spool:
    """The parts of one bundle while they come in, in a folder of their own that goes with the object.

    Args:
        names: the parts that were asked for; nothing else is taken from the host.
        hide: what this side still has to mask; gets whole lines.
    """

    def __init__(self, names: Collection[str], hide: Callable[[bytes], bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="opsctl-logs-")
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._sizes = dict.fromkeys(names, 0)
        self._hide = hide
        self.received = 0  # bytes, as they travelled

    def take(self, name: str, packed: bytes) -> None:
        """A piece from the host. Raises Unreadable for what no host of ours would send."""
        if name not in self._numbers:
            raise Unreadable(f"the host sent a part that was not asked for: {name!r}")
        opened = zlib.decompressobj()
        try:
            data = opened.decompress(packed, MOST_PIECE)
        except zlib.error as error:
            raise Unreadable(f"the host sent a damaged piece of {name}: {error}") from None
        self._sizes[name] += len(data)
        if opened.unconsumed_tail or self._sizes[name] > MOST_PART:
            raise Unreadable(f"the host sent more of {name} than a part may have")
        self.received += len(packed)
        self._append(name, data)

    def add(self, name: str, text: str) -> None:
        """A part that was made here."""
        self._numbers.setdefault(name, len(self._numbers))
        self._append(name, text.encode("utf-8", "surrogateescape"))

    def path(self, name: str) -> Path | None:
        """Where a part lies, None if nothing of it came."""
        path = self._place(name) if name in self._numbers else None
        return path if path and path.exists() else None

    def text(self, name: str) -> str | None:
        path = self.path(name)
        return path.read_text("utf-8", "replace") if path else None

    def pack(self, target: Path, folder: str, manifest: Mapping[str, Any]) -> int:
        """Write everything as `target`, all in `folder`; readable by its owner alone. Its size. Raises UsageError."""
        import zstandard

        document = json.dumps(manifest, indent=2, ensure_ascii=False).encode("utf-8", "replace")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with (
                os.fdopen(handle, "wb") as file,
                zstandard.ZstdCompressor(_LEVEL).stream_writer(file) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                _member(archive, f"{folder}/manifest.json", io.BytesIO(self._hide(document)), None)
                for name in self._numbers:
                    if path := self.path(name):
                        with path.open("rb") as source:
                            _member(archive, f"{folder}/{name}", source, path.stat().st_size)
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UsageError(f"cannot write {target}: {error.strerror}", hint="name another place with -o") from None
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return target.stat().st_size

    def close(self) -> None:
        self._folder.cleanup()

    def _append(self, name: str, data: bytes) -> None:
        if data:
            with self._place(name).open("ab") as file:
                file.write(self._hide(data))

    def _place(self, name: str) -> Path:
        return Path(self._folder.name) / f"{self._numbers[name]}"


def _member(archive: tarfile.TarFile, name: str, source: Any, size: int | None) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(source.getvalue()) if size is None else size
    entry.mtime, entry.mode = int(time.time()), 0o600
    archive.addfile(entry, source)
