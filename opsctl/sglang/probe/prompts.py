"""What a probe sends: the built-in prompts, or the user's own in a JSONL file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from opsctl.errors import Place, UsageError
from opsctl.localfiles import read_text
from opsctl.schema_errors import plainly
from opsctl.text import did_you_mean

_SHAPES = ("messages", "prompt", "input_ids")


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


class _Row(BaseModel):
    """One line of a prompts file: `messages` (through the model's chat template), or text or token ids as they are."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    workload: str = "custom"
    messages: list[Message] | None = None
    prompt: str | None = None
    input_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> _Row:
        given = [name for name in _SHAPES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(_SHAPES)}; found {', '.join(given) or 'none'}")
        return self


@dataclass(frozen=True, slots=True)
class ProbePrompt:
    """One prompt. Exactly one of messages, text and input_ids is set."""

    id: str
    workload: str
    messages: tuple[tuple[str, str], ...] = ()  # (role, content)
    text: str | None = None
    input_ids: tuple[int, ...] = ()


def digest_of(prompts: Sequence[ProbePrompt]) -> str:
    """The same for the same prompts in the same order, whatever they are called: 12 hex digits."""
    said = [(p.messages, p.text, p.input_ids) for p in prompts]
    return hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def built_in() -> list[ProbePrompt]:
    """The prompts that come with opsctl: chat, code, maths and long context, written for it."""
    data = files("opsctl.sglang").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return _rows(data, "prompts.jsonl")


def read_prompts(path: Path) -> list[ProbePrompt]:
    """The prompts in a JSONL file. Raises UsageError with file and line."""
    try:
        data = read_text(path, piped=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts: {error}", where=str(path)) from None
    found = _rows(data, str(path))
    if not found:
        raise UsageError(
            "no prompts in the file", where=str(path), hint='one JSON object a line, such as {"prompt": "Hello"}'
        )
    return found


def _rows(data: str, file: str) -> list[ProbePrompt]:
    prompts: list[ProbePrompt] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(data.split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _row(line, file, number)
        if prompt.id in seen:
            raise UsageError(
                f"two prompts have the id {prompt.id!r}, the other in line {seen[prompt.id]}", where=Place(file, number)
            )
        seen[prompt.id] = number
        prompts.append(prompt)
    return prompts


def _row(line: str, file: str, number: int) -> ProbePrompt:
    try:
        row = _Row.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error.msg}", where=Place(file, number, error.colno)) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(key, _Row.model_fields)
            raise UsageError(f"unknown key {key!r}", where=Place(file, number), hint=hint) from None
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place}: {plainly(first)}" if place else plainly(first), where=Place(file, number)) from None
    return ProbePrompt(
        row.id or f"line-{number}",
        row.workload,
        tuple((m.role, m.content) for m in row.messages or ()),
        row.prompt,
        tuple(row.input_ids or ()),
    )
