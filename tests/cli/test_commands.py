"""The commands around runs, as a user or a CI system calls them: output, files and exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import yaml

from opsctl import modules
from opsctl.cli.main import run as opsctl
from opsctl.engine.undo import newest
from opsctl.errors import Exit
from tests.drafter.build import specforge
from tests.engine.world import Project

PLAY = """\
hosts: here
on_failure: rollback
vars: {token: !env OPSCTL_TEST_TOKEN}
tasks:
  - {name: file, copy: {dest: OUT/a, content: "one\\n"}}
  - {name: read, shell: {cmd: "echo $T", env: {T: "{{ token }}"}, read_only: true}}
"""
BROKEN = PLAY + "  - {name: broken, command: {cmd: 'false', read_only: true}}\n"


@dataclass
class Said:
    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPSCTL_TEST_TOKEN", "t0psecretvalue")
    return project


@pytest.fixture
def cli(project: Project, capfd: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str) -> Said:
        capfd.readouterr()
        code = opsctl(list(words))
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return call


def test_a_run_in_plain_lines(project: Project, cli: Cli) -> None:
    project.write(PLAY)
    said = cli("run", "play.yaml")
    assert said.code == Exit.DONE
    assert "here: changed: file" in said.out
    assert "t0psecretvalue" not in said.out + said.err
    assert cli("run", "play.yaml", "--check", "--exit-code").code == Exit.DONE
    (project.out / "a").write_text("two\n")
    checked = cli("run", "play.yaml", "--check", "--exit-code")
    assert checked.code == Exit.CHANGES
    assert "-two" in checked.out
    assert "+one" in checked.out
    assert (project.out / "a").read_text() == "two\n"


def test_json_lines_are_the_whole_stdout(project: Project, cli: Cli) -> None:
    project.write(PLAY)
    said = cli("run", "play.yaml", "--output", "jsonl")
    events = [json.loads(line) for line in said.out.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["run_started", "run_ended"]
    assert events[-1]["exit_code"] == said.code == Exit.DONE
    assert "t0psecretvalue" not in said.out


def test_reports_of_a_failed_run(project: Project, cli: Cli) -> None:
    project.write(BROKEN)
    said = cli("run", "play.yaml", "-o", "github", "--junit", "j.xml", "--summary", "s.md", "--report", "r.html")
    assert said.code == Exit.ROLLED_BACK
    assert not (project.out / "a").exists()
    assert "::add-mask::t0psecretvalue" in said.out
    error = next(line for line in said.out.splitlines() if line.startswith("::error"))
    assert "file=play.yaml,line=7,col=5" in error
    suite = ET.parse("j.xml").getroot()
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["broken"]
    assert "| here |" in Path("s.md").read_text()
    assert "rolled back" in Path("s.md").read_text()
    page = Path("r.html").read_text()
    assert "<svg" in page
    assert "+one" in page
    for text in (page, Path("s.md").read_text(), Path("j.xml").read_text()):
        assert "t0psecretvalue" not in text


def test_a_failed_check_is_told_once_and_pointed_to_at_the_end(project: Project, cli: Cli) -> None:
    why = "the drafter does not fit: " + "its head is of another vocabulary, " * 8 + "and that is all"
    project.write(f"hosts: here\ntasks:\n  - name: fits\n    assert: {{that: 1 == 2, msg: '{why}'}}\n")
    lines = cli("run", "play.yaml").out.splitlines()
    told, last = (line for line in lines if "does not fit" in line)
    assert told == f"here: FAILED: fits - {why}"
    assert last.startswith("    fits (play.yaml:3:5): the drafter does not fit: its head is of another vocabulary")
    assert len(last) <= 204
    assert lines[-2:-1] == [last]


def test_what_ends_a_host_outside_of_a_task_has_its_place(project: Project, cli: Cli) -> None:
    project.write('hosts: here\nvars: {long: soon}\ntimeout: "{{ long }}"\ntasks: [{debug: hi}]\n')
    said = cli("run", "play.yaml", "-o", "jsonl", "--junit", "j.xml")
    ended = next(e for e in map(json.loads, said.out.splitlines()) if e["event"] == "host_ended")
    assert ended["place"] == {"message": "", "where": "play.yaml:3:10", "file": "play.yaml", "line": 3, "column": 10}
    assert [case.get("name") for case in ET.parse("j.xml").iter("testcase") if case.find("failure") is not None]
    out = cli("run", "play.yaml", "-o", "github").out
    errors = [line for line in out.splitlines() if line.startswith("::error")]
    why = "timeout: expected a duration such as 30s, 20m or 1h30m, got 'soon'"
    assert errors == [f"::error file=play.yaml,line=3,col=10,title=here%3A failed::{why}"]
    project.write(BROKEN)
    out = cli("run", "play.yaml", "-o", "github").out
    assert out.count("::error") == 1  # a task's failure is not told again as the host's


def test_gitlab_gets_a_code_quality_report(project: Project, cli: Cli) -> None:
    project.write(BROKEN)
    cli("run", "play.yaml", "-o", "gitlab")
    entries = json.loads(Path("gl-code-quality-report.json").read_text())
    assert [(e["location"]["path"], e["location"]["lines"]["begin"]) for e in entries] == [("play.yaml", 7)]
    assert len({e["fingerprint"] for e in entries}) == len(entries)


def test_history_show_report_and_rollback(project: Project, cli: Cli) -> None:
    project.write(PLAY)
    (project.out / "a").write_text("before\n")
    cli("run", "play.yaml")
    listed = json.loads(cli("history", "--json").out)["runs"]
    assert [(r["playbook"], r["outcome"]) for r in listed] == [("play", "done")]
    run = listed[0]["run"]
    there = json.loads(cli("history", "--host", "here", "--json").out)["runs"]
    assert [(r["run"], r["outcome"], r["steps"]) for r in there] == [(run, "done", 1)]
    assert "+one" in cli("show", run).out
    assert run in cli("show", run, "--host", "here").out
    assert cli("report", run, "-o", "page.html").code == Exit.DONE
    assert run in Path("page.html").read_text()
    refused = cli("rollback", run)
    assert refused.code == Exit.USAGE  # there is nobody to ask
    assert cli("rollback", run, "--yes").code == Exit.DONE
    assert (project.out / "a").read_text() == "before\n"
    assert json.loads(cli("history", "--host", "here", "--json").out)["runs"][0]["outcome"] == "rolled-back"


BEFORE_ANY_CHANGE = "hosts: here\ntasks:\n  - {name: broken, command: {cmd: 'false', read_only: true}}\n"


def test_a_damaged_journal_is_told_by_every_command_and_blocks_nobody(project: Project, cli: Cli) -> None:
    """A damaged journal is told as such, and never as "everything is undone"."""
    play = PLAY.replace("rollback", "stop")
    project.write(play + "  - {name: broken, command: {cmd: 'test -e OUT/repaired'}}\n")
    assert cli("run", "play.yaml").code == Exit.FAILED
    [run] = (project.folder / "state-here/runs").iterdir()
    log = run / "log"
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(keepends=True) if b'"done":1' not in line))

    history = cli("history", "--host", "here")
    assert "its journal is damaged: its log lacks record" in history.out
    assert history.code == Exit.DONE
    assert cli("show", run.name, "--host", "here").code == Exit.DAMAGED
    resumed = cli("run", "play.yaml", "--resume", run.name)
    assert resumed.code == Exit.DAMAGED
    assert f"opsctl rollback {run.name}" in resumed.out + resumed.err
    project.write(PLAY.replace("OUT/a", "OUT/b"))
    other = cli("run", "play.yaml")
    assert other.code == Exit.DONE
    assert "its journal is damaged" in other.out + other.err

    for _ in range(2):
        undone = cli("rollback", run.name, "--yes")
        assert undone.code == Exit.DAMAGED
        assert "the journal is damaged: its log lacks record" in undone.out
        assert "everything is undone" not in undone.out
        assert not (project.out / "a").exists()


def test_rollback_after_a_run_that_changed_nothing_undoes_nothing_else(project: Project, cli: Cli) -> None:
    project.write(PLAY)
    cli("run", "play.yaml")
    project.write(BEFORE_ANY_CHANGE)
    assert cli("run", "play.yaml").code == Exit.FAILED
    said = cli("rollback", "--yes")
    assert (said.code, "it changed nothing" in said.out) == (Exit.DONE, True)
    assert (project.out / "a").exists()


def test_rollback_after_a_run_that_was_refused_undoes_nothing_else(project: Project, cli: Cli) -> None:
    """As in CI: opsctl run ... || opsctl rollback --yes."""
    project.write(PLAY)
    cli("run", "play.yaml")
    run = json.loads(cli("history", "--json").out)["runs"][0]["run"]
    assert cli("run", "play.yaml", "--tags", "nothing_of_that_name").code == Exit.USAGE
    said = cli("rollback", "--yes")
    assert (said.code, f"opsctl rollback {run} undoes the one before" in said.err) == (Exit.USAGE, True)
    assert (project.out / "a").exists()
    cli("run", "play.yaml")
    assert cli("rollback", "--yes").code == Exit.DONE  # of a run that has begun since, and changed nothing
    assert cli("rollback", run, "--yes").code == Exit.DONE
    assert not (project.out / "a").exists()


@pytest.mark.parametrize(
    ("undo", "code", "end"),
    [
        ("", Exit.DONE, "everything that can be undone is undone"),
        (", undo: 'true'", Exit.DONE, "everything is undone"),
        (", undo: 'false'", Exit.ROLLBACK_FAILED, "NOT everything is undone"),
    ],
)
def test_rollback_fails_only_where_an_undo_does(project: Project, cli: Cli, undo: str, code: Exit, end: str) -> None:
    """Exit code 13 means that an undo failed; what cannot be undone by nature is said in words, with 0."""
    project.write(f"{PLAY}  - {{name: sent, command: {{cmd: 'true'{undo}}}}}\n")
    assert cli("run", "play.yaml").code == Exit.DONE
    said = cli("rollback", "--yes")
    assert (said.code, f"here: {end}\n" in said.out, "cannot be undone: sent" in said.out) == (code, True, undo == "")
    assert not (project.out / "a").exists()
    again = cli("rollback", "--yes")
    assert (again.code, "nothing left to undo" in again.out) == (code, code == Exit.DONE)


def test_rollback_means_the_newest_run_on_its_own_hosts_alone(project: Project, cli: Cli) -> None:
    project.hosts("a", "b")
    project.write("hosts: all\ntasks:\n  - {name: it, copy: {dest: 'OUT/{{ inventory_hostname }}', content: x}}\n")
    cli("run", "play.yaml", "--limit", "b")
    cli("run", "play.yaml", "--limit", "a")
    shown = cli("rollback", "--check")
    assert (shown.code, "a: to undo: it" in shown.out, "b:" in shown.out) == (Exit.DONE, True, False)
    assert sorted(path.name for path in project.out.iterdir()) == ["a", "b"]
    assert cli("rollback", "--yes").code == Exit.DONE
    assert [path.name for path in project.out.iterdir()] == ["b"]
    again = cli("rollback", "--yes")  # that run is still the newest one
    assert (again.code, "nothing left to undo" in again.out) == (Exit.DONE, True)
    assert "opsctl history lists them" in again.out
    assert cli("rollback", "--yes", "--host", "b").code == Exit.DONE  # the newest that was for this host
    assert list(project.out.iterdir()) == []


def test_rollback_of_a_colleagues_run_needs_its_name(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(PLAY)
    cli("run", "play.yaml")
    project.write(PLAY.replace("one", "theirs"))
    with monkeypatch.context() as colleague:
        colleague.setenv("LOGNAME", "bob")
        colleague.setenv("OPSCTL_RECORDS", str(project.folder / "theirs"))
        cli("run", "play.yaml")
        theirs = json.loads(cli("history", "--json").out)["runs"][0]["run"]
    refused = cli("rollback", "--yes")
    assert refused.code == Exit.USAGE
    assert f"{theirs} (play) by bob@" in refused.err
    assert (project.out / "a").read_text() == "theirs\n"
    assert theirs in cli("rollback", "--check").out
    assert cli("rollback", theirs, "--yes").code == Exit.DONE
    assert (project.out / "a").read_text() == "one\n"


def test_rollback_is_not_sure_which_run_is_the_newest_where_a_host_cannot_be_asked(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.hosts("here", extra="  gone: {address: 127.0.0.1, port: 9, user: nobody}\n")
    project.write(PLAY)
    cli("run", "play.yaml")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("OPSCTL_RECORDS", str(project.folder / "none"))
        assert cli("rollback", "--yes").code == Exit.UNREACHABLE  # the newest may be on the host that is gone
        assert (project.out / "a").exists()
    said = cli("rollback", "--yes")
    assert (said.code, "a newer run on gone would not be known" in said.err) == (Exit.DONE, True)
    assert not (project.out / "a").exists()


def test_rollback_shows_what_it_would_make_of_files_but_no_secrets(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "correct horse battery")
    old = {"plain": "one\n", "twice": "one\n", "sealed": "staple\n", "theirs": "one\n", "shaped": "key: none\n"}
    for name, text in old.items():
        (project.out / name).write_text(text)
    key = f"sk-{'a1B2c3D4' * 5}"
    project.write(
        "hosts: here\nvars: {token: !env TOKEN}\ntasks:\n"
        '  - {name: plain, copy: {dest: OUT/plain, content: "two\\n"}}\n'
        '  - {name: first, copy: {dest: OUT/twice, content: "two\\n"}}\n'
        '  - {name: second, copy: {dest: OUT/twice, content: "three\\n"}}\n'
        '  - {name: sealed, copy: {dest: OUT/sealed, content: "{{ token }}\\n"}}\n'
        '  - {name: new, copy: {dest: OUT/new, content: "made\\n"}}\n'
        f'  - {{name: shaped, copy: {{dest: OUT/shaped, content: "api_key: {key}\\n"}}}}\n'
        "  - {name: gone, file: {path: OUT/theirs, state: absent}}\n"
    )
    assert cli("run", "play.yaml").code == Exit.DONE
    monkeypatch.delenv("TOKEN")
    (project.out / "theirs").write_text("somebody else's\n")
    said = cli("rollback", "--check")
    assert said.code == Exit.DONE
    lines = [line.strip().removeprefix("here: to undo: ") for line in said.out.splitlines()[1:]]
    shown = [re.sub(r"\[REDACTED.*\]", "***", one) for one in lines if not one.startswith(("---", "+++", "@@"))]
    assert shown == [
        "gone", f"{project.out}/theirs was changed by someone else since: it would be left as it is",
        "shaped", "-api_key: ***", "+key: none",
        "new", "-made",
        "sealed",
        "second", "-three", "+two", "first", "-two", "+one",
        "plain", "-two", "+one",
    ]  # fmt: skip
    assert not any(word in said.out for word in ("horse", "staple", key))
    assert "-two" not in cli("rollback", "--check", "--no-diff").out
    assert (project.out / "plain").read_text() == "two\n"


def test_rollback_looks_for_all_it_needs_before_it_takes_anything_down(project: Project, cli: Cli) -> None:
    old, new, link = project.out / "old", project.out / "new", project.out / "current"
    old.mkdir()
    new.mkdir()
    link.symlink_to(old)
    project.write(
        "hosts: here\ntasks:\n  - {name: file, copy: {dest: OUT/a, content: x}}\n"
        "  - {name: switch, file: {path: OUT/current, state: link, target: OUT/new}}\n"
    )
    assert cli("run", "play.yaml").code == Exit.DONE
    old.rename(project.out / "elsewhere")
    refused = cli("rollback", "--yes")
    assert (refused.code, f"switch: {link} would lead to {old} again, which is gone" in refused.err) == (8, True)
    assert ((project.out / "a").exists(), link.resolve()) == (True, new)
    forced = cli("rollback", "--yes", "--force")
    assert forced.code == Exit.ROLLBACK_FAILED
    assert ((project.out / "a").exists(), link.resolve()) == (False, new)  # what can be undone is
    (project.out / "elsewhere").rename(old)
    assert cli("rollback", "--yes").code == Exit.DONE
    assert link.resolve() == old


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([], None),
        ([[], ["r1"]], "r1"),
        ([["r2", "r1"], ["r1"]], "r2"),
        ([["r1"], ["r2"]], "r2"),  # of runs that never met the names decide
        ([["r1", "r2"], ["r2"]], "r1"),  # a clock was wrong: the host knows which came later
        ([["r1", "r2"], ["r2", "r3"], ["r3"]], "r1"),
        ([["r1", "r2"], ["r2", "r1"]], "r2"),
        ([["r2", "r1"], ["r1", "r2"]], "r1"),  # the clock was set back: the host has counted
        ([["r3", "r2", "r1"], ["r1", "r2"]], "r3"),  # which never came as far as the host
        ([[], ["r1", "r2"], ["r2", "r3"], ["r3"]], "r1"),
    ],
)
def test_the_newest_run_of_several_lists(orders: list[list[str]], expected: str | None) -> None:
    assert newest(orders) == expected


def test_history_is_that_of_the_project_one_is_in(project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(PLAY)
    cli("run", "play.yaml")
    (project.folder / "other").mkdir()
    other = Project(project.folder / "other")
    other.write(PLAY, "theirs.yaml")
    monkeypatch.chdir(other.out)  # below the project's folder, as one may be anywhere in a checkout
    cli("run", "../theirs.yaml")

    def listed(*words: str) -> list[str]:
        return [run["playbook"] for run in json.loads(cli("history", "--json", *words).out)["runs"]]

    assert listed() == ["theirs"]
    assert listed("-i", "../../inventory.yaml") == ["play"]
    assert sorted(listed("--all")) == ["play", "theirs"]
    said = cli("history")
    assert "theirs on here" in said.out
    assert "play on" not in said.out
    assert "1 run of other inventories: opsctl history --all" in said.err
    assert f"(of {project.folder}/inventory.yaml)" in cli("history", "--all").out


def test_last_is_the_newest_of_the_project_one_is_in(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(PLAY)
    cli("run", "play.yaml")
    (project.folder / "other").mkdir()
    other = Project(project.folder / "other")
    other.write(PLAY, "theirs.yaml")
    monkeypatch.chdir(other.out)
    for command in (("show",), ("report", "-o", "page.html")):
        said = cli(*command)
        assert said.code == Exit.USAGE
        assert f"no run of {other.folder}/inventory.yaml is recorded on this machine, 1 of other inven" in said.err
        assert "opsctl history --all" in said.err
        assert cli(*command, "-i", "../../inventory.yaml").code == Exit.DONE
    assert "<title>play " in Path("page.html").read_text()

    cli("run", "../theirs.yaml")
    monkeypatch.chdir(project.folder)
    assert ": play on here" in cli("show", "last").out
    assert cli("report").code == Exit.DONE
    assert "<title>play " in Path("run.html").read_text()


def test_runs_of_one_second_are_in_the_order_in_which_they_began(project: Project, cli: Cli) -> None:
    """Their names are not."""
    for name, random in (("first", "ffff"), ("second", "0000"), ("third", "8888")):
        project.write(PLAY, f"{name}.yaml")
        cli("run", f"{name}.yaml")
        run = json.loads(cli("history", "--json").out)["runs"][0]["run"]
        (record,) = project.folder.rglob(f"{run}.jsonl")
        record.rename(record.with_name(f"20200101-000000-{random}.jsonl"))
    listed = json.loads(cli("history", "--json").out)["runs"]
    assert [one["playbook"] for one in listed] == ["third", "second", "first"]
    assert ": third on here" in cli("show", "last").out


@pytest.mark.parametrize("again", ["plays/p.yaml", "{project}/plays/p.yaml", "p.yaml"])
def test_handlers_due_are_found_however_the_playbook_is_named(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    (project.folder / "plays").mkdir()
    (project.folder / "plays" / "p.yaml").write_text(
        f"""\
