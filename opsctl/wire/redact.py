"""Take secrets and user prompts out of a stream of text, on the host, before anything is written or sent.

A masked value keeps its kind, its length and the first eight digits of its SHA-256, so that equal values can be
matched: `[REDACTED/hf-token/len=37/sha256=1a2b3c4d]`. The mask has no blanks and no quotes, so what surrounds it still
parses, and masking twice changes nothing.

    redactor = Redactor(values=["what the inventory knows"])
    out = redactor.feed(chunk) + ... + redactor.close()

The result does not depend on where the stream is cut: whole lines are worked on, and a private key that spans lines is
remembered from line to line, as is a name whose value is on the next one. The patterns are in `secret_patterns`.
"""

from __future__ import annotations

import hashlib
import re
from typing import BinaryIO, Callable, Iterable, List, Match, Tuple

from opsctl.wire.multiline_secret import Hanging
from opsctl.wire.secret_names import harmless
from opsctl.wire.secret_patterns import IDENTITIES, KEY_BEGIN, KEY_BODY, KEY_END, KEY_INLINE, KEY_TAIL, RULES, Rule
from opsctl.wire.secret_values import Known

MAX_LINE = 1 << 20  # what is longer is cut: a request body, never a log line worth reading
_MARK = b"[REDACTED/"
_CUT = re.compile(rb"[\s'\",;{}\[\]()]")
# Decode, Prefill and plain access lines are most of a server log and hold nothing to hide.
_ROUTINE = re.compile(
    rb"\[[0-9 :.\-A-Z_]+\] (?:(?:Decode|Prefill) batch[ \w.,:#/()\[\]%+-]*"
    rb"|INFO:     [\d.]+:\d+ - \"[A-Z]+ [\w/.-]{1,80} HTTP/[\d.]+\" \d{3}[ A-Za-z]*)\r?$"
)
_REQUEST = re.compile(rb"(?:Receive|Receive OpenAI|Finish): obj=|\"event\": ?\"request\.(?:received|finished)")
_REQUEST_FACTS = re.compile(
    rb"['\"]?\b(rid|completion_tokens|prompt_tokens|cached_tokens|e2e_latency|max_new_tokens|temperature|"
    rb"spec_verify_ct|spec_accept_\w+|stream)['\"]?[=:] ?['\"]?([0-9.]{1,12}|True|False|true|false|[0-9a-f]{32})\b"
)


def mask(kind: str, value: bytes) -> bytes:
    """What stands for `value`."""
    digest = hashlib.sha256(value).hexdigest()[:8]
    return b"[REDACTED/%s/len=%d/sha256=%s]" % (kind.encode(), len(value), digest.encode())


