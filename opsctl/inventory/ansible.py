"""Ansible's inventories in our words, where its variables mean the same here; what does not is told."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.errors import Place, UsageError
from opsctl.inventory import ansible_groups
from opsctl.inventory.ansible_groups import Groups, Variable, Variables
from opsctl.secret import Secret
from opsctl.secret_sources import LateSecret, late_secret
from opsctl.text import did_you_mean, one_line
from opsctl.yaml_source import DocPath, Source, parse_yaml

OURS = ("defaults", "groups", "hosts")
"""What our own inventories have at their top, and Ansible's do not."""

# Our key <- Ansible's variables for it, the last one counts.
# https://docs.ansible.com/ansible/latest/collections/ansible/builtin/ssh_connection.html and sudo_become.html
_NAMES: Mapping[str, tuple[str, ...]] = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "key": ("ansible_private_key_file", "ansible_ssh_private_key_file"),
    "python": ("ansible_python_interpreter",),
    "connection": ("ansible_connection",),
    "timeout": ("ansible_timeout", "ansible_ssh_timeout"),
    "become": ("ansible_become",),
    "become_user": ("ansible_become_user", "ansible_sudo_user"),
    "become_method": ("ansible_become_method",),
    "before": ("ansible_ssh_args",),
    "after": ("ansible_ssh_common_args",),
    "extra": ("ansible_ssh_extra_args",),
}
_SECRETS: Mapping[str, tuple[str, ...]] = {
    "password": ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"),
    "become_password": ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
}
_READ = {name for names in (*_NAMES.values(), *_SECRETS.values()) for name in names}
_LOGIN = {name for names in _SECRETS.values() for name in names}
# Variables that change how Ansible works, not what it reaches.
_NOT_NEEDED = ("ansible_pipelining", "ansible_ssh_pipelining", "ansible_ssh_retries", "ansible_scp_", "ansible_sftp_",
               "ansible_ssh_transfer_method", "ansible_ssh_use_tty", "ansible_remote_tmp")  # fmt: skip


def says_how(name: str) -> bool:
    """Whether a variable says how a host is reached or how Ansible works, not something of the host."""
    return name in _READ or name.startswith(_NOT_NEEDED)


_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
_TRUE = ("y", "yes", "on", "1", "true", "t", "1.0")
_FALSE = ("n", "no", "off", "0", "false", "f", "0.0")
_SIGNS = ("{{", "{%", "{#")
_NAME_IN_BRACES = re.compile(r"\{\{\s*([A-Za-z_]\w*)((?:\.\w+|\[['\"]\w+['\"]\])*)\s*\}\}")
_NOT_EVALUATED = "is a template that is not evaluated: only {{ NAME }} of the same host's variables is"
_STEP = re.compile(r"\w+")
_FROM_ENV = re.compile(r"\{\{\s*lookup\(\s*['\"](?:ansible\.builtin\.)?env['\"]\s*,\s*['\"](\w+)['\"]\s*\)\s*\}\}")
_MOST_DEEP = 20  # variables that refer to variables


@dataclass(slots=True)
class Translated:
    """An Ansible inventory as a document of ours, all that is said of a host standing at the host.

    Attributes:
        notes: what is not used, and where it stands.
        blocked: why a host cannot be reached as the inventory says.
    """

    source: Source
    groups: Groups
    notes: list[str] = field(default_factory=list)
    blocked: dict[str, UsageError] = field(default_factory=dict)


def is_ansible(keys: Collection[str]) -> bool:
    """Whether a YAML document with these keys at its top is an inventory of Ansible's: nothing of ours is there."""
    return bool(keys) and not set(keys) & set(OURS)


