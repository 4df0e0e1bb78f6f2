"""Words of Ansible: those that mean the same here, those that need not be said, and what to write for the others.

The words are those that public playbooks use most, as of ansible-core 2.19's documentation.
"""

from __future__ import annotations

COLLECTIONS = ("ansible.builtin.", "ansible.legacy.")
"""Prefixes of full names whose modules have our meaning where we have one of that name."""

NOT_NEEDED = {
    "gather_facts": "facts are read when `facts` is used",
    "collections": "all modules are built in",
}
"""Keys of a play that change nothing here."""

INSTEAD = {
    # keys of plays, blocks and tasks
    "any_errors_fatal": "say `max_failures: 0`",
    "args": "put them under the module's name",
    "async": "say `process` for what goes on running, `timeout` for what takes long",
    "become_flags": "become is `sudo -n`, or `sudo -S` with a password",
    "become_method": "become is always through sudo",
    "become_user": "say `become: USER`",
    "check_mode": "`--check` is of a whole run; `read_only: true` has a command run then as well",
    "connection": "say `connection` in the inventory",
    "delegate_to": "write a play for the other host",
    "diff": "say `--diff`",
    "environment": "give `env` to the module",
    "force_handlers": "handlers of a failed play do not run: say `rescue`",
    "ignore_errors": "say `failed_when: false`",
    "ignore_unreachable": "say `on_unreachable: skip`",
    "import_playbook": "put its plays into this file",
    "listen": "name the handler in `notify`",
    "local_action": "write a play for the host `local`",
    "loop_control": "the element of a loop is always `item`",
    "max_fail_percentage": "say `max_failures: 10%`",
    "module_defaults": "say it in each task, or loop over a task",
    "no_log": "secrets (!env, !file, !cmd, params of type secret) are masked everywhere",
    "poll": "say `timeout`",
    "post_tasks": "put them at the end of `tasks`",
    "pre_tasks": "put them at the top of `tasks`",
    "remote_user": "say `user` in the inventory",
    "roles": "say `include` for a file of tasks",
    "run_once": "write a play for that one host",
    "strategy": "each host goes through the play at its own pace",
    "vars_files": "put them under `vars`, or give them with -e @FILE",
    "vars_prompt": "say `params`; one of type secret can come from !env or !cmd",
    "with_dict": 'say `loop: "{{ name | dictsort }}"`',
    "with_fileglob": "`copy` takes a whole folder",
    "with_items": "say `loop`",
    "with_sequence": 'say `loop: "{{ range(1, 5) }}"`',
    # modules
    "add_host": "name the host in the inventory",
    "apt_key": "say `copy` for a key under /etc/apt/keyrings",
    "apt_repository": "say `copy` for a file under /etc/apt/sources.list.d",
    "blockinfile": "say `line` for each line, or `copy` for a file of your own",
    "docker_container": "say `sglang_server` for a server of SGLang, else `command` with docker",
    "fail": "say `assert`",
    "group_by": "write a play for the group",
    "import_role": "say `include` for a file of tasks",
    "import_tasks": "say `include`",
    "include_role": "say `include` for a file of tasks",
    "include_tasks": "say `include`",
    "include_vars": "put them under `vars`, or give them with -e @FILE",
    "ini_file": "say `line`, or `template` for the whole file",
    "lineinfile": "say `line`",
    "meta": "handlers run at the end of the play",
    "package_facts": "say `command` with `read_only: true` and `register`",
    "pause": "say `confirm` on the play, or `wait_for`",
    "ping": "opsctl inventory check connects to every host",
    "replace": "say `line`",
    "script": "say `copy`, then `command`",
    "service_facts": "say `command` with `read_only: true` and `register`",
    "set_fact": "say `vars`",
    "setup": "say `facts`",
    "stat": "say `command` with `read_only: true` and `register`, or `wait_for`",
    "synchronize": "say `copy`",
    "systemd": "say `service`",
    "systemd_service": "say `service`",
    "tempfile": "say `command` with mktemp and `register`",
    "uri": "say `http`",
}
"""A word -> what to write here."""

LEFT = {
    "authorized_key": "who may log in is no matter of serving models",
    "cron": "serving needs no timetable; opsctl itself can be run by cron or a timer",
    "debconf": "it belongs to setting up the machine",
    "filesystem": "making file systems cannot be undone",
    "firewalld": "rules that shut opsctl out could not be undone by it",
    "group": "accounts belong to setting up the machine",
    "hostname": "it belongs to setting up the machine",
    "iptables": "rules that shut opsctl out could not be undone by it",
    "lvg": "making volumes cannot be undone",
    "lvol": "making volumes cannot be undone",
    "mount": "what is mounted belongs to setting up the machine",
    "parted": "partitioning cannot be undone",
    "seboolean": "it belongs to setting up the machine",
    "selinux": "it belongs to setting up the machine",
    "timezone": "it belongs to setting up the machine",
    "ufw": "rules that shut opsctl out could not be undone by it",
    "user": "accounts belong to setting up the machine",
    "yum_repository": "where packages come from belongs to setting up the machine",
}
"""A module -> why it is left to Ansible."""


def plain(name: str) -> str:
    """The name of a module without that of Ansible's own collection."""
    for prefix in COLLECTIONS:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def instead(name: str) -> str | None:
    """What to write for a key or module of Ansible, with or without its collection; None where it is not known."""
    short = name.rpartition(".")[2]
    if short in LEFT:
        return f"left to Ansible: {LEFT[short]}"
    return INSTEAD.get(short) or NOT_NEEDED.get(short)