hosts: here
handlers: [{{name: restart, shell: touch {project.out}/restarted}}]
tasks:
  - {{name: config, copy: {{dest: {project.out}/config, content: x}}, notify: restart}}
  - {{name: waits, command: test -e {project.out}/mended}}
"""
    )
    assert cli("run", "plays/p.yaml").code == Exit.FAILED
    (project.out / "mended").touch()
    if again == "p.yaml":
        monkeypatch.chdir(project.folder / "plays")
    named = again.format(project=project.folder)
    assert cli("run", named, "-i", str(project.folder / "inventory.yaml")).code == Exit.DONE
    assert (project.out / "restarted").exists()


@pytest.mark.parametrize("name", ["play.yaml", "playbooks/play.yaml", "odd plays/play.yml"])
def test_the_command_that_goes_on_with_a_failed_run_does(project: Project, cli: Cli, name: str) -> None:
    (project.folder / name).parent.mkdir(exist_ok=True)
    waits = "command: {cmd: 'test -e OUT/mended', read_only: true}"
    play = PLAY.replace("rollback", "stop") + "  - {name: waits, " + waits + "}\n"
    (project.folder / name).write_text(play.replace("OUT", str(project.out)))
    told = cli("run", name)
    assert told.code == Exit.FAILED
    found = re.search(r"opsctl (run .* --resume [-\w]+), or opsctl rollback", told.out + told.err)
    assert found
    (project.out / "mended").touch()
    assert cli(*shlex.split(found[1])).code == Exit.DONE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "plya.yaml"], ["plya.yaml"]),
        (["run", "play.yaml", "--limit", "nobody"], ["nobody"]),
        (["run", "play.yaml", "-e", "tokne=1"], ["tokne", "token"]),
        (["run", "play.yaml", "-i", "missing.yaml"], ["missing.yaml"]),
        (["run", "play.yaml", "--tags", "x"], ["'x'"]),
        (["run", "play.yaml", "--lock-wait", "soon"], ["soon"]),
        (["show", "20200101"], ["20200101"]),
        (["doc", "coppy"], ["copy"]),
    ],
)
def test_mistakes_on_the_command_line(project: Project, cli: Cli, words: list[str], told: list[str]) -> None:
    project.write(PLAY)
    said = cli(*words)
    assert said.code != Exit.DONE
    assert said.code != Exit.BUG
    for word in told:
        assert word in said.err + said.out
    assert list(project.out.iterdir()) == []


def test_a_run_that_nobody_knows_is_an_error_and_records_nothing(project: Project, cli: Cli) -> None:
    project.write(PLAY)
    cli("run", "play.yaml")
    run = json.loads(cli("history", "--json").out)["runs"][0]["run"]
    cli("run", "play.yaml", "--tags", "x")  # notes that a run was refused, as those below do
    wrong, files = run[:-1] + "x", sorted(path.name for path in project.folder.rglob("*"))
    asked = (
        ["run", "play.yaml", "--resume", wrong], ["rollback", wrong, "--yes"], ["show", wrong], ["report", wrong],
        ["show", wrong, "--host", "here"], ["logs", "collect", "--run", wrong],
    )  # fmt: skip
    for words in (*asked, *asked):  # the second time, too
        said = cli(*words)
        assert said.code == Exit.USAGE, words
        assert f"{wrong!r}" in said.err, words
        assert run in said.err, words  # the nearest name
    assert json.loads(cli("history", "--json").out)["runs"][0]["run"] == run
    assert sorted(path.name for path in project.folder.rglob("*")) == files


def test_last_is_the_newest_run_of_the_project_for_every_command(project: Project, cli: Cli) -> None:
    gate = "  - {name: gate, command: {cmd: test -e OUT/repaired, read_only: true}}\n"
    project.write(PLAY.replace("on_failure: rollback", "on_failure: stop") + gate)
    assert cli("run", "play.yaml").code == Exit.FAILED
    run = json.loads(cli("history", "--json").out)["runs"][0]["run"]
    (project.out / "repaired").touch()
    resumed = cli("run", "play.yaml", "--resume", "last", "--verbose")
    assert (resumed.code, "done before this run was resumed" in resumed.out) == (Exit.DONE, True)
    assert [row["run"] for row in json.loads(cli("history", "--json").out)["runs"]] == [run]
    assert run in cli("show", "last").out
    assert run in cli("show", "last", "--host", "here").out
    assert cli("rollback", "last", "--yes").code == Exit.DONE
    assert not (project.out / "a").exists()


@pytest.mark.parametrize(
    ("play", "told"),
    [
        ('timeout: "{{ said }}"', "play.yaml:4:10: timeout: expected a duration such as 30s, 20m or 1h30m, got 'soon'"),
        ('tasks: [{file: {path: OUT/x, state: directory}, supervise: {confirm_within: "{{ said }}"}}]',
         "confirm_within: expected a duration such as 30s, 20m or 1h30m, got 'soon'"),
        ('tasks: [{debug: hi, retries: "{{ said }}"}]', "retries: expected a whole number, got 'soon'"),
        ("tasks: [{gpu_health: {}}]", "health: port: expected at most 65535, got 70000"),
    ],
)  # fmt: skip
def test_a_value_that_is_known_late_is_told_in_the_same_words(project: Project, cli: Cli, play: str, told: str) -> None:
    tasks = "" if "tasks" in play else "tasks: [{debug: hi}]\n"
    project.write(f"hosts: here\non_failure: rollback\nvars: {{said: soon, health: {{port: 70000}}}}\n{play}\n{tasks}")
    said = cli("run", "play.yaml")
    assert said.code == Exit.USAGE
    assert told in said.out + said.err


def test_a_question_needs_somebody_to_answer_it(project: Project, cli: Cli) -> None:
    task = "{file: {path: OUT/x, state: directory}}"
    project.write('hosts: here\nconfirm: "Really, {{ inventory_hostname }}?"\ntasks:\n' + f"  - {task}\n")
    said = cli("run", "play.yaml")
    assert said.code == Exit.USAGE
    assert "Really, here?" in said.err
    assert not (project.out / "x").exists()
    assert cli("run", "play.yaml", "--yes").code == Exit.DONE


def test_details_are_kept_for_those_who_ask(project: Project, cli: Cli) -> None:
    specforge().write(project.folder / "mine")
    project.write("hosts: here\ntasks:\n  - drafter_check: {path: ../mine}\n", "playbooks/look.yaml")
    brief, verbose = cli("run", "look"), cli("run", "look", "--verbose")
    assert "note: " not in brief.out
    assert "note: d2t: " in verbose.out
    asked = re.search(r"details: opsctl show (\S+)", brief.out)
    assert asked is not None
    assert "note: d2t: " in cli("show", asked[1]).out
    assert "opsctl show" not in verbose.out
    planned = cli("run", "look", "--check")
    assert "details: add --verbose" in planned.out
    assert "opsctl show" not in planned.out  # check mode leaves no record


def test_a_failed_command_shows_what_it_printed(project: Project, cli: Cli) -> None:
    project.write(
        "hosts: here\ntasks:\n  - {name: Fetch, command: echo fetched}\n"
        "  - {name: Build, shell: 'seq 60; echo no such file >&2; exit 2'}\n"
    )
    said = cli("run", "play.yaml")
    shown = [line.removeprefix("    | ") for line in said.out.splitlines() if line.startswith("    | ")]
    assert shown == [*map(str, range(23, 61)), "stderr:", "no such file"]
    assert "22 lines before these" not in said.out
    assert "23 lines before these" in said.out  # with the heading of stdout
    assert "    Build (play.yaml:4:5): exit code 2: no such file" in said.out.splitlines()
    whole = cli("show", "last", "build").out
    assert "    | 1\n    | 2\n" in whole
    assert "fetched" not in whole
    assert "    | fetched" in cli("show", "last", "0").out
    missing = cli("show", "last", "Bild")
    assert (missing.code, "did you mean 'Build'?" in missing.err) == (Exit.USAGE, True)
    for file in (("--junit", "j.xml"), ("--summary-file", "s.md")):
        cli("run", "play.yaml", *file)
    assert "no such file" in Path("j.xml").read_text()


LINTED = """\
hosts: here
on_failure: rollback
params:
  api_token: {default: abcdefgh}
