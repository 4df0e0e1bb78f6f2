"""What is said of a playbook that is wrong: always the place, and the nearest valid name."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from opsctl import modules
from opsctl.engine import ansible
from opsctl.engine.lint import lint
from opsctl.engine.loader import load_playbook
from opsctl.engine.model import IncludeKeys, PlayKeys, TaskKeys
from opsctl.engine.options import Options
from opsctl.engine.run import plan
from opsctl.errors import Place, UsageError
from opsctl.inventory import load as load_inventory
from opsctl.text import printable
from tests.engine.world import Project
from tests.mutation import mutated

GOOD = """\
# A playbook that uses everything once.
- name: Everything
  hosts: here
  params:
    size: {type: int, default: 3, help: how many}
    mode: {choices: [fast, slow], default: fast}
  vars:
    base: OUT
    target: "{{ base }}/{{ mode }}"
  on_failure: rollback
  serial: 50%
  max_failures: 1
  timeout: 10m
  handlers:
    - name: restart
      debug: restarted
  tasks:
    - name: folder
      file:
        path: "{{ target }}"
        state: directory
        mode: "0755"
      tags: [base]
    - name: content
      copy:
        dest: "{{ target }}/file"
        content: "{{ size }}\\n"
      register: written
      notify: restart
    - block:
        - name: ask
          command: echo hello
          register: said
          until: said.code == 0
          retries: 2
          delay: 1s
          timeout: 30s
      rescue:
        - debug: "failed: {{ failed_task.name }}"
      when: written.changed
    - name: loop
      debug: "{{ item }}"
      loop: [1, 2]
  gates:
    - name: enough
      that: size >= 1
"""


def load(project: Project, text: str) -> None:
    path = project.write(text)
    load_playbook(path)
    plan(Options(playbook=str(path)), load_inventory(project.folder / "inventory.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "words"),
    [
        ("      notify: restart", "      natify: restart", 29, 7, ["natify", "notify"]),
        ("      notify: restart", "      notify: restrat", 29, 15, ["restrat", "restart"]),
        ("      copy:", "      coppy:", 25, 7, ["coppy", "copy"]),
        ("        mode: \"0755\"", "        mdoe: \"0755\"", 22, 9, ["mdoe", "mode"]),
        ("      file:", "      file: 5\n      fil:", 20, 7, ["unknown key 'fil'"]),
        ("  serial: 50%", "  seriel: 50%", 11, 3, ["seriel", "serial"]),
        ("  timeout: 10m", "  timeout: soon", 13, 12, ["duration", "soon"]),
        ("type: int,", "type: integer,", 5, 18, ["int"]),
        ("default: 3,", "default: three,", 5, 32, ["whole number", "three"]),
        ("default: fast}", "default: fats}", 6, 44, ["fast"]),
        ("when: written.changed", "when: writen.changed", 40, 13, ["writen", "written"]),
        ("when: written.changed", "when: written.changed ==", 40, 13, ["template error"]),
        ("      loop: [1, 2]", "      loop: 5", 43, 13, ["list"]),
        ("      loop: [1, 2]", "      timeout: \"{{ size - 3 }}\"", 43, 16, ["timeout", "more than 0"]),
        ("      loop: [1, 2]", "      with_items: [1, 2]", 43, 7, ["loop"]),
        ("content: \"{{ size }}\\n\"", "content: \"{{ sise }}\\n\"", 27, 18, ["sise", "size"]),
        ("  hosts: here", "  hosts: hear", 3, 10, ["hear", "here"]),
        ("  on_failure: rollback", "  on_failure: undo", 10, 15, ["rollback"]),
        ("      that: size >= 1", "      that: size >= one", 46, 13, ["one"]),
        ("    - name: enough\n      that: size >= 1", "    - name: enough", 45, 7, ["measure"]),
        ("          retries: 2", "          retries: -1", 35, 20, ["0"]),
        ("          command: echo hello", "          command:\n            cmdd: echo", 33, 13, ["cmdd", "cmd"]),
        ("base: OUT\n", "base: \"{{ target }}\"\n", 9, 13, ["through itself"]),
        ("  gates:", "  gate:", 44, 3, ["gate", "gates"]),
        ("    - name: restart\n      debug: restarted", "    - debug: restarted", 15, 7, ["handler", "name"]),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(
    project: Project, old: str, new: str, line: int, column: int, words: list[str]
) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(UsageError) as caught:
        load(project, GOOD.replace(old, new, 1))
    places = {str(one.where): f"{one} {one.hint}" for one in caught.value.all}
    [told] = [text for place, text in places.items() if place.endswith(f"play.yaml:{line}:{column}")]
    for word in words:
        assert word in told


FOREIGN = """\
- hosts: here
  gather_facts: false
  serial: 0
  vars_files: [secrets.yml]
  tasks:
    - ansible.builtin.copy: {dest: OUT/a, content: a}
    - name: a package
      ansible.builtin.systemd: {name: sglang}
      become_user: root
    - debug: hello
      retries: -1
    - block:
        - user: {name: ann}
      rescue:
        - copy: {dst: /b, content: b}
    - include: more.yaml
