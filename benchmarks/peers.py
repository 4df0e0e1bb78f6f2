"""The peers, each in a virtual environment of its own, and how each is asked to run the same play."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.lab import ADDRESS, FIRST_PORT, Lab

PLAYS = Path(__file__).with_name("plays")
PACKAGES = {"ansible": ("ansible-core", "mitogen"), "pyinfra": ("pyinfra",)}


@dataclass(frozen=True, slots=True)
class Contender:
    """A command line, run in `cwd` with `env` added."""

    name: str
    argv: list[str]
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)


def install(run: Path) -> None:
    """Newest releases of the peers that this Python takes; once."""
    for name, packages in PACKAGES.items():
        venv = run / f"venv-{name}"
        if not (venv / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin" / "pip", "install", "--quiet", *packages], check=True)
            (venv / "installed").touch()


def noop(lab: Lab, where: str, hosts: int) -> list[Contender]:
    """Every contender's way to run the twenty-task play on the first `hosts` hosts at this distance."""
    names = [f"{where}{i + 1}" for i in range(hosts)]
    ssh = [f"ssh -F {lab.ssh_config} {name} true" for name in names]
    contenders = [
        Contender("ssh HOST true", lab.client(["sh", "-c", " & ".join(ssh) + " & wait"]), PLAYS),
        Contender("opsctl", lab.client(_opsctl(lab, where, hosts)), PLAYS / "opsctl"),
    ]
    for name, strategy in (("ansible, pipelining", None), ("ansible, mitogen", "mitogen_linear")):
        config = _ansible_config(lab, strategy)
        inventory = _ansible_inventory(lab, where, hosts)
        playbook = lab.run / "venv-ansible/bin/ansible-playbook"
        argv = lab.client([playbook, "-f", str(hosts), "-i", inventory, "noop20.yml"])
        contenders.append(Contender(name, argv, PLAYS / "ansible", {"ANSIBLE_CONFIG": str(config)}))
    inventory = _pyinfra_inventory(lab, where, hosts)
    argv = lab.client([lab.run / "venv-pyinfra/bin/pyinfra", "-y", inventory, "noop20.py"])
    contenders.append(Contender("pyinfra", argv, PLAYS / "pyinfra"))
    return contenders


def _opsctl(lab: Lab, where: str, hosts: int) -> list[str | Path]:
    inventory = lab.run / f"opsctl-{where}{hosts}.yaml"
    host_key = " ".join((lab.run / "keys" / "host.pub").read_text().split()[:2])
    lines = ["hosts:"]
    for i in range(hosts):
        lines += [
            f"  {where}{i + 1}:",
            f"    address: {ADDRESS[where]}",
            f"    port: {FIRST_PORT + i}",
            "    user: root",
            f"    key: {lab.key}",
            f"    host_key: {host_key}",
            # All hosts are this machine: each has a lock and a journal of its own.
            f"    state_dir: {lab.run}/state/{where}{i + 1}",
            f"    vars: {{root: /var/tmp/opsctl-bench-root/o{i + 1}}}",
        ]
    inventory.write_text("\n".join(lines) + "\n")
    return [Path(sys.executable).with_name("opsctl"), "run", "noop20.yaml", "-i", inventory]


def _ansible_inventory(lab: Lab, where: str, hosts: int) -> Path:
    file = lab.run / f"ansible-{where}{hosts}.ini"
    rows = [f"{where}{i + 1} ansible_host={ADDRESS[where]} ansible_port={FIRST_PORT + i}" for i in range(hosts)]
    common = f"-F {lab.ssh_config}"
    file.write_text(
        "[all]\n" + "\n".join(rows) + "\n[all:vars]\nansible_user=root\n"
        f"ansible_ssh_private_key_file={lab.key}\nansible_python_interpreter=/usr/bin/python3\n"
        f"ansible_ssh_common_args={common}\n"
    )
    return file


def _ansible_config(lab: Lab, strategy: str | None) -> Path:
    file = lab.run / f"ansible-{strategy or 'pipelining'}.cfg"
    lines = ["[defaults]", "host_key_checking = True", "interpreter_python = /usr/bin/python3"]
    if strategy:
        site = next((lab.run / "venv-ansible/lib").glob("python3*/site-packages"))
        lines += [f"strategy_plugins = {site}/ansible_mitogen/plugins/strategy", f"strategy = {strategy}"]
    lines += ["[ssh_connection]", "pipelining = True", f"control_path_dir = {lab.home}/cp"]
    file.write_text("\n".join(lines) + "\n")
    return file


def _pyinfra_inventory(lab: Lab, where: str, hosts: int) -> Path:
    file = lab.run / f"pyinfra_{where}{hosts}.py"
    rows = [(f"{where}{i + 1}", {"ssh_hostname": ADDRESS[where], "ssh_port": FIRST_PORT + i}) for i in range(hosts)]
    common = {
        "ssh_user": "root",
        "ssh_key": str(lab.key),
        "ssh_known_hosts_file": str(lab.known_hosts),
        "ssh_strict_host_key_checking": "yes",
    }
    file.write_text(f"hosts = ({rows!r}, {common!r})\n")
    return file
