"""What `server status` says of a process."""

from __future__ import annotations

from typing import Any

from opsctl.sglang.server.served import ServerInfo
from opsctl.sglang.server.status import line, lines, status

PROCESS: dict[str, Any] = {
    "pid": 4711,
    "argv": ["python3", "-m", "sglang.launch_server", "--model", "/m/target", "--port", "30001"],
    "cwd": "/srv",
    "model": "/m/target",
    "drafter": None,
    "started": 1000.0,
    "user": "sglang",
    "unit": "sglang.service",
    "user_unit": False,
    "container": None,
    "package": "/srv/sglang/python/sglang",
    "newest": 900.0,
    "newest_file": "srt/models/kimi_k25.py",
    "log": None,
    "now": 1075.0,
    "commit": "3207427" + "0" * 33,
    "members": [4711, 4712],
}


def test_a_server_that_is_starting() -> None:
    found = status(PROCESS, None, usual_port=30001)
    assert (found.port, found.model, found.answers, found.old_code) == (30001, "/m/target", False, False)
    text = "\n".join(lines(found))
    assert "unit sglang.service, user sglang, up 1 min 15 s" in text
    assert "port 30001: not ready: starting, or hung" in text
    assert "/srv/sglang/python/sglang at 320742700000" in text
    assert "flags    --model /m/target --port 30001" in text
    assert found.ours
    assert "OLD" not in text


def test_what_a_server_says_instead_is_told() -> None:
    found = status(PROCESS, None, refusal="/server_info: more than 16 MiB came: not read further")
    assert "port 30001: not ready: /server_info: more than 16 MiB came" in line(found)


def test_a_unit_of_a_users_own_systemd_is_told_as_such() -> None:
    text = "\n".join(lines(status(PROCESS | {"user_unit": True}, None)))
    assert "unit sglang.service of the user's own systemd, user sglang" in text


def test_old_code_is_said_with_the_file() -> None:
    info = ServerInfo(version="0.5.9", model_path="/m/target", speculative_draft_model_path="/m/drafter")
    found = status(PROCESS | {"newest": 1001.0}, info, ready=True)
    text = "\n".join(lines(found))
    assert "OLD: srt/models/kimi_k25.py was changed after the start" in text
    assert "drafter  /m/drafter" in text


def test_unknown_age_of_the_code_is_not_guessed() -> None:
    assert status(PROCESS | {"newest": None}, None).old_code is None


def test_the_memory_of_all_its_processes_is_told() -> None:
    found = status(PROCESS, None, memory={"4711": 400, "4712": 90_000, "1": 7})
    assert found.gpu_memory == 90_400 * 2**20
    assert "memory   88.3 GiB on GPUs" in "\n".join(lines(found))
    assert status(PROCESS, None).gpu_memory is None


def test_a_neighbour_is_told_on_one_line() -> None:
    found = status(PROCESS, None, memory={"4711": 400}, usual_port=30000)
    assert line(found) == (
        "port 30001: not ready: starting, or hung; pid 4711, unit sglang.service, user sglang, up 1 min 15 s, "
        "400.0 MiB on GPUs; /m/target"
    )