class Redactor:
    """Redacts one stream.

    Args:
        values: secrets known by value, found in every form (`secret_values`).
        more: also mask addresses, host names, serial numbers and UUIDs, equal ones alike.
        hosts: host names to mask in `more` mode, beside those that can be told by their form.
        keep_prompts: leave what `--log-requests` printed.
    """

    def __init__(
        self,
        values: Iterable[str] = (),
        more: bool = False,
        hosts: Iterable[str] = (),
        keep_prompts: bool = False,
    ) -> None:
        self._values = Known(values)
        self._identities = _identity_rules(hosts) if more else []
        self._keep_prompts = keep_prompts
        self._pending = b""
        self._dropped = 0  # bytes left out of the line under way
        self._in_key = False
        self._key_prefix = 0  # length of what the log put before the key's first line
        self._hanging = Hanging()
        self.masked = 0

    def feed(self, data: bytes) -> bytes:
        """The redacted form of every line that `data` completes."""
        data = self._pending + data
        end = data.rfind(b"\n") + 1
        self._pending = data[end:]
        out = self._whole_lines(data[:end]) if end else b""
        if len(self._pending) > 2 * MAX_LINE:
            self._dropped += len(self._pending) - MAX_LINE
            self._pending = self._pending[:MAX_LINE]
        return out

    def close(self) -> bytes:
        """What is left: a last line without an end."""
        rest, self._pending = self._pending, b""
        return self._whole_lines(rest) if rest else b""

    def text(self, text: str) -> str:
        """A whole text at once."""
        return (self.feed(text.encode("utf-8", "surrogateescape")) + self.close()).decode("utf-8", "surrogateescape")

    def _whole_lines(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        for i, line in enumerate(lines):
            dropped = self._dropped if i == 0 else 0
            if len(line) + dropped > MAX_LINE:
                lines[i] = _cut(line, dropped)
        self._dropped = 0
        for i, line in enumerate(lines):
            if line and (self._identities or not _ROUTINE.match(line)):
                lines[i] = self._clean(line)
            elif line:
                self._hanging.forget()
        return b"\n".join(lines)

    def _clean(self, line: bytes) -> bytes:
        """One line, redacted. Patterns see a single line, so that it does not matter what else has been read."""
        line = self._keys(line)
        line = self._values.in_line(line, self._known)
        if not self._keep_prompts:
            line = self._request(line)
        lower = line.lower()
        for rule in RULES:
            for hint in rule.hints:
                if hint in lower:
                    if not (rule.prompt and self._keep_prompts):
                        line = rule.pattern.sub(self._by_rule(rule), line)
                    break
        place = self._hanging.value_in(line)
        if place:
            self.masked += 1
            line = line[: place[0]] + mask("value", line[place[0] : place[1]]) + line[place[1] :]
        for rule in self._identities:
            line = rule.pattern.sub(self._by_rule(rule), line)
        return line

    def _by_rule(self, rule: Rule) -> Callable[[Match[bytes]], bytes]:
        def replace(found: Match[bytes]) -> bytes:
            whole, value = found.group(0), found.group("value")
            if value.startswith(_MARK) or (rule.keyed and harmless(found.group("key"), value)):
                return whole
            self.masked += 1
            start, end = found.start("value") - found.start(), found.end("value") - found.start()
            return whole[:start] + mask(rule.kind, value) + whole[end:]

        return replace

    def _known(self, found: Match[bytes]) -> bytes:
        self.masked += 1
        return mask("known-secret", found.group(0))

    def _request(self, line: bytes) -> bytes:
        """A line of --log-requests with only its numbers left."""
        found = _REQUEST.search(line)
        if not found:
            return line
        self.masked += 1
        body = line[found.end() :]
        if body.startswith(_MARK) or body.startswith(b" rid="):
            return line
        facts: List[bytes] = []
        for name, value in _REQUEST_FACTS.findall(body):
            fact = name + b"=" + value
            if fact not in facts:
                facts.append(fact)
        kept = b" " + b", ".join(facts) if facts else b""
        return line[: found.end()] + mask("prompt", body) + kept

    def _keys(self, line: bytes) -> bytes:
        """Private keys, within a line and over lines."""
        if self._in_key:
            return self._key_line(line)
        if b"-----BEGIN" not in line and b"Private-Lines" not in line and b"PuTTY" not in line:
            return line
        line = KEY_INLINE.sub(self._key_inline, line)
        found = KEY_BEGIN.search(line)
        if not found:
            return line
        self._in_key, self._key_prefix = True, found.start()
        self.masked += 1
        return line[: found.start()] + mask("private-key", line[found.start() :])

    def _key_inline(self, found: Match[bytes]) -> bytes:
        self.masked += 1
        return mask("private-key", found.group(0))

    def _key_line(self, line: bytes) -> bytes:
        end = KEY_END.search(line)
        if end:
            self._in_key = False
            return mask("private-key", line[: end.end()]) + line[end.end() :]
        bare = line.strip()
        if not bare:
            return line
        if KEY_BODY.match(bare) or KEY_BODY.match(line[self._key_prefix :].strip()) or KEY_TAIL.search(line):
            return mask("private-key", line)
        self._in_key = False  # the key was cut short; this line is something else
        return line


def known_values(values: Iterable[str]) -> Callable[[bytes], bytes]:
    """A function that masks these values alone, in whole lines."""
    known = Known(values)
    return lambda text: known.in_line(text, lambda found: mask("known-secret", found.group(0)))


def redact_stream(source: BinaryIO, sink: BinaryIO, redactor: Redactor, block: int = 1 << 18) -> None:
    """Copy `source` to `sink`, redacted, in bounded memory."""
    while True:
        data = source.read1(block) if hasattr(source, "read1") else source.read(block)
        if not data:
            break
        out = redactor.feed(data)
        if out:
            sink.write(out)
            sink.flush()
    sink.write(redactor.close())
    sink.flush()


def _cut(line: bytes, dropped: int) -> bytes:
    """The beginning of an over-long line, up to a place where no value can be cut in two."""
    head = line[:MAX_LINE]
    last = [m.start() for m in _CUT.finditer(head, MAX_LINE - 4096)]
    keep = head[: last[-1]] if last else b""
    return keep + b"[%d bytes of this line left out]" % (len(line) + dropped - len(keep))


def _identity_rules(hosts: Iterable[str]) -> Tuple[Rule, ...]:
    names = sorted({h.encode() for h in hosts if len(h) > 2}, key=lambda h: (-len(h), h))
    if not names:
        return IDENTITIES
    source = rb"(?<![\w.-])(?P<value>" + b"|".join(re.escape(n) for n in names) + rb")(?![\w-])"
    return (Rule("host", source, ()),) + IDENTITIES
