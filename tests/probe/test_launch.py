"""Launch commands, read from process lists."""

from __future__ import annotations

import shlex

import pytest

from opsctl.sglang.server.launch import Launch, parse

KIMI = (
    "/opt/venv/bin/python3 -u -m sglang.launch_server --model /srv/models/Kimi-K2.5 --tensor-parallel-size 8 "
    "--speculative-algo EAGLE3 --speculative-draft-model /srv/models/drafter --speculative-num-steps=3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --mem-fraction-static 0.85 --api-key sk-live-1 "
    "--cuda-graph-bs 1 2 4 --trust-remote-code --port 30000 --port 30001"
)


def test_a_real_command_line_is_read() -> None:
    found = parse(shlex.split(KIMI))
    assert found == Launch(
        model="/srv/models/Kimi-K2.5",
        port=30001,
        tp=8,
        mem_fraction=0.85,
        trust_remote_code=True,
        algorithm="EAGLE3",
        draft_model="/srv/models/drafter",
        steps=3,
        topk=1,
        draft_tokens=4,
        others=("--api-key", "***", "--cuda-graph-bs", "1", "2", "4"),
        has_api_key=True,
    )


@pytest.mark.parametrize(
    ("command", "server"),
    [
        ("python -m sglang.launch_server --model-path x", True),
        ("/usr/local/bin/python3.12 /usr/local/bin/sglang serve --model-path x", True),
        ("sglang serve --model-path x", True),
        ("python3 /sgl-workspace/sglang/python/sglang/launch_server.py --model-path x", True),
        ("sglang::scheduler_TP0", False),
        ("vim sglang.launch_server", False),
        ("grep -r sglang.launch_server .", False),
        ("python3 -m sglang.bench_serving --model x", False),
        ("bash -c python3 -m http.server", False),
        ("", False),
    ],
)
def test_what_is_a_server(command: str, server: bool) -> None:
    assert (parse(shlex.split(command)) is not None) is server


@pytest.mark.parametrize("word", ["--speculative-draft", "--speculative"])
def test_an_ambiguous_beginning_is_not_guessed(word: str) -> None:
    found = parse(["sglang", "serve", word, "x"])
    assert found
    assert found.draft_model is None
    assert found.others == (word, "x")


def test_a_damaged_value_is_kept_apart() -> None:
    found = parse(["sglang", "serve", "--tp", "eight", "--port"])
    assert found
    assert (found.tp, found.port) == (None, None)
    assert found.others == ("--tp", "eight", "--port")


def test_a_file_of_settings_is_known_as_such() -> None:
    found = parse(["sglang", "serve", "--config", "/etc/sglang.yaml", "--tp", "2"])
    assert found == Launch(tp=2, config="/etc/sglang.yaml")
