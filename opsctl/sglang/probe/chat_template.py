"""A checkpoint's own chat template, rendered here, for servers that do not render it for us.

The template is text from a host: it runs in Jinja's sandbox and sees nothing but the messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from opsctl.errors import UsageError

# Gives the text of a file of the checkpoint by name; None when there is no such file.
FileReader = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    source: str
    bos: str
    tokens: tuple[tuple[str, str], ...]  # special tokens by the name the template may use

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, without a leading BOS token: the server adds that to text by itself. Raises UsageError."""
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        env.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        env.globals["raise_exception"] = _refuse
        try:
            text = env.from_string(self.source).render(
                messages=list(messages), add_generation_prompt=True, **dict(self.tokens)
            )
        except TemplateError as error:
            raise UsageError(f"the chat template of the model does not take these messages: {error}") from None
        return text.removeprefix(self.bos) if self.bos else text


def read_template(read: FileReader) -> ChatTemplate | None:
    """The template of a checkpoint folder: `chat_template.jinja`, else the one in `tokenizer_config.json`."""
    config = _json(read("tokenizer_config.json"))
    source = read("chat_template.jinja") or _named(config.get("chat_template"))
    if not source:
        return None
    tokens = tuple((k, _token(v)) for k, v in config.items() if k.endswith("_token") and _token(v))
    return ChatTemplate(source, dict(tokens).get("bos_token", ""), tokens)


def _named(value: Any) -> str | None:
    """A template, or the one called default of several."""
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _token(value: Any) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _json(text: str | None) -> dict[str, Any]:
    try:
        data = json.loads(text or "{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
