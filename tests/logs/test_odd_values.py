"""A secret with a quote or an at sign in it, or colours around it, is masked as a whole."""

from __future__ import annotations

import io

import pytest

from opsctl.wire.redact import Redactor, redact_stream


def redacted(text: str) -> str:
    out = io.BytesIO()
    redact_stream(io.BytesIO(text.encode()), out, Redactor())
    return out.getvalue().decode()


@pytest.mark.parametrize(
    "line",
    [
        '{"api_key": "first\\"second", "max_tokens": 5}\n',
        "ServerArgs(api_key='first\\'second', max_tokens=5)\n",
        "{'password': 'first\\'second\\'third'}\n",
    ],
)
def test_an_escaped_quote_does_not_end_the_value(line: str) -> None:
    told = redacted(line)
    assert "first" not in told
    assert "second" not in told
    assert ("max_tokens" in line) == ("max_tokens" in told)


def test_json_inside_a_string_ends_where_it_did() -> None:
    told = redacted('"{\\"api_key\\": \\"hidden-one\\", \\"port\\": 30000}"\n')
    assert "hidden-one" not in told
    assert '\\"port\\": 30000' in told


def test_an_at_sign_in_a_password_does_not_end_it() -> None:
    assert redacted("https://user:first@second@third@host/x?mail=a@b.c\n").count("@host/x?mail=a@b.c") == 1
    for part in ("first", "second", "third"):
        assert part not in redacted("https://user:first@second@third@host/x\n")


@pytest.mark.parametrize("equals", ["=", ": "])
@pytest.mark.parametrize(
    ("name", "value"),
    [("\x1b[32m%s\x1b[0m", "\x1b[31m%s\x1b[0m"), ("\x1b[1;33m%s\x1b[m", "%s"), ("%s", "\x1b[36m%s\x1b[0m")],
)
def test_colours_do_not_hide_a_secret(name: str, value: str, equals: str) -> None:
    assert "hidden-5" not in redacted(name % "api_key" + equals + value % "hidden-5" + "\n")
    count = name % "max_tokens" + equals + value % "128" + "\n"
    assert redacted(count) == count


def test_quotes_without_an_end_take_no_time() -> None:
    redacted("api_key='" + '\\"a' * 100_000 + "\n")