def read_inventory(path: Path, text: bytes) -> Source | Translated:
    """An inventory of ours as it stands, or one of Ansible's in our words.

    Its text decides: at the top of ours is `hosts`, `groups` or `defaults`; else a YAML mapping is Ansible's, and what
    is no YAML mapping is Ansible's INI. Raises UsageError.
    """
    file = str(path)
    if text.startswith(ansible_groups.VAULT):
        raise UsageError(
            "the whole file is an Ansible vault, which opsctl does not open",
            where=file,
            hint=f"keep only secrets in a vault; to read it once: -i <(ansible-vault view {file})",
        )
    if text.startswith((b"#!", b"\x7fELF")):
        raise _dynamic(file, "a program that prints an inventory")
    if path.suffix == ".toml":
        raise _dynamic(file, "an inventory in TOML")
    if path.suffix in (".ini", ".cfg"):
        return _translated(ansible_groups.of_ini(_decoded(text, file), file), path)
    try:
        source = parse_yaml(text, file, is_ansible)
    except UsageError as error:
        if path.suffix in (".yaml", ".yml", ".json"):
            raise
        return _as_ini(path, text, error)
    value = source.value
    if not isinstance(value, dict):
        wrong = UsageError("an inventory is a mapping with hosts, groups and defaults", where=source.place())
        if path.suffix in (".yaml", ".yml", ".json") or value is None:
            raise wrong
        return _as_ini(path, text, wrong)
    if not is_ansible(value):
        return source
    if "plugin" in value:
        raise _dynamic(file, f"the configuration of Ansible's plugin {one_line(str(value['plugin']), 60)}")
    if "_meta" in value:
        raise _dynamic(file, "what `--list` prints in JSON")
    groups = ansible_groups.of_yaml(source)
    if groups.mistakes:
        close = {key: did_you_mean(key, OURS) for key in value}
        hint = next((said for said in close.values() if said.startswith("did")), "")
        first = groups.mistakes[0]
        first.hint = "; ".join(filter(None, [
            first.hint, "read as an inventory of Ansible's: there is no hosts, groups or defaults at its top", hint
        ]))  # fmt: skip
    return _translated(groups, path)


def _dynamic(file: str, what: str) -> UsageError:
    return UsageError(
        f"{what}: opsctl reads inventories that are written down",
        where=file,
        hint=f"write it down: ansible-inventory -i {file} --list --yaml > hosts.yaml, then -i hosts.yaml",
    )