vars: {unused: 1, fine: "{{ api_token }}"}
handlers:
  - {name: never, debug: "{{ fine }}"}
tasks:
  - command: mkdir /tmp/x
  - debug: "{{ nope }} {{ maybe | default(1) }}"
  - copy: {src: nowhere, dest: /x}
gates:
  - {measure: nothing_measures_this, at_least: 2}
"""


def test_a_reader_that_goes_early_is_no_bug() -> None:
    """As `opsctl doc | head` does it."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "opsctl", "doc"]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.DONE, b"")


def test_lint(project: Project, cli: Cli) -> None:
    project.write(LINTED)
    said = cli("lint", "play.yaml", "--output", "json")
    found = {(f["rule"], f["place"]["line"]) for f in json.loads(said.out)["findings"]}
    assert found == {
        ("secret", 4), ("unused", 5), ("handler", 7), ("module", 9), ("undo", 9), ("undefined", 10), ("file", 11),
        ("gate", 13),
    }  # fmt: skip
    assert said.code == Exit.USAGE
    sarif = json.loads(cli("lint", "play.yaml", "-o", "sarif").out)
    results = sarif["runs"][0]["results"]
    assert {r["ruleId"] for r in results} == {rule for rule, _ in found}
    assert {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results} == {"play.yaml"}
    assert {r["ruleId"] for r in results} <= {r["id"] for r in sarif["runs"][0]["tool"]["driver"]["rules"]}
    project.write("hosts: here\ntaks: []\n")
    assert cli("lint", "play.yaml").code == Exit.USAGE
    project.write(PLAY)
    assert cli("lint", "play.yaml").code == Exit.DONE


