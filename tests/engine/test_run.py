"""What a run does, as a user would notice it. The host is this machine, through a real agent."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from opsctl.engine.events import (
    Event,
    GateChecked,
    HostEnded,
    Note,
    TaskEnded,
    TaskProgress,
    TaskStarted,
    UndoStep,
    to_json,
)
from opsctl.engine.options import Recorded
from opsctl.errors import Exit, UsageError
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.wire.protocol import Call
from tests.drafter.build import Raw, write_safetensors
from tests.engine.world import Project
from tests.sshd import eventually

BASIC = """\
hosts: here
vars: {greeting: "hello {{ who }}"}
params:
  who: {default: world}
tasks:
  - name: folder
    file: {path: OUT/etc, state: directory}
  - name: content
    copy: {dest: OUT/etc/a, content: "{{ greeting }}\\n"}
    register: written
  - name: after a change
    copy: {dest: OUT/etc/b, content: "b\\n"}
    when: written.changed
  - name: each
    copy: {dest: "OUT/etc/{{ item }}", content: "{{ item }}"}
    loop: [x, z]
"""


def test_a_second_run_changes_nothing(project: Project) -> None:
    first = project.run(BASIC)
    assert first.code == Exit.DONE
    assert first.statuses() == {
        "folder": "changed",
        "content": "changed",
        "after a change": "changed",
        "each": "changed",
    }
    assert (project.out / "etc/a").read_text() == "hello world\n"
    assert (project.out / "etc/z").read_text() == "z"
    second = project.run()
    assert second.statuses() == {"folder": "ok", "content": "ok", "after a change": "skipped", "each": "ok"}


def test_check_mode_says_what_would_change_and_changes_nothing(project: Project) -> None:
    checked = project.run(BASIC, check=True, exit_code=True)
    assert checked.code == Exit.CHANGES
    assert list(project.out.iterdir()) == []
    assert checked.statuses()["after a change"] == "changed"
    diff = next(e for e in checked.of(TaskEnded) if e.task == "content").diffs[0]
    assert (diff.before, diff.after) == (None, b"hello world\n")
    project.run()
    assert project.run(check=True, exit_code=True).code == Exit.DONE


@pytest.mark.parametrize(("src", "told"), [("absent.j2", "no 'absent.j2'"), ("typo.j2", "'naem' is not defined")])
def test_a_mistake_in_a_template_is_told_before_the_host_is_touched(project: Project, src: str, told: str) -> None:
    project.write("one\n{{ naem }}\n", "typo.j2")
    with pytest.raises(UsageError, match=told):
        project.run(
            f"""\
hosts: here
vars: {{name: a}}
tasks:
  - {{name: first, file: {{path: OUT/etc, state: directory}}}}
  - {{name: second, template: {{src: {src}, dest: OUT/etc/a}}}}
"""
        )
    assert list(project.out.iterdir()) == []


def test_a_template_of_what_an_earlier_task_said_is_rendered_when_it_is_known(project: Project) -> None:
    project.write("{{ asked.stdout | trim }}\n", "said.j2")
    play = """\
hosts: here
tasks:
  - {name: ask, command: echo 1, register: asked}
  - {name: write, template: {src: said.j2, dest: OUT/a}}
"""
    assert project.run(play, check=True).statuses()["write"] == "unknown"
    assert project.run(play).code == Exit.DONE
    assert (project.out / "a").read_text() == "1\n"


def test_check_mode_does_not_guess_what_a_command_would_say(project: Project) -> None:
    checked = project.run(
        """\
hosts: here
tasks:
  - {name: ask, command: echo 1, register: asked}
  - {name: depends, copy: {dest: OUT/a, content: x}, when: "asked.stdout == '1'"}
  - {name: either, copy: {dest: OUT/b, content: x}, when: "true or asked.changed"}
  - {name: guarded, command: "touch OUT/c", }
