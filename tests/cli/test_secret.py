"""A secret that is known shows nowhere, in whatever form a text carries it."""

import base64
import html
import json
import re
import shlex
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.secret import MASK, Secret, mask
from opsctl.text import one_line, printable
from opsctl.wire.secret_names import holds_secret
from opsctl.wire.secret_values import Known

WORD = "qJ7xK2mVw9"  # stands in each value, and in no text around it


def ansi_c(value: str) -> str:
    """As bash's `set -x` and `printf %q` write a value with controls in it."""
    signs = {"\\": "\\\\", "'": "\\'", "\t": "\\t", "\n": "\\n", "\x1b": "\\E"}
    return "$'" + "".join(signs.get(c, c) for c in value) + "'"


WRITERS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON, not ASCII": lambda v: json.dumps(v, ensure_ascii=False),
    "JSON in JSON": lambda v: json.dumps(json.dumps({"k": v})),
    "JSON with slashes escaped": lambda v: json.dumps(v).replace("/", "\\/"),
    "repr": repr,
    "ascii": ascii,
    "repr of a list": lambda v: repr([v]),
    "HTML": html.escape,
    "HTML of Jinja": lambda v: html.escape(v, quote=False).replace('"', "&#34;").replace("'", "&#39;"),
    "shell": shlex.quote,
    "shell, controls": ansi_c,
    "shell, double quotes": lambda v: '"' + re.sub(r'([\\"$`])', r"\\\1", v) + '"',
    "shell, backslashes": lambda v: re.sub(r"([^\w@%+=:,./-])", r"\\\1", v, flags=re.ASCII),
    "URL": lambda v: "https://h/?k=" + urllib.parse.quote(v),
    "URL, slashes too": lambda v: "https://h/?k=" + urllib.parse.quote(v, safe=""),
    "form": lambda v: urllib.parse.urlencode({"k": v}),
    "URL, lower case": lambda v: re.sub(r"%..", lambda m: m[0].lower(), urllib.parse.quote(v, safe="")),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 for URLs": lambda v: base64.urlsafe_b64encode(v.encode()).decode(),
    "Basic": lambda v: "Basic " + base64.b64encode(f"u:{v}".encode()).decode(),
    "base64, shifted by one": lambda v: base64.b64encode(f"x{v}yz".encode()).decode(),
    "base64, shifted by two": lambda v: base64.b64encode(f"xy{v}z".encode()).decode(),
    "hexadecimal": lambda v: v.encode().hex(),
    "hexadecimal, upper case": lambda v: v.encode().hex().upper(),
    "one printable line": lambda v: printable(" ".join(v.split())),
    "over two lines": lambda v: v[: len(v) // 2] + "\n" + v[len(v) // 2 :],
    "YAML, single quotes": lambda v: "'" + v.replace("'", "''") + "'",
}
# What a password may hold; line ends are told apart below.
SIGNS = st.text(st.sampled_from("aZ0 \t\x1b'\"\\/&<>%$`!;#{}=+-éß漢🔑"), max_size=8)


def shows(text: str) -> bool:
    coded = [base64.b64encode(b"\0" * n + WORD.encode())[(n * 8 + 5) // 6 : (n + len(WORD)) * 8 // 6] for n in range(3)]
    needles = [WORD, WORD.encode().hex(), WORD.encode().hex().upper(), *(one.decode() for one in coded)]
    return any(needle in text.replace("\n", "") for needle in needles)


@pytest.mark.parametrize("way", WRITERS)
@settings(max_examples=25)
@given(before=SIGNS, after=SIGNS)
def test_a_value_is_masked_in_every_form(way: str, before: str, after: str) -> None:
    value = before + WORD + after
    text = f"it is {WRITERS[way](value)} there"
    shown = Known([value]).in_text(text, MASK)
    assert not shows(shown), (value, text, shown)
    assert shown.startswith("it is ")


def test_each_line_of_a_value_is_masked_for_itself() -> None:
    key = f"BEGIN\nfirst{WORD}\r\nlast{WORD}\nEND"
    for text in (key, json.dumps(key), f"said: last{WORD}", base64.encodebytes(key.encode()).decode()):
        assert not shows(Known([key]).in_text(text, MASK)), text


def test_what_is_left_of_a_value_at_a_cut_is_masked() -> None:
    value = "correct-horse-battery-staple"
    known = Known([value])
    for kept in range(8, len(value)):
        assert known.in_text(f"it is {value[:kept]}", MASK) == f"it is {MASK}"
        assert known.in_text(f"it is {value[:kept]}…\nand", MASK) == f"it is {MASK}…\nand"
        assert known.in_text(f"{value[-kept:]} it is", MASK) == f"{MASK} it is"
    assert known.in_text("a correct-horse of another stable", MASK) == "a correct-horse of another stable"


def test_a_text_is_masked_before_it_is_cut_or_collapsed() -> None:
    assert Secret("tab\tand\x1b[31mescape").reveal()
    assert one_line("x" * 190 + " tab\tand\x1b[31mescape", 200) == "x" * 190 + " ***"
    assert "escape" not in mask(one_line("tab\tand\x1b[31mescape and more", 20))
    assert f"{Secret('never-shown')} {Secret('never-shown')!r}" == "*** ***"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("password", "hunter2hunter2", True), ("db_pass", "hunter2", True), ("credentials", "ops:hunter2", True),
        ("pwd", "hunter2", True), ("smtp_auth", "hunter2", True), ("API_KEY", "abc123def", True),
        ("hfToken", "abc123def", True), ("client-secret", "abc123def", True), ("webhook", "abc/def/123", True),
        ("tokenizer", "moonshotai/Kimi-K2.5", False), ("max_tokens", "4096", False), ("eos_token", "<|end|>", False),
        ("password_file", "/etc/opsctl/pw", False), ("token_path", "/run/token", False), ("author", "Ann", False),
        ("api_key", "none", False), ("secret_name", "sglang-key", True), ("monkey", "banana", False),
    ],
)  # fmt: skip
def test_one_rule_tells_which_names_hold_a_secret(name: str, value: str, secret: bool) -> None:
    assert holds_secret(name, value) is secret
