"""What a server asks while one logs in (keyboard-interactive): the password is for password prompts alone.

A second factor, a change of password and whatever else a server may ask is the person's to answer.
"""

from __future__ import annotations

import getpass
import re
import sys
import threading
from collections.abc import Callable, Sequence

from opsctl.remote.lean_paramiko import paramiko
from opsctl.secret import Secret
from opsctl.text import one_line

Prompt = tuple[str, bool]  # its text, and whether the answer may be shown
PATIENCE = 120.0  # seconds for a person to answer: as long as sshd waits for a login (LoginGraceTime)

_PASSWORD = re.compile(r"(?i)pass(?:word|wort)|kennwort|mot de passe|contraseña|senha|пароль|密码|密碼|パスワード")
_OTHER = re.compile(
    r"(?i)one[- ]?time|\botp\b|verif|code|token|\bpin\b|factor|passphrase|\bnew\b|retype|again|current|\bold\b"
)
_terminal = threading.Lock()  # many hosts may be asking


class Unanswered(paramiko.SSHException):
    """A prompt that only a person can answer, where there is no terminal to ask one on."""

    def __init__(self, prompt: str) -> None:
        super().__init__(prompt)
        self.prompt = prompt


def attended() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def answering(password: Secret | None, whom: str) -> Callable[[str, str, Sequence[Prompt]], list[str]]:
    """A handler for paramiko. It raises Unanswered before anything is sent for the prompts of one round."""

    def answer(title: str, instructions: str, prompts: Sequence[Prompt]) -> list[str]:
        for_us = [password if password and is_for_the_password(prompt) else None for prompt in prompts]
        people = [text for (text, _), ours in zip(prompts, for_us, strict=True) if ours is None]
        if people and not attended():
            raise Unanswered(one_line(people[0]))
        with _terminal:
            for said in (title, instructions) if people else ():
                if said.strip():
                    print(f"{whom}: {one_line(said)}", file=sys.stderr)
            return [_of(ours, prompt, whom) for ours, prompt in zip(for_us, prompts, strict=True)]

    return answer


def is_for_the_password(prompt: Prompt) -> bool:
    text, shown = prompt
    return not shown and bool(_PASSWORD.search(text)) and not _OTHER.search(text)


def _of(password: Secret | None, prompt: Prompt, whom: str) -> str:
    if password:
        return password.reveal()
    text, shown = prompt
    asked = f"{whom}: {one_line(text)} "
    if not shown:
        return getpass.getpass(asked, stream=sys.stderr)
    print(asked, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().rstrip("\n")