""",
        check=True,
        exit_code=True,
    )
    assert checked.statuses() == {"ask": "unknown", "depends": "unknown", "either": "changed", "guarded": "unknown"}
    assert checked.code == Exit.CHANGES
    assert list(project.out.iterdir()) == []


def test_what_a_task_changes_is_looked_at_anew_by_the_next(project: Project) -> None:
    (project.out / "f").write_text("two\n")
    ran = project.run(
        """\
hosts: here
tasks:
  - {name: whole, copy: {dest: OUT/f, content: "one\\n"}}
  - {name: line, line: {path: OUT/f, line: two}}
"""
    )
    assert ran.statuses() == {"whole": "changed", "line": "changed"}
    assert (project.out / "f").read_text() == "one\ntwo\n"


def test_names_of_tasks_are_templates_too(project: Project) -> None:
    ran = project.run('hosts: here\nvars: {x: 5}\ntasks:\n  - {name: "say {{ x }}", debug: hi}\n')
    assert list(ran.statuses()) == ["say 5"]


def test_values_keep_their_types_and_text_from_a_host_is_never_a_template(project: Project) -> None:
    ran = project.run(
        """\
hosts: here
vars: {commit: 3207427, version: 1.10, flag: "{{ 1 == 1 }}"}
tasks:
  - {name: hostile, command: "echo '{{ \\"{{\\" }} 7 * 6 }}'", register: said}
  - {name: show, debug: "{{ said.stdout | trim }} {{ version }} {{ commit }}", when: flag}
  - {name: sum, debug: {var: commit + 1}}
"""
    )
    assert ran.code == Exit.DONE
    assert ran.lines("show") == ("{{ 7 * 6 }} 1.10 3207427",)
    assert ran.lines("sum") == ("commit + 1 = 3207428",)


@pytest.mark.parametrize("value", ["'yes'", "1", "''", "none"])
def test_when_has_to_be_true_or_false(project: Project, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        project.run(f"hosts: here\nvars: {{x: {value}}}\ntasks:\n  - debug: hi\n    when: x\n")
    assert str(caught.value.where).endswith("play.yaml:5:11")


ROLLBACK = """\
hosts: here
on_failure: rollback
tasks:
  - {name: one, copy: {dest: OUT/kept, content: new}}
  - {name: two, file: {path: OUT/made, state: directory}}
  - {name: broken, command: {cmd: "false", read_only: true}}
"""


def test_a_failure_takes_everything_back(project: Project) -> None:
    (project.out / "kept").write_text("old")
    ran = project.run(ROLLBACK)
    assert ran.code == Exit.ROLLED_BACK
    assert ran.ended() == {"here": "rolled-back"}
    assert (project.out / "kept").read_text() == "old"
    assert not (project.out / "made").exists()
    assert {s.task: s.outcome for s in ran.of(UndoStep)}["one"] == "undone"


def test_on_failure_stop_keeps_what_was_done_and_resume_goes_on(project: Project) -> None:
    play = """\
hosts: here
handlers:
  - {name: tell, copy: {dest: OUT/told, content: x}}
tasks:
  - {name: one, copy: {dest: OUT/one, content: "1"}, notify: tell, register: first}
  - {name: count, shell: "echo x >> OUT/count", register: counted}
  - {name: broken, command: "test -e OUT/repaired"}
  - {name: uses, debug: "{{ first.changed }}"}
"""
    first = project.run(play)
    assert first.code == Exit.FAILED
    assert not (project.out / "told").exists()
    run = first.of(Note)  # nothing to tell of on a fresh host
    assert run == []
    (project.out / "repaired").touch()
    name = _run_name(project)
    second = project.run(resume=name)
    assert second.code == Exit.DONE
    # Done tasks are not run again, what they registered is there, and the handler that was due has run.
    assert (project.out / "count").read_text() == "x\n"
    assert second.lines("uses") == ("true",)
    assert (project.out / "told").exists()


def _run_name(project: Project) -> str:
    return sorted(os.listdir(project.folder / "state-here" / "runs"))[-1]


def test_resume_leaves_hosts_that_were_done_alone_and_begins_those_it_had_not_come_to(project: Project) -> None:
    project.hosts("a", "b", "c")
    play = """\
hosts: all
serial: 1
tasks:
  - {name: count, shell: "echo x >> OUT/{{ inventory_hostname }}"}
  - {name: maybe, command: "test {{ inventory_hostname }} != b -o -e OUT/repaired"}
"""
    first = project.run(play)
    assert first.ended() == {"a": "ok", "b": "failed", "c": "skipped"}
    (project.out / "repaired").touch()
    run = os.listdir(project.folder / "state-b" / "runs")[0]
    second = project.run(resume=run, recorded=Recorded("play", ("a", "b", "c")))
    assert second.code == Exit.DONE
    assert {n: (project.out / n).read_text() for n in "abc"} == {"a": "x\n", "b": "x\n", "c": "x\n"}


def test_resume_does_not_take_the_mask_for_a_secret(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "s3cretvalue")
    play = """\
hosts: here
vars: {token: !env TEST_TOKEN}
tasks:
  - {name: one, shell: {cmd: "printf %s $T", env: {T: "{{ token }}"}}, register: got}
  - {name: stop, command: test -e OUT/go}
  - {name: two, copy: {dest: OUT/two, content: "{{ got.stdout }}"}}
"""
    assert project.run(play).code == Exit.FAILED
    (project.out / "go").touch()
    again = project.run(resume=_run_name(project))
    assert again.code == Exit.MISTAKE
    assert "'got' is not defined" in again.of(HostEnded)[-1].message
    assert not (project.out / "two").exists()


def test_secrets_are_known_before_the_first_output_used_or_not(project: Project) -> None:
    """Those of commands, too; one that cannot be had fails no run that does not need it."""
    (project.folder / "pw").write_text("swordfish-from-a-command\n")
    project.hosts(
        "here", extra="defaults: {vars: {unused: !cmd [cat, pw], broken: !cmd ['false'], gone: !env NO_SUCH}}\n"
    )
    ran = project.run(f"hosts: here\ntasks:\n  - {{name: says, command: cat {project.folder}/pw}}\n")
    assert ran.code is Exit.DONE
    told = json.dumps([to_json(event) for event in ran.events])
    assert "swordfish" not in told
    assert "swordfish" not in next(project.folder.glob("state-here/runs/*/log")).read_text()
    broken = project.run("hosts: here\ntasks:\n  - {name: needs, command: {cmd: 'true', env: {A: '{{ broken }}'}}}\n")
    assert broken.code is not Exit.DONE


def test_asterisks_of_a_host_are_no_secret(project: Project) -> None:
    ran = project.run(
        "hosts: here\ntasks:\n"
        "  - {name: one, shell: {cmd: \"echo '*** ready ***'\", read_only: true}, register: said}\n"
        '  - {name: tell, debug: "{{ said.stdout }}"}\n'
    )
    assert ran.lines("tell") == ("*** ready ***",)


def test_resume_does_what_failed_while_the_play_went_on(project: Project) -> None:
    play = """\
hosts: here
on_failure: continue
tasks:
  - {name: one, shell: "test -e OUT/go && echo x >> OUT/one"}
  - {name: two, shell: "echo x >> OUT/two"}
"""
    assert project.run(play).code == Exit.FAILED
    again = project.run(resume=_run_name(project))
    assert (again.code, again.statuses()) == (Exit.FAILED, {"one": "failed", "two": "skipped"})
    (project.out / "go").touch()
    assert project.run(resume=_run_name(project)).code == Exit.DONE
    assert {n: (project.out / n).read_text() for n in ("one", "two")} == {"one": "x\n", "two": "x\n"}


def test_resume_refuses_a_run_that_was_rolled_back_in_part(project: Project) -> None:
    play = """\
hosts: here
on_failure: rollback
tasks:
  - {name: one, copy: {dest: OUT/one, content: one}}
  - {name: two, copy: {dest: OUT/two, content: two}}
  - {name: theirs, shell: {cmd: "echo theirs > OUT/one", undo: "true"}}
  - {name: stop, shell: {cmd: test -e OUT/go}}
"""
    assert project.run(play).code == Exit.ROLLBACK_FAILED
    assert not (project.out / "two").exists()
    (project.out / "go").touch()
    again = project.run(resume=_run_name(project))
    assert again.code == Exit.USAGE
    assert "rolled back in part" in again.of(HostEnded)[-1].message


def test_resume_refuses_another_playbook(project: Project) -> None:
    project.run("hosts: here\ntasks:\n  - {copy: {dest: OUT/a, content: x}}\n  - command: 'false'\n")
    ran = project.run("hosts: here\ntasks:\n  - debug: hi\n", resume=_run_name(project))
    assert ran.code == Exit.USAGE
    assert "another version" in ran.of(type(ran.events[-2]))[-1].message  # type: ignore[attr-defined]


def test_handlers_due_survive_a_failed_run(project: Project) -> None:
    play = """\
hosts: here
handlers:
  - {name: restart, shell: "echo x >> OUT/restarts"}
tasks:
  - {name: config, copy: {dest: OUT/config, content: x}, notify: restart}
  - {name: maybe, command: "test -e OUT/repaired"}
"""
    assert project.run(play).code == Exit.FAILED
    (project.out / "repaired").touch()
    second = project.run()
    assert second.statuses() == {"config": "ok", "maybe": "ran", "restart": "ran"}
    assert (project.out / "restarts").read_text() == "x\n"
    assert "restart" not in project.run().statuses()


def test_rescue_and_always(project: Project) -> None:
    ran = project.run(
        """\
hosts: here
tasks:
  - block:
      - {name: broken, command: "false"}
      - {name: not reached, debug: "no"}
    rescue:
      - {name: saved, debug: "{{ failed_task.name }}"}
    always:
      - {name: in any case, debug: "yes"}
  - {name: goes on, debug: "on"}
"""
    )
    assert ran.code == Exit.DONE
    assert list(ran.statuses()) == ["broken", "saved", "in any case", "goes on"]
    assert ran.lines("saved") == ("broken",)


def test_until_retries(project: Project) -> None:
    ran = project.run(
        """\
hosts: here
tasks:
  - name: third time
    shell: "echo x >> OUT/n; wc -l < OUT/n"
    until: result.stdout | trim == '3'
    retries: 5
    delay: 0s
  - name: never
    shell: "echo no"
    until: result.stdout == 'yes'
    retries: 1
    delay: 10ms
"""
    )
    assert ran.statuses() == {"third time": "ran", "never": "failed"}
    assert (project.out / "n").read_text() == "x\nx\nx\n"


def test_timeout_ends_a_task(project: Project) -> None:
    ran = project.run("hosts: here\ntasks:\n  - {name: slow, command: sleep 600, timeout: 500ms}\n")
    assert ran.code == Exit.FAILED
    assert ran.statuses() == {"slow": "failed"}


@pytest.mark.parametrize(("bound", "code"), [(1, Exit.DONE), (3, Exit.ROLLED_BACK)])
def test_gates_decide_whether_the_changes_stay(project: Project, bound: int, code: Exit) -> None:
    ran = project.run(
        f"""\
hosts: here
on_failure: rollback
tasks:
  - {{name: change, copy: {{dest: OUT/a, content: x}}}}
  - {{name: measure, command: {{cmd: echo 2, read_only: true}}, register: measured}}
gates:
  - {{name: enough, that: "measured.stdout | int >= {bound}"}}
"""
    )
    assert ran.code == code
    assert ran.of(GateChecked)[0].holds is (code == Exit.DONE)
    assert (project.out / "a").exists() is (code == Exit.DONE)


def test_a_gate_on_what_was_not_measured_does_not_hold(project: Project) -> None:
    ran = project.run("hosts: here\ntasks: []\ngates:\n  - {measure: acceptance_length, at_least: 2}\n")
    assert ran.code == Exit.GATE
    assert "not measured" in ran.of(GateChecked)[0].message


def test_serial_stops_at_the_first_batch_that_failed(project: Project) -> None:
    project.hosts("a", "b", "c", "d")
    ran = project.run('hosts: all\nserial: 2\ntasks:\n  - {command: "test {{ inventory_hostname }} != b"}\n')
    assert ran.ended() == {"a": "ok", "b": "failed", "c": "skipped", "d": "skipped"}
    assert ran.code == Exit.FAILED
    ran = project.run(
        'hosts: all\nserial: 50%\nmax_failures: 1\ntasks:\n  - {command: "test {{ inventory_hostname }} != b"}\n'
    )
    assert ran.ended() == {"a": "ok", "b": "failed", "c": "ok", "d": "ok"}


def test_on_failure_continue_runs_the_other_tasks(project: Project) -> None:
    ran = project.run(
        "hosts: here\non_failure: continue\ntasks:\n  - {name: bad, command: 'false'}\n  - {name: good, debug: hi}\n"
    )
    assert ran.statuses() == {"bad": "failed", "good": "ok"}
    assert ran.code == Exit.FAILED


def test_tags_and_start_at(project: Project) -> None:
    play = """\
hosts: here
tasks:
  - {name: a, debug: a, tags: one}
  - {name: b, debug: b, tags: [two], register: b}
  - {name: c, debug: c, tags: always}
  - {name: d, debug: "{{ b.msg }}", tags: two}
"""
    assert list(project.run(play, tags=["one"]).statuses()) == ["a", "c"]
    assert list(project.run(skip_tags=["two"]).statuses()) == ["a", "c"]
    assert list(project.run(start_at="b").statuses()) == ["b", "c", "d"]
    with pytest.raises(UsageError, match=r"'b'.*does not run"):
        project.run(start_at="c")
    with pytest.raises(UsageError) as caught:
        project.run(tags=["tow"])
    assert "two" in str(caught.value.hint)


def test_a_locked_host_is_refused_with_the_holder(project: Project) -> None:
    play = 'hosts: here\ntasks:\n  - {name: wait, shell: "until test -e OUT/go; do sleep 0.02; done", timeout: 60s}\n'
    project.write(play)
    got: list[Exit] = []
    first = threading.Thread(target=lambda: got.append(project.run().code))
    first.start()
    try:
        eventually(lambda: (project.folder / "state-here" / "runs").exists())
        second = project.run()
    finally:
        (project.out / "go").touch()
        first.join()
    assert second.code == Exit.LOCKED
    assert "holds the lock" in str(second.events[-2])
    assert got == [Exit.DONE]
    assert project.run().code == Exit.DONE  # the lock went with its holder


def test_ctrl_c_stops_says_where_the_host_stands_and_lets_go(project: Project) -> None:
    project.write(
        "hosts: here\ntasks:\n  - {name: one, copy: {dest: OUT/one, content: x}}\n"
        "  - {name: long, command: sleep 600}\n  - {name: later, debug: hi}\n"
    )
    stop = threading.Event()
    result: list[object] = []
    runner = threading.Thread(target=lambda: result.append(project.run(stop=stop)))
    runner.start()
    eventually((project.out / "one").exists)
    stop.set()
    runner.join(120)
    ran = result[0]
    assert ran.code == Exit.INTERRUPTED  # type: ignore[attr-defined]
    assert ran.ended() == {"here": "interrupted"}  # type: ignore[attr-defined]
    assert "later" not in ran.statuses()  # type: ignore[attr-defined]
    assert project.run("hosts: here\ntasks:\n  - debug: hi\n").code == Exit.DONE


class LateStop(threading.Event):
    """A stop that comes right after the engine has asked for the `n`th time whether there is one."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.asked, self.n, self.watcher = 0, n, threading.main_thread()

    def is_set(self) -> bool:
        told, self.asked = super().is_set(), self.asked + 1
        if self.asked == self.n:
            self.set()
            self.watcher.join(120)
        return told

    def wait(self, timeout: float | None = None) -> bool:
        self.watcher = threading.current_thread()
        return super().wait(timeout)


def test_ctrl_c_is_heard_whenever_it_comes(project: Project) -> None:
    project.write(
        "hosts: here\ntasks:\n  - {name: one, debug: hi}\n  - {name: long, shell: touch OUT/begun; sleep 600}\n"
    )

    def stopped(stop: LateStop, at: Callable[[], object]) -> bool:
        ran: list[int] = []
        runner = threading.Thread(target=lambda: ran.append(project.run(stop=stop).code), daemon=True)
        runner.start()
        at()
        runner.join(120)
        return ran == [Exit.INTERRUPTED]

    usual, asked = LateStop(0), list[int]()
    assert stopped(usual, lambda: (eventually((project.out / "begun").exists), asked.append(usual.asked), usual.set()))
    assert asked[0] > 2
    for n in range(1, asked[0] + 1):
        assert stopped(LateStop(n), lambda: None), f"stopped after question {n} of {asked[0]}"


def test_ctrl_c_does_not_wait_for_what_is_being_sent(project: Project) -> None:
    (project.folder / "draft").mkdir()
    (project.folder / "draft" / "weights").write_bytes(os.urandom(48 << 20))
    stop = threading.Event()

    def first(event: Event) -> None:
        if isinstance(event, TaskProgress):
            stop.set()

    play = f"hosts: here\ntasks:\n  - drafter_stage: {{path: {project.folder}/draft, releases: OUT}}\n"
    ran = project.run(play, stop=stop, seen=first)
    assert ran.ended() == {"here": "interrupted"}
    assert len(ran.of(TaskProgress)) == 1
    assert not [entry for entry in os.listdir(project.out / "draft") if not entry.startswith(".")]
    assert project.run().ended() == {"here": "ok"}


def test_facts_are_read_when_they_are_used(project: Project) -> None:
    ran = project.run('hosts: here\ntasks:\n  - {name: show, debug: "{{ facts.user.name }}"}\n')
    assert ran.code == Exit.DONE
    assert ran.lines("show")[0]


def test_several_hosts_side_by_side(project: Project) -> None:
    names = [f"h{n}" for n in range(8)]
    project.hosts(*names)
    ran = project.run('hosts: all\ntasks:\n  - {copy: {dest: "OUT/{{ inventory_hostname }}", content: x}}\n')
    assert ran.ended() == dict.fromkeys(names, "ok")
    assert sorted(p.name for p in project.out.iterdir()) == names


def test_the_command_line_wins_over_everything(project: Project) -> None:
    project.hosts("here", extra="defaults: {vars: {a: inventory, b: inventory, c: inventory}}\n")
    ran = project.run(
        "hosts: here\nvars: {b: play, c: play}\ntasks:\n"
        '  - {name: t, debug: "{{ a }} {{ b }} {{ c }}", vars: {c: task}}\n',
        e=("c=line",),
    )
    assert ran.lines("t") == ("inventory play line",)


def test_events_are_in_order(project: Project) -> None:
    ran = project.run("hosts: here\ntasks:\n  - {name: say, shell: 'echo one; echo two'}\n")
    kinds = [type(e).__name__ for e in ran.events]
    assert kinds[0] == "RunStarted"
    assert kinds[-2:] == ["HostEnded", "RunEnded"]
    assert kinds.index("TaskStarted") < kinds.index("TaskEnded")
    assert [e.at for e in ran.events] == sorted(e.at for e in ran.events)
    assert ran.of(TaskStarted)[0].host == "here"
    assert [p.text for p in ran.of(TaskProgress)]


RESCUED = """
- hosts: all
  on_failure: rollback
  tasks:
    - name: change
      copy: {content: new, dest: OUT/file}
    - {name: measure, debug: {msg: measuring}, failed_when: "FAILS"}
  rescue:
    - name: keep
      command: {argv: [sh, -c, "cat OUT/file > KEPT; echo {{ failed_task.message }} >> KEPT"], read_only: true}
    - {name: worse, command: {argv: ["false"], read_only: true}}
    - {name: after, command: {argv: [touch, OUT/after], read_only: true}}
  gates:
    - {that: GATE}
"""


@pytest.mark.parametrize(
    ("fails", "gate", "code", "said"),
    [
        ("true", "1 > 0", Exit.ROLLED_BACK, "measure"),
        ("false", "1 == 2", Exit.ROLLED_BACK, "1 == 2"),
    ],
)
def test_a_play_that_fails_is_rescued_before_it_is_taken_back(
    project: Project, fails: str, gate: str, code: Exit, said: str
) -> None:
    kept = project.folder / "kept"
    text = RESCUED.replace("OUT", str(project.out)).replace("KEPT", str(kept))
    ran = project.run(text.replace("FAILS", fails).replace("GATE", gate))
    assert ran.code == code
    assert not (project.out / "file").exists()
    first, _, rest = kept.read_text().partition("new")
    assert (first, said in rest) == ("", True)
    assert ran.statuses()["worse"] == "failed"
    assert (project.out / "after").exists()


def test_a_play_that_goes_well_or_is_only_checked_needs_no_rescue(project: Project) -> None:
    kept = project.folder / "kept"
    text = RESCUED.replace("OUT", str(project.out)).replace("KEPT", str(kept)).replace("GATE", "1 > 0")
    assert project.run(text.replace("FAILS", "false")).code == Exit.DONE
    project.run(text.replace("FAILS", "true"), check=True)
    assert not kept.exists()


def test_a_variable_with_a_default_may_be_given(project: Project) -> None:
    play = """
- hosts: all
  tasks:
  - {name: made, file: {path: "OUT/{{ folder | default('usual') }}", state: directory}}
"""
    assert project.run(play, e=("folder=given",)).code == Exit.DONE
    assert (project.out / "given").is_dir()
    with pytest.raises(UsageError, match="has such a variable"):
        project.run(play, e=("foldr=given",))


def test_old_releases_are_pruned_once_the_gates_hold_and_not_before(project: Project) -> None:
    play = """\
hosts: here
on_failure: rollback
params: {drafter: {}, good: {type: bool}}
tasks:
  - {name: stage, drafter_stage: {path: "{{ drafter }}", name: d, releases: OUT/releases, keep: 0}}
gates:
  - {name: gate, that: good}
"""
    for name in ("one", "two"):
        (project.folder / name).mkdir()
        write_safetensors(
            project.folder / name / "model.safetensors", {"fc.weight": Raw("U8", [4], name.encode() + b"x")}
        )

    def releases() -> list[str]:
        folder = project.out / "releases/d"
        return sorted(
            (folder / entry / "model.safetensors").read_bytes()[-4:-1].decode() for entry in os.listdir(folder)
        )

    assert project.run(play, e=(f"drafter={project.folder}/one", "good=true")).code == Exit.DONE
    assert project.run(e=(f"drafter={project.folder}/two", "good=false")).code == Exit.ROLLED_BACK
    assert releases() == ["one"]
    assert project.run(e=(f"drafter={project.folder}/two", "good=true")).code == Exit.DONE
    assert releases() == ["two"]


def test_what_takes_the_host_long_to_observe_is_not_observed_after_each_change(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "drafter").mkdir()
    (project.folder / "drafter" / "model.safetensors").write_bytes(b"weights")
    asked: list[str] = []
    send = AgentClient.send

    def noted(agent: AgentClient, calls: Sequence[Call[Any]], **how: Any) -> list[Pending]:
        asked.extend(call.name for call in calls)
        return send(agent, calls, **how)

    monkeypatch.setattr(AgentClient, "send", noted)
    folders = "".join(f"  - file: {{path: OUT/{name}, state: directory}}\n" for name in "abcd")
    stage = f"  - drafter_stage: {{path: {project.folder}/drafter, name: d, releases: OUT/releases}}\n"
    assert project.run(f"hosts: here\ntasks:\n{folders}{stage}").code is Exit.DONE
    assert asked.count("stage.look") == 2  # with all others, and once more when it is next
    asked.clear()
    assert project.run().code is Exit.DONE
    assert asked.count("stage.look") == 1
