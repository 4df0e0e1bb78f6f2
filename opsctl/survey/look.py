"""Looking at a host: what of SGLang runs and lies there. Two round trips, no change."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.errors import UsageError
from opsctl.gpu import wanted
from opsctl.gpu.read import gathered
from opsctl.gpu.settings import record
from opsctl.sglang.diagnosis.gather import Ask, choose, port_of
from opsctl.wire import command_line
from opsctl.wire.calls.core import facts_gather
from opsctl.wire.calls.git import git_look
from opsctl.wire.calls.process import proc_run, process_status, service_show
from opsctl.wire.calls.server import ServerProcess, servers_find
from opsctl.wire.calls.source import Lying, survey_look
from opsctl.wire.protocol import Call, Reply


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree. commit, branch: None where it is no git checkout (or git could not say)."""

    path: str
    commit: str | None = None
    branch: str | None = None
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """The server that runs.

    unit, container: how it is run; both None for a plain process. user_unit: of the user's own systemd.
    argv: as the process list shows it, keys masked. ours: whether opsctl started it.
    """

    pid: int
    argv: tuple[str, ...]
    python: str
    user: str | None
    unit: str | None
    user_unit: bool
    container: str | None
    log: str | None
    env: Mapping[str, str]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that bears on the inventory.

    Attributes:
        name: what the host calls itself.
        home, user: of the user that we are there.
        port: of the server that is meant, where the user named one.
        environment, unit, model: what to use where nothing runs; the first of those that lie there.
        others: what was found besides, by kind, and not used.
        profile: of the GPUs, as `opsctl health --record` prints it; empty where there are none.
        notes: what could not be found out, in words.
    """

    name: str
    home: str
    user: str | None = None
    port: int | None = None
    server: Running | None = None
    checkout: Checkout | None = None
    package: str | None = None
    environment: str | None = None
    unit: str | None = None
    user_unit: bool = False
    model: str | None = None
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def owner(self) -> str | None:
        """The user that we must become to drive the server: it is a unit of a systemd that is not our own."""
        server = self.server
        return server.user if server and server.user_unit and server.user != self.user else None

    @property
    def foreign(self) -> bool:
        """Whether a plain process serves that somebody started by hand."""
        server = self.server
        return server is not None and not (server.ours or server.unit or server.container)


def look(ask: Ask, port: int | None = None) -> Found:
    """What the host has. port: of the server that is meant, where several run.

    Raises UsageError when several run and none is named, and what `ask` raises when the host is lost.
    """
    expected = wanted.of(None, None, "host")
    first: list[Call[Any]] = [
        facts_gather(["host", "user", "gpu"]),
        servers_find(locate=True),
        survey_look(),
        gathered.ask(expected),
    ]
    facts, servers, lying, gpus = ask(first)
    if isinstance(facts, Exception):
        raise facts
    notes = [f"{what}: {reply}" for what, reply in _named(servers, lying, gpus) if isinstance(reply, Exception)]
    running = _result(servers, [])
    if port is None and len(running) > 1:
        ports = ", ".join(str(port_of(server)) for server in running)
        raise UsageError(f"{len(running)} servers run there", hint=f"name one by --server-port: {ports}")
    process = choose(running, port)
    lies = None if isinstance(lying, Exception) else lying.result
    found = replace(_lying(lies, facts.result), port=port)
    if process is not None:
        found = _running(found, process)
    if isinstance(gpus, Reply):
        readings = gathered.evidence(gpus.result, expected).readings
        if readings and readings[0].gpus:
            found = replace(found, profile=record(readings[0].gpus, readings[0].driver).dump())
        elif (facts.result.get("gpu") or {}).get("count") == 0:
            found = replace(found, profile={"gpus": 0})  # none on its bus: a host for practice or preparation
    return _closer(ask, found, notes)


def _closer(ask: Ask, found: Found, notes: list[str]) -> Found:
    """The state of the checkout, the name of the container, and whether opsctl itself started the server."""
    asked: dict[str, Call[Any]] = {}
    if found.server:
        asked["record"] = process_status(f"sglang-{command_line.port(found.server.argv)}")
    if found.checkout:
        asked["git"] = git_look(found.checkout.path)
    if found.server and found.server.container:
        argv = ["docker", "inspect", "--format", "{{.Name}}", "--", found.server.container]
        asked["docker"] = proc_run(argv, timeout=20.0)
    if found.server and found.server.unit and found.server.user_unit and not found.owner:
        asked["unit"] = service_show(found.server.unit, user=True)
    answers = dict(zip(asked, ask(list(asked.values())), strict=True)) if asked else {}
    git, docker, record_of = answers.get("git"), answers.get("docker"), answers.get("record")
    if isinstance(record_of, Reply) and found.server and record_of.result.get("pid") == found.server.pid:
        found = replace(found, server=replace(found.server, ours=True))
    if isinstance(unit := answers.get("unit"), Exception):
        notes.append(f"the server's unit cannot be driven: {unit}")
    if isinstance(git, Exception):
        notes.append(f"checkout: {git}")
    elif git is not None and found.checkout:
        found = replace(found, checkout=_checkout(found.checkout.path, git.result))
    if isinstance(docker, Exception):
        notes.append(f"container: {docker}")
    elif docker is not None and found.server and (name := docker.result["stdout"].strip().lstrip("/")):
        found = replace(found, server=replace(found.server, container=name))
    return replace(found, notes=tuple(notes))


def _lying(lying: Lying | None, facts: Mapping[str, Any]) -> Found:
    kinds = {
        "checkout": lying["checkouts"] if lying else [],
        "environment": lying["environments"] if lying else [],
        "model_path": [model["path"] for model in lying["models"]] if lying else [],
        "unit": [unit["name"] for unit in lying["units"]] if lying else [],
    }
    first = {kind: paths[0] for kind, paths in kinds.items() if paths}
    return Found(
        name=str((facts.get("host") or {}).get("name") or "host"),
        home=str((lying and lying["home"]) or (facts.get("user") or {}).get("home") or "/root"),
        user=(facts.get("user") or {}).get("name"),
        checkout=Checkout(first["checkout"]) if "checkout" in first else None,
        environment=first.get("environment"),
        unit=first.get("unit"),
        user_unit=bool(lying and lying["units"] and lying["units"][0]["user"]),
        model=first.get("model_path"),
        others={kind: tuple(paths[1:]) for kind, paths in kinds.items() if paths[1:]},
    )


def _running(found: Found, process: ServerProcess) -> Found:
    """What runs says where things are; what merely lies there matters no more."""
    server = Running(
        pid=process["pid"],
        argv=tuple(_command(process)),
        python=process["python"],
        user=process["user"],
        unit=process["unit"],
        user_unit=process["user_unit"],
        container=process["container"],
        log=process["log"],
        env=_environment(process),
    )
    return replace(
        found,
        server=server,
        package=process["package"],
        checkout=_tree(process["package"]),
        environment=None,
        unit=None,
        model=None,
        others={},
    )


def _command(process: ServerProcess) -> Iterator[str]:
    """The server's command, its models and what else is plainly a path made absolute: opsctl works in other folders."""
    models = {command_line.MODEL[0]: process["model"], command_line.DRAFTER[0]: process["drafter"]}
    for n, said in enumerate(command_line.read(process["argv"])):
        written = said.words[0]
        if not said.name:
            yield _placed(process, written) if n == 0 and "/" in written else _said(process, written)
            continue
        values = [models.get(said.name) or _said(process, value) for value in said.values]
        if said.inline:
            yield f"{written.partition('=')[0]}={values[0]}"
        else:
            yield from (written, *values)


