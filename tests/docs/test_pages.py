"""What the pages show is there: commands and their options, playbooks, inventories, code, links to files."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from typer._click.exceptions import MissingParameter, NoArgsIsHelpError

from opsctl import patchfiles
from opsctl.cli.main import EXAMPLES, build
from opsctl.engine import schema
from opsctl.engine.loader import load_playbook
from opsctl.gpu import wanted
from opsctl.inventory import load
from opsctl.yaml_source import read_yaml
from tests.docs import pages

LINES = [line for page in pages.PAGES for line in pages.commands(page)]
MENTIONED = [line for page in pages.PAGES for line in pages.inline(page)]
BLOCKS = [block for page in pages.PAGES for block in pages.blocks(page)]
YAML = [block for block in BLOCKS if block.kind.split()[:1] == ["yaml"]]


def parse(words: Sequence[str]) -> None:
    """Parse a command line as it would be, and do nothing. Raises what the command line would end with."""
    command: Any = build(words)
    args, name = list(words), "opsctl"
    while True:
        context = command.make_context(name, args)
        args = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "commands") or not args:
            return
        name, command, args = command.resolve_command(context, args)


@pytest.mark.parametrize("line", LINES, ids=str)
def test_commands_are_commands(line: pages.Line) -> None:
    if line.words[0].startswith("--"):
        # --install-completion: parsing it would do it.
        assert any(line.words[0] in parameter.opts for parameter in build([]).params)
        return
    with contextlib.suppress(typer.Exit):  # --help
        parse([word if word != "PORT" else "1" for word in line.words])


@pytest.mark.parametrize("line", MENTIONED, ids=str)
def test_commands_in_running_text_are_commands(line: pages.Line) -> None:
    if not line.words[0].startswith("--"):
        with contextlib.suppress(MissingParameter, NoArgsIsHelpError):  # they need not be complete
            parse(line.words)


def test_there_are_commands_to_look_at() -> None:
    assert len(LINES) > 80
    assert len(MENTIONED) > 40


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    command = [sys.executable, "-m", "opsctl", "--show-completion"]
    # typer takes the shell that opsctl was started from; under make and CI that is none of these.
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run([*command, shell], capture_output=True, text=True, env=named, check=False)
    assert "opsctl" in script.stdout, script.stderr
    typed = "opsctl inventory tr"
    asked = {"COMP_WORDS": typed, "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": typed,
             "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_OPSCTL_COMPLETE": f"complete_{shell}"}  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-m", "opsctl"], capture_output=True, text=True, env={**os.environ, **asked}, check=False
    )
    assert "trust" in found.stdout


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_of_help(example: str) -> None:
    parse(pages.line("", example).words)


@pytest.mark.parametrize("words", EXAMPLES)
def test_examples_belong_to_a_command(words: str) -> None:
    command: Any = build(words.split())
    for word in words.split():
        command = command.commands[word]


def test_wrong_commands_are_found() -> None:
    for words in (["probe", "--hots", "x"], ["drafter", "chekc", "x"], ["lint"], ["doc", "--output", "x"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(words)


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_blocks(block: pages.Block, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    path.write_text(block.text)
    value = yaml.load(block.text, yaml.BaseLoader)
    if "docs/ci.md" in block.place and not isinstance(value, list):
        return  # workflows: their steps are run elsewhere
    if isinstance(value, list) and "hosts" not in value[0]:
        path.write_text(
            "- hosts: all\n  on_failure: rollback\n  tasks:\n"
            + "".join(f"    {line}\n" for line in block.text.splitlines())
        )
    if isinstance(value, list):
        load_playbook(path)
        jsonschema.validate(plain(path), schema.playbook())
    elif isinstance(value, dict) and {"hosts", "defaults", "groups"} & set(value):
        for host in load(path).hosts.values():
            host.connection()
            wanted.of(host.variables.get("health"), None, host.name)
        jsonschema.validate(plain(path), schema.inventory())
    elif isinstance(value, dict) and {"file", "functions"} & set(value):
        whole = block.text if "file" in value else f"reason: shown\nfile: srt/x.py\n{block.text}"
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "shown.yaml").write_text(whole)
        assert patchfiles.read(tmp_path / "own").states
        jsonschema.validate(plain(tmp_path / "own" / "shown.yaml"), schema.patch())
    else:
        pytest.fail("neither a playbook, tasks, an inventory nor a patch")


def plain(path: Path) -> Any:
    """The file as an editor's language server sees it: secrets are text there."""

    class Loader(yaml.SafeLoader):
        pass

    for tag in ("!env", "!file", "!cmd"):
        Loader.add_constructor(tag, lambda loader, node: "secret")
    return yaml.load(path.read_text(), Loader)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind == "python"], ids=str)
def test_python_blocks(block: pages.Block) -> None:
    ast.parse(block.text)


def test_links_lead_somewhere() -> None:
    lost = []
    for page in pages.PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text()):
            path = os.path.relpath(page.parent / target, pages.ROOT)
            if not (pages.ROOT / path).is_file():
                lost.append(f"{page.name}: {target}")
    assert lost == []


def test_the_site_has_every_page() -> None:
    nav = set(re.findall(r": ([\w/-]+\.md)$", (pages.ROOT / "mkdocs.yml").read_text(), re.M))
    there = {str(p.relative_to(pages.ROOT / "docs")) for p in (pages.ROOT / "docs").rglob("*.md")}
    assert nav == there


def test_read_yaml_reads_what_is_shown(tmp_path: Path) -> None:
    """Every YAML block is read by our own reader as well, which is stricter than others."""
    for block in YAML:
        path = tmp_path / "shown.yaml"
        path.write_text(block.text)
        read_yaml(path)
