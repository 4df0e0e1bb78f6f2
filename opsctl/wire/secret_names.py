"""Which names have a secret for a value: `api_key=...` has, `max_new_tokens=...` and `api_key_file=...` have not."""

from __future__ import annotations

import re

_KEY_OF = (
    rb"signing|watermark|license|shared|session|secret|service|deploy|client|ssh|hmac|auth|master|encryption"
    rb"|admin|root|server|user"
)
_WORDS = (
    rb"token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|apikey|credentials?|private[_-]?key"
    rb"|access[_-]?key|account[_-]?key|secret[_-]?key|auth[_-]?key|master[_-]?key|encryption[_-]?key"
    rb"|(?:" + _KEY_OF + rb")[_-]?key|creds?|pass|pw|webhook|cookie|session[_-]?id|pat|auth"
)
KEY = rb"(?P<key>(?<![\w-])[\w.-]{0,64}?(?:" + _WORDS + rb")[\w-]{0,32})"
_WHOLE = re.compile(rb"(?i)" + KEY + rb"\Z")

_NOT_SECRET = re.compile(
    rb"(?i)^(?:none|null|nil|true|false|yes|no|auto|default|unset|empty|disabled|enabled|optional|required"
    rb"|n/?a|\*+|x{3,}|<[^>]*>|\.\.\.|\$\{?\w+\}?|%\w|masked|redacted|str|string|int|bool)$"
)
_NUMBER = re.compile(rb"^-?\d{1,9}(?:\.\d+)?(?:[kKmMgG]|e-?\d+)?$")
_PATH = re.compile(rb"^(?:~|\.{0,2}/|/)[\w./~+-]*$")
# `token` is a secret only as the last word of a name, and not of a token of the vocabulary or of a count.
_VOCABULARY = re.compile(
    rb"(?i)(?:^|[_.-])(?:eos|bos|pad|unk|sep|cls|mask|img|image|audio|video|stop|special|extra|think|start"
    rb"|end|begin|num|max|min|new|next|hot|draft|cached|pending|total|prompt|input|output|first|last|per|full"
    rb"|swa|replay|id|tool|call|media|vision|placeholder|bonus|verified|accepted|speculative)[_.-]?tokens?$"
)
# systemd's LoadCredential= names a file; in a usage text `--api-key API_KEY` names the value.
_NAMES_A_FILE = re.compile(rb"(?i)^(?:load|import)credential(?:encrypted)?$")
_STRONG = re.compile(
    rb"(?i)secret|passw|passphrase|api[_-]?key|apikey|credential|private[_-]?key|access[_-]?key"
    rb"|account[_-]?key|(?:" + _KEY_OF + rb")[_-]?key|pwd"
)
_ABOUT = re.compile(
    rb"(?i)[_.-](?:file|files|path|dir|folder|url|uri|name|names|id|ids|len|length|type|count|ratio|usage|map"
    rb"|size|limit|hash|header|method|mode|backend|provider|env|expiry|ttl|format|policy|version|required"
    rb"|enabled|parser|index)$"
)
_WEAK_END = re.compile(
    rb"(?:^|[_.-])(?i:token|webhook|cookie|session[_-]?id|pat|auth|pass|pw|creds?)$"
    rb"|[a-z](?:Token|Webhook|Cookie|SessionId|Auth)$|(?i:(?:access|refresh|auth|id|bearer|api)token)$"
)


def harmless(key: bytes, value: bytes) -> bool:
    """Whether a value is no secret though its name has a word of one: a count, a path, a word of the vocabulary."""
    if _NOT_SECRET.match(value) or _NAMES_A_FILE.match(key) or value == key.upper().replace(b"-", b"_"):
        return True
    strong = bool(_STRONG.search(key))
    if not strong and _NUMBER.match(value):
        return True
    if _ABOUT.search(key) or _PATH.match(value):
        return bool(_PATH.match(value)) or not strong or len(value) < 4 or bool(_NUMBER.match(value))
    if strong:
        return False
    if _VOCABULARY.search(key) or not _WEAK_END.search(key):
        return True
    return len(value) < 4 or value.startswith((b"<", b"["))


def holds_secret(name: str, value: str) -> bool:
    """Whether a value that stands under this name is a secret: the one rule for configurations and for records."""
    key = name.encode()
    return bool(value) and _WHOLE.match(key) is not None and not harmless(key, value.encode("utf-8", "surrogateescape"))


# Flags of SGLang's server, in any release: of all its flags also the only ones that `holds_secret` knows.
FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")


def flag_holds_secret(flag: str) -> bool:
    """Whether a flag's value is a secret, also by the beginning of its name, which argparse takes for the whole."""
    if flag in FLAGS:
        return True
    return len(flag) > len("--a") and flag != "--ssl-keyfile" and any(name.startswith(flag) for name in FLAGS)