"""


def test_every_mistake_is_told_at_once_with_what_to_write_instead(project: Project) -> None:
    (project.folder / "more.yaml").write_text("- hostname: {name: k25}\n- frobnicate: yes\n")
    with pytest.raises(UsageError) as caught:
        load(project, FOREIGN)
    told = [(Path(one.where.file).name, one.where.line, one.message, one.hint or "") for one in caught.value.all
            if isinstance(one.where, Place)]  # fmt: skip
    for (file, line, message, hint), (in_file, at, word, instead) in zip(told, [
        ("play.yaml", 3, "serial", ""),
        ("play.yaml", 4, "vars_files", "-e @FILE"),
        ("play.yaml", 8, "ansible.builtin.systemd", "`service`"),
        ("play.yaml", 9, "become_user", "`become: USER`"),
        ("play.yaml", 11, "retries", ""),
        ("play.yaml", 13, "user", "left to Ansible"),
        ("play.yaml", 15, "dst", "'dest'"),
        ("more.yaml", 1, "hostname", "left to Ansible"),
        ("more.yaml", 2, "frobnicate", "opsctl doc"),
    ], strict=True):  # fmt: skip
        assert (file, line) == (in_file, at)
        assert word in message
        assert instead in hint


def test_what_ansible_says_in_other_words_is_read_and_noted(project: Project) -> None:
    path = project.write("""\
- hosts: here
  gather_facts: false
  tasks:
    - ansible.builtin.copy: {dest: OUT/a, content: a}
    - ansible.builtin.command: echo a
