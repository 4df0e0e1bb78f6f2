"""Finds secrets that are known by value, in every form in which a text may carry them, in one pass.

A value is looked for as it is, line by line, with its blanks collapsed, and as JSON, Python, YAML, HTML, URLs, shells
and terminals write it, in hexadecimal and in base64, there also inside a longer text. Whatever is masked is masked
before it is cut: what is left of half a value cannot be told any more.
"""

from __future__ import annotations

import base64
import bisect
import itertools
import json
import re
import shlex
from posixpath import commonprefix  # of any text
from typing import Callable, Iterable, Iterator, Match, Optional, Pattern, Set
from urllib.parse import quote, quote_plus

SHORTEST = 4  # characters; masking shorter values would blot out ordinary text
LONG = 8  # characters of a part of a value that are no chance where a line ends
BROKEN = 6  # characters of a whole one that are no chance where two lines meet
_EDGES = ("", "\n", "\r", "…")
_HTML = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_QUOTES = (("&quot;", "&#x27;"), ("&#34;", "&#39;"), ("&quot;", "&apos;"), ("&quot;", "'"))
_TERMINAL = {code: "^%c" % (code ^ 64) for code in (*range(32), 127) if code not in (9, 10)}
_HEX = re.compile(r"(%|\\x|\\u)((?:(?<=u)[0-9A-Fa-f]{4}|(?<!u)[0-9A-Fa-f]{2}))")
_ENDS = re.compile("[\r\n]+")


def parts(value: str) -> Set[str]:
    """What of a value is looked for: the whole, and each line of it, without blanks around."""
    found = {value.strip(), *(line.strip() for line in value.splitlines())}
    return {part for part in found if len(part) >= SHORTEST}


def forms(value: str) -> Set[str]:
    """Every form in which a text may carry a value."""
    found: Set[str] = set()
    for part in parts(value):
        found.update(_written(part))
        found.update(_coded(part.encode("utf-8", "surrogateescape")))
    if len(value) >= SHORTEST:  # with a line end, as `base64 FILE` has it
        found.update(_coded(value.encode("utf-8", "surrogateescape")))
    return {form for form in found if len(form) >= SHORTEST}


def _written(text: str) -> Iterator[str]:
    """As text, with the signs replaced that mean something there."""
    for plain in (text, " ".join(text.split())):
        yield plain
        yield "".join(c if c == "\t" or c.isprintable() else repr(c)[1:-1] for c in plain)  # as opsctl shows it
    yield text.replace("\t", "        ")
    yield text.translate(_TERMINAL)
    for written in (json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text), ascii(text)):
        yield from _hex_cases(written[1:-1])
        yield written[1:-1].replace("\\x1b", "\\e")
        yield json.dumps(written[1:-1])[1:-1]  # quoted once more: a line of JSON within a line of JSON
        yield repr(written[1:-1])[1:-1]
    yield json.dumps(text)[1:-1].replace("/", "\\/")
    yield text.replace("'", "''")  # YAML in single quotes, SQL
    octal = "".join(c if " " <= c != "\x7f" else "\\%03o" % ord(c) for c in text.replace("\\", "\\\\"))
    yield octal
    yield "".join(c if " " <= c != "\x7f" else "#%03o" % ord(c) for c in text)  # rsyslog
    yield octal.replace("'", "\\'").replace("\\011", "\\t").replace("\\012", "\\n").replace("\\033", "\\E")
    yield shlex.quote(text).strip("'")
    yield text.replace("'", "'\\''")
    yield re.sub(r'([\\"$`])', r"\\\1", text)
    yield re.sub(r'([\\"$`!])', r"\\\1", text)
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", text, flags=re.ASCII)
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)
    for sign, name in _HTML:
        text = text.replace(sign, name)
    for double, single in _QUOTES:
        yield text.replace('"', double).replace("'", single)


