"""Modules against a host in this very process: the agent's own calls, without a wire."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from opsctl import modules
from opsctl.agent.core import dispatch
from opsctl.errors import Conflict, RemoteError, UsageError
from opsctl.modules.contract import Action, Change, Module, Outcome, Site
from opsctl.wire.protocol import AgentError, Call, Context, Reply


class InProcess(Context):
    """A call in this process; `blobs` is the folder of its journal step."""

    def __init__(self, body: bytes = b"", blobs: Path | None = None) -> None:
        self.body = body
        self.blobs = str(blobs) if blobs else None
        self.heard: list[tuple[Any, bytes]] = []

    def progress(self, data: Any, body: bytes = b"") -> None:
        self.heard.append((data, body))


@dataclass
class LocalHost:
    """contract.Host over the agent's functions."""

    name: str = "here"
    asked: list[Call] = field(default_factory=list)

    def call(
        self,
        call: Call,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Any, bytes], None] | None = None,
    ) -> Reply:
        self.asked.append(call)
        context = InProcess(call.body)
        if on_progress:
            context.progress = on_progress  # type: ignore[method-assign]
        try:
            return dispatch.invoke(call.name, call.args, context)
        except AgentError as error:
            kind = Conflict if error.kind == "conflict" else RemoteError
            raise kind(error.message, kind=error.kind) from None

    def batch(self, calls: Sequence[Call], *, timeout: float | None = None) -> list[Reply]:
        return [self.call(call) for call in calls]

    def http(self, port: int) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{port}")


def evaluate(expression: str, variables: Mapping[str, Any]) -> Any:
    from jinja2.nativetypes import NativeEnvironment

    return NativeEnvironment().from_string("{{ " + expression + " }}").render(variables)


def site(variables: Mapping[str, Any] | None = None, project: Path | None = None, check: bool = False) -> Site:
    """A site whose local files lie in `project`."""
    from jinja2 import Environment, StrictUndefined

    known = dict(variables or {})

    def find(kind: str, path: str) -> Path:
        found = (project or Path("/nonexistent")) / path
        if not found.exists():
            raise UsageError(f"there is no {path}")
        return found

    def render(text: str, name: str) -> str:
        environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
        environment.filters["quote"] = shlex.quote
        return environment.from_string(text).render(known)

    return Site("here", known, find, render, lambda expression: evaluate(expression, known), check)


class Play:
    """Tasks run one by one on this machine, with a journal that can be rolled back."""

    def __init__(self, folder: Path, project: Path | None = None, variables: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.site = site(variables, project)
        self.host = LocalHost()
        self.steps: list[tuple[Path, Change]] = []

    def plan(self, name: str, /, **args: Any) -> tuple[Module[Any], Any, list[Reply], Change | None]:
        module = modules.get(name)
        assert isinstance(module, Module)
        parsed = module.args.model_validate(args)
        seen = self.host.batch(module.observe(parsed, self.site))
        return module, parsed, seen, module.plan(parsed, seen, self.site)

    def act(self, name: str, /, **args: Any) -> Outcome:
        action = modules.get(name)
        assert isinstance(action, Action)
        return action.run(action.args.model_validate(args), self.host, self.site, lambda text, done: None)

    def run(self, name: str, /, **args: Any) -> dict[str, Any]:
        """What `register` would get. An unchanged task leaves no step behind."""
        module, parsed, seen, change = self.plan(name, **args)
        if change is None:
            return {"changed": False, **module.result(parsed, seen, None, self.site)}
        blobs = self.folder / f"step-{len(self.steps)}"
        self.steps.append((blobs, change))
        done = [dispatch.invoke(call.name, call.args, InProcess(call.body, blobs)) for call in change.calls]
        return {"changed": True, **module.result(parsed, seen, done, self.site)}

    def rollback(self) -> None:
        for blobs, change in reversed(self.steps):
            assert change.undo is not None
            for call in change.undo:
                dispatch.invoke(call.name, call.args, InProcess(call.body, blobs))
        for blobs, change in reversed(self.steps):
            for call in change.settle:
                dispatch.invoke(call.name, call.args, InProcess(call.body, blobs))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "host").mkdir()
    return Play(tmp_path / "journal", tmp_path / "project")


@pytest.fixture
def top(tmp_path: Path, play: Play) -> Path:
    """The part of the host that a test works in."""
    return tmp_path / "host"