""")
    load(project, path.read_text())
    noted = [(one.place.line, one.level, one.message) for one in lint(path, None) if one.place and one.id == "foreign"]
    assert noted == [
        (2, "notice", "gather_facts says nothing here: facts are read when `facts` is used"),
        (4, "notice", "ansible.builtin.copy is read as copy"),
        (5, "notice", "ansible.builtin.command is read as command"),
    ]


def test_what_is_said_instead_of_ansibles_words_exists() -> None:
    keys = {name for model in (PlayKeys, TaskKeys, IncludeKeys) for name in model.model_fields}
    ours = {*modules.names(), *keys, "env", "user", "connection"}
    for word, instead in ansible.INSTEAD.items():
        assert ansible.plain(word) not in modules.names()
        for name in re.findall(r"say `(\w+)", instead):
            assert name in ours, f"{word}: {name}"


def test_the_good_one_is_good(project: Project) -> None:
    load(project, GOOD)


@pytest.mark.parametrize("seed", range(200))
def test_a_random_mutation_gives_a_place_or_is_valid(project: Project, seed: int) -> None:
    """Nothing a slip of the finger does to a playbook may end in anything but a clear message."""
    text = mutated(GOOD, random.Random(seed))
    error = what_is_said(project, text)
    if error is not None:
        assert error.message
        where = str(error.where or error.message)
        assert "play.yaml" in where or "-e" in error.message, f"no place: {error}\n{text}"
        assert printable(str(error)) == str(error)
        assert not re.search(r"Value error|[Vv]alidation|Input should|should (have|be|match)", error.message), error


def what_is_said(project: Project, text: str) -> UsageError | None:
    try:
        load(project, text)
    except UsageError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["a playbook is"]),
        ("just text", ["a playbook is"]),
        ("- 5", ["a play is"]),
        ("hosts: here\ntasks: {a: 1}", ["list"]),
        ("hosts: here\ntasks: [5]", ["a task is"]),
        ("hosts: here\ntasks: [{name: x}]", ["names no module"]),
        ("hosts: here\ntasks: [{debug: a, copy: {dest: /x, content: y}}]", ["two modules"]),
        ("tasks: []", ["hosts"]),
        ("hosts: here\ntasks: [{include: other.yaml}]", ["cannot read"]),
        ("hosts: here\ntasks: [{include: \"{{ x }}\"}]", ["template"]),
        ("hosts: here\ntasks: [{include: play.yaml}]", ["include one another"]),
        ("hosts: here\ntasks: [{debug: x, supervise: {confirm_within: 5m}}]", ["on_failure: rollback"]),
        ("hosts: here\ntasks: [{copy: {src: nowhere.txt, dest: /x}}]", ["nowhere.txt"]),
        ("hosts: nobody\ntasks: []", ["nobody"]),
        *(
            (f"hosts: here\n{key}: {said}\ntasks: []", [
                f"play.yaml:2:{place}: {key}: expected a number of hosts or a share such as 25%, got {got}"
            ])
            for key, said, place, got in (
                ("serial", "{}", 9, "{}"), ("serial", "[]", 9, "[]"), ("serial", "true", 9, "True"),
                ("serial", "half", 9, "'half'"), ("serial", "nan%", 9, "'nan%'"), ("max_failures", "-1", 15, "-1"),
            )
        ),
        ("hosts: here\nserial: [1, {}]\ntasks: []", ["play.yaml:2:13: ", "expected a number of hosts or a share"]),
        ("hosts: here\nserial: [1, 0%]\ntasks: []", ["play.yaml:2:13: ", "at least one host at a time, got '0%'"]),
    ],
)  # fmt: skip
def test_other_mistakes(project: Project, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load(project, text)
    told = f"{caught.value} {caught.value.hint}"
    assert "play.yaml" in told
    for word in words:
        assert word in told


def test_includes_stand_in_place_and_mistakes_in_them_have_their_own_place(project: Project) -> None:
    project.write('- {name: inner, debug: "{{ x }}"}\n', "tasks/inner.yaml")
    ran = project.run("hosts: here\ntasks:\n  - {include: tasks/inner.yaml, vars: {x: 1}, when: 1 == 1}\n")
    assert ran.lines("inner") == ("1",)
    project.write("- {name: inner, debg: 1}\n", "tasks/inner.yaml")
    with pytest.raises(UsageError) as caught:
        project.run()
    assert str(caught.value.where).endswith(str(Path("tasks/inner.yaml:1:17")))


@pytest.mark.parametrize(
    ("e", "words"),
    [
        ("size=many", ["size", "whole number"]),
        ("sice=3", ["sice", "size"]),
        ("mode=fats", ["fast"]),
        ("size", ["NAME=VALUE"]),
    ],
)
def test_values_from_the_command_line_are_typed(project: Project, e: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        project.run(GOOD, e=(e,))
    for word in words:
        assert word in f"{caught.value} {caught.value.hint}"
