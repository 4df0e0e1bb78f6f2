"""Launch commands, read from process lists."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opsctl.sglang import releases
from opsctl.sglang.releases import Release
from opsctl.sglang.server.command import Launch, parse
from opsctl.wire import command_line

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


def argparse_of(release: Release) -> argparse.ArgumentParser:
    """A parser that takes the flags of a release as SGLang's does; those that have no name here take any values."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    # Other flags take values in ways of their own, which never reach into the next flag.
    named = {name: flag for flag in command_line.FLAGS for name in flag.names}
    for flag in dict.fromkeys(named[name] for name in sorted(release.flags & named.keys())):
        names = [name for name in flag.names if name in release.flags]
        how: dict[str, Any] = {"action": "store_true"} if flag.kind == "switch" else {}
        parser.add_argument(*names, dest=flag.names[0], **how)
    for name in sorted(release.flags - named.keys()):
        parser.add_argument(name, nargs="*", dest=name)
    return parser


RELEASES = [releases.of(version) for version in (releases.known()[0], releases.known()[-1])]
PARSERS = {release.version: argparse_of(release) for release in RELEASES}
TEXT = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda text: not text.startswith("-"))
APART = st.sampled_from(["/srv/models/k", "8", "-1", "-.5", "EAGLE3", "a=b", "- a b", "-", ""]) | TEXT
INLINE = st.sampled_from(["-x", "--port", "-1e5"]) | APART  # any text, where it follows `=`


def beginnings(release: Release, flag: str) -> list[str]:
    """A flag, and the beginnings of it that are of no other flag, nor of one with a name here of another release."""
    others = (release.flags | {name for one in command_line.FLAGS for name in one.names}) - {flag}
    return [
        flag[:n]
        for n in range(3, len(flag) + 1)
        if flag[:n] == flag or not any(other.startswith(flag[:n]) for other in others)
    ]


@st.composite
def commands(draw: st.DrawFn) -> tuple[Release, list[str]]:
    """A release, and words as somebody may type them for it: whole flags and beginnings, with values in any form."""
    release = draw(st.sampled_from(RELEASES))
    kinds = {name: flag.kind for flag in command_line.FLAGS for name in flag.names if name in release.flags}
    words: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        flag = draw(st.sampled_from(sorted(kinds)) | st.sampled_from(sorted(release.flags)))
        written = draw(st.sampled_from(beginnings(release, flag)))
        kind = kinds.get(flag)
        if kind != "switch" and draw(st.booleans()):
            words.append(f"{written}={draw(INLINE)}")
        else:
            least, most = (0, 0) if kind == "switch" else (1, 1) if kind else (0, 2)
            words += [written, *draw(st.lists(APART, min_size=least, max_size=most))]
    return release, words


@settings(max_examples=400, deadline=None)
@given(commands())
def test_a_command_is_read_as_argparse_reads_it(command: tuple[Release, list[str]]) -> None:
    release, words = command
    try:
        wanted, rest = PARSERS[release.version].parse_known_args(words)
    except (argparse.ArgumentError, SystemExit):
        assume(False)
    assume(not rest)  # SGLang would not start with them
    argv = ["python", "-m", "sglang.launch_server", *words]
    read = command_line.read(argv)
    assert [word for said in read for word in said.words] == argv
    for flag in command_line.FLAGS:
        told = vars(wanted).get(flag.names[0])
        if flag.kind == "switch":
            assert any(said.name == flag.names[0] for said in read) is bool(told)
        else:
            assert (command_line.value(argv, flag.names) or "") == (told or "")


@pytest.mark.parametrize("secret", ["--api-key", "--api-k", "--admin-api", "--ssl-keyfile-pass", "--hf-token"])
@pytest.mark.parametrize("form", ["{} -s3cret-value", "{}=s3cret-value", "{} s3cret-value", "{}=-s3cret-value --tp 8"])
def test_a_key_is_masked_however_it_is_written(secret: str, form: str) -> None:
    if secret == "--hf-token" and form.startswith("{} -"):
        return  # a flag that nobody knows, and a value that argparse would not take for one
    shown = command_line.masked(["sglang", "serve", *form.format(secret).split()])
    assert "s3cret" not in " ".join(shown)
    assert "***" in " ".join(shown)
