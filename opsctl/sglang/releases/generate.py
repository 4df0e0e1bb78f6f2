"""Read what a release can do from its wheel, and write it as data."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opsctl import this_machine
from opsctl.errors import UsageError
from opsctl.sglang.patches.capture import answer
from opsctl.sglang.releases import SECTIONS, SETS, State, Target, Version, states
from opsctl.sglang.source import facts, symbols, treeversion
from opsctl.sglang.source.symbols import ClassRef, NotPython, dotted, parse, resolve, walk
from opsctl.sglang.source.tree import SourceTree
from opsctl.wire.calls.source import launchflags_known

DATA = Path(__file__).parent / "data"

_MODELS = "srt/models/"
_PARTS = (_MODELS, "srt/speculative/", "srt/model_executor/", "srt/managers/", "srt/observability/", "srt/configs/")
_ARGUMENTS = ("srt/server_args", "srt/arg_groups/", "launch_server.py", "cli/")
_ALGORITHMS = "srt/speculative/spec_info.py"
_REGISTRY = "srt/speculative/spec_registry.py"  # since 0.5.13
_CONFIG = "srt/configs/model_config.py"
_NAMED_DRAFT = re.compile(r"NextN|MTP|Eagle|DFlash|DSpark|Draft|Assistant")


def main(words: Sequence[str]) -> int:
    """`python -m opsctl.sglang.releases`."""
    parser = argparse.ArgumentParser("python -m opsctl.sglang.releases", description=__doc__)
    parser.add_argument("release", nargs="+", help="a wheel, a folder with sglang/ in it as NAME=FOLDER, or a version")
    parser.add_argument("--into", type=Path, default=DATA, help="folder of the data files (default: the package's own)")
    given = parser.parse_args(words)
    try:
        found = states(given.into)
        with tempfile.TemporaryDirectory() as scratch:
            for text in given.release:
                version, folder = _unpacked(text, Path(scratch))
                print(f"reading {version}", file=sys.stderr)
                found[version] = state(folder)
    except (UsageError, NotPython) as error:
        print(error, file=sys.stderr)
        return 2
    for name in write(found, given.into):
        print(name)
    return 0


def write(found: Mapping[Version, State], into: Path) -> list[str]:
    """Write one file for each release; gives the names of those that changed."""
    before: State = {section: {} for section in SECTIONS}
    changed = []
    for version in sorted(found):
        path = into / f"{version}.json"
        text = json.dumps(_change(before, found[version]), indent=1, sort_keys=True) + "\n"
        text = re.sub(r"\[\n\s+([^\[\]{}]*?)\n( +)\]", _lines, text)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            changed.append(path.name)
        before = found[version]
    return changed


def _lines(match: re.Match[str]) -> str:
    """A list of names, filled into lines: a name a line would be a page."""
    names, indent = [part.strip() for part in match[1].split(",\n")], match[2]
    if len(", ".join(names)) < 90:
        return f"[{', '.join(names)}]"
    rows = [""]
    for name in names:
        if len(rows[-1]) + len(name) > 110:
            rows.append("")
        rows[-1] += f"{name}, "
    return "[\n" + "\n".join(f"{indent} {row.strip()}" for row in rows).rstrip(",") + f"\n{indent}]"


def _change(before: State, now: State) -> dict[str, Any]:
    """What `releases.after` takes: what is new or different, and what is gone."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        old, this = before[section], now[section]
        new = {name: said for name, said in this.items() if name not in old or old[name] != said}
        told: dict[str, Any] = {}
        if new:
            told["new"] = sorted(new) if section in SETS else _grouped(new) if section == "targets" else new
        if gone := sorted(set(old) - set(this)):
            told["gone"] = gone
        if told:
            found[section] = told
    return found


