# ruff: noqa: E501  log lines stay in one piece
"""Secrets of many kinds, each in a place where one has been seen. Made up: none was ever valid."""

from __future__ import annotations

import base64
import random
import string
from dataclasses import dataclass

_random = random.Random(20261129)


@dataclass(frozen=True)
class Canary:
    kind: str
    secret: str
    text: str


def _take(alphabet: str, count: int) -> str:
    return "".join(_random.choice(alphabet) for _ in range(count))


_AN = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UP = string.ascii_uppercase + string.digits


def _planted(kind: str, secret: str, template: str) -> Canary:
    return Canary(kind, secret, template.replace("@@", secret))


def pem(label: str, prefix: str = "") -> Canary:
    rows = [_take(_AN + "+/", 64) for _ in range(6)] + [_take(_AN + "+/", 30) + "=="]
    text = "\n".join(
        prefix + row for row in [f"-----BEGIN {label}-----", *rows, f"-----END {label}-----", "after the key"]
    )
    return Canary(label, "\n".join(rows), text)


def _basic() -> Canary:
    word = _take(_AN, 16)
    return Canary("basic auth", word, "Authorization: Basic " + base64.b64encode(f"ops:{word}".encode()).decode())


CANARIES: list[Canary] = [
    # the server's log and flags
    _planted(
        "api key in the repr of ServerArgs",
        _take(_AN, 20),
        "[2026-02-08 03:00:00] server_args=ServerArgs(model_path='/m', api_key='@@', port=30000)",
    ),
    _planted(
        "admin key in the repr of ServerArgs",
        _take(_AN, 20),
        "[2026-02-08 03:00:00] server_args=ServerArgs(admin_api_key='@@', tp_size=8)",
    ),
    _planted(
        "key in a dict",
        _take(_AN, 24),
        "[2026-02-08 03:00:00] server_args={'host': '0.0.0.0', 'api_key': '@@', 'port': 30000}",
    ),
    _planted("watermark key", _take(_AN, 24), "server_args={'watermark_key': '@@', 'tp_size': 8}"),
    _planted("keyfile password", "horse battery 7!", "ServerArgs(ssl_keyfile='/etc/k.pem', ssl_keyfile_password='@@')"),
    _planted("key in /server_info", "k-" + _take(_AN, 12), '{"tp_size":8,"api_key":"@@","port":30000}'),
    _planted("key in escaped JSON", _take(_AN, 18), r"body={\"model\": \"m\", \"api_key\": \"@@\"}"),
    _planted("argument", _take(_AN, 14), "ExecStart=/opt/venv/bin/python -m sglang.launch_server --api-key @@ --tp 8"),
    _planted("argument with =", _take(_AN, 14), "python -m sglang.launch_server --admin-api-key=@@ --tp 8"),
    _planted(
        "argument in a list", _take(_AN, 14), "['python', '-m', 'sglang.launch_server', '--api-key', '@@', '--tp', '8']"
    ),
    _planted("argument between NULs", _take(_AN, 14), "python\0-m\0sglang.launch_server\0--api-key\0@@\0--tp\08"),
    # environment and unit files
    _planted("HF token", "hf_" + _take(_AN, 34), "HF_TOKEN=@@"),
    _planted("bare HF token", "hf_" + _take(_AN, 34), "403 for @@ at huggingface.co"),
    _planted("old HF token", "api_org_" + _take(_AN, 34), "using @@"),
    _planted("environment password", _take(_AN + "!#$%", 12), "PGPASSWORD=@@"),
    _planted("environment between NULs", _take(_AN, 22), "PATH=/bin\0MY_SECRET=@@\0HOME=/root"),
    _planted("unit file", _take(_AN, 20), 'Environment="SGLANG_API_KEY=@@" PYTHONUNBUFFERED=1'),
    _planted("unit file, quoted value", "two words " + _take(_AN, 8), "Environment=DB_PASSWORD='@@'"),
    _planted("export", _take(_HEX, 40), "export WANDB_API_KEY=@@"),
    _planted("credential", _take(_AN, 30), "REGISTRY_CREDENTIAL=@@"),
    _planted("yaml", _take(_AN, 13), "  password: @@"),
    _planted("netrc", _take(_AN, 13), "machine example.org login ops password @@"),
    _planted(
        "docker config",
        base64.b64encode(b"ops:" + _take(_AN, 20).encode()).decode(),
        '{"auths": {"r.example.org": {"auth": "@@"}}}',
    ),
    # headers
    _planted("bearer", _take(_AN, 32), "Authorization: Bearer @@"),
    _planted("bearer in a dict", _take(_AN, 32), "headers={'Authorization': 'Bearer @@', 'Accept': '*/*'}"),
    _planted(
        "bearer, lower case", _take(_AN, 32), "curl -H 'authorization: bearer @@' http://127.0.0.1:30000/v1/models"
    ),
    _planted("proxy authorization", _take(_AN, 24), "Proxy-Authorization: Basic @@"),
    _basic(),
    _planted("x-api-key", _take(_AN, 24), "x-api-key: @@"),
    _planted("cookie", "session=" + _take(_AN, 24), "Set-Cookie: @@"),
    _planted("curl user", _take(_AN, 12), "curl -s -u ops:@@ https://example.org/"),
    # URLs
    _planted("URL password", _take(_AN, 15), "pulling https://ops:@@@git.example.org/m.git"),
    _planted("URL password with signs", "p:a/s$s" + _take(_AN, 5), "redis://:@@@cache:6379/0"),
    _planted("URL token", "ghp_" + _take(_AN, 36), "https://@@@github.com/x/y.git"),
    _planted("URL parameter", _take(_AN, 30), "GET /v1/models?access_token=@@&limit=5 HTTP/1.1"),
    _planted("signed URL", _take(_HEX, 64), "https://s3.example.org/o?X-Amz-Expires=60&X-Amz-Signature=@@"),
    _planted("azure SAS", _take(_AN, 40) + "%3D", "https://a.blob.core.windows.net/c/b?sv=2024&sig=@@&se=2026"),
    # vendors
    _planted("OpenAI", "sk-proj-" + _take(_AN + "_-", 60), "key @@ refused"),
    _planted("self-made sk-", "sk-" + _take(_AN, 24), "client used @@"),
    _planted("Anthropic", "sk-ant-api03-" + _take(_AN + "_-", 90), "@@"),
    _planted("AWS id", "AKIA" + _take("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16), "aws id @@"),
    _planted("AWS secret", _take(_AN + "/+", 40), "aws_secret_access_key = @@"),
    _planted("AWS session", _take(_AN + "/+", 120), "AWS_SESSION_TOKEN=@@"),
    _planted("GitHub", "github_pat_" + _take(_AN, 22) + "_" + _take(_AN, 59), "remote: @@"),
    _planted("GitLab", "glpat-" + _take(_AN, 20), "using @@"),
    _planted("Slack", "xoxb-" + _take(string.digits, 11) + "-" + _take(_AN, 24), "notify @@"),
    _planted(
        "Slack hook",
        "T0" + _take(_UP, 8) + "/B0" + _take(_UP, 8) + "/" + _take(_AN, 24),
        "https://hooks.slack.com/services/@@",
    ),
    _planted("Google", "AIza" + _take(_AN, 35), "maps @@"),
    _planted("npm", "npm_" + _take(_AN, 36), "//registry:_authToken=@@"),
    _planted("PyPI", "pypi-AgEIcHlwaS5vcmc" + _take(_AN + "_-", 80), "twine @@"),
    _planted("Databricks", "dapi" + _take(_HEX, 32), "host @@"),
    _planted("NVIDIA", "nvapi-" + _take(_AN + "_-", 64), "ngc @@"),
    _planted("Stripe", "sk_live_" + _take(_AN, 24), "billing @@"),
    _planted("Vault", "hvs." + _take(_AN, 90), "vault @@"),
    _planted("Replicate", "r8_" + _take(_AN, 37), "r @@"),
    _planted("JWT", f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI{_take(_AN, 20)}.{_take(_AN + '_-', 43)}", "token @@ expired"),
    _planted(
        "Azure account",
        _take(_AN + "+/", 86) + "==",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=@@;EndpointSuffix=x",
    ),
    pem("RSA PRIVATE KEY"),
    pem("OPENSSH PRIVATE KEY", prefix="Feb 08 03:00:00 gpu1 python[7]: "),
    pem("PRIVATE KEY", prefix="    "),
    # what users wrote
    _planted(
        "prompt of --log-requests",
        "my heart aches " + _take(_AN, 6),
        "[2026-02-08 03:00:00] Receive: obj=GenerateReqInput(rid='ab', text='@@', sampling_params={'max_new_tokens': 8})",
    ),
    _planted(
        "answer of --log-requests",
        "so does mine " + _take(_AN, 6),
        "[2026-02-08 03:00:00] Finish: obj=GenerateReqInput(rid='ab'), out={'text': '@@', 'meta_info': {'completion_tokens': 8}}",
    ),
    _planted(
        "OpenAI request",
        "tell nobody " + _take(_AN, 6),
        "[2026-02-08 03:00:00] Receive OpenAI: obj={'messages': [{'role': 'user', 'content': '@@'}]}",
    ),
    _planted(
        "JSON request log",
        "tell nobody " + _take(_AN, 6),
        '{"timestamp": "t", "event": "request.received", "rid": "1", "obj": {"text": "@@"}}',
    ),
    _planted(
        "request body",
        "tell nobody " + _take(_AN, 6),
        '{"model": "m", "messages": [{"role": "user", "content": "@@"}], "max_tokens": 5}',
    ),
    _planted(
        "token ids", "9906, 11, 856, 4851, 374", "Receive: obj=GenerateReqInput(text=None, input_ids=[@@], rid='1')"
    ),
    # said in other ways
    _planted("list of keys", _take(_AN, 16), "api_keys=['@@']"),
    _planted("header tuple", _take(_AN, 16), '(b"x-api-key", b"@@")'),
    _planted("short name", _take(_AN, 16), "DB_PASS=@@"),
    _planted("in words", _take(_AN, 12), "the password is @@"),
    _planted("quote that does not close", _take(_AN, 12), "api_key='@@"),
    _planted("token as user name", _take(_AN, 24), "https://@@:x-oauth-basic@git.example.org/m.git"),
    # on the line after its name
    _planted("value on the next line of JSON", _take(_AN, 16), '{\n  "api_key":\n    "@@",\n  "port": 30000\n}'),
    _planted("values in a list over lines", _take(_AN, 16), '"api_keys": [\n  "@@"\n],'),
    _planted("value on the next line of YAML", _take(_AN, 16), "HF_TOKEN:\n  @@\nport: 30000"),
    _planted("value folded in YAML", _take(_AN, 16), "password: >-\n  @@"),
    _planted("value in a continued command", _take(_AN, 16), "sglang serve --api-key \\\n  @@ \\\n  --port 30000"),
    _planted(
        "value under a prefix", _take(_AN, 16), "Feb 08 03:00:01 box s[7]: HF_TOKEN:\nFeb 08 03:00:02 box s[7]:   @@"
    ),
]

# Lines that hold no secret although they look a little like it. They must come out as they went in.
INNOCENT: list[str] = [
    "[2026-02-08 03:12:44 TP0] Decode batch, #running-req: 1, #token: 1312, token usage: 0.00, accept len: 2.71, accept rate: 0.68, cuda graph: True, gen throughput (token/s): 118.40, #queue-req: 0, ",
    "[2026-02-08 03:12:44 TP0] Prefill batch. #new-seq: 1, #new-token: 28, #cached-token: 0, token usage: 0.01, #running-req: 0, #queue-req: 0",
    "[2026-02-08 03:09:00] max_total_num_tokens=260000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48",
    "server_args=ServerArgs(tokenizer_path='/srv/models/kimi', api_key=None, admin_api_key=None, speculative_token_map=None, skip_tokenizer_init=False)",
    "{'api_key': None, 'ssl_keyfile_password': None, 'max_total_tokens': 4096, 'hf_chat_template_name': None, 'stop_token': '</s>'}",
    '{"max_tokens": 128, "completion_tokens": 24, "eos_token_id": 2, "bos_token": "<s>", "pad_token": "[PAD]"}',
    "tokenizer_config.json: eos_token='<|im_end|>', image_token='<|media|>', num_tokens=12, new_token_ratio=0.7",
    "usage: launch_server.py [--max-total-tokens N] [--api-key API_KEY] --tokenizer-path PATH",
    '[2026-02-08 03:00:00] INFO:     10.0.0.7:38906 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model-00001-of-00064.safetensors",
    "commit 3207427a1b2c3d4e5f60718293a4b5c6d7e8f901 (HEAD -> main)",
    "GPU-8f3c1d2e-5b6a-4c7d-9e0f-1a2b3c4d5e6f, 00000000:17:00.0, 97887 MiB",
    '  File "/opt/sglang/venv/lib/python3.11/site-packages/sglang/srt/managers/tokenizer_manager.py", line 1884, in _handle',
    "HF_HUB_OFFLINE=1 HF_HOME=/srv/hf TOKENIZERS_PARALLELISM=false HF_TOKEN_PATH=/run/secrets/hf",
    "tiktoken==0.14.0 detect-secrets==1.5.0 sentencepiece==0.2.1",
    "LoadCredential=sglang.key:/etc/sglang/key",
    "ImportError: cannot import name 'token_to_kv_pool' from 'sglang.srt.mem_cache'",
    "http://127.0.0.1:30000/health and nats://gpu1:4222 and https://example.org/a@b",
    "SyntaxError: unexpected token:\nunderneath",
    "HF_TOKEN:\nport: 30000",
    "max_tokens:\n  4096",
    'eos_token:\n  "<|endoftext|>"',
    "api_key_file:\n  /etc/opsctl/key",
    "cache_key:\n  abcdef",
]
