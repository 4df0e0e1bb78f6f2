"""What an inventory file means: merging, patterns, secrets, Ansible's format, and what is said of a bad one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from opsctl.errors import UsageError
from opsctl.inventory import Inventory, load
from opsctl.secret import mask
from opsctl.text import printable
from tests.commands import opsctl
from tests.mutation import mutated

GOOD = """\
defaults:
  user: root
  vars: {colour: grey, size: 1}
groups:
  gpu:
    children: [blackwell]
    port: 2200
    vars: {colour: red, place: gpu}
    sglang: {port: 31000, weights_root: /data}
  blackwell:
    hosts: [b1, b2]
    vars: {place: blackwell}
    sglang: {tp: 8}
  spare:
    hosts: [b2, c1]
hosts:
  b1:
    address: 10.0.0.1
    key: ~/.ssh/b1
    vars: {size: 2}
  b2:
  c1: {user: ops, sglang: {model_path: "3207427"}}
"""


def inventory(tmp_path: Path, text: str) -> Inventory:
    (tmp_path / "inventory.yaml").write_text(text)
    return load(tmp_path / "inventory.yaml")


def names(inv: Inventory, pattern: str) -> list[str]:
    return [h.name for h in inv.select(pattern)]


def test_the_nearest_to_the_host_wins_key_by_key(tmp_path: Path) -> None:
    b1, b2, c1 = inventory(tmp_path, GOOD).select("all")
    assert (b1.settings.user, b1.settings.port, b1.settings.address) == ("root", 2200, "10.0.0.1")
    assert (c1.settings.user, c1.settings.port) == ("ops", None)
    assert b1.variables["colour"] == "red"  # a group over the defaults
    assert b1.variables["place"] == "blackwell"  # the nearer group over the outer one
    assert (b1.variables["size"], b2.variables["size"]) == (2, 1)  # the host over the defaults
    # One key of a section does not drop the others, nor their defaults.
    assert (b1.sglang.port, b1.sglang.tp, b1.sglang.weights_root) == (31000, 8, "/data")
    assert (c1.sglang.port, c1.sglang.model_path) == (30000, "3207427")
    assert b1.variables["group_names"] == ["gpu", "blackwell"]
    assert b1.variables["sglang"]["tp"] == 8


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("all", ["b1", "b2", "c1"]),
        ("blackwell", ["b1", "b2"]),
        ("gpu", ["b1", "b2"]),
        ("blackwell:spare", ["b1", "b2", "c1"]),
        ("c1,b1", ["b1", "c1"]),
        ("blackwell:&spare", ["b2"]),
        ("blackwell:!spare", ["b1"]),
        ("!b1", ["b2", "c1"]),
        ("b*", ["b1", "b2"]),
        ("all:!b?", ["c1"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    assert names(inventory(tmp_path, GOOD), pattern) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('become: "yes"', "would be the name of a user"),
        ("address: 10.0", "`10.0` is no whole address"),
        ("timeouts: {connect: 0}", "expected more than 0"),
        ("password: !hunter2 ", "unknown tag"),
    ],
)
def test_what_nobody_means_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        inventory(tmp_path, f"hosts:\n  a: {{{text}}}\n")
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("pattern", "hint"), [("blakwell", "blackwell"), ("b1:!b1", "inventory list"), ("x*", "all")])
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path, pattern: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory(tmp_path, GOOD).select(pattern)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("hosts:\n  a:\n    adress: 1.2.3.4\n", 3, 5, ["adress", "address"]),
        ("hosts:\n  a:\n    port: ssh\n", 3, 11, ["whole number", "'ssh'"]),
        ("hosts:\n  a: {port: 70000}\n", 2, 13, ["65535"]),
        ("hosts:\n  a: {sglang: {prot: 1}}\n", 2, 16, ["prot", "port"]),
        ("hosts:\n  a:\n  a:\n", 3, 3, ["twice", "2:3"]),
        ("hosts: [a\n", 2, 1, ["malformed"]),
        ("hosts: {a: {}}\ngroups:\n  g: {hosts: [a, bb]}\n", 3, 18, ["bb"]),
        ("groups:\n  g: {children: [h]}\n  h: {children: [g]}\n", 2, 17, ["contain one another"]),
        ("hosts:\n  a: {vars: {my-var: 1}}\n", 2, 13, ["my-var"]),
        ("hosts:\n  a: {password: !env }\n", 2, 17, ["!env"]),
        ("hosts:\n  a: {password: !enf X}\n", 2, 17, ["!enf", "!env"]),
        ("hosts:\n  a b: {}\n", 2, 3, ["a b"]),
        ("- a\n- b\n", 1, 1, ["mapping"]),
        ("hosts: &x\n  a: *x\n", 1, 8, ["itself"]),
        ("host:\n  a: {}\n", 2, 3, ["'a'", "Ansible's", "did you mean 'hosts'"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, text: str, line: int, column: int, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        inventory(tmp_path, text)
    error = caught.value
    assert str(error.where).endswith(f"inventory.yaml:{line}:{column}"), str(error)
    for word in words:
        assert word in f"{error} {error.hint}"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("hosts:\n  a: {adress: 1}\n  b: {port: ssh}\ngroups:\n  g: {user: [x]}\n", [2, 3, 5]),
        ("hosts:\n  a b:\n  c:\ngroups:\n  g: {hosts: [d, c]}\n  h: {children: [i]}\n", [2, 5, 6]),
    ],
)
def test_several_mistakes_are_told_at_once(tmp_path: Path, text: str, lines: list[int]) -> None:
    with pytest.raises(UsageError) as caught:
        inventory(tmp_path, text)
    assert [one.where.line for one in caught.value.all] == lines  # type: ignore[union-attr]
    (tmp_path / "inventory.yaml").write_text(text)
    told = opsctl("inventory", "list", folder=tmp_path).err
    assert [line for line in lines if f"inventory.yaml:{line}:" in told] == lines


def test_folders_of_variables_beside_an_inventory_of_ours_are_told(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("x: 1\n")
    [note] = inventory(tmp_path, "hosts: {a: {}}\n").notes
    assert "group_vars: not read" in note
    assert "x" not in inventory(tmp_path, "hosts: {a: {}}\n").hosts["a"].variables


def test_a_home_that_nobody_has_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    host = inventory(
        tmp_path, "hosts: {a: {key: ~nobody-of-that-name/k, password: !file ~nobody-of-that-name/p}}\n"
    ).hosts["a"]
    assert "~nobody-of-that-name/k" in host.connection().keys[0]
    with pytest.raises(UsageError, match="cannot be read"):
        host.settings.password.reveal()  # type: ignore[union-attr]


def test_a_folder_is_no_inventory(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text("a\n")
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    assert "hosts.ini" in str(caught.value.hint)


def test_yaml_guesses_nothing(tmp_path: Path) -> None:
    text = "hosts:\n  a:\n    python: 3.10\n    user: 08\n    become: false\n"
    text += "    vars: {a: 'no', b: 08, c: 1e3, d: 0644, e: 1.50, f: 12:30:00, g: true}\n"
    host = inventory(tmp_path, text).select("a")[0]
    assert (host.settings.python, host.settings.user) == ("3.10", "08")
    found = {k: host.variables[k] for k in "abcdefg"}
    assert found == {"a": "no", "b": "08", "c": "1e3", "d": "0644", "e": 1.5, "f": "12:30:00", "g": True}


def test_aliases_that_stand_for_billions_are_refused(tmp_path: Path) -> None:
    lines = ["x0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(UsageError, match="too large"):
        inventory(tmp_path, "\n".join(lines))


def test_secrets_are_looked_up_late_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPSCTL_TEST_KEY", raising=False)
    (tmp_path / "pw").write_text("hunter2hunter2\n")
    text = (
        "hosts:\n  a:\n    password: !file pw\n    become_password: !cmd [printf, '%s', s3cretw0rd]\n"
        "    sglang: {api_key: !env OPSCTL_TEST_KEY}\n    vars: {token: !cmd [false, xx]}\n"
    )
    host = inventory(tmp_path, text).select("a")[0]
    settings = host.settings
    assert settings.password is not None
    assert settings.become_password is not None
    assert host.sglang.api_key is not None
    shown = f"{settings!r} {host!r} {host.variables}"
    assert settings.password.reveal() == "hunter2hunter2"
    assert settings.become_password.reveal() == "s3cretw0rd"
    assert "hunter2" not in shown
    assert mask("pw is hunter2hunter2!") == "pw is ***!"
    with pytest.raises(UsageError) as caught:
        host.sglang.api_key.reveal()
    assert "OPSCTL_TEST_KEY" in str(caught.value)
    assert str(caught.value.where).endswith("inventory.yaml:5:23")
    monkeypatch.setenv("OPSCTL_TEST_KEY", "later")
    assert host.sglang.api_key.reveal() == "later"
    with pytest.raises(UsageError, match="status 1"):
        host.variables["token"].reveal()


@pytest.mark.parametrize(
    "said", ["*Hunter2x", "[Hunter2x]", "&Hunter2x a\n    user: &Hunter2x b", '"Hunter2x', "Hunter2x: y", "@Hunter2x"]
)
def test_a_mistake_in_a_password_does_not_quote_it(tmp_path: Path, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory(tmp_path, f"hosts:\n  a:\n    password: {said}\n")
    assert "Hunter2x" not in str(caught.value)


ANSIBLE = """\
all:
  vars: {ansible_user: root, region: eu}
  children:
    gpu:
      hosts:
        gpu[01:03]:
        special:
          ansible_host: 10.1.1.1
          ansible_port: 2222
          ansible_ssh_common_args: -o ProxyJump=ops@bastion -o Compression=yes
          ansible_become: yes
          ansible_become_user: sglang
      vars: {ansible_python_interpreter: /usr/bin/python3.12, tier: 1}
    local:
      hosts:
        here: {ansible_connection: local}
