"""From what was found to the `sglang` section of an inventory. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.sglang.server import launch
from opsctl.sglang.server.command import SPELLINGS, as_flags
from opsctl.survey.found import Found, Running
from opsctl.survey.look import environment_of
from opsctl.wire.command_line import DEFAULT_PORT

# Speculation as the EAGLE-3 papers and model cards use it, where no server shows what the host is used to.
USUAL_FLAGS: Mapping[str, Any] = {
    "trust-remote-code": True,
    "enable-metrics": True,
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
_ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Section:
    """The section, key by key; `has_key`: the server wants an API key, which is nowhere in it."""

    values: Mapping[str, Any]
    comments: Mapping[str, str]
    has_key: bool
    key_in_argv: bool


def section(found: Found) -> Section:
    return _of_server(found, found.server) if found.server else _of_files(found)


def _of_server(found: Found, server: Running) -> Section:
    started = launch.parse(server.argv) or launch.Launch()
    bind = started.host if started.host and started.host not in _ANY else None
    values: dict[str, Any] = {
        **_code(found),
        **_interpreter(server.python),
        "model_path": started.model,
        "tp": started.tp,
        "bind": bind,
        "port": started.port or DEFAULT_PORT,
        "log": server.log,
        "weights_root": _weights_root(started.draft_model, started.model, found.home),
        "unit": server.unit,
        "unit_scope": "user" if server.unit and server.user_unit else None,
        "container": server.container,
        "env": dict(sorted(server.env.items())) or None,
    }
    comments = {"weights_root": "releases of draft models go to releases/ below it"}
    if found.checkout and found.checkout.commit:
        comments["checkout"] = _state(found)
    if server.container:
        for name in ("checkout", "environment", "python", "env", "log"):
            values[name] = None  # they are the container's own
    elif not server.unit and not started.has_api_key:
        values["launch"] = _launch(server.argv, drop=_said(values, started))
    key = started.has_api_key or started.config is not None
    return Section({k: v for k, v in values.items() if v is not None}, comments, key, started.has_api_key)


def _of_files(found: Found) -> Section:
    gpus = found.profile.get("gpus")
    values: dict[str, Any] = {
        **_code(found),
        "environment": found.environment,
        "model_path": found.model,
        "tp": gpus or None,
        "port": found.port or DEFAULT_PORT,
        "weights_root": _weights_root(None, found.model, found.home),
        "unit": found.unit,
        "unit_scope": "user" if found.unit and found.user_unit else None,
        "launch": None if found.unit or not found.model else dict(USUAL_FLAGS),
    }
    comments = {
        "port": "nothing runs there now" + ("" if found.port else ": this is SGLang's default"),
        "weights_root": "releases of draft models go to releases/ below it",
    }
    if gpus:
        comments["tp"] = "one rank per GPU"
    if found.checkout and found.checkout.commit:
        comments["checkout"] = _state(found)
    for kind, paths in found.others.items():
        comments[kind] = "; ".join(filter(None, [comments.get(kind), f"also there: {', '.join(paths[:4])}"]))
    return Section({k: v for k, v in values.items() if v is not None}, comments, has_key=False, key_in_argv=False)


def _code(found: Found) -> dict[str, Any]:
    return {"checkout": found.checkout.path if found.checkout else None}


def _state(found: Found) -> str:
    tree = found.checkout
    assert tree is not None
    assert tree.commit is not None
    at = f"at {tree.commit[:12]}" + (f" on {tree.branch}" if tree.branch else "")
    return at + (f", {tree.changed} changed file{'' if tree.changed == 1 else 's'}" if tree.changed else "")


def _interpreter(python: str) -> dict[str, str]:
    environment = environment_of(python)
    return {"environment": environment} if environment else {"python": python}


def _weights_root(drafter: str | None, model: str | None, home: str) -> str:
    """Beside the draft model that is served, else beside the models, else in the home folder."""
    if drafter and drafter.startswith("/"):
        return drafter.partition("/releases/")[0] if "/releases/" in drafter else posixpath.dirname(drafter.rstrip("/"))
    if model and model.startswith("/"):
        return posixpath.join(posixpath.dirname(posixpath.dirname(model.rstrip("/"))), "drafters")
    return posixpath.join(home, "drafters")


def _said(values: Mapping[str, Any], started: launch.Launch) -> set[str]:
    """Flags that the section says in words of its own, in every spelling."""
    names = {"model-path", "tp-size", "port"} | ({"host"} if values["bind"] else set())
    return names | {spelling for name in names for spelling in SPELLINGS.get(name, ())}


def _launch(argv: Sequence[str], drop: set[str]) -> dict[str, Any] | list[str]:
    """The command as a mapping of flags without those, or as it stands where that would lose something."""
    flags = as_flags(argv)
    return list(argv) if flags is None else {flag: value for flag, value in flags.items() if flag not in drop}
