"""Hosts added to an inventory, and inventories written from Ansible's."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import Exit, UsageError
from opsctl.inventory import load
from opsctl.inventory.edit import add_host, imported
from opsctl.secret_sources import LateSecret
from tests.commands import opsctl
from tests.inventory.test_ansible import CASES, written


def added(text: str, name: str = "new", group: str | None = None) -> str:
    return add_host(textwrap.dedent(text), Path("inventory.yaml"), name, ["address: 192.0.2.9", "user: root"], group)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            """\
            # mine
            hosts:
              a: # first
                address: 192.0.2.1
                # become: true

            # the end
            """,
            """\
            # mine
            hosts:
              a: # first
                address: 192.0.2.1
                # become: true
              new:
                address: 192.0.2.9
                user: root

            # the end
            """,
        ),
        (
            """\
            hosts:
                a:
                b:
            groups:
                g: {hosts: [a]}
            """,
            """\
            hosts:
                a:
                b:
                new:
                  address: 192.0.2.9
                  user: root
            groups:
                g: {hosts: [a]}
            """,
        ),
        ("hosts: {a: {}}\n", "hosts: {a: {}, new: {address: 192.0.2.9, user: root}}\n"),
        ("hosts: {} # none\n", "hosts: # none\n  new:\n    address: 192.0.2.9\n    user: root\n"),
        ("hosts:\n", "hosts:\n  new:\n    address: 192.0.2.9\n    user: root\n"),
        ("defaults: {user: me}", "defaults: {user: me}\nhosts:\n  new:\n    address: 192.0.2.9\n    user: root\n"),
        (
            "hosts:\r\n  a: {vars: {x: |-\r\n",
            None,
        ),
        (
            "hosts:\r\n  a:\r\n    user: me\r\n",
            "hosts:\r\n  a:\r\n    user: me\r\n  new:\r\n    address: 192.0.2.9\r\n    user: root\r\n",
        ),
        (
            "hosts:\n  a:\n    vars:\n      text: |\n        one\n\n        two\ngroups: {g: {hosts: [a]}}\n",
            "hosts:\n  a:\n    vars:\n      text: |\n        one\n\n        two\n  new:\n    address: 192.0.2.9\n"
            "    user: root\ngroups: {g: {hosts: [a]}}\n",
        ),
        (
            "hosts:\n  a: &a {user: me, password: !env A}\n  b: *a\n",
            "hosts:\n  a: &a {user: me, password: !env A}\n  b: *a\n  new:\n    address: 192.0.2.9\n    user: root\n",
        ),
    ],
)
def test_a_host_is_added_below_the_last_one(before: str, after: str | None) -> None:
    if after is None:
        with pytest.raises(UsageError):
            added(before)
    else:
        assert added(before) == textwrap.dedent(after)


@pytest.mark.parametrize(
    ("groups", "then"),
    [
        ("groups:\n  g:\n    hosts: [a] # one\n", "groups:\n  g:\n    hosts: [a, new] # one\n"),
        (
            "groups:\n  g:\n    hosts:\n    - a\n    port: 22\n",
            "groups:\n  g:\n    hosts:\n    - a\n    - new\n    port: 22\n",
        ),
        ("groups:\n  g:\n    hosts: []\n", "groups:\n  g:\n    hosts: [new]\n"),
        ("groups:\n  g:\n    port: 22\n", "groups:\n  g:\n    port: 22\n    hosts: [new]\n"),
        ("groups:\n  g:\n", "groups:\n  g:\n    hosts: [new]\n"),
        ("groups:\n  h: {hosts: [a]}\n", "groups:\n  h: {hosts: [a]}\n  g:\n    hosts: [new]\n"),
        ("groups: {h: {hosts: [a]}}\n", "groups: {h: {hosts: [a]}, g: {hosts: [new]}}\n"),
        ("groups: {g: {hosts: [a]}}\n", "groups: {g: {hosts: [a, new]}}\n"),
    ],
)
def test_a_host_is_made_a_member(groups: str, then: str) -> None:
    hosts = "hosts:\n  a:\n"
    entry = "  new:\n    address: 192.0.2.9\n    user: root\n"
    assert added(groups + hosts, group="g") == then + hosts + entry


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("hosts: {new: {}}\n", "new", "there is a host 'new' already"),
        ("groups: {new: {}}\nhosts: {a: {}}\n", "new", "there is a group 'new' already"),
        ("hosts: {a: {}}\n", "a b", "cannot be added"),
        ("hosts: {a: {}}\n...\n", "new", "cannot be added"),
        ("hosts:\n  a: {adress: 1}\n", "new", "adress"),
        ("all: {hosts: {a: }}\n", "new", "never changed"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        added(text, name, "g")


def test_add_as_a_user_does(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text("# mine\nhosts:\n  k25: {address: 192.0.2.1}\n")
    file.chmod(0o640)
    said = opsctl("inventory", "add", "root@192.0.2.12", "--name", "k26", "--port", "2222", "--group", "gpu",
                  folder=tmp_path)  # fmt: skip
    assert said.code == Exit.DONE, said.err
    assert "opsctl inventory check k26" in said.out
    host = load(file).select("gpu")[0]
    assert (host.name, host.settings.address, host.settings.port, host.settings.user) == (
        "k26", "192.0.2.12", 2222, "root",
    )  # fmt: skip
    assert (file.read_text()[:7], file.stat().st_mode & 0o777) == ("# mine\n", 0o640)
    assert opsctl("inventory", "add", "gpu7.example.com", folder=tmp_path).code == Exit.DONE
    assert load(file).select("gpu7")[0].settings.address == "gpu7.example.com"
    before = file.read_text()
    for words, told in (
        (["192.0.2.13"], "--name"),
        (["k26"], "already"),
        (["a b"], "'a b'"),
        (["x", "--group", "k25"], "cannot be added"),
    ):
        refused = opsctl("inventory", "add", *words, folder=tmp_path)
        assert (refused.code, told in refused.err) == (Exit.USAGE, True), refused.err
    assert (file.read_text(), os.listdir(tmp_path)) == (before, ["inventory.yaml"])


@pytest.mark.parametrize("case", [c for c in CASES if "hosts" in c], ids=lambda c: c["name"])
def test_an_import_says_the_same(tmp_path: Path, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPE_SECRET", "from-the-environment")
    path = written(case, tmp_path)
    text, told = imported(path.read_bytes(), path, tmp_path / "new" / "inventory.yaml")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "inventory.yaml").write_text(text)
    before, after = load(path), load(tmp_path / "new" / "inventory.yaml")
    reached = {name: host for name, host in before.hosts.items() if "blocked" not in case["hosts"][name]}
    assert list(after.hosts) == list(reached)
    for name, host in reached.items():
        mine, ours = host.settings, after.hosts[name].settings
        for key in (
            "connection",
            "address",
            "port",
            "user",
            "key",
            "jump",
            "become",
            "python",
            "known_hosts",
            "sglang",
        ):
            assert (name, key, getattr(ours, key)) == (name, key, getattr(mine, key))
        assert {*after.hosts[name].groups, "ungrouped"} == {*host.groups, "ungrouped"}
        for key, value in mine.vars.items():
            if not key.startswith("ansible_") and "secret" not in repr(value):
                theirs = ours.vars[key]
                assert isinstance(theirs, LateSecret) or (key, theirs) == (key, value)
    for name in set(before.hosts) - set(reached):
        assert f"left out: the host {name}, " in "\n".join(told)
    assert "tell-nobody" not in text + "\n".join(told)


def test_an_import_keeps_groups_and_never_copies_a_secret(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text(
        "[gpu]\nk25 ansible_host=192.0.2.1\nk26 ansible_become_user=sglang ansible_password=hunter2hunter2\n"
        "[gpu:vars]\nansible_become=yes\nansible_user=root\nregion=eu\napi_key=sk-hunter2hunter2\n"
        "[all:vars]\nansible_shell_type=fish\n"
    )
    said = opsctl("inventory", "import", "hosts.ini", folder=tmp_path)
    assert said.code == Exit.DONE, said.err
    assert (tmp_path / "inventory.yaml").read_text().partition("\n\n")[2] == textwrap.dedent("""\
        defaults:
          vars:
            ansible_shell_type: fish

        groups:
          gpu:
            hosts: [k25, k26]
            user: root
            become: true
            vars:
              region: eu
              api_key: !env 'GPU_API_KEY'

        hosts:
          k25:
            address: 192.0.2.1
          k26:
            password: !env 'K26_PASSWORD'
            become: sglang
        """)
    assert "hunter2" not in said.out + said.err
    for words in (
        "export GPU_API_KEY",
        "hosts.ini:3:1: in clear: written as `!env K26_PASSWORD`",
        "ansible_shell_type",
    ):
        assert words in said.out
    before = (tmp_path / "inventory.yaml").read_text()
    again = opsctl("inventory", "import", "hosts.ini", folder=tmp_path)
    assert (again.code, "is here already" in again.err) == (Exit.USAGE, True)
    assert (tmp_path / "inventory.yaml").read_text() == before
    own = opsctl("inventory", "import", "inventory.yaml", "--to", "more.yaml", folder=tmp_path)
    assert (own.code, "opsctl's own already" in own.err) == (Exit.USAGE, True)