def _said(process: ServerProcess, word: str) -> str:
    return _placed(process, word) if word.startswith(("./", "../")) else word


def _placed(process: ServerProcess, path: str) -> str:
    """A path as the server finds it, where it is known in which folder that works."""
    return posixpath.normpath(posixpath.join(process["cwd"], path)) if process["cwd"] else path


def _environment(process: ServerProcess) -> Mapping[str, str]:
    env = dict(process["environment"] or {})
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = ":".join(_placed(process, path) for path in env["PYTHONPATH"].split(":"))
    return env


def _tree(package: str | None) -> Checkout | None:
    """The checkout that a package was imported from: it lies in python/sglang of it."""
    root, _, rest = (package or "").rpartition("/python/")
    return Checkout(root) if root and rest == "sglang" else None


def _checkout(path: str, git: Mapping[str, Any]) -> Checkout:
    if git["state"] != "repo":
        return Checkout(path)
    return Checkout(path, git["head"], git["branch"], len(git["changed"]))


def environment_of(python: str) -> str | None:
    """The environment whose bin/python this is; None for the system's own."""
    folder, name = posixpath.split(python)
    root, leaf = posixpath.split(folder)
    return root if leaf == "bin" and name.startswith("python") and root not in ("", "/", "/usr", "/usr/local") else None


def _named(*replies: Reply[Any] | Exception) -> Sequence[tuple[str, Reply[Any] | Exception]]:
    return list(zip(("servers", "files", "GPUs"), replies, strict=True))


def _result(reply: Reply[Any] | Exception, otherwise: Any) -> Any:
    return otherwise if isinstance(reply, Exception) else reply.result
