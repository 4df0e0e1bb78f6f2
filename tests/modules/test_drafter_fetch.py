"""Draft models from a web server of our own: what arrives, what is refused, and where the token goes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from opsctl import modules
from opsctl.errors import OpsctlError, TaskFailed
from opsctl.modules.contract import Action, Outcome
from opsctl.remote.host import RemoteHost
from tests.modules.conftest import site

TOKEN = "hf_never_to_be_seen"
WEIGHTS = random.Random(7).randbytes(3 << 20)
CONFIG = b'{"hidden_size": 48}'


@dataclass
class Web:
    """A server; `pages`: path -> (headers, content). `cut`: it breaks off after so many bytes of this path, once."""

    url: str = ""
    pages: dict[str, tuple[dict[str, str], bytes]] = field(default_factory=dict)
    moved: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    private: bool = False
    cut: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)  # method, path, range, token

    def gets(self, name: str) -> list[str | None]:
        """Ranges asked for of the paths that end with `name`."""
        return [wanted for method, path, wanted, _ in self.seen if method == "GET" and path.endswith(name)]


def serve(web: Web) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            token, wanted = self.headers.get("Authorization"), self.headers.get("Range")
            web.seen.append((self.command, path, wanted, token))
            if web.private and token != f"Bearer {TOKEN}":
                self.reply(401, {}, b"")
            elif path in web.moved:
                to, headers = web.moved[path]
                self.reply(302, {"Location": to, **headers}, b"")
            elif path in web.pages:
                headers, content = web.pages[path]
                start = int(wanted[len("bytes=") : -1]) if wanted else 0
                self.reply(206 if wanted else 200, headers, content[start:], web.cut.pop(path, None))
            else:
                self.reply(404, {}, b"")

        do_HEAD = do_GET

        def reply(self, status: int, headers: dict[str, str], content: bytes, cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[:cut])

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    server = serve(made)
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def store() -> Iterator[Web]:
    """Where the hub keeps large files."""
    made = Web()
    server = serve(made)
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "controller"))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def hub(web: Web, store: Web, *, tells_all: bool = True) -> None:
    """acme/draft at commit c0ffee, its weights kept elsewhere; `tells_all`: with digests in the listing."""
    files = {"config.json": CONFIG, "model.safetensors": WEIGHTS}
    siblings: list[dict[str, Any]] = [{"rfilename": ".gitattributes"}, {"rfilename": "extra/notes.txt"}]
    for name, data in files.items():
        large = name == "model.safetensors"
        told = {"size": len(data), "blobId": git_blob(b"pointer" if large else data)}
        lfs = {"lfs": {"sha256": sha256(data), "size": len(data)}} if large else {}
        siblings.append({"rfilename": name, **({**told, **lfs} if tells_all else {})})
    web.pages["/api/models/acme/draft/revision/v2"] = ({}, json.dumps({"sha": "c0ffee", "siblings": siblings}).encode())
    web.pages["/acme/draft/resolve/c0ffee/config.json"] = ({"ETag": f'"{git_blob(CONFIG)}"'}, CONFIG)
    store.pages["/blob"] = ({"ETag": '"multipart-7"'}, WEIGHTS)
    linked = {"X-Linked-Etag": f'"{sha256(WEIGHTS)}"', "X-Linked-Size": str(len(WEIGHTS))}
    web.moved["/acme/draft/resolve/c0ffee/model.safetensors"] = (f"{store.url}/blob", linked)


Fetch = Callable[..., Outcome]


@pytest.fixture
def fetch(host: RemoteHost) -> Fetch:
    def run(**args: Any) -> Outcome:
        module = modules.get("drafter_fetch")
        assert isinstance(module, Action)
        at = site({}, project=Path("/"))
        return module.run(module.args.model_validate(args), host, at, lambda text, fraction: None)

    return run


@pytest.mark.parametrize("by", ["controller", "host"])
@pytest.mark.parametrize("tells_all", [True, False])
def test_a_repository_arrives_at_one_commit_and_the_token_goes_to_the_hub_only(
    fetch: Fetch, web: Web, store: Web, monkeypatch: pytest.MonkeyPatch, by: str, tells_all: bool
) -> None:
    hub(web, store, tells_all=tells_all)
    web.private = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    values = fetch(source="acme/draft@v2", by=by).values
    path = Path(values["path"] or values["host_path"])
    assert (values["host_path"] is None) == (by == "controller")
    assert {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith(".")} == {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
    }
    assert values["revision"] == "c0ffee"
    assert {token for _, _, _, token in store.seen} == {None}
    kept = [p.read_bytes() for p in path.parent.parent.rglob("*") if p.is_file()]
    assert not any(TOKEN.encode() in data for data in kept)
    store.seen.clear()
    assert fetch(source="acme/draft@v2", by=by).values["fetched"] == 0
    assert store.seen == []


def test_what_nobody_asked_for_in_a_long_time_is_removed_and_told(fetch: Fetch, web: Web, store: Web) -> None:
    hub(web, store)
    now = Path(fetch(source="acme/draft@v2", endpoint=web.url).values["path"])
    old, recent = now.with_name("0" * 32), now.with_name("1" * 32)
    for folder in (old, recent):
        folder.mkdir()
        (folder / ".lock").touch()
    os.utime(old / ".lock", (0, 0))
    os.utime(now / ".lock", (0, 0))
    again = fetch(source="acme/draft@v2", endpoint=web.url)
    assert again.values["removed"] == [str(old)]
    assert str(old) in again.lines[1]
    assert (old.exists(), recent.exists(), now.exists()) == (False, True, True)


def test_weights_that_are_not_what_the_hub_says_are_refused(fetch: Fetch, web: Web, store: Web) -> None:
    hub(web, store)
    store.pages["/blob"] = ({}, WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1]))
    with pytest.raises(TaskFailed, match=r"model\.safetensors is not what the server said it was"):
        fetch(source="acme/draft@v2", endpoint=web.url)
    store.pages["/blob"] = ({}, WEIGHTS)
    path = Path(fetch(source="acme/draft@v2", endpoint=web.url).values["path"])
    assert (path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_download_that_was_cut_goes_on(fetch: Fetch, web: Web, store: Web) -> None:
    hub(web, store)
    store.cut["/blob"] = 2 << 20
    with pytest.raises(TaskFailed, match=r"model\.safetensors"):
        fetch(source="acme/draft@v2", endpoint=web.url)
    path = Path(fetch(source="acme/draft@v2", endpoint=web.url).values["path"])
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert store.gets("/blob") == [None, f"bytes={2 << 20}-"]


def test_a_folder_at_an_address_arrives_with_the_shards_its_index_names(fetch: Fetch, web: Web) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}
    for name, data in {
        "config.json": CONFIG,
        "model.safetensors.index.json": json.dumps(index).encode(),
        "one.safetensors": WEIGHTS,
        "two.safetensors": WEIGHTS[::-1],
    }.items():
        web.pages[f"/drafts/k25/{name}"] = ({"ETag": f'"{len(data)}"'}, data)
    values = fetch(source=f"{web.url}/drafts/k25/").values
    assert values["files"] == 4
    assert (Path(values["path"]) / "two.safetensors").read_bytes() == WEIGHTS[::-1]


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", ".hidden"])
def test_an_index_cannot_name_files_elsewhere(fetch: Fetch, web: Web, name: str) -> None:
    web.pages["/d/config.json"] = ({}, CONFIG)
    web.pages["/d/model.safetensors.index.json"] = ({}, json.dumps({"weight_map": {"a": name}}).encode())
    with pytest.raises(TaskFailed, match="not a plain file name"):
        fetch(source=f"{web.url}/d")


def test_refusals_say_what_to_do_and_no_token(fetch: Fetch, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.private = True
    with pytest.raises(OpsctlError, match="401") as refused:
        fetch(source="acme/draft", endpoint=web.url)
    assert "HF_TOKEN" in str(refused.value.hint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(OpsctlError, match="404") as missing:
        fetch(source="acme/none", endpoint=web.url)
    assert TOKEN not in f"{missing.value} {missing.value.hint}"
    with pytest.raises(OpsctlError, match="in the clear"):
        fetch(source="acme/draft", endpoint="http://hub.example")
    with pytest.raises(OpsctlError, match="not an http or https address"):
        fetch(source="file:///etc")