def _coded(raw: bytes) -> Iterator[str]:
    """As bytes, written with letters and digits: in URLs, hexadecimal and base64."""
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw), quote(raw, safe="!*'()"), quote(raw, safe="/:@")):
        yield from _hex_cases(quoted)
    yield raw.hex()
    yield raw.hex().upper()
    whole = base64.b64encode(raw).decode()
    yield whole.rstrip("=")
    for width in (76, 64):  # as `base64` and PEM break lines
        yield from (whole[at : at + width] for at in range(0, len(whole), width) if len(whole) > width)
    if len(raw) >= 6:
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + raw).decode()
            inner = coded[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
            yield inner
            yield inner.translate({43: "-", 47: "_"})


def _hex_cases(text: str) -> Iterator[str]:
    yield text
    yield _HEX.sub(lambda found: found[1] + found[2].upper(), text)
    yield _HEX.sub(lambda found: found[1] + found[2].lower(), text)


class Known:
    """Secrets known by value, compiled once for all texts that come."""

    def __init__(self, values: Iterable[str]) -> None:
        self._forms: Set[str] = set().union(*map(forms, values))
        self._long = sorted({part for value in values for part in parts(value) if len(part) > LONG})
        self._in_text: Optional[Pattern[str]] = None
        self._in_lines: Optional[Pattern[bytes]] = None

    def in_text(self, text: str, replacement: str) -> str:
        """`text` with each value replaced, also one that goes on behind a line's end or is cut off there."""
        if not self._forms:
            return text
        if self._in_text is None:
            self._in_text = re.compile(_pattern(self._forms))
        text = self._in_text.sub(lambda found: replacement, text)
        if "\n" in text:
            text = _over_lines(text, self._in_text, replacement)
        for value in self._long:
            if value[:LONG] in text:
                text = _cut_off(text, value, replacement)
            if value[-LONG:] in text:
                text = _cut_off(text[::-1], value[::-1], replacement[::-1])[::-1]
        return text

    def in_line(self, line: bytes, replace: Callable[[Match[bytes]], bytes]) -> bytes:
        """A line with each value replaced."""
        if not self._forms:
            return line
        if self._in_lines is None:
            raw = {form.encode("utf-8", "surrogateescape").decode("latin-1") for form in self._forms}
            self._in_lines = re.compile(_pattern(raw).encode("latin-1"), re.DOTALL)
        return self._in_lines.sub(replace, line)


def _over_lines(text: str, pattern: Pattern[str], replacement: str) -> str:
    matches = [found.span() for found in pattern.finditer(_ENDS.sub("", text))]
    # Shorter ones are found by chance where two lines meet.
    matches = [(start, end) for start, end in matches if end - start >= BROKEN]
    if not matches:
        return text
    starts, places = [0], [0]  # where each line begins, without line ends and with them
    for ends in _ENDS.finditer(text):
        starts.append(starts[-1] + ends.start() - places[-1])
        places.append(ends.end())

    def place(index: int) -> int:
        line = bisect.bisect_right(starts, index) - 1
        return places[line] + index - starts[line]

    out, at = [], 0
    for start, end in matches:
        out += [text[at : place(start)], replacement, "".join(_ENDS.findall(text, place(start), place(end - 1)))]
        at = place(end - 1) + 1
    return "".join(out) + text[at:]


def _cut_off(text: str, value: str, replacement: str) -> str:
    """`text` with the beginnings of `value` replaced that a line ends with."""
    at = text.find(value[:LONG])
    while at >= 0:
        end = at + len(commonprefix([text[at : at + len(value)], value]))
        if text[end : end + 1] in _EDGES:
            text, end = text[:at] + replacement + text[end:], at + len(replacement)
        at = text.find(value[:LONG], end)
    return text


def _pattern(words: Set[str]) -> str:
    """A pattern for any of these words, the longest first. What cannot be one is told by its first signs."""
    first = ("".join(sorted({word[at] for word in words})) for at in range(SHORTEST))
    return "(?=%s)(?:%s)" % ("".join("[%s]" % re.escape(signs) for signs in first), _source(words))


def _source(words: Set[str]) -> str:
    """These words as branches; what several begin with is compared once."""
    branches = []
    for _, alike in itertools.groupby(sorted(words - {""}), key=lambda word: word[0]):
        group = list(alike)
        begin = commonprefix(group)
        rest = _source({word[len(begin) :] for word in group}) if len(group) > 1 else ""
        ends_here = "|" if rest and begin in words else ""
        branches.append(re.escape(begin) + ("(?:%s%s)" % (rest, ends_here) if rest else ""))
    return "|".join(branches)