def test_lint_tells_secrets_in_clear_and_secrets_too_short_to_mask(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "abc")
    project.write(
        "hosts: here\nvars:\n  db_pass: hunter2\n  tokenizer: moonshotai/Kimi-K2.5\n  pin: !env SHORT\n"
        "tasks:\n  - debug: '{{ db_pass }} {{ tokenizer }} {{ pin }}'\n"
    )
    found = json.loads(cli("lint", "play.yaml", "--output", "json").out)["findings"]
    assert [(f["rule"], f["place"]["line"]) for f in found] == [("secret", 3), ("short", 5)]


def test_lint_tells_what_is_registered_too_late_and_what_hides_behind_sudo(project: Project, cli: Cli) -> None:
    project.write(
        "hosts: here\ntasks:\n"
        "  - {name: early, debug: '{{ seen.stdout }}'}\n"
        "  - {name: see, command: {cmd: date, read_only: true}, register: seen}\n"
        "  - {name: then, debug: '{{ seen.stdout }}'}\n"
        "  - shell: cd /srv && LC_ALL=C sudo /usr/bin/systemctl restart web\n"
    )
    said = cli("lint", "play.yaml")
    assert said.code == Exit.USAGE
    assert "play.yaml:3:26: error: the variable 'seen' is registered only later, by 'see' [undefined]" in said.out
    assert "play.yaml:6:5: notice: systemctl in shell: the module service can be checked and undone" in said.out
    assert "2 findings" in said.out


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mkdir -p /a && cp x /a; systemctl restart web", ["mkdir", "cp", "systemctl"]),
        ("test -d /a || (cd /b; git pull) & wait", ["git"]),
        ("if pgrep x; then\n  sudo kill 1 2>&1\nfi\n# rm it\nA=1 touch '/a;b'", ["kill", "touch"]),
        ("date | sed s/a/b/ | sudo tee /etc/x", ["tee"]),
        ("curl http://x/y?a=1 |\n  bash", ["curl"]),
        ("echo 'it; rm x && git y' \"| tee\" > tee", []),
        ("echo {{ names | map('upper') | join(';') }} && rm x", ["rm"]),
        ("cat > /x <<EOF\nrm y\nEOF", []),
        ("mkdir x; echo 'no end", ["mkdir"]),
    ],
)
def test_lint_looks_at_every_program_of_shell_text(project: Project, cli: Cli, text: str, named: list[str]) -> None:
    project.write(yaml.safe_dump([{"hosts": "here", "vars": {"names": []}, "tasks": [{"shell": text}]}]))
    told = cli("lint", "play.yaml").out
    assert re.findall(r"notice: (\S+) in shell: ", told) == named


