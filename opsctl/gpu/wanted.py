"""What the inventory says about a host that its health depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opsctl.errors import Place, UsageError
from opsctl.gpu.settings import Profile, Settings
from opsctl.inventory.model import SglangSettings
from opsctl.schema_errors import plainly
from opsctl.text import did_you_mean


class _Model(BaseModel):
    """The variable `health` of a host."""

    model_config = ConfigDict(extra="forbid", strict=True)

    profile: dict[str, Any] = Field(default_factory=dict)
    thresholds: dict[str, float] = Field(default_factory=dict)
    unit: str | None = None
    user_unit: bool = False
    port: int | None = Field(None, ge=1, le=65535)
    container: str | None = None
    folders: list[str] = Field(default_factory=lambda: ["/", "/tmp"])
    weights: str | None = None
    root: str = "/"
    programs: list[str] = Field(default_factory=list)
    python: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """unit, port: of the server; folders: whose file systems must have room; weights: a folder with an index.

    root: where the host's own file system is mounted, seen from a container; programs: folders searched before PATH.
    python: the interpreter that serves; env: what NCCL and CUDA are told there. Both only matter to active tests.
    """

    settings: Settings = field(default_factory=Settings)
    unit: str | None = None
    user_unit: bool = False
    port: int | None = None
    container: str | None = None
    folders: tuple[str, ...] = ("/", "/tmp")
    weights: str | None = None
    root: str = "/"
    programs: tuple[str, ...] = ()
    python: str | None = None
    env: tuple[tuple[str, str], ...] = ()

    @property
    def seconds(self) -> float:
        """When to give up on the host: the agent's own limits, of nvidia-smi or the endpoint, and a margin."""
        return (
            max(self.smi_seconds, 35.0, 4 * self.settings.limit("smi.warn") + self.settings.limit("cuda.limit")) + 30.0
        )

    @property
    def smi_seconds(self) -> float:
        return self.settings.limit("smi.fail")


def of(health: Any, sglang: SglangSettings | None, where: str | Place) -> Wanted:
    """The variable `health`, on top of what the settings `sglang` say about the server. Raises UsageError."""
    if health is not None and not isinstance(health, Mapping):
        raise UsageError(f"health: a mapping is expected, not {health!r}", where=where)
    return load({**(_served(sglang) if sglang else {}), **(health or {})}, where)


def _served(sglang: SglangSettings) -> dict[str, Any]:
    log_folder = str(PurePosixPath(sglang.log).parent) if sglang.log else None
    return {
        "port": sglang.port,
        "unit": sglang.unit,
        "user_unit": sglang.user_unit,
        "container": sglang.container,
        "weights": sglang.model_path if (sglang.model_path or "").startswith("/") else None,
        "python": sglang.interpreter,
        "env": {k: v for k, v in sglang.env.items() if k.startswith(("NCCL_", "CUDA_")) and isinstance(v, str)},
        "folders": [f for f in ("/", "/tmp", log_folder, sglang.weights_root) if f],
    }


def load(data: Mapping[str, Any], where: str | Place) -> Wanted:
    """From the host's variable `health`. Raises UsageError."""
    try:
        model = _Model.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        hint = did_you_mean(name, _Model.model_fields) if first["type"] == "extra_forbidden" else None
        raise UsageError(f"health: {name}: {plainly(first)}", where=where, hint=hint) from None
    try:
        settings = Settings(profile=Profile.load(model.profile), limits=model.thresholds, unit=model.unit)
    except UsageError as error:
        error.where = where
        raise
    return Wanted(
        settings=settings,
        unit=model.unit,
        user_unit=model.user_unit,
        port=model.port,
        container=model.container,
        folders=tuple(model.folders),
        weights=model.weights,
        root=model.root,
        programs=tuple(model.programs),
        python=model.python,
        env=tuple(model.env.items()),
    )
