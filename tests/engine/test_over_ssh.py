"""Runs over a real SSH connection that can be slow, cut or gone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from opsctl.cli.options import Showing
from opsctl.cli.playing import play
from opsctl.engine import connections
from opsctl.engine.events import Event, HostEnded, UndoStep
from opsctl.engine.options import Options
from opsctl.errors import Exit, UsageError
from opsctl.verbs import hosts as early
from tests.engine.world import Project, Ran
from tests.proxy import Proxy, fewest
from tests.sshd import Sshd, eventually

SlowLink = Callable[..., Proxy]


@pytest.fixture
def over_ssh(project: Project, sshd: Sshd, slow_link: SlowLink) -> Proxy:
    """The host `far`, behind a proxy."""
    proxy = slow_link(0.0)
    described(project, sshd, proxy.port)
    return proxy


def described(project: Project, sshd: Sshd, port: int) -> None:
    (project.folder / "inventory.yaml").write_text(
        f"hosts:\n  far:\n    address: 127.0.0.1\n    port: {port}\n    user: {sshd.user}\n    key: {sshd.key_file}\n"
        f'    host_key: "{sshd.host_key}"\n    state_dir: {project.folder}/state\n'
        "    ssh_config: none\n    attempts: 1\n"
    )


def tasks(count: int) -> str:
    lines = [f"  - {{name: t{n}, file: {{path: OUT/d{n}, state: directory}}}}" for n in range(count)]
    return "hosts: far\ntasks:\n" + "\n".join(lines) + "\n"


@pytest.fixture
def counting(project: Project, sshd: Sshd, slow_link: Callable[..., Proxy]) -> Proxy:
    """The host `far`, behind a proxy that counts round trips."""
    proxy = slow_link(gather=0.25)
    described(project, sshd, proxy.port)
    return proxy


def turns(project: Project, proxy: Proxy, play: str, enough: int = 0) -> int:
    """The round trips of a run that changes nothing; `enough` are not counted again."""

    def once() -> int:
        proxy.turns_until_closed()
        ran = project.run(play)
        assert set(ran.statuses("far").values()) == {"ok"}
        return proxy.turns_until_closed()

    return fewest(once, enough)


def test_a_run_without_changes_costs_one_round_trip_however_long_it_is(project: Project, counting: Proxy) -> None:
    project.run(tasks(30))
    most = turns(project, counting, tasks(1)) + 1  # a goodbye may go with the last word, or alone
    assert turns(project, counting, tasks(30), most) <= most


def test_a_dependent_task_costs_one_more(project: Project, counting: Proxy) -> None:
    look = "  - {{name: c{0}, command: {{cmd: echo {0}, read_only: true}}, register: r{0}}}\n"
    use = '  - {{name: u{0}, file: {{path: "OUT/{{{{ r{0}.stdout | trim }}}}", state: absent}}}}\n'
    plain = "hosts: far\ntasks:\n" + "".join(look.format(n) for n in range(3))
    chained = "hosts: far\ntasks:\n" + "".join(look.format(n) + use.format(n) for n in range(3))
    project.run(plain)
    most = turns(project, counting, plain) + 3 + 1
    assert turns(project, counting, chained, most) <= most


def test_the_next_command_does_not_meet_the_one_before(
    project: Project, sshd: Sshd, over_ssh: Proxy, slow_link: SlowLink
) -> None:
    """That a run has ended never reaches the host. What it held is free all the same, changes or no changes."""
    project.write(tasks(1))
    for status, proxy in (("changed", over_ssh), ("ok", slow_link(0.0))):

        def freeze(event: Event, proxy: Proxy = proxy) -> None:
            if isinstance(event, HostEnded):
                proxy.freeze()

        described(project, sshd, proxy.port)
        ran = project.run(seen=freeze)
        assert (ran.code, ran.statuses("far")) == (Exit.DONE, {"t0": status})
    described(project, sshd, sshd.port)
    assert project.run().code == Exit.DONE


def test_an_unreachable_host_has_its_own_exit_code(project: Project, sshd: Sshd) -> None:
    described(project, sshd, 1)  # nobody listens there
    ran = project.run(tasks(1))
    assert ran.code == Exit.UNREACHABLE
    assert ran.ended() == {"far": "unreachable"}
    assert ran.of(HostEnded)[0].message
    skipped = project.run(tasks(1) + "on_unreachable: skip\n")
    assert (skipped.code, skipped.ended()) == (Exit.DONE, {"far": "skipped"})


SUPERVISED = """\
hosts: far
on_failure: rollback
tasks:
  - {name: before, copy: {dest: OUT/before, content: x}}
  - name: risky
    copy: {dest: OUT/risky, content: new}
    supervise: {confirm_within: 60s}
  - {name: probe, command: {cmd: "test ! -e OUT/bad", read_only: true}}