def test_lint_says_what_it_leaves_out_without_a_sound_inventory(project: Project, cli: Cli) -> None:
    project.write(PLAY)
    (project.folder / "inventory.yaml").write_text("hosts: [\n")
    said = cli("lint", "play.yaml")
    assert said.code == Exit.DONE
    assert "the inventory cannot be read" in said.err
    assert "inventory.yaml:2:1" in said.err
    assert cli("lint", "play.yaml", "-i", "inventory.yaml").code == Exit.USAGE


def test_lint_looks_into_template_files(project: Project, cli: Cli) -> None:
    project.write("hosts: here\nvars: {name: a}\ntasks:\n  - template: {src: a.j2, dest: /x}\n")
    project.write("{% set own = name %}{{ own }} {{ other | default(1) }}\n", "a.j2")
    assert cli("lint", "play.yaml").code == Exit.DONE
    project.write("{{ name }} {{ naem }}\n", "a.j2")
    said = cli("lint", "play.yaml")
    assert said.code == Exit.USAGE
    assert "play.yaml:4:21: error: the variable 'naem' is defined nowhere" in said.out
    assert "did you mean 'name'?" in said.out


def test_lint_knows_the_flags_of_every_release(project: Project, cli: Cli) -> None:
    project.write("hosts: here\ntasks:\n  - sglang_server: {state: started}\n")
    (project.folder / "inventory.yaml").write_text(
        "hosts:\n  here:\n    connection: local\n    sglang:\n      model_path: /m\n"
        "      launch: {speculative-num-stepz: 3, mem-fraction-static: 0.8}\n"
    )
    said = cli("lint", "play.yaml", "play.yaml")
    assert said.code == Exit.CHANGES
    assert "inventory.yaml:6:7: warning: no SGLang from 0.4.6 to 0.5.23 has the flag --speculative-num-s" in said.out
    assert "did you mean --speculative-num-steps?" in said.out
    assert "1 finding" in said.out


