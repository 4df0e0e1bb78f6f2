"""Secrets of every shape are used, printed by what runs on the host, and then looked for in every byte that is left.

A case is one run with a secret of each shape, that ends in one of four ways. Each secret carries a random word; it is
that word which is looked for, as it is, in base64 and in hexadecimal, with line ends taken out, so that nothing here
knows how opsctl writes or masks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import string
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zstandard

from opsctl.errors import Exit
from tests.campaigns.campaign import Case
from tests.sshd import SSHD, Sshd

SHORT = 1

# `@` stands for the word.
SHAPES = {
    "plain": "@",
    "single quotes": "it's @ o'clock",
    "double quotes": 'say "@" twice',
    "spaces": "horse  @ battery",
    "tab": "left\t@\tright",
    "two lines": "first-@\nsecond-@",
    "line end at the end": "@\n",
    "line ends of Windows": "first-@\r\nsecond-@",
    "PEM": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhk@\n@AgEAAoIBAQC7\n-----END PRIVATE KEY-----",
    "escape": "\x1b[31m@\x1b[0m",
    "bell": "ring\x07@",
    "accents": "Zwölf-@-Boxkämpfer",
    "emoji": "🔑@🔒",
    "right to left": "\u202e@\u202c",
    "URL": "https://ops:@@git.example.org/m.git",
    "bearer": "Bearer @",
    "base64": "base64",
    "JSON": '{"user": "ops", "password": "@"}',
    "YAML": "password: @\nuser: ops",
    "4 KB": "@" + "x1Y2" * 1000 + "@",
    "percents": "100%@%s%20%(x)d",
    "backslashes": "C:\\new\\@\\table",
    "dollar": "$@${HOME}$$",
    "backticks": "`id`@$(id)",
    "number": "number",
    "leading dash": "--@",
    "braces": "{{ @ }}{%",
    "shell signs": "a;b|@&c>d<e*?[f]",
    "hash": "a#@ #b",
    "equals": "key=@=value",
    "exclamation": "oh!@!!",
    "HTML": "<b>&amp;@&</b>",
    "slash": "a/@/b+c==",
    "short": "short",
}
VIEWS = {"rolled back": "gitlab", "ok": "jsonl", "killed": "human", "failed": "github"}  # how each outcome is shown

# What runs on the host: prints all of its secrets in every way that a program has.
EMIT = r"""
import base64, html, json, os, shlex, sys, textwrap, urllib.parse
out = sys.stderr if sys.argv[1] == "err" else sys.stdout
for name in sorted(n for n in os.environ if n.startswith("SECRET_")):
    v = os.environ[name]
    b = v.encode()
    ways = [v, repr(v), json.dumps(v), json.dumps(v, ensure_ascii=False), json.dumps(json.dumps(v)), shlex.quote(v),
            html.escape(v), urllib.parse.quote(v), urllib.parse.quote(v, safe=""), urllib.parse.quote_plus(v),
            urllib.parse.quote(v, safe="").lower() if v.isascii() and v == v.lower() else "", b.hex(), b.hex().upper(),
            base64.b64encode(b).decode(), base64.encodebytes(b).decode(), base64.urlsafe_b64encode(b).decode(),
            "Basic " + base64.b64encode(b"ops:" + b).decode(), base64.b64encode(b"x" + b + b"yz").decode(),
            base64.b64encode(b"xy" + b + b"z").decode(), v[: len(v) // 2] + "\n" + v[len(v) // 2 :],
            " ".join(v.split()),
            "curl -H 'X-Thing: %s' http://ops:%s@host/" % (v, urllib.parse.quote(v, safe=""))]
    for way in ways:
        print(way, file=out)
print("last words " + os.environ["SECRET_s00"], file=out)
"""
TEMPLATE = "{% for s in secrets %}\n{{ s }}\n{% endfor %}\n"


def cases(rng: random.Random) -> Iterator[Case]:
    """Each outcome in turn, with new secrets each time, for as many as are asked for."""
    while True:
        for outcome in VIEWS:
            words = [_word(rng, shape) for shape in SHAPES]
            yield Case(f"{outcome}, {len(SHAPES)} shapes", _holds(outcome, words))


def _word(rng: random.Random, shape: str) -> str:
    if shape == "number":
        return rng.choice("123456789") + "".join(rng.choice(string.digits) for _ in range(16))
    letters = string.ascii_letters + string.digits
    return "".join(rng.choice(letters) for _ in range(7 if shape == "short" else 16))


def secret(shape: str, word: str) -> str:
    match shape:
        case "number" | "short":
            return word
        case "base64":
            return base64.b64encode(f"ops:{word}".encode()).decode()
        case "URL":
            return f"https://ops:{word}@git.example.org/m.git"
    return SHAPES[shape].replace("@", word)


def _holds(outcome: str, words: list[str]) -> Callable[[Path], None]:
    def hold(folder: Path) -> None:
        if not SSHD:
            return
        values = dict(zip(SHAPES, map(secret, SHAPES, words), strict=True))
        desk = Desk(folder, list(values.values()))
        with desk.sshd():
            desk.play(outcome)
        everything = desk.everything()
        found = {
            f"{shape}: {place}"
            for shape, word in zip(SHAPES, words, strict=True)
            for place, text in everything.items()
            if shows(text, word if shape != "base64" else values[shape])
        }
        assert not found, f"{len(found)} in clear:\n" + "\n".join(sorted(found))

    return hold


def shows(text: bytes, word: str) -> bool:
    """Whether a word stands in a text, as it is or coded."""
    raw = word.encode()
    ways = [raw, raw.hex().encode(), raw.hex().upper().encode()]
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + raw)
        ways.append(coded[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6])
    return any(way in text for way in ways)


class Desk:
    """Where the operator works, and the host: an sshd, its state, and what was printed."""

    def __init__(self, folder: Path, values: list[str]) -> None:
        self.folder, self.values = folder, values
        self.names = [f"s{number:02}" for number in range(len(values))]
        self.host, self.here, self.state = folder / "host", folder / "desk", folder / "state"
        for one in (self.host, self.here / "playbooks", self.here / "templates", folder / "sshd"):
            one.mkdir(parents=True)
        self.printed: dict[str, bytes] = {}
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(self.here / "local"),
            "GITHUB_WORKSPACE": str(self.here),
        }
        (self.host / "emit.py").write_text(EMIT)
        (self.here / "templates/keys.j2").write_text(TEMPLATE)

    @contextlib.contextmanager
    def sshd(self) -> Iterator[None]:
        server = Sshd(self.folder / "sshd")
        server.start()
        try:
            (self.here / "inventory.yaml").write_text(self._inventory(server))
            yield
        finally:
            server.stop()

    def _inventory(self, server: Sshd) -> str:
        """The secrets come from the environment, from files and from commands in turn."""
        vault = self.folder / "vault"
        vault.mkdir()
        said = []
        for number, value in enumerate(self.values):
            file = vault / f"{number:02}"
            file.write_bytes(value.encode())
            self.environment[f"FROM_{number:02}"] = value
            source = (f"!env FROM_{number:02}", f"!file {file}", f"!cmd [cat, {file}]")[number % 3]
            said.append(f"      {self.names[number]}: {source}")
        reach: dict[str, object] = {"address": "127.0.0.1", "port": server.port, "user": server.user}
        reach |= {"key": str(server.key_file), "known_hosts": str(server.known_hosts), "ssh_config": "none"}
        reach["state_dir"] = str(self.state)
        lines = [f"    {name}: {json.dumps(value)}" for name, value in reach.items()]
        return "\n".join(["hosts:", "  box:", *lines, "    vars:", *said]) + "\n"

    def _playbook(self, outcome: str) -> str:
        env = {f"SECRET_{name}": f"{{{{ {name} }}}}" for name in self.names}
        emit = f"{sys.executable} {self.host}/emit.py"
        every = [f"{{{{ {name} }}}}" for name in self.names]

        def printing(name: str, script: str, **more: object) -> dict[str, object]:
            return {"name": name, "shell": {"cmd": script, "env": env, "undo": f"cat {self.host}/keys"}, **more}

        process = {"name": "canary", "argv": ["sleep", "600"], "env": env, "log": f"{self.host}/canary.log"}
        tasks = [
            printing("Says {{ s00 }}", f"{emit} out", register="said"),
            {"name": "Show", "debug": {"msg": "it said {{ said.stdout }}"}},
            {
                "name": "File",
                "template": {"src": "keys.j2", "dest": f"{self.host}/keys"},
                "vars": {"secrets": every},
            },
            {"name": "Process", "process": process},
        ]
        if outcome in ("failed", "rolled back"):
            tasks.append(printing("Fails", f"{emit} err; exit 4"))
        if outcome == "killed":
            tasks.append(printing("Hangs", f"{emit} err; touch {self.host}/hangs; exec sleep 600"))
        play = {"name": "Canaries", "hosts": "all", "tasks": tasks}
        if outcome == "rolled back":
            play["on_failure"] = "rollback"
        return json.dumps([play])

    def play(self, outcome: str) -> None:
        (self.here / "playbooks/canaries.yaml").write_text(self._playbook(outcome))
        views = ["--junit", "junit.xml", "--summary", "summary.md", "--report", "page.html", "--diff", "-v"]
        run = ["run", "canaries", "--yes", *views, "-o", VIEWS[outcome]]
        if outcome == "killed":
            self._kill(run)
        else:
            self.opsctl("run", *run)
        (name,) = (path.name for path in (self.state / "runs").iterdir())
        self.opsctl("logs collect", "logs", "collect", "--run", name, "-o", "bundle.tar.zst")
        self.opsctl("report", "report", name, "-o", "old.html")
        self.opsctl("rollback", "rollback", name, "--yes")
        self.opsctl("show", "show", name, "--host", "box")
        if outcome == "ok":
            self.opsctl("check", "run", "canaries", "--check", "--diff", "-v")
            self.opsctl("history", "history", "--host", "box")

    def opsctl(self, place: str, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "opsctl", *words],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        text = done.stdout + done.stderr
        assert done.returncode not in (Exit.USAGE, Exit.BUG), text.decode("utf-8", "replace")[-3000:]
        # GitHub has to be told what to mask.
        shown = [line for line in text.split(b"\n") if not line.startswith(b"::add-mask::")]
        self.printed[f"terminal of {place}"] = b"\n".join(shown)

    def _kill(self, words: list[str]) -> None:
        with subprocess.Popen(
            [sys.executable, "-m", "opsctl", *words],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as running:
            try:
                while not (self.host / "hangs").exists():
                    assert running.poll() is None, running.communicate()[0].decode()[-3000:]
                    time.sleep(0.05)
                self.printed |= processes(running.pid)
            finally:
                running.kill()
            self.printed["terminal of the killed run"] = running.communicate()[0]

    def everything(self) -> dict[str, bytes]:
        """Every byte on both sides, with the line ends taken out as well, but for what is kept apart on purpose."""
        texts = dict(self.printed)
        for root in (self.here, self.state):
            for path in root.rglob("*"):
                if path.is_file() and not self._apart(path):
                    texts[str(path.relative_to(self.folder))] = unpacked(path)
        joined = {
            f"{place}, over line ends": text.replace(b"\n", b"").replace(b"\r", b"") for place, text in texts.items()
        }
        return texts | joined

    def _apart(self, path: Path) -> bool:
        """What undo needs, readable by its owner alone: see the security model."""
        inside = path.relative_to(self.folder).parts
        apart = inside[0] == "state" and not {"steps", "undo", "processes"}.isdisjoint(inside)
        assert not apart or path.stat().st_mode & 0o077 == 0, f"{path} can be read by others"
        return apart


def processes(top: int) -> dict[str, bytes]:
    """Command lines, and what their environments hold, of what opsctl has started, on this side and on the host.

    The controller's own environment is its user's, and the command that was asked for gets what was asked for.
    """
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            found[f"command line of {pid}"] = command
            if b"import select,os,zlib" in command and b"sshd" not in command:
                found[f"environment of {pid}"] = Path(f"/proc/{pid}/environ").read_bytes()
    return found


def unpacked(path: Path) -> bytes:
    if path.suffix != ".zst":
        return path.read_bytes()
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        return b"\n".join(archive.extractfile(one).read() for one in archive)  # type: ignore[union-attr]  # all are files
