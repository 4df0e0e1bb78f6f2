"""Prompts: the built-in ones, the user's file, and the chat template they go through."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from probe_standin import Shape, serving

from opsctl.errors import UsageError
from opsctl.sglang.probe.chat_template import read_template
from opsctl.sglang.probe.measure import Templated, render
from opsctl.sglang.probe.prompts import built_in, read_prompts
from opsctl.sglang.server.api import Server


def test_built_in_prompts_cover_the_workloads() -> None:
    prompts = built_in()
    assert {p.workload for p in prompts} == {"chat", "code", "maths", "long"}
    assert all(p.messages and p.messages[-1][0] == "user" for p in prompts)
    longest = max(prompts, key=lambda p: len(p.messages[-1][1]))
    assert longest.workload == "long"
    assert len(longest.messages[-1][1]) > 6000


@pytest.mark.parametrize(
    ("line", "where", "said"),
    [
        ('{"promt": "x"}', "f.jsonl:2", "unknown key 'promt'"),
        ('{"prompt": "x", "input_ids": [1]}', "f.jsonl:2", "exactly one of"),
        ('{"prompt": "x"', "f.jsonl:2:15", "not JSON"),
        ('{"input_ids": [-1]}', "f.jsonl:2", "expected at least 0, got -1"),
        ('{"id": "one", "prompt": "x"}', "f.jsonl:2", "two prompts have the id 'one'"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "f.jsonl:2", "'system', 'user' or 'assistant'"),
    ],
)
def test_a_bad_line_is_told_with_its_place(tmp_path: Path, line: str, where: str, said: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"id": "one", "prompt": "hello"}\n' + line + "\n")
    with pytest.raises(UsageError) as caught:
        read_prompts(path)
    assert str(caught.value.where).endswith(where)
    assert said in caught.value.message


def test_a_line_separator_inside_a_string_is_no_new_line(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [p.text for p in read_prompts(path)] == ["a\u2028b"]


CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_the_checkpoint_s_template_without_its_bos() -> None:
    config = {"chat_template": CHATML, "bos_token": {"content": "<s>"}}
    template = read_template({"tokenizer_config.json": json.dumps(config)}.get)
    assert template
    assert template.render([{"role": "user", "content": "hi"}]) == "<|user|>hi\n<|assistant|>"


def test_a_file_of_its_own_wins_and_a_template_cannot_reach_out() -> None:
    files = {"chat_template.jinja": "{{ ''.__class__.__mro__ }}", "tokenizer_config.json": '{"chat_template": "x"}'}
    template = read_template(files.get)
    assert template
    with pytest.raises(UsageError, match="does not take these messages"):
        template.render([])


def test_no_template() -> None:
    assert read_template({}.get) is None
    assert read_template({"tokenizer_config.json": "not json"}.get) is None


def test_who_renders() -> None:
    prompts = [p for p in built_in() if p.workload == "maths"][:1]
    template = read_template({"chat_template.jinja": CHATML}.get)
    for shape, given, how, kind in (
        (Shape(renders_chat=True), template, Templated.SERVER, tuple | list),
        (Shape(), template, Templated.CHECKPOINT, str),
        (Shape(), None, Templated.NONE, str),
    ):
        with serving(shape) as url, httpx.Client(base_url=url) as http:
            server = Server(http)
            ready, found = render(server, server.info(), prompts, given)
        assert found is how
        assert isinstance(ready[0].sent, kind)
        assert (how is Templated.CHECKPOINT) == ("<|assistant|>" in str(ready[0].sent))


def test_workloads_take_turns() -> None:
    with serving(Shape(renders_chat=True)) as url, httpx.Client(base_url=url) as http:
        server = Server(http)
        ready, _ = render(server, server.info(), built_in(), None)
    assert {r.prompt.workload for r in ready[:4]} == {"chat", "code", "maths", "long"}
