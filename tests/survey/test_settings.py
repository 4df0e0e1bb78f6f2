"""From a process list to an inventory: the command that the inventory gives is the command that ran."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.process import pids
from opsctl.engine.loader import load_playbook
from opsctl.inventory import load
from opsctl.localfiles import shipped
from opsctl.sglang.server import command
from opsctl.survey import write
from opsctl.survey.look import Checkout, Found, Running, environment_of
from opsctl.survey.write import section

PYTHON = "/root/sglang/.venv/bin/python"
K25 = (
    f"{PYTHON} -m sglang.launch_server --model-path /data/models/Kimi-K2.5 --tp 8 --host 0.0.0.0 --port 30000 "
    "--trust-remote-code --mem-fraction-static 0.85 --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path /data/drafters/releases/k25/3f9a1c --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --enable-metrics"
)


def found(line: str, **given: Any) -> Found:
    server: dict[str, Any] = {
        "pid": 7, "argv": tuple(shlex.split(line)), "python": shlex.split(line)[0], "user": "root", "unit": None,
        "user_unit": False, "container": None, "log": "/var/log/sglang.log", "env": {"NCCL_P2P_DISABLE": "1"},
    }  # fmt: skip
    server |= {key: given.pop(key) for key in list(given) if key in server}
    tree = Checkout("/root/sglang", "3207427" + "0" * 33, "main", 3)
    return Found("k25", "/root", user="root", server=Running(**server), checkout=tree, **given)


def inventory(tmp_path: Path, what: Found) -> Any:
    text = write.inventory(write.Reached("k25", {"address": "192.0.2.10"}), what, section(what))
    (tmp_path / "inventory.yaml").write_text(text)
    return load(tmp_path / "inventory.yaml").select("k25")[0], text


@pytest.mark.parametrize(
    "line",
    [
        K25,
        f"{PYTHON} -m sglang.launch_server --model /m/a --port=31000 --tp-size 1",
        f'{PYTHON} -m sglang.launch_server --model-path org/name --cuda-graph-bs 1 2 4 --over \'{{"a": "b: 1"}}\'',
        f"{PYTHON} -m sglang.launch_server --model-path /m/a --host 10.0.0.5 --served-model-name 'yes' --seed 0012",
        f"{PYTHON} -m sglang.launch_server --model-path /m/a --lora-paths a=/x --lora-paths b=/y",
        "/opt/env/bin/python3.11 -m sglang.launch_server --model-path '/m/with space' --stream-interval 1e1",
        "/opt/env/bin/python /opt/env/bin/sglang serve --model-path /m/a --port 30001",
    ],
)
def test_the_inventory_starts_what_ran(tmp_path: Path, line: str) -> None:
    host, _ = inventory(tmp_path, found(line))
    argv = command.words(host.sglang)
    assert argv is not None
    ran = shlex.split(line)
    assert command.parse(argv) is not None
    started, before = command.parse(argv), command.parse(ran)
    assert started is not None
    assert before is not None
    same = ("model", "tp", "draft_model", "algorithm", "served_name", "mem_fraction", "trust_remote_code", "steps")
    assert [getattr(started, n) for n in same] == [getattr(before, n) for n in same]
    assert (started.port or 30000) == (before.port or 30000)
    assert sorted(started.others) == sorted(before.others)
    if before.host:
        assert started.host == before.host
    assert Path(argv[0]).parent == Path(ran[0]).parent


def test_what_the_reference_host_gets(tmp_path: Path) -> None:
    host, text = inventory(tmp_path, found(K25, profile={"gpus": 8, "name": "NVIDIA RTX PRO 6000"}))
    s = host.sglang
    assert (s.checkout, s.environment, s.port, s.tp) == ("/root/sglang", "/root/sglang/.venv", 30000, 8)
    assert (s.model_path, s.weights_root) == ("/data/models/Kimi-K2.5", "/data/drafters")
    assert (s.log, s.env) == ("/var/log/sglang.log", {"NCCL_P2P_DISABLE": "1"})
    assert host.variables["health"]["profile"] == {"gpus": 8, "name": "NVIDIA RTX PRO 6000"}
    assert "at 320742700000 on main, 3 changed files" in text


def test_a_key_is_a_hint_and_never_a_value(tmp_path: Path) -> None:
    host, text = inventory(tmp_path, found(K25 + " --api-key ***"))
    assert "api_key: !env K25_API_KEY" in text
    assert "***" not in text
    # Started again without its key, the server would be open to everybody.
    assert host.sglang.launch is None


@pytest.mark.parametrize(("how", "value"), [("unit", "sglang.service"), ("container", "sglang")])
def test_units_and_containers_keep_their_own_command(tmp_path: Path, how: str, value: str) -> None:
    what = found(K25, **{how: value})
    host, _ = inventory(tmp_path, what)
    assert getattr(host.sglang, how) == value
    assert host.sglang.launch is None
    assert not what.foreign


def test_a_unit_of_a_users_own_systemd_is_driven_as_that_user(tmp_path: Path) -> None:
    own = found(K25, unit="sglang.service", user_unit=True, user="root")
    host, _ = inventory(tmp_path, own)
    assert (host.sglang.unit, host.sglang.unit_scope, host.settings.become) == ("sglang.service", "user", None)
    server = replace(own.server, user="alice") if own.server else None
    host, _ = inventory(tmp_path, replace(own, server=server))
    assert (host.sglang.unit_scope, host.sglang.launch, host.settings.become) == ("user", None, "alice")


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("0::/system.slice/sglang.service", ("sglang.service", False)),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service", ("sglang.service", True)),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-a.slice/x@1.service/in",
            ("x@1.service", True),
        ),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u5.scope", (None, False)),
        ("0::/user.slice/user-0.slice/session-3.scope", (None, False)),
        ("12:pids:/system.slice/ssh.service\n1:name=systemd:/system.slice/ssh.service", (None, False)),
        ("1:name=systemd:/system.slice/sglang.service", ("sglang.service", False)),
        ("0::/", (None, False)),
        ("", (None, False)),
    ],
)
def test_the_unit_by_the_control_group(group: str, unit: tuple[str | None, bool]) -> None:
    assert pids.unit_of(group + "\n") == unit


def test_text_from_the_host_stays_text(tmp_path: Path) -> None:
    hostile = "/data/a: {b\n# x}\x1b[2J"
    host, text = inventory(tmp_path, found(shlex.join([PYTHON, "-m", "sglang.launch_server", "--model-path", hostile])))
    assert host.sglang.model_path == hostile
    assert text.isprintable() or "\x1b" not in text


def test_nothing_there_gives_an_inventory_to_fill_in(tmp_path: Path) -> None:
    host, text = inventory(tmp_path, Found("box", "/home/me"))
    assert host.sglang.launch is None
    assert host.sglang.weights_root == "/home/me/drafters"
    assert "# checkout:" in text


def test_the_playbooks_fit(tmp_path: Path) -> None:
    for foreign in (True, False):
        what = found(K25, unit=None if foreign else "sglang.service")
        for name in write.PLAYBOOKS:
            text = write.playbook((shipped("playbooks") / f"{name}.yaml").read_text(), what)
            path = tmp_path / f"{name}.yaml"
            path.write_text(text)
            (play,) = load_playbook(path).plays
            assert "  hosts: servers\n" in text
            assert "hosts: all" not in text
            assert "adopt: true" not in text  # what runs there is taken over when a person says so, not when it was met
            assert "adopt" not in play.keys.params or play.keys.params["adopt"].default is False
            assert ('default: "3207427' in text) == (name == "pin-sglang")


@pytest.mark.parametrize(
    ("python", "environment"),
    [
        ("/root/sglang/.venv/bin/python", "/root/sglang/.venv"),
        ("/opt/conda/envs/sg/bin/python3.11", "/opt/conda/envs/sg"),
        ("/usr/bin/python3", None),
        ("/usr/local/bin/python3", None),
        ("python3", None),
    ],
)
def test_which_environment_serves(python: str, environment: str | None) -> None:
    assert environment_of(python) == environment