"""


def test_ansible_inventories_load_as_they_are(tmp_path: Path) -> None:
    inv = inventory(tmp_path, ANSIBLE)
    assert names(inv, "gpu") == ["gpu01", "gpu02", "gpu03", "special"]
    special = inv.select("special")[0]
    s = special.settings
    assert (s.address, s.port, s.user, s.become, s.jump) == ("10.1.1.1", 2222, "root", "sglang", ["ops@bastion"])
    assert s.python == "/usr/bin/python3.12"
    assert (special.variables["region"], special.variables["tier"]) == ("eu", 1)
    assert inv.select("here")[0].settings.connection == "local"
    assert [n for n in inv.notes if "Compression=yes" in n]


@pytest.mark.parametrize(
    "name", ["gpu[3:1]", "n[c:a]", "gpu[1:20000]", "r[1:200]n[1:200]", "gpu[1:99999999999999999999]"]
)
def test_a_range_of_hosts_is_taken_whole_or_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        inventory(tmp_path, f"gpu:\n  hosts:\n    {name}:\n")
    assert (caught.value.where.line, caught.value.where.column) == (3, 5)  # type: ignore[union-attr]


def test_a_mistake_in_an_ansible_inventory_has_a_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        inventory(tmp_path, "gpu:\n  hosts:\n    a: {ansible_port: many}\n")
    assert str(caught.value.where).endswith("inventory.yaml:3:9")


def test_without_an_inventory_names_are_ssh_destinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPSCTL_INVENTORY", raising=False)
    inv = load()
    host = inv.select("ops@gpu1")[0]
    assert (host.name, host.settings.user) == ("gpu1", "ops")
    assert inv.select("localhost")[0].settings.connection == "local"
    with pytest.raises(UsageError):
        inv.select("all")


@pytest.mark.parametrize("bad", [b"\xff\xfe\x00", b"a: \x07", b"[" * 5000, b"%YAML 9\n---\n", b"a: 'b", b"\t- x"])
def test_damaged_files_are_told_as_such(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "inventory.yaml").write_bytes(bad)
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "inventory.yaml")
    assert printable(str(caught.value)) == str(caught.value)


@pytest.mark.parametrize("seed", range(200))
def test_a_random_mutation_gives_a_place_or_is_valid(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    error = what_is_said(tmp_path, mutated(GOOD if seed % 2 else ANSIBLE, dice))
    if error is not None:
        assert "inventory.yaml" in str(error.where)
        assert error.message
        assert printable(str(error)) == str(error)


def what_is_said(tmp_path: Path, text: str) -> UsageError | None:
    try:
        for host in inventory(tmp_path, text).hosts.values():
            host.connection()
    except UsageError as error:
        return error
    return None


def test_how_a_host_is_reached(tmp_path: Path) -> None:
    text = (
        "defaults: {become: true, timeouts: {connect: 1m}}\n"
        "hosts:\n  a: {key: keys/a, jump: [ops@j1, j2], user: me, host_key: SHA256:abc}\n  b: {become: false}\n"
    )
    a, b = inventory(tmp_path, text).select("all")
    spec = a.connection()
    assert (spec.name, spec.address, spec.user, spec.jump) == ("a", None, "me", "ops@j1,j2")
    assert spec.keys == (str(tmp_path / "keys/a"),)
    assert (spec.become, spec.host_key, spec.timeouts.connect, spec.timeouts.auth) == ("root", "SHA256:abc", 60.0, 30.0)
    assert b.connection().become is None


@pytest.mark.parametrize(
    ("text", "login"),
    [
        ("hosts: {a: {}}", "pipelined"),
        ("hosts: {a: {ssh: {login: plain}}}", "plain"),
        ("groups: {g: {hosts: [a], ssh: {login: plain}}}\nhosts: {a: {}}", "plain"),
        ("defaults: {ssh: {login: plain}}\nhosts: {a: {}}", "plain"),
        ("defaults: {ssh: {login: plain}}\nhosts: {a: {ssh: {login: pipelined}}}", "pipelined"),
    ],
)
def test_the_nearest_word_on_the_login_counts(tmp_path: Path, text: str, login: str) -> None:
    [host] = inventory(tmp_path, f"{text}\n").select("a")
    assert host.connection().login == login
