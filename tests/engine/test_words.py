"""Nothing that is written in a file or on the command line silently becomes something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.engine.options import parse_given
from opsctl.errors import UsageError
from opsctl.inventory import load
from tests.engine.world import Project

WORDS = ["yes", "No", "ON", "off", "y", "N", "True", "TRUE", "False", "FALSE", "Null", "NULL"]


@pytest.mark.parametrize(
    "text",
    [
        "vars: {a: W}", "vars: {a: [1, {b: W}]}", "become: W", "lock: W", "params: {a: {default: W}}",
        "params: {a: {choices: [W]}}", "tasks: [{debug: W}]", "tasks: [{debug: hi, when: W}]",
        "tasks: [{debug: hi, loop: [1, W]}]", "tasks: [{block: [{debug: hi, vars: {a: W}}]}]",
        "tasks: [{copy: {dest: /x, content: W}}]", "tasks: [{command: {cmd: ls, env: {A: W}}}]",
        "handlers: [{name: W, debug: hi}]", "gates: [{that: W}]", "tasks: [{http: {url: 'http://x', json: {a: W}}}]",
    ],
)  # fmt: skip
def test_a_word_whose_type_nothing_decides_is_told_with_both_ways(project: Project, text: str) -> None:
    for word in WORDS:
        project.write(f"hosts: here\n{text.replace('W', word)}\n")
        with pytest.raises(UsageError) as caught:
            project.run()
        assert str(caught.value.where).endswith(f"play.yaml:2:{text.index('W') + 1}")
        plain = "null" if word.lower() == "null" else "true" if word.lower() in ("yes", "on", "y", "true") else "false"
        text_alone = plain != "null" and any(one in text for one in ("content: W", "A: W", "name: W", "that: W"))
        both = f'write {plain}, or "{word}" where the text is meant'
        assert caught.value.hint == (f'write it in quotes: "{word}"' if text_alone else both)


@pytest.mark.parametrize("text", ["vars: {a: off}", "become: yes", "sglang: {launch: {flag: no}}", "user: no"])
def test_an_inventory_says_the_same_of_hosts_and_groups(tmp_path: Path, text: str) -> None:
    for where in (f"hosts:\n  a: {{{text}}}\n", f"hosts: {{a: }}\ngroups:\n  g: {{hosts: [a], {text}}}\n"):
        (tmp_path / "inventory.yaml").write_text(where)
        with pytest.raises(UsageError) as caught:
            load(tmp_path / "inventory.yaml")
        assert "without quotes" in str(caught.value)
        assert "inventory.yaml:" in str(caught.value.where)


@pytest.mark.parametrize("word", ["no", "off", "n", "False", "false"])
def test_where_a_bool_is_expected_it_is_one(project: Project, word: str) -> None:
    play = (
        "hosts: here\nparams:\n  skip: {type: bool, default: W}\ntasks:\n  - {name: it, debug: ran, when: not skip}\n"
        "  - {name: file, line: {path: OUT/f, line: x, create: W}, when: false}\n"
    )
    assert project.run(play.replace("W", word)).statuses()["it"] == "ok"
    assert project.run(play.replace("W", "true"), e=(f"skip={word}",)).statuses()["it"] == "ok"
    (project.folder / "vars.yaml").write_text(f"skip: {word}\n")
    given = (f"@{project.folder / 'vars.yaml'}",)
    assert project.run(play.replace("W", "true"), e=given).statuses()["it"] == "ok"


def test_on_the_command_line_the_type_of_the_param_decides(project: Project) -> None:
    text = "hosts: here\nparams: {word: {}}\nvars: {flag: true}\ntasks: [{name: it, debug: '{{ word }}'}]\n"
    assert project.run(text, e=("word=no",)).lines("it") == ("no",)
    assert project.run(text, e=("word=1.10",)).lines("it") == ("1.10",)
    assert project.run("hosts: here\ntasks: [{name: it, debug: 1.10}]\n").lines("it") == ("1.10",)
    with pytest.raises(UsageError) as caught:
        project.run(text, e=("word=x", "flag=no"))
    assert str(caught.value).startswith("-e flag: `no` without quotes")
    assert caught.value.hint == 'write false, or "no" where the text is meant: --set-string flag=no'
    (project.folder / "vars.yaml").write_text("word: x\nflag:\n  - no\n")
    with pytest.raises(UsageError) as caught:
        project.run(text, e=(f"@{project.folder / 'vars.yaml'}",))
    assert str(caught.value.where).endswith("vars.yaml:3:5")


@pytest.mark.parametrize("keys", ["when: 1", "when: [true, 0]", "timeout: 1h30", "changed_when: 1"])
def test_a_number_is_no_condition_and_has_one_unit(project: Project, keys: str) -> None:
    """Neither is taken for something else: 1 for true, 1h30 for an hour and 30 seconds."""
    with pytest.raises(UsageError) as caught:
        project.run(f"hosts: here\ntasks:\n  - command: {{cmd: 'true', read_only: true}}\n    {keys}\n")
    assert "play.yaml:4:" in str(caught.value.where)


def test_a_param_of_one_play_says_what_a_value_is_in_all_of_them(project: Project) -> None:
    """Where plays disagree on the type, each has its own, and a play without that param takes no side."""
    first = (
        "- hosts: here\n  params: {flag: {type: bool, default: true}}\n  tasks: [{name: a, debug: ran, when: flag}]\n"
    )
    second = "- hosts: here\n  tasks: [{name: b, debug: ran, when: not flag}]\n"
    third = "- hosts: here\n  params: {flag: {}}\n  tasks: [{name: c, debug: '{{ flag }}'}]\n"
    for text in (first + second, second + first):
        assert project.run(text, e=("flag=no",)).statuses() == {"a": "skipped", "b": "ok"}
    assert project.run(first + third, e=("flag=no",)).lines("c") == ("no",)
    with pytest.raises(UsageError, match="without quotes"):
        project.run(first + second + third, e=("flag=no",))


TEXTS = (
    *("3207427", "0123", "08", "1e3", "12e45", "1.10", "0.5.9", "2001-01-01", "12:30:00", "0x1F", "1_000", ".5", "+5"),
    *("=", "yEs", "!!str no", "'no'"),
)


def test_a_text_stays_as_it_was_written(project: Project) -> None:
    """A commit or a version is text, whatever it looks like."""
    named = ", ".join(f"v{n}: {written}" for n, written in enumerate(TEXTS))
    tasks = "".join(
        f"  - copy: {{dest: OUT/f{n}, content: '{{{{ v{n} }}}}'}}\n  - copy: {{dest: OUT/g{n}, content: {written}}}\n"
        for n, written in enumerate(TEXTS)
    )
    assert project.run(f"hosts: here\nvars: {{{named}}}\ntasks:\n{tasks}").code == 0
    for n, written in enumerate(TEXTS):
        kept = written.removeprefix("!!str ").strip("'")
        assert [(project.out / f"{name}{n}").read_text() for name in "fg"] == [kept, kept]


@pytest.mark.parametrize("said", ["08", "010", "1_000"])
@pytest.mark.parametrize(
    "task", ["wait_for: {port: N}", "debug: x, retries: N", "command: {cmd: x, ok_codes: 5, N: 1}"]
)
def test_a_number_that_readers_disagree_about_is_no_number(project: Project, task: str, said: str) -> None:
    project.write(f"hosts: here\ntasks: [{{{task.replace('N', said)}}}]\n")
    with pytest.raises(UsageError):
        project.run()


def test_a_null_is_not_put_into_text(project: Project) -> None:
    for null in ("~", "null", ""):
        text = f"hosts: here\nvars:\n  v: {null}\ntasks:\n  - {{name: it, debug: 'port {{{{ v }}}}'}}\n"
        with pytest.raises(UsageError) as caught:
            project.run(text)
        assert str(caught.value.where).endswith("play.yaml:5:23")


@pytest.mark.parametrize("said", ["1h30m", "1d", "90", "600.5s", "600000ms"])
def test_a_duration_is_written_the_same_way_everywhere(project: Project, said: str) -> None:
    task = f"{{command: {{cmd: 'true', timeout: {said}}}, timeout: {said}, delay: {said}}}"
    assert project.run(f"hosts: here\ntimeout: {said}\ntasks: [{task}]\n").code == 0
    assert parse_given([f"x={said}"])["x"].value == said
