# ruff: noqa: E501  log lines stay in one piece
"""No secret gets through, whatever the cut; nothing else is touched."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from detect_secrets.core.scan import scan_line
from detect_secrets.settings import transient_settings
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.logs import follow
from opsctl.wire.protocol import AgentError, Context
from opsctl.wire.redact import MAX_LINE, Redactor, redact_stream
from tests.logs.canaries import CANARIES, INNOCENT, Canary

LOGS = sorted((Path(__file__).parent.parent / "data" / "logs").glob("*.log"))


def redact(text: str, **how: object) -> str:
    return Redactor(**how).text(text)  # type: ignore[arg-type]


def leaks(canary: Canary, text: str) -> list[str]:
    """The parts of the secret that are still there: its lines, and any run of eight characters of a line."""
    parts = [line for line in canary.secret.split("\n") if len(line) >= 5]
    runs = {line[i : i + 8] for line in parts for i in range(max(1, len(line) - 7))}
    return sorted(run for run in runs if run in text)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda c: c.kind)
def test_a_secret_does_not_get_through(canary: Canary) -> None:
    out = redact(canary.text + "\n")
    assert not leaks(canary, out), out
    assert "[REDACTED/" in out


@pytest.mark.parametrize("canary", CANARIES, ids=lambda c: c.kind)
def test_a_secret_in_quoted_text_does_not_get_through(canary: Canary) -> None:
    if "PRIVATE KEY" in canary.kind or canary.kind == "value under a prefix":
        return  # one line then: test_a_key_on_one_line
    out = redact(f"body={json.dumps('first line' + chr(10) + canary.text)}\n")
    assert not leaks(canary, out), out


def test_there_are_at_least_thirty_kinds() -> None:
    assert len({canary.kind for canary in CANARIES}) >= 30


@pytest.mark.parametrize("canary", CANARIES, ids=lambda c: c.kind)
def test_the_cut_between_two_reads_changes_nothing(canary: Canary) -> None:
    data = f"before\n{canary.text}\nafter\n".encode()
    whole = Redactor().feed(data)
    for cut in range(1, len(data)):
        redactor = Redactor()
        assert redactor.feed(data[:cut]) + redactor.feed(data[cut:]) + redactor.close() == whole


@given(st.lists(st.sampled_from(CANARIES), min_size=1, max_size=6), st.lists(st.integers(1, 97), min_size=1))
def test_many_secrets_in_small_reads(canaries: list[Canary], sizes: list[int]) -> None:
    data = "\n".join(c.text for c in canaries).encode()
    redactor, out, at, i = Redactor(), b"", 0, 0
    while at < len(data):
        out += redactor.feed(data[at : at + sizes[i % len(sizes)]])
        at += sizes[i % len(sizes)]
        i += 1
    out += redactor.close()
    assert out == Redactor().feed(data + b"\n")[:-1]
    for canary in canaries:
        assert not leaks(canary, out.decode())


@pytest.mark.parametrize("line", INNOCENT)
def test_an_innocent_line_stays_as_it_is(line: str) -> None:
    assert redact(line + "\n") == line + "\n"


@pytest.mark.parametrize("log", LOGS, ids=lambda p: p.name)
def test_a_real_log_without_secrets_stays_as_it_is(log: Path) -> None:
    data = log.read_bytes()
    redactor = Redactor()
    assert redactor.feed(data) + redactor.close() == data


def test_an_independent_detector_finds_nothing_either() -> None:
    """detect-secrets finds the canaries that it knows before, and none after."""
    text = "\n".join(canary.text for canary in CANARIES)
    assert len(detected(text)) >= 15
    assert detected(redact(text)) == []


def detected(text: str) -> list[str]:
    names = (
        "AWSKeyDetector ArtifactoryDetector AzureStorageKeyDetector BasicAuthDetector CloudantDetector DiscordBotTokenDetector"
        " GitHubTokenDetector GitLabTokenDetector IbmCloudIamDetector JwtTokenDetector KeywordDetector MailchimpDetector NpmDetector"
        " OpenAIDetector PrivateKeyDetector PypiTokenDetector SendGridDetector SlackDetector SoftlayerDetector SquareOAuthDetector"
        " StripeDetector TelegramBotTokenDetector TwilioKeyDetector"
    )
    settings = {"plugins_used": [{"name": name} for name in names.split()]}
    found = []
    with transient_settings(settings):
        for line in text.splitlines():
            found += [f"{s.type}: {line}" for s in scan_line(line) if "REDACTED/" not in (s.secret_value or "")]
    return found


def test_a_mask_keeps_kind_length_and_digest_so_that_equal_values_can_be_matched() -> None:
    token = "hf_" + "aB3" * 12
    digest = hashlib.sha256(token.encode()).hexdigest()[:8]
    out = redact(f"HF_TOKEN={token}\nlogin with {token}\n")
    assert out.count(f"[REDACTED/hf-token/len=39/sha256={digest}]") == 2


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact("\n".join(canary.text for canary in CANARIES))
    assert redact(once) == once


def test_a_known_value_is_found_in_every_spelling() -> None:
    secret = 'p@ss "word"/ü&1'
    spellings = [
        secret,
        "p%40ss%20%22word%22%2F%C3%BC%261",
        'p@ss \\"word\\"/\\u00fc&1',
        "b3BzOnBAc3MgIndvcmQiL8O8JjE=",
    ]
    out = redact("\n".join(f"x {s} y" for s in spellings), values=[secret])
    assert "p@ss" not in out
    assert "p%40ss" not in out
    assert "IndvcmQi" not in out


def test_a_key_cut_short_does_not_swallow_the_rest_of_the_log() -> None:
    row = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0123456789abcdEFGHIJKLMNOPQRS"
    out = redact(
        f"-----BEGIN PRIVATE KEY-----\n{row}\n[2026-02-08 03:00:00] Load weight begin. avail mem=94.00 GB\nok\n"
    )
    assert row not in out
    assert out.endswith("Load weight begin. avail mem=94.00 GB\nok\n")


def test_a_key_on_one_line_is_masked_and_the_line_goes_on() -> None:
    out = redact(r'{"key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----\n", "port": 30000}')
    assert "MIIEvQ" not in out
    assert out.endswith('"port": 30000}')


def test_of_a_logged_request_the_numbers_stay() -> None:
    line = "[2026-02-08 03:00:00] Finish: obj=GenerateReqInput(rid='r'), out={'text': 'a', 'meta_info': {'completion_tokens': 24, 'spec_verify_ct': 6}}\n"
    assert "completion_tokens=24, spec_verify_ct=6" in redact(line)
    assert "'text': 'a'" in redact(line, keep_prompts=True)


def test_more_masks_who_and_where_alike() -> None:
    text = (
        "Feb 08 03:00:00 gpu-7 sglang[12]: peer 10.20.30.40 and 10.20.30.40, not 127.0.0.1 or 0.0.0.0\n"
        "GPU 8f: GPU-8f3c1d2e-5b6a-4c7d-9e0f-1a2b3c4d5e6f Serial Number : 1654922003210\n"
        "gpu-7.example.org answered; driver 595.58.03; link fe80::1ff:fe23:4567:890a\n"
    )
    out = redact(text, more=True, hosts=["gpu-7.example.org", "gpu-7"])
    for gone in ("10.20.30.40", "8f3c1d2e", "1654922003210", "gpu-7", "fe23"):
        assert gone not in out
    assert "127.0.0.1 or 0.0.0.0" in out
    assert "595.58.03" in out
    assert out.count("/address/len=11/sha256=") == 2
    assert redact(text) == text


def test_an_endless_line_is_cut_and_leaks_nothing_at_the_cut() -> None:
    secret = "sk-" + "aB3dE6gH9" * 4
    for shift in range(0, 60, 7):
        data = (
            (b"x" * (MAX_LINE - shift) + b" " + secret.encode() + b" ") * 1 + b"y" * (3 * MAX_LINE) + b"\nnext line\n"
        )
        source, sink = io.BytesIO(data), io.BytesIO()
        redact_stream(source, sink, Redactor())
        out = sink.getvalue()
        assert b"aB3dE6" not in out
        assert b"bytes of this line left out]\nnext line\n" in out
        assert len(out) < MAX_LINE + 200


def test_the_command_redacts_a_stream() -> None:
    data = b"HF_TOKEN=hf_" + b"aB3" * 12 + b"\n\xff\xfe bytes stay\n"
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", "logs", "redact"], input=data, capture_output=True, check=True
    )
    assert b"aB3aB3" not in done.stdout
    assert done.stdout.endswith(b"\n\xff\xfe bytes stay\n")


def test_the_last_words_of_a_followed_command_are_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nprintf 'HF_TOKEN=hf_Qd7xPz2LmKc9TnVbYs4RgWj1Ha8EuXoFiC'\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(AgentError, match=r"docker ended: HF_TOKEN=\[REDACTED/"):
        follow.lines(Context(), container="sglang")
