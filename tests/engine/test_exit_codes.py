"""Exit codes that machines rely on: 2 touched nothing, 3 would change, 7 is undone, 13 not, 14 unknown, 16 late."""

from __future__ import annotations

import threading

import pytest

from opsctl.engine.events import HostEnded, Note, TaskEnded, TaskProgress, UndoStep
from opsctl.errors import Exit, UsageError
from opsctl.report.plain import PlainView
from tests.engine.world import Project, Ran

LATE = """\
hosts: here
on_failure: stop
tasks:
  - {name: made, copy: {dest: OUT/a, content: x}}
  - {name: ask, command: {cmd: echo 5, read_only: true}, register: said}
  - {name: late, command: touch OUT/ran, changed_when: "result.stdout | int + said.stdout > 3"}
  - {name: never, debug: hi}
"""


def shown(ran: Ran) -> str:
    lines: list[str] = []
    view = PlainView(lines.append)
    for event in ran.events:
        view(event)
    return "\n".join(lines)


def test_a_mistake_that_shows_only_while_it_runs_has_its_own_code_and_says_what_was_done(project: Project) -> None:
    """Exit code 16, never 2: something was done."""
    ran = project.run(LATE)
    assert ran.code == Exit.MISTAKE
    assert ran.statuses() == {"made": "changed", "ask": "ok", "late": "failed"}
    text = shown(ran)
    assert "it ran, and then: template error" in text
    assert "not run: never" in text
    assert "nothing done" not in text
    assert "opsctl rollback" in str(ran.of(HostEnded)[0].hint)


def test_with_rollback_it_is_rolled_back_as_any_failure(project: Project) -> None:
    """Exit code 7; the command without undo is named, which is no failed undo."""
    ran = project.run(LATE.replace("on_failure: stop", "on_failure: rollback"))
    assert (ran.code, ran.ended()) == (Exit.ROLLED_BACK, {"here": "rolled-back"})
    assert {e.task: e.outcome for e in ran.of(UndoStep)} == {"late": "kept", "made": "undone"}
    assert "cannot be undone: late" in shown(ran)
    assert not (project.out / "a").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{command: ls, register: r}, {debug: "{{ r.stdout_lines }}"}]', ["stdout_lines", "stdout"]),
        ('[{command: ls, register: r}, {debug: x, when: r.rc == 0}]', ["rc", "code"]),
        ('[{command: ls, register: r, loop: [1]}, {debug: "{{ r.stdout }}"}]', ["stdout", "results"]),
        ("[{command: ls, failed_when: result.rc > 0}]", ["rc", "code"]),
        ('[{debug: hi, when: false}, {debug: "{{ (x | nofilter) if false else 1 }}"}]', ["nofilter"]),
        ('[{debug: "{% if false %}{{ 1 is notest }}{% endif %}"}]', ["notest"]),
        ('[{command: ls, register: r, failed_when: 5}]', ["true or false"]),
        ('[{command: ls, retries: "{{ \'many\' }}"}]', ["whole number"]),
        ('[{command: ls, timeout: "{{ \'soon\' }}"}]', ["duration"]),
        ('[{command: ls, until: "{{ 1 + \'a\' }}"}]', ["template error"]),
    ],
)  # fmt: skip
def test_what_can_be_told_beforehand_touches_no_host(project: Project, text: str, words: list[str]) -> None:
    """A playbook with a mistake in it touches no host: exit code 2 is raised before there is a run."""
    with pytest.raises(UsageError) as caught:
        project.run(f"hosts: here\ntasks: {text}\n")
    assert "play.yaml:2:" in str(caught.value.where)
    for word in words:
        assert word in f"{caught.value} {caught.value.hint}"
    assert not (project.folder / "state-here").exists()