"""


def test_a_supervised_change_is_confirmed_when_the_play_ends_well(project: Project, over_ssh: Proxy) -> None:
    (project.out / "risky").write_text("old")
    assert project.run(SUPERVISED).code == Exit.DONE
    assert (project.out / "risky").read_text() == "new"
    assert project.run().code == Exit.DONE  # lock and supervisor are gone


def test_a_supervised_change_is_taken_back_when_the_play_fails(project: Project, over_ssh: Proxy) -> None:
    (project.out / "risky").write_text("old")
    (project.out / "bad").touch()
    ran = project.run(SUPERVISED)
    assert ran.code == Exit.ROLLED_BACK
    assert (project.out / "risky").read_text() == "old"
    assert not (project.out / "before").exists()
    assert {s.task for s in ran.of(UndoStep)} == {"before", "risky"}


def test_a_supervised_change_survives_a_cut_connection(project: Project, over_ssh: Proxy) -> None:
    """The change waits for a file; the connection is cut meanwhile; the run finds the change again."""
    play = SUPERVISED.replace(
        "copy: {dest: OUT/risky, content: new}",
        'shell: {cmd: "touch OUT/begun; until test -e OUT/go; do sleep 0.05; done; touch OUT/risky", '
        'undo: "rm -f OUT/risky"}',
    )
    got: list[Ran] = []
    runner = threading.Thread(target=lambda: got.append(project.run(play)))
    runner.start()
    eventually((project.out / "begun").exists)
    over_ssh.cut()
    (project.out / "go").touch()
    runner.join(120)
    assert got[0].code == Exit.DONE, "\n".join(map(repr, got[0].events))
    assert (project.out / "risky").exists()


def test_a_lost_connection_can_be_tried_again(project: Project, over_ssh: Proxy) -> None:
    play = """\
hosts: far
tasks:
  - name: long
    shell: "touch OUT/begun-$(ls OUT | grep -c begun); test -e OUT/second || { touch OUT/second; sleep 600; }"
    retries: 3
    delay: 100ms
"""
    got: list[Ran] = []
    runner = threading.Thread(target=lambda: got.append(project.run(play)))
    runner.start()
    eventually((project.out / "second").exists)
    over_ssh.cut()
    runner.join(120)
    assert got[0].code == Exit.DONE, "\n".join(map(repr, got[0].events))
    assert (project.out / "begun-1").exists()


def test_a_wrong_playbook_touches_no_host_even_if_it_was_right_before(
    project: Project, over_ssh: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.folder / "cache"))
    monkeypatch.setenv("OPSCTL_RECORDS", str(project.folder / "records"))
    options, words = _as_a_command_line(project)
    for wrong in ("hosts: far\ntasks:\n  - debug: '{{ missing }}'\n", "hosts: far\ntaks: []\n"):
        project.write(tasks(1))
        early.begin(words)
        assert play(options, Showing(output="jsonl")) == Exit.DONE
        assert connections.first(words)  # the next run of the same would connect at once
        before = over_ssh.connections
        project.write(wrong)
        early.begin(words)
        with pytest.raises(UsageError):
            play(options, Showing(output="jsonl"))
        assert over_ssh.connections == before


def test_a_run_like_an_earlier_one_connects_before_it_is_read(
    project: Project, over_ssh: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.folder / "cache"))
    monkeypatch.setenv("OPSCTL_RECORDS", str(project.folder / "records"))
    options, words = _as_a_command_line(project)
    project.write(tasks(1))
    early.begin(words)
    assert play(options, Showing(output="jsonl")) == Exit.DONE
    before = over_ssh.connections
    early.begin(words)
    eventually(lambda: over_ssh.connections == before + 1)
    assert play(options, Showing(output="jsonl")) == Exit.DONE
    assert over_ssh.connections == before + 1
    early.begin([*words, "--tags", "other"])
    early.take().connections.close()
    assert over_ssh.connections == before + 1, "another command line connected"


def _as_a_command_line(project: Project) -> tuple[Options, list[str]]:
    playbook, inventory = str(project.folder / "play.yaml"), str(project.folder / "inventory.yaml")
    return Options(playbook, inventory=inventory), ["run", playbook, "-i", inventory]