def test_doc_says_everything_about_every_module(cli: Cli) -> None:
    listed = json.loads(cli("doc", "--json").out)["modules"]
    assert sorted(listed) == modules.names()
    assert all(listed.values())
    for name in modules.names():
        page = cli("doc", name).out
        for argument, field in modules.get(name).args.model_fields.items():
            assert f"`{field.alias or argument}`" in page
    assert "on_failure" in cli("doc", "play").out


GOOD = """\
- name: play
  hosts: [here, there]
  params: {x: {type: int, default: "{{ 1 }}"}}
  serial: 25%
  tasks:
    - {name: a, copy: {dest: /x, content: 5, mode: "0644"}, when: [a, true], tags: x}
    - {name: b, debug: text}
    - {name: c, wait_for: {port: "{{ port }}"}}
    - block:
        - {command: "true"}
      rescue:
        - {include: more.yaml}
  gates:
    - {measure: m, at_least: "{{ x }}"}
"""
WRONG = [
    ("tags: x}", "tagz: x}"),
    ("debug: text", "debgu: text"),
    ("dest: /x", "dset: /x"),
    ("serial: 25%", "seriel: 25%"),
    ("type: int", "type: integer"),
    ("measure: m", "mesure: m"),
    ("include: more.yaml", "include: [more.yaml]"),
]


