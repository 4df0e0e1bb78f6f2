"""Values that are not known yet, or cannot be known in check mode.

They stand in for what a task would register. Looking into one in any way raises Undecided, so that whatever depends
on it is undecided as well, and whatever does not (the other half of an `or`) is not disturbed.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Undecided(Exception):
    """Something depends on a value that is not known. `reason` says which and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unknown:
    """A value that is not known. Every use of it raises Undecided."""

    __slots__ = ("_reason",)

    def __init__(self, reason: str) -> None:
        object.__setattr__(self, "_reason", reason)

    def _undecided(self, *_: Any, **__: Any) -> NoReturn:
        raise Undecided(object.__getattribute__(self, "_reason"))

    def __repr__(self) -> str:
        return f"<unknown: {object.__getattribute__(self, '_reason')}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Protocol look-ups (`__html__`, `__deepcopy__`) ask whether something is there; it is not.
            raise AttributeError(name)
        raise Undecided(object.__getattribute__(self, "_reason"))

    __str__ = __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _undecided
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _undecided
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _undecided
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __neg__ = __pos__ = _undecided
    __int__ = __float__ = __index__ = __format__ = __hash__ = _undecided