def _decoded(text: bytes, file: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise UsageError("the file is not UTF-8 text", where=Place(file, line)) from None


def _as_ini(path: Path, text: bytes, no_yaml: UsageError) -> Translated:
    """A file whose name does not say what it is, and which is no inventory in YAML."""
    groups = ansible_groups.of_ini(_decoded(text, str(path)), str(path))
    if groups.mistakes:
        first = UsageError.of(groups.mistakes)
        first.message += f" (read as INI, since as YAML it cannot be: {no_yaml})"
        raise first
    return _translated(groups, path)


def _translated(groups: Groups, path: Path) -> Translated:
    """The inventory in our words. Raises UsageError with every mistake."""
    ansible_groups.read_beside(groups, path.parent)
    ansible_groups.check_names(groups)
    if groups.mistakes:
        raise UsageError.of(list({str(one): one for one in groups.mistakes}.values()))
    top = Place(groups.file, 1, 1)
    keys: dict[DocPath, Place] = {}
    values: dict[DocPath, Place] = {(): top, ("groups",): top, ("hosts",): top}
    said_groups: dict[str, Any] = {}
    for name, group in groups.groups.items():
        if name == "all":
            continue
        said_groups[name] = {"hosts": list(group.hosts), "children": [c for c in group.children if c != "all"]}
        keys["groups", name] = values["groups", name] = group.place
        for kind, members in (("hosts", group.hosts), ("children", group.children)):
            values["groups", name, kind] = group.place
            values |= {("groups", name, kind, index): place for index, place in enumerate(members.values())}
    hosts: dict[str, Any] = {}
    notes: dict[str, None] = dict.fromkeys(groups.notes)
    blocked: dict[str, UsageError] = {}
    mistakes: dict[str, UsageError] = {}
    for name, host in groups.hosts.items():
        meant = Meaning(name, groups.merged(name), path, groups.vaults)
        meant.settle()
        hosts[name] = meant.settings
        keys["hosts", name] = values["hosts", name] = host.place
        keys |= {("hosts", name, *at): place for at, place in meant.keys.items()}
        values |= {("hosts", name, *at): place for at, place in meant.values.items()}
        notes |= dict.fromkeys(meant.notes)
        mistakes |= {str(one): one for one in meant.mistakes}
        if meant.blocked:
            blocked[name] = UsageError.of(meant.blocked)
    if mistakes:
        raise UsageError.of(list(mistakes.values()))
    source = Source(groups.file, {"groups": said_groups, "hosts": hosts}, keys, values)
    return Translated(source, groups, list(notes), blocked)


class Meaning:
    """What Ansible's variables of one host mean here.

    Attributes:
        settings: in our words, with `keys` and `values`: the place of each.
        blocked: why the host cannot be reached as they say.
    """

    def __init__(self, host: str, said: Variables, file: Path, vaults: Sequence[str]) -> None:
        self.host, self.said, self.vaults = host, said, vaults
        self.settings: dict[str, Any] = {}
        self.keys: dict[DocPath, Place] = {}
        self.values: dict[DocPath, Place] = {}
        self.notes: list[str] = []
        self.mistakes: list[UsageError] = []
        self.blocked: list[UsageError] = []
        self._built_in = {
            "inventory_hostname": host, "inventory_hostname_short": host.partition(".")[0],
            "inventory_file": str(path := file.absolute()), "inventory_dir": str(path.parent),
            "ansible_playbook_python": sys.executable,
        }  # fmt: skip

    def settle(self) -> None:
        self._variables()
        for key in ("address", "port", "user", "python"):
            self._take(key, self._plainly(key))
        self._connection()
        self._ssh_arguments("before")
        if (file := self._plainly("key")) is not None and file.value:
            self._put("key", [*self.settings.get("key", []), _from_here(str(file.value))], file.place)
        if (timeout := self._plainly("timeout")) is not None and "timeouts" not in self.settings:
            self._put("timeouts", {"connect": timeout.value}, timeout.place)
        self._ssh_arguments("after")
        self._ssh_arguments("extra")
        self._become()
        for key, names in _SECRETS.items():
            self._secret(key, names)

    def _put(self, key: str, value: Any, place: Place) -> None:
        self.settings[key] = value
        self.keys[key,] = self.values[key,] = place

    def _take(self, key: str, said: Variable | None) -> None:
        if said is not None and said.value not in (None, ""):
            self._put(key, said.value, said.place)

    def _variables(self) -> None:
        """All but what logs in: `{{ ansible_host }}` in another variable has its meaning here, too."""
        mine: dict[str, Any] = {}
        at: DocPath
        for name, variable in self.said.items():
            if name == "sglang":
                self.settings[name], at = variable.value, (name,)
            elif name in _LOGIN:
                continue
            else:
                mine[name], at = variable.value, ("vars", name)
                if name.startswith("ansible_") and name not in _READ:
                    why = "is not needed" if name.startswith(_NOT_NEEDED) else "says nothing to opsctl"
                    self.notes.append(f"{variable.place}: {name} {why}: it is a variable like others")
            for ours, key, value in variable.places(at):
                self.keys[ours], self.values[ours] = key, value
        if mine:
            self.settings["vars"] = mine
            self.values["vars",] = next(iter(self.said.values())).place

    def _last(self, names: Sequence[str]) -> tuple[str, Variable] | None:
        return next(((name, self.said[name]) for name in reversed(names) if name in self.said), None)

    def _plainly(self, key: str) -> Variable | None:
        """What is said for `key`, templates filled in. Where that cannot be, the host is blocked."""
        found = self._last(_NAMES[key])
        if found is None:
            return None
        name, variable = found
        try:
            value = self._filled(variable.value)
        except LookupError as error:
            self._block(f"{name} of {self.host} {error.args[0]}", variable.place, "write the value itself")
            return None
        if isinstance(value, Secret):
            self._block(f"{name} of {self.host} is a secret that opsctl does not open", variable.place,
                        "only passwords can be secrets: write the value itself")  # fmt: skip
            return None
        if key == "python":
            value = _python(value)
        return Variable(value, variable.place)

    def _block(self, message: str, place: Place, hint: str) -> None:
        hint = f"{hint}; or leave the host out: --host 'all:!{self.host}'"
        self.blocked.append(UsageError(message, where=place, hint=hint))
        self.notes.append(f"{place}: {message}: it cannot be reached")

    def _filled(self, value: Any, deep: int = 0) -> Any:
        """A value with `{{ NAME }}` filled in from the host's variables. Raises LookupError for any other template.

        One that is nothing but a name has the type of what is named.
        """
        if not isinstance(value, str) or not any(sign in value for sign in _SIGNS):
            return value
        if deep > _MOST_DEEP:
            raise LookupError("is defined through itself")
        if whole := _NAME_IN_BRACES.fullmatch(value.strip()):
            return self._named(whole, deep)
        rest = _NAME_IN_BRACES.sub("", value)
        if any(sign in rest for sign in _SIGNS):
            raise LookupError(_NOT_EVALUATED)
        named = [self._named(found, deep) for found in _NAME_IN_BRACES.finditer(value)]
        if any(isinstance(one, Secret) for one in named):
            raise LookupError("has a secret within other text")
        texts = map(str, named)
        return _NAME_IN_BRACES.sub(lambda _: next(texts), value)

    def _named(self, found: re.Match[str], deep: int) -> Any:
        name = found[1]
        if name in self.said:
            value = self.said[name].value
        elif name in self._built_in:
            value = self._built_in[name]
        elif name in ("hostvars", "groups"):
            raise LookupError(_NOT_EVALUATED)
        else:
            vault = f"; it may be in the Ansible vault {self.vaults[0]}, which is not opened" if self.vaults else ""
            raise LookupError(f"refers to {name}, which is not in this inventory{vault}")
        for step in _STEP.findall(found[2]):
            if not isinstance(value, dict) or step not in value:
                raise LookupError(f"refers to {name}{found[2]}, which is not in this inventory")
            value = value[step]
        return self._filled(value, deep + 1)

    def _connection(self) -> None:
        said = self._plainly("connection")
        if said is None:
            return
        kind = str(said.value).removeprefix("ansible.builtin.").removeprefix("ansible.legacy.")
        if kind in _SSH or kind == "local":
            self._put("connection", "local" if kind == "local" else "ssh", said.place)
        else:
            self._block(
                f"ansible_connection of {self.host} is {one_line(kind, 40)}, and opsctl knows ssh and local",
                said.place,
                "reach it by SSH",
            )

    def _become(self) -> None:
        said, user, method = (self._plainly(key) for key in ("become", "become_user", "become_method"))
        if said is None:
            if user is not None:
                self.notes.append(f"{user.place}: ansible_become_user is not used without ansible_become")
            return
        word = str(said.value).strip().lower()
        if word not in (*_TRUE, *_FALSE):
            self.mistakes.append(UsageError(
                f"ansible_become: expected true or false, got {one_line(repr(said.value), 40)}", where=said.place
            ))  # fmt: skip
            return
        if word in _FALSE:
            self._put("become", False, said.place)
            return
        if method and str(method.value).removeprefix("ansible.builtin.") != "sudo":
            self._block(
                f"ansible_become_method of {self.host} is {one_line(str(method.value), 30)}: opsctl knows only sudo",
                method.place,
                "give its user sudo",
            )
        named = user is not None and user.value not in (None, "", "root")
        self._put("become", user.value if user and named else True, user.place if user and named else said.place)

    def _secret(self, key: str, names: Sequence[str]) -> None:
        found = self._last(names)
        if found is None:
            return
        name, variable = found
        value, place = variable.value, variable.place
        if isinstance(value, str) and (env := _FROM_ENV.fullmatch(value.strip())):
            self._put(key, late_secret("!env", [env[1]], place), place)
            return
        try:
            value = self._filled(value)
        except LookupError as error:
            value = _refusing(f"{name} of {self.host} {error.args[0]}", place)
            self.notes.append(f"{place}: {name} {error.args[0]}: it is asked for in vain where it is needed")
        if value not in (None, ""):
            self._put(key, value if isinstance(value, Secret) else str(value), place)

    def _ssh_arguments(self, key: str) -> None:
        """What our settings have a word for; all else is told."""
        said = self._plainly(key)
        if said is None or said.value in (None, ""):
            return
        try:
            words = shlex.split(str(said.value))
        except ValueError as error:
            self.mistakes.append(UsageError(f"{_NAMES[key][0]}: its quotes do not fit: {error}", where=said.place))
            return
        for option, value, shown in _options(words):
            if not self._take_option(option, value, said.place):
                self.notes.append(f"{said.place}: {one_line(shown, 120)} is not used: {_instead(option)}")

    def _take_option(self, option: str, value: str, place: Place) -> bool:
        """Whether an option of ssh is one of our settings. What is said already counts, as in ssh."""
        our: str
        meant: Any
        match option.lower():
            case "proxyjump":
                our, meant = "jump", value.split(",")
            case "proxycommand" if jump := _jump(value):
                our, meant = "jump", [jump]
            case "identityfile":
                self._put("key", [*self.settings.get("key", []), _from_here(value)], place)
                return True
            case "port":
                our, meant = "port", int(value) if value.isdigit() else value
            case "user":
                our, meant = "user", value
            case "configfile":
                our, meant = "ssh_config", _from_here(value)
            case "userknownhostsfile" if value not in ("/dev/null", "none"):
                our, meant = "known_hosts", [_from_here(one) for one in value.split()]
            case "connecttimeout" if value.isdigit():
                our, meant = "timeouts", {"connect": int(value)}
            case _:
                return False
        if our not in self.settings:
            self._put(our, meant, place)
        return True


_LETTERS = {"J": "ProxyJump", "i": "IdentityFile", "p": "Port", "l": "User", "F": "ConfigFile"}
_WITH_VALUE = "BbcDEeFIiJLlmOopPQRSWw"


def _options(words: Sequence[str]) -> list[tuple[str, str, str]]:
    """The options of ssh in `words`: (keyword of ssh_config or the letter with its dash, value, as it is written)."""
    found: list[tuple[str, str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        letter = word[1:2] if word.startswith("-") else ""
        if not letter or letter not in _WITH_VALUE:
            found.append((word, "", word))
            continue
        value = word[2:] or (rest.pop(0) if rest else "")
        shown = f"-{letter} {value}"
        if letter == "o":
            key, _, value = value.strip().replace("=", " ", 1).partition(" ")
            found.append((key, value.strip().strip('"'), shown))
        else:
            found.append((_LETTERS.get(letter, word[:2]), value, shown))
    return found


def _from_here(path: str) -> str:
    """A path as ssh takes it from Ansible: relative to where the command runs, not to the inventory."""
    return path if path.startswith("~") else str(Path.cwd() / path)


def _jump(command: str) -> str | None:
    """The host that a ProxyCommand `ssh -W %h:%p HOST` jumps through, where it says no more than that."""
    try:
        program, *words = shlex.split(command)
    except ValueError:
        return None
    options = _options(words)
    said = {key.lower(): value for key, value, _ in options if value or key.startswith("-")}
    hosts = [key for key, value, _ in options if not value and not key.startswith("-")]
    if Path(program).name != "ssh" or len(hosts) != 1 or said.pop("-w", "") != "%h:%p":
        return None
    if set(said) - {"-q", "port", "user"}:
        return None
    user = f"{said['user']}@" if "user" in said else ""
    port = f":{said['port']}" if "port" in said else ""
    return f"{user}{hosts[0]}{port}"


def _instead(option: str) -> str:
    low = option.lower()
    if low in ("stricthostkeychecking", "userknownhostsfile", "checkhostip"):
        return "host keys are always checked; opsctl inventory trust HOST adds them"
    if low.startswith("control"):
        return "one connection serves a whole run"
    return "say it in ~/.ssh/config"


def _python(value: Any) -> Any:
    """The interpreter that a path or Ansible's word for finding one stands for; None where it is to be found."""
    text = str(value).strip()
    if text.startswith("auto"):
        return None
    return text.removeprefix("/usr/bin/env ").strip()


def _refusing(message: str, place: Place) -> LateSecret:
    def refuse() -> str:
        raise UsageError(message, where=place, hint="say !env NAME, !file PATH or !cmd [...] in an inventory of ours")

    return LateSecret(refuse, "a template", place, True)
