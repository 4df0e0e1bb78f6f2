"""What a playbook may say: the keys of plays, blocks and tasks, as they stand in the file."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from opsctl.engine.templating import is_template
from opsctl.inventory.model import Become
from opsctl.quantities import Duration, TimeLimit
from opsctl.schema_errors import plainly
from opsctl.text import VARIABLE
from opsctl.yaml_source import JUDGED_LATER, whole_number

T = TypeVar("T")


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, arbitrary_types_allowed=True, defer_build=True
    )


_DURATION: TypeAdapter[float] = TypeAdapter(Duration)
_LIMIT: TypeAdapter[float] = TypeAdapter(TimeLimit)
_COUNT: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0), BeforeValidator(whole_number)])


def _or_template(adapter: TypeAdapter[Any], value: Any) -> Any:
    return value if is_template(value) else adapter.validate_python(value)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _variables(value: Any) -> Any:
    if value is None:
        return {}
    if isinstance(value, dict):
        for name in value:
            _variable(name)
    return value


def _variable(name: Any) -> Any:
    if isinstance(name, str) and not VARIABLE.match(name):
        raise ValueError(f"{name!r} cannot be a variable: letters, digits and _ only, no digit first")
    return name


def _portion(value: Any) -> Any:
    """Checks a number of hosts, or a share of them."""
    fits = re.fullmatch(r"[0-9]+|[0-9]+(\.[0-9]+)?\s*%", str(value)) if isinstance(value, int | str) else None
    if isinstance(value, bool) or not fits:
        raise PydanticCustomError("portion", "expected a number of hosts or a share such as 25%")
    return value


def _batch(value: Any) -> Any:
    if not re.search("[1-9]", str(_portion(value))):
        raise PydanticCustomError("portion", "expected at least one host at a time")
    return value


Portion = Annotated[int | str, BeforeValidator(_portion)]
Batch = Annotated[int | str, BeforeValidator(_batch)]
TemplatedDuration = Annotated[
    float | str, BeforeValidator(lambda v: _or_template(_DURATION, v)), WithJsonSchema({"type": ["number", "string"]})
]
TemplatedLimit = Annotated[
    float | str, BeforeValidator(lambda v: _or_template(_LIMIT, v)), WithJsonSchema({"type": ["number", "string"]})
]
TemplatedCount = Annotated[
    int | str, BeforeValidator(lambda v: _or_template(_COUNT, v)), WithJsonSchema({"type": ["integer", "string"]})
]
Tasks = Annotated[list[Any], JUDGED_LATER]
Names = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])]
_Bool = Annotated[bool, Strict()]  # 1 is no answer
Condition = _Bool | str | list[_Bool | str]
Variables = Annotated[dict[str, Any], BeforeValidator(_variables)]
Number = int | float | str
VariableName = Annotated[str, BeforeValidator(_variable)]


def duration_of(value: float | str) -> float:
    """A rendered duration in seconds. Raises ValueError."""
    return _checked(_DURATION, value)


def limit_of(value: float | str) -> float:
    """A rendered duration after which something is given up, in seconds: more than 0. Raises ValueError."""
    return _checked(_LIMIT, value)


def count_of(value: int | str) -> int:
    """A rendered count. Raises ValueError."""
    return _checked(_COUNT, value)


def _checked(adapter: TypeAdapter[T], value: Any) -> T:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ValueError(plainly(error.errors()[0])) from None


class Param(_Strict):
    """A value that the one who runs the playbook gives with -e."""

    type: Literal[
        "text", "int", "float", "bool", "list", "map", "path", "file", "folder", "duration", "size", "secret"
    ] = Field("text", description="`path`: made absolute; `file` and `folder` must exist on this machine as well.")
    default: Annotated[Any, JUDGED_LATER] = Field(
        None, description="Used when nothing is given. May be a template. null: there is no value."
    )
    choices: Annotated[list[Any] | None, JUDGED_LATER] = Field(
        None, min_length=1, description="The values that are allowed."
    )
    help: str | None = Field(None, description="What it is for.")

    @property
    def required(self) -> bool:
        return "default" not in self.model_fields_set


class Supervise(_Strict):
    """The change runs detached on the host, which takes the whole run back by itself if the play is not confirmed."""

    confirm_within: TemplatedLimit = Field(description="How long the host waits for the play to end well.")


class Gate(_Strict):
    """A condition on what was measured. If it does not hold at the end of the play, the play has failed."""

    name: str | None = None
    measure: str | None = Field(None, description="Name of a measured value, such as accept_length.")
    at_least: Number | None = None
    at_most: Number | None = None
    that: str | None = Field(None, description="An expression instead of a measure.")

    @model_validator(mode="after")
    def _one_kind(self) -> Gate:
        bounds = self.at_least is not None or self.at_most is not None
        if (self.measure is None) == (self.that is None):
            raise ValueError("a gate needs either `measure` (with at_least or at_most) or `that`")
        if (self.measure is not None) != bounds:
            raise ValueError("`measure` goes with `at_least` or `at_most`")
        return self


class TaskKeys(_Strict):
    """Keys of a task besides its module."""

    name: str | None = Field(None, description="What it does, in a few words.")
    when: Condition = Field(True, description="Expression, or several of which all must hold. Must give true or false.")
    loop: list[Any] | str | None = Field(None, description="Run once for each; the element is `item`.")
    register_: VariableName | None = Field(None, alias="register", description="Variable that gets the result.")
    notify: Names = Field(default_factory=list, description="Handlers to run at the end if this changes something.")
    tags: Names = Field(default_factory=list)
    vars: Variables = Field(default_factory=dict)
    until: Condition | None = Field(None, description="Try again until this holds; `result` is the last result.")
    retries: TemplatedCount | None = Field(None, description="How often to try again (default with until: 3).")
    delay: TemplatedDuration = Field(5.0, description="How long to wait before trying again.")
    timeout: TemplatedLimit | None = Field(None, description="How long one try may take.")
    become: Become | None = Field(None, description="true: as root; a name: as that user; false: as the SSH user.")
    changed_when: Condition | None = Field(None, description="Whether it changed something; `result` is its result.")
    failed_when: Condition | None = Field(None, description="Whether it failed; `result` is its result.")
    supervise: Supervise | None = None


class BlockKeys(_Strict):
    """Keys of a block of tasks."""

    name: str | None = None
    when: Condition = True
    tags: Names = Field(default_factory=list)
    vars: Variables = Field(default_factory=dict)
    become: Become | None = None
    block: Tasks = Field(description="Tasks.")
    rescue: Tasks = Field(default_factory=list, description="Tasks to run when one of the block fails.")
    always: Tasks = Field(default_factory=list, description="Tasks to run in any case.")


class IncludeKeys(_Strict):
    """Keys of an include: the tasks of another file, in place."""

    name: str | None = None
    when: Condition = True
    tags: Names = Field(default_factory=list)
    vars: Variables = Field(default_factory=dict)
    become: Become | None = None
    include: str = Field(description="A file with a list of tasks, beside this one.")


class PlayKeys(_Strict):
    """A play: what to bring about on which hosts."""

    name: str | None = Field(None, description="What it does, in a few words.")
    description: str | None = Field(None, description="More about it, for `opsctl doc`.")
    hosts: str | list[str] = Field(description="Host pattern: names, groups, a:b (either), a:&b (both), a:!c (not).")
    params: dict[VariableName, Param] = Field(default_factory=dict, description="Values given with -e, with types.")
    vars: Variables = Field(default_factory=dict)
    tasks: Tasks = Field(default_factory=list)
    handlers: Tasks = Field(default_factory=list, description="Tasks that run once at the end when notified.")
    rescue: Tasks = Field(
        default_factory=list,
        description="Tasks to run when the play fails on a host, before anything is taken back; the outcome stays.",
    )
    gates: list[Gate] = Field(default_factory=list)
    on_failure: Literal["rollback", "stop", "continue"] = Field(
        "stop",
        description="rollback: undo all this run did on the host; stop: leave it; continue: go on with the next task.",
    )
    on_unreachable: Literal["fail", "skip"] = Field("fail", description="skip: a host that is off is no failure.")
    confirm: str | None = Field(
        None, description="Question to ask before the first host is touched (--yes: not asked)."
    )
    lock: bool | str = Field(True, description="Hold the host against other operators; a name: only that lock.")
    timeout: TemplatedLimit | None = Field(None, description="How long the play may take on one host.")
    serial: Batch | Annotated[list[Batch], Field(min_length=1)] | None = Field(
        None, description="Hosts at a time: a number, a share such as 25%, or several in turn."
    )
    max_failures: Portion | None = Field(
        None, description="Hosts that may fail, unreachable ones included, before no other host is begun: 2 or 10%."
    )
    become: Become | None = None
    tags: Names = Field(default_factory=list)

    @field_validator("lock")
    @classmethod
    def _lock_name(cls, value: bool | str) -> bool | str:
        if isinstance(value, str) and not VARIABLE.match(value):
            raise ValueError(f"{value!r} cannot name a lock: letters, digits and _ only, no digit first")
        return value