def test_what_is_interrupted_says_that_it_began(project: Project) -> None:
    stop = threading.Event()

    def seen(event: object) -> None:
        if isinstance(event, TaskProgress) and "begun" in event.text:
            stop.set()

    ran = project.run("hosts: here\ntasks: [{name: it, shell: 'echo begun; sleep 600'}]\n", stop=stop, seen=seen)
    assert ran.code == Exit.INTERRUPTED
    assert [e.summary for e in ran.of(TaskEnded)] == ["interrupted after it began; its effects are unknown"]
    assert "nothing done" not in shown(ran)


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        ("[{wait_for: {path: OUT}}]", Exit.DONE),
        ("[{probe: {}}]", Exit.DONE),
        ("[{command: {cmd: ls, read_only: true}}]", Exit.DONE),
        ("[{command: {cmd: ls, creates: OUT}}]", Exit.DONE),
        ("[{command: {cmd: ls, unless: 'true'}}]", Exit.DONE),
        ("[{command: {cmd: ls, changed_when: false}}]", Exit.DONE),
        ("[{command: ls, changed_when: false}]", Exit.DONE),
        ("[{wait_for: {path: OUT}, register: w}, {wait_for: {path: OUT, timeout: '{{ w.seconds }}'}}]", Exit.DONE),
        ("[{command: {cmd: ls, unless: 'false'}}]", Exit.CHANGES),
        ("[{command: ls}, {copy: {dest: OUT/x, content: x}}]", Exit.CHANGES),
        ("[{command: ls}]", Exit.UNKNOWN),
        ("[{raw: ls}]", Exit.UNKNOWN),
        ("[{command: {cmd: ls, unless: 'false', changed_when: {output: x}}}]", Exit.UNKNOWN),
        ("[{command: ls, register: r}, {copy: {dest: OUT/x, content: '{{ r.stdout }}'}}]", Exit.UNKNOWN),
    ],
)
def test_check_mode_tells_no_change_from_not_known(project: Project, tasks: str, code: Exit) -> None:
    """--check --exit-code: 3 something would change, 14 that cannot be told, 0 nothing would."""
    text = f"hosts: here\ntasks: {tasks}\n"
    assert project.run(text, check=True, exit_code=True).code == code
    assert project.run(check=True).code == Exit.DONE
    assert list(project.out.iterdir()) == []


def test_a_failing_command_gives_its_output_to_what_judges_it(project: Project) -> None:
    ran = project.run("""\
hosts: here
tasks:
  - {name: fine, shell: "echo out; echo err >&2; exit 3", failed_when: "result.code != 3 or 'out' not in result.stdout"}
  - {name: read, command: {cmd: "sh -c 'echo no; exit 4'", read_only: true}, register: r, failed_when: r.code > 4}
  - {name: told, debug: "{{ r.code }} {{ r.stdout | trim }}"}
  - block:
      - {name: fails, shell: "echo why >&2; exit 5", register: f}
    rescue:
      - {name: rescued, debug: "{{ f.code }} {{ f.stderr | trim }} {{ f.failed }}"}
""")
    assert ran.code == Exit.DONE
    assert ran.statuses() == {
        "fine": "ran", "read": "ok", "told": "ok", "fails": "failed", "rescued": "ok",
    }  # fmt: skip
    assert (ran.lines("told"), ran.lines("rescued")) == (("4 no",), ("5 why True",))


@pytest.mark.parametrize(("undo", "code"), [("", 7), (", undo: 'true'", 7), (", undo: 'false'", 13)])
def test_only_an_undo_that_fails_is_a_failed_rollback(project: Project, undo: str, code: int) -> None:
    """Exit code 13 means that an undo failed; what cannot be undone by nature is said in words, with 7."""
    text = f"hosts: here\non_failure: rollback\ntasks: [{{name: it, shell: {{cmd: exit 1{undo}}}}}]\n"
    ran = project.run(text)
    assert ran.code == code
    assert ("cannot be undone: it" in shown(ran)) == (undo == "")
    assert [n.message for n in ran.of(Note) if n.level == "error"] == []
