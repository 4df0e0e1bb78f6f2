"""What a secret looks like: the patterns of `redact`, as data.

Sources: the rule sets of gitleaks and detect-secrets for the shapes of vendors' tokens; SGLang's own start line and
`/server_info`, which carry `api_key`, `admin_api_key` and `ssl_keyfile_password` in clear (sgl-project/sglang#37457);
the vendors' documentation of their prefixes. Entropy is not used: hashes and UUIDs of a log would all be hit.

Each pattern has a group `value`, the part to mask. `hints` are lower-case texts of which one must be in a block before
the pattern is tried on it.
"""

from __future__ import annotations

import re
from typing import Optional, Pattern, Tuple

from opsctl.wire.secret_names import KEY


class Rule:
    """One kind of secret. keyed: the pattern has a group `key`, which decides with the value."""

    def __init__(
        self, kind: str, source: bytes, hints: Tuple[bytes, ...], prompt: bool = False, keyed: bool = False
    ) -> None:
        self.kind, self.hints, self.prompt, self.keyed = kind, hints, prompt, keyed
        self._source = source
        self._pattern: Optional[Pattern[bytes]] = None

    @property
    def pattern(self) -> Pattern[bytes]:
        """Compiled when it is first needed: all of them take a host 30 ms, and most are never tried."""
        if self._pattern is None:
            self._pattern = re.compile(self._source)
        return self._pattern


# Where a word begins. Text quoted in a log line has its line ends as \\n, which is no letter of the word behind it.
_BEGIN = rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"


def _rule(kind: str, pattern: bytes, *hints: bytes, prompt: bool = False, keyed: bool = False) -> Rule:
    for boundary in (rb"(?<![A-Za-z0-9])", rb"(?<![A-Za-z0-9_-])", rb"(?<![A-Za-z0-9_])"):
        if pattern.startswith(boundary) or pattern.startswith(b"(?i)" + boundary):
            pattern = pattern.replace(boundary, _BEGIN if boundary.endswith(rb"9])") else _BEGIN + rb"(?<![_-])", 1)
    return Rule(kind, pattern, hints, prompt, keyed)


# A value: quoted (its quotes may be escaped, as JSON inside a log line has them), or up to the next separator.
# A quote with a backslash before it, inside a word, does not end the value.
_INNER = rb"""\\["'](?=[^\s,:;}\])'"\\])"""
_QUOTED = rb"""(?P<q>\\*["'])(?P<value>(?:(?!(?P=q))(?:""" + _INNER + rb"|(?!" + _INNER + rb")." + rb"""))+?)(?P=q)"""
_BARE = rb"""[^\s'"\\,;&<>(){}\[\]\x00][^\s'"\\,;&<>(){}\]\x00]*"""
# Of these, each name in KEY holds one.
_KEY_HINTS = (
    *(b"token", b"secret", b"pass", b"pwd", b"pw", b"key", b"cred", b"webhook", b"cookie", b"session", b"auth"),
    b"pat",
)

# Prefixes that vendors put before tokens of letters and digits.
_VENDORS = (
    *(b"gsk_", b"r8_", b"fw_", b"ntn_", b"sbp_", b"pscale_tkn_", b"pscale_pw_", b"lin_api_", b"glsa_", b"glc_"),
    *(b"shpat_", b"shpss_", b"shpca_", b"sntrys_", b"sntryu_", b"dop_v1_", b"doo_v1_", b"dor_v1_", b"rubygems_"),
    *(b"figd_", b"dckr_pat_", b"dckr_oat_", b"tgp_v1_", b"wandb_v1_", b"xai-", b"pplx-", b"NRAK-", b"PMAK-"),
    *(b"dp.pt.", b"dp.st.", b"dp.ct.", b"ATATT3", b"ATBB", b"EAAC", b"sq0atp-", b"sq0csp-", b"oy2", b"cio", b"fo1_"),
)