def test_the_schema_accepts_good_playbooks_and_refuses_wrong_ones(cli: Cli) -> None:
    schema = json.loads(cli("schema", "playbook").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert [e.message for e in validator.iter_errors(yaml.safe_load(GOOD))] == []
    for old, new in WRONG:
        assert old in GOOD
        assert not validator.is_valid(yaml.safe_load(GOOD.replace(old, new))), new


def test_the_schema_of_inventories(project: Project, cli: Cli) -> None:
    schema = json.loads(cli("schema", "inventory").out)
    validator = jsonschema.Draft202012Validator(schema)
    good = {
        "hosts": {"a": None, "b": {"port": 22, "sglang": {"tp": 8, "python": 3.1}}},
        "groups": {"g": {"hosts": ["a"]}},
    }
    assert [e.message for e in validator.iter_errors(good)] == []
    assert not validator.is_valid({"hosts": {"a": {"prot": 22}}})
    assert not validator.is_valid({"hosts": {"a": {"sglang": {"tp": 0}}}})


def test_inventory_list_and_check(project: Project, cli: Cli) -> None:
    project.hosts("here", "other", extra="groups: {g: {hosts: [other]}}\n")
    listed = json.loads(cli("inventory", "list", "--json").out)
    assert [h["name"] for h in listed["hosts"]] == ["here", "other"]
    assert listed["groups"] == {"g": ["other"]}
    assert "other" not in cli("inventory", "list", "all:!g").out
    said = cli("inventory", "check")
    assert said.code == Exit.DONE
    assert "other: ok" in said.out