def _grouped(answers: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Classes of one answer together."""
    groups: dict[str, list[str]] = {}
    for name, told in answers.items():
        groups.setdefault(json.dumps(told, sort_keys=True), []).append(name)
    return [{**json.loads(text), "classes": sorted(names)} for text, names in sorted(groups.items())]


def state(folder: Path) -> State:
    """The whole state of the release unpacked in `folder`, the package being `folder/sglang`."""
    source = _tree(folder)
    registered = dict(registry(source))
    drafts = {name for name, cls in registered.items() if _drafts(source, cls)}
    known = facts.gather(source, ())
    flags = this_machine.call(launchflags_known(sys.executable, str(folder), str(folder))).result["flags"]
    if flags is None:
        raise UsageError("its launch flags cannot be read", where=str(folder), hint="is its source complete?")
    return {
        "algorithms": algorithms(source),
        "nextn": nextn(source),
        "targets": {name: _told(answer(source, c)) for name, c in registered.items() if name not in drafts},
        "draft": {name: fact.value for name, fact in known.draft.items() if fact.value is not None},
        "draft_classes": dict.fromkeys(drafts, True),
        "flags": dict.fromkeys(flags, True),
        "fields": dict.fromkeys(_fields(source), True),
        "models": {
            path.removeprefix(_MODELS): True for path in source.files if re.fullmatch(r"srt/models/\w+\.py", path)
        },
    }


def registry(source: SourceTree) -> Iterator[tuple[str, ClassRef]]:
    """Architecture -> class of every model that a tree registers (models/registry.py: `EntryClass` of each module)."""
    for path in sorted(source.files):
        if not re.fullmatch(r"srt/models/\w+\.py", path):
            continue
        module = parse(source, path)
        assert module is not None
        for name in sorted(module.entries):
            if (cls := resolve(source, module, name)) is not None:
                yield name, cls


def algorithms(source: SourceTree) -> dict[str, str]:
    """What `--speculative-algorithm` takes, and the algorithm that each means."""
    module = parse(source, _ALGORITHMS)
    enum = next((c for c in module.classes if c.name == "SpeculativeAlgorithm"), None) if module else None
    if enum is None:
        raise UsageError(f"{_ALGORITHMS} has no class SpeculativeAlgorithm", where=source.root)
    names = [dotted(n.targets[0]) for n in enum.body if isinstance(n, ast.Assign)]
    found = {name: name for name in names if name.isupper() and name != "NONE"}
    for path in (_REGISTRY, "srt/server_args.py"):
        other = parse(source, path)
        if other is not None and any(c.value == "NEXTN" for c in walk(other.tree) if isinstance(c, ast.Constant)):
            found["NEXTN"] = "EAGLE"  # an alias in every release: the flag is rewritten before anything reads it
    return found


def nextn(source: SourceTree) -> dict[str, str]:
    """Architecture of a target -> the one that its config is given when it is loaded as its own draft model."""
    module = parse(source, _CONFIG)
    found: dict[str, str] = {}
    for node in symbols.mentioning(module, "architectures") if module else ():
        if not isinstance(node, ast.If) or "is_draft_model" not in ast.unparse(node.test):
            continue
        drafts = [
            part.value
            for statement in node.body
            if isinstance(statement, ast.Assign) and "architectures" in ast.unparse(statement.targets[0])
            for part in walk(statement.value)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        owners = [p.value for p in walk(node.test) if isinstance(p, ast.Constant) and isinstance(p.value, str)]
        if drafts:
            found.update({name: drafts[0] for name in owners if name[:1].isupper()})
    return found


def _drafts(source: SourceTree, cls: ClassRef) -> bool:
    """Whether a class is a draft model's: by its name, or since it reads what the target captured for it."""
    if _NAMED_DRAFT.search(cls.name):
        return True
    return any(
        isinstance(node, ast.Attribute) and dotted(node).endswith("spec_info.hidden_states") for node in walk(cls.node)
    )


def _told(target: Target) -> dict[str, Any]:
    told = {**asdict(target), "capture": target.capture.value}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in told.items() if value}


def _fields(source: SourceTree) -> Iterator[str]:
    """The fields of ServerArgs: its own, and since 0.5.20 those of the namespaces that it is made of."""
    for path in source.files:
        if path != "srt/server_args.py" and not path.startswith("srt/arg_groups/fields/"):
            continue
        module = parse(source, path)
        for cls in module.classes if module else ():
            if path == "srt/server_args.py" and cls.name != "ServerArgs":
                continue
            for node in cls.body:
                match node:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                        if not name.startswith("_") and "ClassVar" not in ast.unparse(kind):
                            yield name


def _tree(folder: Path) -> SourceTree:
    """The parts of a package that are read."""
    top = folder / "sglang"
    if not (top / "srt" / "models").is_dir():
        raise UsageError("no SGLang package: there is no sglang/srt/models", where=str(folder))
    files = {}
    for path in sorted(top.rglob("*.py")):
        inside = path.relative_to(top).as_posix()
        if inside.startswith((*_PARTS, *_ARGUMENTS)) or inside in treeversion.VERSION_FILES:
            files[inside] = path.read_bytes()
    return SourceTree(str(folder), "sglang", files, {})


def _unpacked(text: str, scratch: Path) -> tuple[Version, Path]:
    """The version and the folder of what was named: a wheel, NAME=FOLDER, or a version to download."""
    name, equals, folder = text.partition("=")
    if equals:
        return Version.parse(name), Path(folder)
    wheel = Path(text)
    if not text.endswith(".whl"):
        wheel = _downloaded(Version.parse(text), scratch / "wheels")
    if not wheel.is_file():
        raise UsageError("no such wheel", where=text)
    version = Version.parse(wheel.name.split("-")[1])
    into = scratch / str(version)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into, [n for n in archive.namelist() if n.startswith("sglang/") and n.endswith(".py")])
    return version, into


def _downloaded(version: Version, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into)]
    command += ["--only-binary", ":all:", "--python-version", "3.11", f"sglang=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    for path in into.glob(f"sglang-{version}-*.whl"):
        return path
    reason = (done.stderr.strip().splitlines() or ["pip gave no file"])[-1]
    raise UsageError(f"sglang {version} cannot be downloaded: {reason}")