RULES: Tuple[Rule, ...] = (
    # Tokens told by their own shape.
    _rule(
        "hf-token",
        rb"(?<![A-Za-z0-9])(?P<value>hf_[A-Za-z0-9]{20,}|hf_(?:jwt|oauth)_[\w.-]{16,}|api_org_[A-Za-z0-9]{20,})",
        b"hf_",
        b"api_org_",
    ),
    _rule("anthropic-key", rb"(?<![A-Za-z0-9])(?P<value>sk-ant-[\w-]{16,})", b"sk-ant-"),
    _rule("openai-key", rb"(?<![A-Za-z0-9_-])(?P<value>sk-[A-Za-z0-9_-]{16,})", b"sk-"),
    _rule("nvidia-key", rb"(?<![A-Za-z0-9])(?P<value>nvapi-[\w-]{20,})", b"nvapi-"),
    _rule(
        "github-token",
        rb"(?<![A-Za-z0-9])(?P<value>gh[pousr]_[0-9A-Za-z]{30,}|github_pat_\w{22,})",
        b"gh",
        b"github_pat_",
    ),
    _rule(
        "gitlab-token", rb"(?<![A-Za-z0-9])(?P<value>gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat)-[\w.-]{20,})", b"gl"
    ),
    _rule("slack-token", rb"(?<![A-Za-z0-9])(?P<value>xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,})", b"xox", b"xapp-"),
    _rule(
        "slack-webhook",
        rb"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<value>[\w/+-]{20,})",
        b"hooks.slack.com",
    ),
    _rule("discord-webhook", rb"discord(?:app)?\.com/api/webhooks/(?P<value>\d+/[\w-]{20,})", b"/api/webhooks/"),
    _rule("telegram-token", rb"(?<![\w])(?P<value>\d{8,10}:AA[\w-]{32,})", b":aa"),
    _rule(
        "aws-access-key",
        rb"(?<![A-Z0-9])(?P<value>(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})(?![A-Z0-9])",
        b"a3t",
        b"akia",
        b"asia",
        b"abia",
        b"acca",
    ),
    _rule("aws-secret", rb"(?i)aws.{0,30}?[=:]\s*[\"']?(?P<value>[A-Za-z0-9/+=]{40})(?![A-Za-z0-9/+=])", b"aws"),
    _rule(
        "google-key",
        rb"(?<![A-Za-z0-9])(?P<value>AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,})",
        b"aiza",
        b"ya29.",
        b"gocspx-",
        b"1//0",
    ),
    _rule(
        "azure-key",
        rb"(?i)(?:AccountKey|SharedAccessKey|SharedAccessSignature)=(?P<value>[^\s;'\"]+)",
        b"accountkey",
        b"sharedaccess",
    ),
    _rule("npm-token", rb"(?<![A-Za-z0-9])(?P<value>npm_[A-Za-z0-9]{30,})", b"npm_"),
    _rule("pypi-token", rb"(?<![A-Za-z0-9])(?P<value>pypi-[\w-]{20,})", b"pypi-"),
    _rule("databricks-token", rb"(?<![A-Za-z0-9])(?P<value>dapi[a-f0-9]{32}(?:-\d+)?)", b"dapi"),
    _rule(
        "stripe-key",
        rb"(?<![A-Za-z0-9])(?P<value>(?:sk|rk|pk|whsec)_(?:live_|test_)?[A-Za-z0-9]{20,})",
        b"k_",
        b"whsec_",
    ),
    _rule("sendgrid-key", rb"(?<![A-Za-z0-9])(?P<value>SG\.[\w-]{16,}\.[\w-]{16,})", b"sg."),
    _rule("twilio-key", rb"(?<![A-Za-z0-9])(?P<value>SK[a-f0-9]{32})(?![a-z0-9])", b"sk"),
    _rule("vault-token", rb"(?<![A-Za-z0-9])(?P<value>hv[sbr]\.[\w-]{20,})", b"hvs.", b"hvb.", b"hvr."),
    _rule("age-key", rb"(?P<value>AGE-SECRET-KEY-1[A-Za-z0-9]{40,})", b"age-secret-key-1"),
    _rule(
        "vendor-token",
        rb"(?<![A-Za-z0-9_])(?P<value>(?:" + b"|".join(re.escape(v) for v in _VENDORS) + rb")[A-Za-z0-9]{20,}[\w=-]*)",
        *(vendor.lower() for vendor in _VENDORS),
    ),
    _rule(
        "vendor-token", rb"(?<![\w-])(?P<value>tskey-[a-z]+-[\w-]{16,}|fm[12][ar]?_[\w+/=,-]{30,})", b"tskey-", b"fm"
    ),
    _rule("mailgun-key", rb"(?<![\w-])(?P<value>key-[0-9a-f]{32})(?![0-9a-f])", b"key-"),
    _rule("jwt", rb"(?<![A-Za-z0-9])(?P<value>ey[A-Za-z0-9_=-]{8,}\.ey[A-Za-z0-9_=-]{8,}\.[\w.+/=-]{8,})", b"ey"),
    # Places where a secret stands.
    _rule(
        "url-password",
        rb"(?i)[a-z][a-z0-9+.-]{1,20}://[^/\s:@'\"]{0,200}:(?P<value>[^@\s'\"]{1,300}(?:@[^\s'\"/@?,]{1,300}){0,4})@(?=[\w.\[-])",
        b"://",
    ),
    _rule("url-token", rb"(?i)[a-z][a-z0-9+.-]{1,20}://(?P<value>[\w.%~+-]{16,300}):[^@\s]{1,300}@", b"://"),
    _rule("url-token", rb"(?i)[a-z][a-z0-9+.-]{1,20}://(?P<value>[\w.%~+-]{16,300})@(?=[\w.\[-])", b"://"),
    _rule(
        "url-parameter",
        rb"(?i)[?&](?:amp;)?(?:access_token|token|api[_-]?key|apikey|key|auth|authorization|sig|signature"
        rb"|x-amz-signature|x-amz-security-token"
        rb"|x-amz-credential|x-goog-signature|password|passwd|pwd|secret|client_secret|code|session|sessionid"
        rb"|jwt)=(?P<value>[^\s&'\"<>#]{4,})",
        b"?",
        b"&",
    ),
    _rule(
        "authorization",
        rb"(?i)(?:proxy-)?authorization[\"'\\]*\s*[:=,]\s*[\"'\\]*(?:b\\*[\"'])?(?:(?:bearer|basic|token|digest"
        rb"|negotiate|apikey|key|aws4-hmac-sha256)[\s:]+)?(?P<value>[^\s'\"\\]{3,})",
        b"authorization",
    ),
    _rule("bearer", rb"(?i)\bbearer[\s:]+(?P<value>[\w.~+/=-]{8,})", b"bearer"),
    _rule(
        "header",
        rb"(?i)(?:x-api-key|x-auth-token|x-access-token|x-goog-api-key|api-key|apikey|private-token"
        rb"|x-vault-token|x-amz-security-token"
        rb"|ocp-apim-subscription-key)[\"'\\]*\s*[:=,]\s*(?:b\\*[\"'])?[\"'\\]*(?P<value>[^\s'\"\\,]{3,})",
        b"key",
        b"token",
    ),
    _rule("cookie", rb"(?i)(?:set-)?cookie[\"'\\]*\s*[:=]\s*[\"'\\]*(?P<value>[^'\"\r\n\\]{4,})", b"cookie"),
    _rule(
        "argument",
        rb"(?i)--(?P<key>[\w-]{0,48}?(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|apikey|credentials?"
        rb"|access[_-]?key|auth))(?:[=\s\x00]+|\\+(?:x00|u0000|0)|[\"'],\s*)(?P<q2>(?:\\*[\"'])?)(?P<value>(?!--)[^\s'\"\\,\x00\]]+)",
        b"--",
        keyed=True,
    ),
    _rule(
        "argument",
        rb"(?<![A-Za-z0-9])(?:curl\b.{0,300}?\s)(?:-u|--user)[=\s]*[\"']?[^\s:'\"]+:(?P<value>[^\s'\"]+)",
        b"curl",
    ),
    _rule(
        "argument",
        rb"\b(?:sshpass\s+-p\s*|wandb\s+login\s+(?:--\S+\s+)*|(?:-pass(?:in|out)?\s+)pass:|mysql\b.{0,200}?\s-p|redis-cli\b.{0,200}?\s-a\s+"
        rb"|docker\s+login\b.{0,200}?\s-p\s+)[\"']?(?P<value>[^\s'\"]+)",
        b"wandb",
        b"pass:",
        b"sshpass",
        b"mysql",
        b"redis-cli",
        b"docker",
    ),
    _rule("netrc", rb"(?i)(?:machine\s+\S+|default)\s+login\s+\S+\s+password\s+(?P<value>\S+)", b"password"),
    _rule(
        "docker-auth",
        rb"\"(?:auth|identitytoken|registrytoken)\"\s*:\s*\"(?P<value>[^\"]{4,})\"",
        b'"auth"',
        b"identitytoken",
        b"registrytoken",
    ),
    _rule(
        "value",
        rb"(?is)" + KEY + rb"(?:\\*[\"'])?\]?\s{0,4}(?::=|=>|=(?!=)|:)\s{0,4}b?" + _QUOTED,
        *_KEY_HINTS,
        keyed=True,
    ),
    _rule(
        "value",
        rb"(?i)" + KEY + rb"(?:\\*[\"'])?\]?\s{0,2}(?::=|=>|=(?!=))\s{0,2}(?P<value>" + _BARE + rb")",
        *_KEY_HINTS,
        keyed=True,
    ),
    _rule(
        "value",
        rb"(?i)(?P<key>(?<![\w-])[\w-]{0,40}?(?:secret|passw(?:or)?d|passphrase|api[_-]?key|apikey|credential"
        rb"|token)[\w-]{0,12})[\"']?:[ \t]{0,4}(?P<value>" + _BARE + rb")",
        *_KEY_HINTS,
        keyed=True,
    ),
    # Text of several lines that is quoted on one: the name ends a line of it, the value is on the next.
    _rule(
        "value",
        rb"(?i)"
        + KEY
        + rb"(?:\\*[\"'])?(?:[ \t]{0,4}[=:]?[ \t]{0,4}\\{3}|:[ \t]{0,4}(?:\[|[|>][+-]?)?\\+)[nr]"
        + rb"(?:\\+[nrt]|[ \t]){0,32}\\*[\"']?(?P<value>"
        + _BARE
        + rb")",
        *(b":\\", b": \\", b"[\\", b"-\\", b">\\", b"|\\", b"\\\\\\"),
        keyed=True,
    ),
    # As a terminal's colours have it: around the name, the value, or both.
    _rule(
        "value",
        rb"(?i)"
        + KEY
        + rb"(?:\x1b\[[0-9;]{0,16}m)+\s{0,2}[=:]\s{0,2}(?:\x1b\[[0-9;]{0,16}m)*[\"']?(?P<value>"
        + _BARE
        + rb")",
        b"\x1b[",
        keyed=True,
    ),
    _rule(
        "value",
        rb"(?i)" + KEY + rb"\s{0,2}[=:]\s{0,2}(?:\x1b\[[0-9;]{0,16}m)+[\"']?(?P<value>" + _BARE + rb")",
        b"\x1b[",
        keyed=True,
    ),
    _rule("value", rb"(?<![\w-])[A-Z][A-Z0-9_]*KEY=[\"']?(?P<value>[^\s'\"\x00/][^\s'\"\x00]{7,})", b"_key="),
    _rule("signature", rb"(?i)\bsignature=[\"']?(?P<value>[0-9a-f]{32,})", b"signature="),
    # What has no closing quote, what stands in a list, and what is said in words.
    _rule(
        "value",
        rb"(?i)" + KEY + rb"\s{0,2}[=:]\s{0,2}\\*[\"'](?P<value>[^\s\"'\\]{4,})(?:$|\\*[\"'])",
        *_KEY_HINTS,
        keyed=True,
    ),
    _rule(
        "value",
        rb"(?i)(?:api[_-]?keys?|secrets?|passwords?|credentials?|access[_-]?tokens?|auth[_-]?tokens?)\\*[\"']?"
        rb"\s{0,2}[=:]\s{0,2}[\[(]\s{0,2}(?P<value>\\*[\"'][^\])\n]*)[\])]",
        *(b"keys", b"key", b"secret", b"password", b"credential", b"token"),
    ),
    _rule(
        "value",
        rb"(?i)\bpass(?:word|phrase|code)\s+(?:is|was|(?:for|of) \S{1,60}?:|=>)\s*[\"']?(?P<value>[^\s'\",;]{4,})",
        *(b"password", b"passphrase", b"passcode"),
    ),
    _rule(
        "value",
        rb"(?i)\b(?:token|password|secret|passphrase|api key)\s+[\"']?"
        rb"(?P<value>(?=[A-Z0-9_.-]*[0-9])(?=[A-Z0-9_.-]*[A-Z])[A-Z0-9_.-]{16,})",
        *(b"token ", b"password ", b"secret ", b"passphrase ", b"api key "),
    ),
    _rule("value", rb"(?i)\bapi key\s*[:=]\s*[\"']?(?P<value>[^\s'\",;]{4,})", b"api key"),
    _rule(
        "authorization", rb"\b[Bb]asic (?P<value>(?=[\w+/]*[0-9])(?=[\w+/]*[A-Z])[A-Za-z0-9+/]{12,}={0,2})", b"basic "
    ),
    # What users wrote.
    _rule(
        "prompt",
        rb"(?s)\\*[\"'](?:prompt|content|text|input_text|query|completion|reasoning_content)\\*[\"']\s*:\s*" + _QUOTED,
        b"prompt",
        b"content",
        b"text",
        b"query",
        b"completion",
        prompt=True,
    ),
    _rule(
        "prompt",
        rb"(?s)\b(?:prompt|text|content|input_value|origin_input_text|input_text)=" + _QUOTED,
        b"prompt=",
        b"text=",
        b"content=",
        b"input_value=",
        prompt=True,
    ),
    _rule(
        "prompt",
        rb"\b(?:input_ids|output_ids|origin_input_ids"
        rb"|prompt_token_ids)\\*[\"']?\s*[=:]\s*\[(?P<value>\[?\d[\d, \[\].]*)\]",
        b"_ids",
        prompt=True,
    ),
)

