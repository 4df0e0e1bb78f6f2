"""Large files: right to the byte, over several channels, and only what is missing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.errors import OpsctlError, RemoteError, UsageError
from opsctl.remote import bulk
from opsctl.remote.host import RemoteHost
from tests.conftest import MakeHost
from tests.proxy import Proxy
from tests.sshd import Sshd

CHUNK = 64 << 10
SIZE = 50 * CHUNK + 123


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


@pytest.mark.parametrize("streams", [1, 4])
def test_what_arrives_is_what_was_sent(host: RemoteHost, source: Path, tmp_path: Path, streams: int) -> None:
    partial = tmp_path / "partial"
    told: list[tuple[int, int]] = []
    sent = bulk.send(
        host,
        source,
        str(partial),
        streams=streams,
        chunk=CHUNK,
        on_bytes=lambda done, total: told.append((done, total)),
    )
    assert partial.read_bytes() == source.read_bytes()
    assert (sent.size, sent.travelled, sent.streams) == (SIZE, SIZE, streams)
    assert told[0] == (0, SIZE)
    assert told[-1] == (SIZE, SIZE)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_only_what_differs_travels(host: RemoteHost, source: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    other = bytearray(source.read_bytes() + b"a tail that is too long")
    other[5 * CHUNK] ^= 1
    other[20 * CHUNK - 1] ^= 1
    partial.write_bytes(other)
    sent = bulk.send(host, source, str(partial), chunk=CHUNK)
    assert partial.read_bytes() == source.read_bytes()
    assert sent.travelled == 2 * CHUNK
    assert bulk.send(host, source, str(partial), chunk=CHUNK).travelled == 0


def test_cut_off_it_goes_on_where_it_was(
    make_host: MakeHost, sshd: Sshd, slow_link: Callable[..., Proxy], source: Path, tmp_path: Path
) -> None:
    partial, proxy = tmp_path / "partial", slow_link()
    host = make_host(port=proxy.port, host_key=str(sshd.host_key))

    def cut_half_way(done: int, total: int) -> None:
        if done > total / 2:
            proxy.cut()

    with pytest.raises(OpsctlError):
        bulk.send(host, source, str(partial), streams=2, chunk=CHUNK, on_bytes=cut_half_way)
    sent = bulk.send(make_host(), source, str(partial), chunk=CHUNK)
    assert partial.read_bytes() == source.read_bytes()
    assert 0 < sent.travelled <= SIZE / 2


def test_an_empty_file_and_one_that_is_shorter_than_what_is_there(
    host: RemoteHost, source: Path, tmp_path: Path
) -> None:
    partial, empty = tmp_path / "partial", tmp_path / "empty"
    empty.touch()
    bulk.send(host, source, str(partial))
    bulk.send(host, empty, str(partial))
    assert partial.read_bytes() == b""


def test_what_cannot_be_read_or_written_is_told(host: RemoteHost, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        bulk.send(host, tmp_path / "none", str(tmp_path / "partial"))
    with pytest.raises(RemoteError) as caught:
        bulk.send(host, source, str(tmp_path / "none" / "partial"))
    assert caught.value.kind == "not-found"
    os.symlink("/etc/passwd", tmp_path / "link")
    with pytest.raises(RemoteError):
        bulk.send(host, source, str(tmp_path / "link"))
