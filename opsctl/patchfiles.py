"""The project's own patches: end states as YAML and unified diffs, from its `patches/` folder.

# patches/my-vl-capture.yaml
reason: MyVL does not pass the capture calls on
file: srt/models/my_vl.py
class: MyVLForConditionalGeneration
functions:
  - code: |
      def get_embed_and_head(self):
          return self.language_model.get_embed_and_head()
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from opsctl.errors import UsageError
from opsctl.localfiles import read as read_bytes
from opsctl.schema_errors import validate
from opsctl.sglang.patches.own import EndState, Wanted, function_in
from opsctl.wire.source_tree import PREFIXES
from opsctl.yaml_source import read_yaml

_STRICT = ConfigDict(extra="forbid", frozen=True)
_MOST = 4 << 20
_OF_A_DIFF = re.compile(rb"^(diff --git |@@ -\d)", re.MULTILINE)  # the first alone where a file is only renamed


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff, named after its file."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Own:
    """What a folder holds, in the order of the file names."""

    states: tuple[EndState, ...] = ()
    diffs: tuple[Diff, ...] = ()


class PatchFunction(BaseModel):
    """A function as it is to be."""

    model_config = _STRICT
    code: str = Field(description="The whole function, as Python; its indentation is fitted to its place.")
    instead_of: str | None = Field(
        None, description="The function as it is now. Without it the function is added, and must not be there yet."
    )

    @field_validator("code", "instead_of")
    @classmethod
    def _one_function(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                function_in(text)
            except SyntaxError as error:
                raise ValueError(f"not one Python function: {error.msg}") from None
        return text


class PatchFile(BaseModel):
    """An end state: functions that a class, or a module, of the SGLang package is to have."""

    model_config = _STRICT
    reason: str = Field(description="Why it is needed, for those who read a report.")
    file: str = Field(
        description="Path inside the package: srt/models/my_vl.py. A leading python/sglang/ may be there."
    )
    class_name: str | None = Field(
        None, alias="class", description="The class that is to have the functions; without it the module is."
    )
    functions: list[PatchFunction] = Field(min_length=1, description="Each is compared without comments and layout.")


def read(folder: Path) -> Own:
    """The patches of a folder: *.yaml and *.patch. Raises UsageError with the place of what is wrong."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="it holds *.yaml end states and *.patch diffs")
    states, diffs = sorted(folder.glob("*.yaml")), sorted(folder.glob("*.patch"))
    if not states and not diffs:
        raise UsageError(f"{folder} holds no patches", hint="a patch is a *.yaml end state or a *.patch diff")
    return Own(tuple(_state(path) for path in states), tuple(_diff(path) for path in diffs))


def _state(path: Path) -> EndState:
    source = read_yaml(path)
    found: PatchFile = validate(PatchFile, source.value, source)
    inside = found.file
    for prefix in PREFIXES:
        inside = inside.removeprefix(f"{prefix}/") if prefix else inside
    wanted = []
    for index, function in enumerate(found.functions):
        if function.instead_of and function_in(function.instead_of).name != function_in(function.code).name:
            raise UsageError("instead_of is a function of another name", where=source.place(("functions", index)))
        wanted.append(Wanted(function.code, function.instead_of))
    return EndState(path.stem, found.reason, inside, found.class_name, tuple(wanted))


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _diff(path: Path) -> Diff:
    text = _bytes(path)
    if len(text) > _MOST or not _OF_A_DIFF.search(text):
        raise UsageError(f"{path} is not a unified diff", hint="make it with git diff")
    return Diff(path.stem, text)