KEY_BEGIN = re.compile(
    rb"-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d|Private-Lines: \d+"
)
KEY_END = re.compile(rb"-----END[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----|Private-MAC: \w+")
KEY_INLINE = re.compile(
    rb"-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----[^\n]*?-----END[ A-Z0-9_-]{0,100}PRIVATE "
    rb"KEY(?: BLOCK)?-----"
)
# What a line of a key holds: base64, or a header. A log may have put a prefix before it.
KEY_BODY = re.compile(
    rb"(?:[A-Za-z0-9+/]+={0,2}|=[A-Za-z0-9+/]{4})(?:\\[nr])*[\"',]*$"
    rb"|(?:Proc-Type|DEK-Info|Version|Comment|Encryption|Public-Lines|Private-Lines|Key-Derivation|Argon2-\w+):"
)
KEY_TAIL = re.compile(rb"\s[A-Za-z0-9+/]{32,}={0,2}\s*$")

_UUID = rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
IDENTITIES: Tuple[Rule, ...] = (
    _rule("uuid", rb"(?<![0-9a-zA-Z])(?P<value>(?:GPU-|MIG-)?" + _UUID + rb")(?![0-9a-zA-Z])"),
    _rule("serial", rb"(?i)\bserial(?:[ _]?(?:number|no|num))?[\"']?\s*[:=>]+\s*[\"']?(?P<value>[A-Za-z0-9]{6,})"),
    _rule("mac", rb"(?<![0-9A-Fa-f:])(?P<value>(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2})(?![0-9A-Fa-f:])"),
    _rule(
        "address",
        rb"(?<![\w.=-])(?P<value>(?!127\.|0\.0\.0\.0)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d"
        rb"|1?\d?\d))(?![\w.]*\.\d|[\w-])",
    ),
    _rule(
        "address",
        rb"(?<![\w:.])(?P<value>(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}"
        rb"|(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6})(?![\w:.])",
    ),
    _rule("host", rb"(?m)^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<value>[\w.-]+) [\w./@-]+(?:\[\d+\])?:"),
    _rule("host", rb"\"_HOSTNAME\"\s*:\s*\"(?P<value>[^\"]+)\""),
    _rule(
        "host", rb"(?i)\b(?:static hostname|hostname|nodename)[\"']?\s*[:=]\s*[\"']?(?P<value>[A-Za-z0-9][\w.-]{2,})"
    ),
    _rule(
        "host",
        rb"(?<![\w./@-])(?P<value>(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+(?:internal|local|lan|corp"
        rb"|intra|cluster))(?![\w-])",
    ),
)
