"""The variables of one host at one moment: layers, nearest first, their templates rendered when first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.engine.templating import At, holds_template, render
from opsctl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Layer:
    """Variables from one place. `at` says where they stand if they may hold templates; None: plain data."""

    values: Mapping[str, Any]
    at: At | None = None


class Scope(Mapping[str, Any]):
    """All variables that a template may use. Raises UsageError when one is defined through itself."""

    __slots__ = ("_layers", "_rendered", "_rendering")

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)
        self._rendered: dict[str, Any] = {}
        self._rendering: list[str] = []

    def over(self, *layers: Layer) -> Scope:
        """These variables with nearer ones in front of them."""
        return Scope((*layers, *self._layers))

    def __getitem__(self, name: str) -> Any:
        if name in self._rendered:
            return self._rendered[name]
        for layer in self._layers:
            if name in layer.values:
                value = layer.values[name]
                if layer.at is not None and holds_template(value):
                    value = self._render(name, value, layer.at / name)
                self._rendered[name] = value
                return value
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in layer.values for layer in self._layers)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for layer in self._layers for name in layer.values))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _render(self, name: str, value: Any, at: At) -> Any:
        if name in self._rendering:
            trail = " -> ".join([*self._rendering[self._rendering.index(name) :], name])
            raise UsageError(f"the variable {name!r} is defined through itself: {trail}", where=at.place)
        self._rendering.append(name)
        try:
            return render(value, self, at)
        finally:
            self._rendering.pop()
