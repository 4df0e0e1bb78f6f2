"""Gather what `opsctl health` judges: one call, its sections side by side, each with its own limit.

It changes nothing. CUDA's driver library is started in a child, which takes no memory on any GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, cast

from opsctl.agent.core import durable
from opsctl.agent.gpu import process_table, surroundings, tools
from opsctl.agent.process import pids
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.gpu import Gathered, KernelLog, ProcessEntry, ServerRecord, Smi

QUICK = 10.0  # seconds for a program that normally answers at once
LAST_BREATH = 10.0  # seconds that a killed process is given: to free hundreds of GiB takes some
_CLOCKS = re.compile(r"[ \t]*<supported_clocks>.*?</supported_clocks>\s*?\n", re.DOTALL)
_SHOWN = (
    "Id,LoadState,ActiveState,SubState,Result,NRestarts,KillMode,MainPID,ControlGroup,User,"
    "ActiveEnterTimestampMonotonic,Environment"
)
_ENVIRONMENT = re.compile(r"^Environment=.*\n?", re.MULTILINE)
_KERNEL_LOG = (
    ["journalctl", "-k", "-b", "-o", "short-iso", "--no-pager", "-q"],
    ["dmesg", "--time-format", "iso"],
    ["dmesg"],
)

Json = Dict[str, Any]


def gather(
    call: Context,
    keep: str = ".",
    limit: float = 25.0,
    root: str = "/",
    path: Optional[str] = None,
    programs: Optional[List[str]] = None,
    quick: float = 5.0,
    cuda: float = 30.0,
    folders: Optional[List[str]] = None,
    weights: Optional[str] = None,
    unit: Optional[str] = None,
    user_unit: bool = False,
    port: Optional[int] = None,
    container: Optional[str] = None,
    servers: Optional[List[ServerRecord]] = None,
) -> Gathered:
    """Facts about this host, as texts and numbers; the judging is done elsewhere.

    keep: pattern of the kernel lines worth sending. limit: seconds for nvidia-smi; after an answer within `quick`
    seconds it is asked for peers and NVLinks too, and CUDA is started, for which it has `cuda` seconds. root: where
    the host's file system is mounted. programs: folders that come before PATH, which `path` replaces. servers: records
    of our servers (cgroup, sid, main_pid), to know whose a process is.
    """
    env = tools.environment(programs or (), path)
    began, now = time.monotonic(), time.time()
    # The command line of a process that is stuck with its memory locked cannot be read: who tries is stuck as well.
    seen = _side_by_side({"table": lambda: process_table.table(root)}, QUICK)
    entries: Optional[List[process_table.Entry]] = seen.get("table")
    stuck = tools.stuck(root, None if entries is None else [entry.process for entry in entries])
    names = [entry.process.name for entry in entries or []]
    tasks: Dict[str, Callable[[], Any]] = {
        "smi": lambda: _smi(call, env, limit, stuck, quick, cuda if root == "/" else 0.0),
        "manager": lambda: manager(call, env, QUICK, names),
        "klog": lambda: _kernel_log(call, env, keep),
        "pci": lambda: surroundings.devices(root),
        "host": lambda: surroundings.facts(root, folders or ["/", "/tmp"]),
        "module": lambda: _line(call, env, ["modinfo", "-F", "version", "nvidia"]),
        "persistenced": lambda: _line(call, env, ["systemctl", "is-active", "nvidia-persistenced"]),
        "ntp": lambda: _line(call, env, ["timedatectl", "show", "-p", "NTPSynchronized", "--value"]),
    }
    if unit:
        tasks["unit"] = lambda: _answer(
            call, env, ["systemctl"] + (["--user"] if user_unit else []) + ["show", unit, "-p", _SHOWN]
        )
    if container:
        inspect = ["docker", "inspect", "-f", "{{.Id}} {{.State.Pid}}", container]
        tasks["container"] = lambda: _line(call, env, inspect)
    if port:
        tasks["listeners"] = lambda: _answer(call, env, ["ss", "-Hltnp", "sport = :%d" % port])
        tasks["endpoint"] = lambda: surroundings.endpoint(port, 30.0)
    if weights:
        tasks["weights"] = lambda: surroundings.weights(root, weights)
    longest = max(limit, 35.0 if port else 0.0, 2 * QUICK, quick + max(2 * quick, cuda if root == "/" else 0.0))
    found = cast("Gathered", _side_by_side(tasks, longest + 2 * tools.GRACE + 1.0))
    if "host" in found:
        found["host"]["now"] = now  # before anything that may hang: it is compared with the asker's clock
    said: Smi = found.get("smi") or {"timed_out": True, "seconds": limit}
    found["smi"] = said
    looks = surroundings.generations(root, surroundings.slow_at_work(said.get("text", "")))
    for device in found.get("pci") or []:
        device["generations"] = looks.get(device["bus_id"], [])
    server = _server_pid(found)
    found["p2p_disabled"] = _p2p_disabled(root, found.get("unit") or "", server)
    shown = found.get("unit")
    if shown:
        found["unit"] = _ENVIRONMENT.sub("", shown)  # may hold keys: it stays on the host
    if server:
        found["limits"] = surroundings.limits(root, server)
    found["server_uid"] = _server_uid(found.get("unit"), user_unit)
    found["servers"] = (servers or []) + (_started_here() if root == "/" else [])
    if entries is not None:
        found["processes"] = _processes(entries, said, _servers(found, found["servers"]), server, root)
    found["seconds"] = time.monotonic() - began
    return found


def _side_by_side(tasks: Dict[str, Callable[[], Any]], seconds: float) -> Json:
    """The results of the tasks that ended in time. A thread that hangs is left: it is a daemon and holds nothing."""
    results: Json = {}
    errors: Json = {}

    def do(name: str, task: Callable[[], Any]) -> None:
        try:
            results[name] = task()
        except Exception as error:  # noqa: BLE001  one section must not take the others with it; it is reported
            errors[name] = "%s: %s" % (type(error).__name__, error)

    threads = [threading.Thread(target=do, args=item, daemon=True) for item in tasks.items()]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = {name: "no answer in time" for name in tasks if name not in results and name not in errors}
    return dict(results, errors=dict(errors, **late))


def _smi(call: Context, env: Dict[str, str], limit: float, stuck: List[int], quick: float, cuda: float) -> Smi:
    """nvidia-smi, and after a quick answer what else asks the driver. While one hangs in the kernel all would hang."""
    if stuck:
        return {"stuck": stuck}
    ran = tools.smi(call, ["-q", "-x"], limit, env)
    if ran.code is None:
        return {"missing": True} if ran.missing else {"timed_out": True, "seconds": ran.seconds}
    said: Smi = {"code": ran.code, "seconds": ran.seconds, "text": _CLOCKS.sub("", ran.out)}
    if ran.code == 0 and ran.seconds <= quick and "<gpu id=" in ran.out:
        more: Dict[str, Callable[[], Any]] = {
            "links": lambda: links(call, env, quick),
            "cuda": lambda: (
                start_cuda(call, env, cuda) if cuda else {"missing": "the host is seen through another root"}
            ),
        }
        if ran.out.count("<gpu id=") > 1:
            more["p2p"] = lambda: _peers(call, env, quick)
        answers = _side_by_side(more, max(2 * quick, cuda) + 2 * tools.GRACE)
        said["links"], said["cuda"] = answers.get("links"), answers.get("cuda")
        if "p2p" in more:
            said["p2p"] = answers.get("p2p")
    return said


def _peers(call: Context, env: Dict[str, str], quick: float) -> Optional[str]:
    """The matrix of peer access, None where nvidia-smi gives none."""
    ran = tools.smi(call, ["topo", "-p2p", "r"], quick, env, 1 << 20)
    return ran.out if ran.code == 0 else None


def _p2p_disabled(root: str, unit: str, server: Optional[int]) -> bool:
    """Whether NCCL is told to do without peer access, in the unit or in the running server's environment."""
    words = re.split(r"[\s=](?=NCCL_)|\s", " ".join(_ENVIRONMENT.findall(unit)))
    running = pids.environment(server, root) if server else None
    return (running or {}).get("NCCL_P2P_DISABLE") == "1" or any(
        word.strip("\"'") == "NCCL_P2P_DISABLE=1" for word in words
    )


def _kernel_log(call: Context, env: Dict[str, str], keep: str) -> KernelLog:
    """The worthwhile lines of this boot, from the first source that may be read."""
    worth = re.compile(keep + "|Linux version|suppressed|Suppressed|dropped")
    refused = False
    for argv in _KERNEL_LOG:
        program = tools.program(argv[0], env.get("PATH", os.defpath))
        if program is None:
            continue
        ran = tools.run(call, [program] + argv[1:], QUICK, env)
        lines = ran.out.splitlines()
        refused = refused or bool(re.search(r"not permitted|[Pp]ermission denied", ran.out[:2000]))
        if ran.code == 0 and any(line and not line.startswith("-- ") for line in lines):
            kept = [line for line in lines if worth.search(line)]
            return {"source": argv[0], "lines": len(lines), "text": "\n".join(kept)}
    return {"unreadable": "no permission to read the kernel log" if refused else "no kernel log can be read"}


def _started_here() -> List[ServerRecord]:
    """Our records of what we started in sessions of their own; adopted processes may share theirs with a shell."""
    folder = os.path.join(durable.base(), "processes")  # looked at only: nothing is made on the host
    with contextlib.suppress(AgentError):  # where others can write, no record proves anything
        durable.demand_safe(folder)
        return _recorded(folder)
    return []


def _recorded(folder: str) -> List[ServerRecord]:
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json")) if os.path.isdir(folder) else []
    found: List[ServerRecord] = []
    for name in names:
        try:
            record = durable.read_json(os.path.join(folder, name)) or {}
            if record.get("sid") and "group" not in record:
                found.append(
                    {
                        "name": record["name"],
                        "main_pid": record["pid"],
                        "sid": record["sid"],
                        "uid": record["uid"],
                        "ticks": record["start"],
                        "boot_id": record["boot"],
                    }
                )
        except (OSError, KeyError, AgentError):
            continue  # a damaged record proves nothing: what it was about is judged as foreign
    return found


def _processes(
    entries: List[process_table.Entry], smi_said: Smi, servers: List[Json], server: Optional[int], root: str
) -> List[ProcessEntry]:
    named = {int(pid) for pid in re.findall(r"<pid>(\d+)</pid>", smi_said.get("text", ""))}
    if server:
        named.add(server)
    kept = process_table.interesting(root, entries, named, servers)
    lasting = _outlive(root, {e["pid"] for e in kept if e["kill_pending"]})
    for e in kept:
        e["stays_in_d"] = e["state"] == "D" and tools.in_kernel(e["pid"], root)
        e["kill_pending"] = e["pid"] in lasting
    return kept


def _outlive(root: str, killed: Set[int]) -> Set[int]:
    """Those of the `killed` that are still there, with the signal pending, when others would long be gone."""
    until = time.monotonic() + LAST_BREATH
    while True:
        seen = {pid: process_table.look(root, pid) for pid in killed}
        killed = {pid for pid, now in seen.items() if now and now["kill_pending"] and now["state"] != "Z"}
        if not killed or time.monotonic() >= until:
            return killed
        time.sleep(0.2)


def _servers(found: Gathered, known: List[ServerRecord]) -> List[Json]:
    """The servers whose processes are to be sent: those named, the unit's and the container's."""
    group = re.search(r"^ControlGroup=(/.+)$", found.get("unit") or "", re.MULTILINE)
    container = (found.get("container") or "").split()
    return (
        cast("List[Json]", known)
        + ([{"cgroup": group.group(1), "main_pid": _server_pid(found)}] if group else [])
        + ([{"container": container[0], "main_pid": int(container[1])}] if len(container) == 2 else [])
    )


def _server_pid(found: Gathered) -> Optional[int]:
    match = re.search(r"^MainPID=([1-9]\d*)$", found.get("unit") or "", re.MULTILINE)
    return int(match.group(1)) if match else None


def _server_uid(unit: Optional[str], user_unit: bool) -> Optional[int]:
    """Whose the unit's processes are, also while none runs; None without a unit or for an unknown name."""
    if not unit or "LoadState=not-found" in unit:
        return None
    name = re.search(r"^User=(\S+)$", unit, re.MULTILINE)
    if user_unit or name is None:
        return os.geteuid() if user_unit else 0
    with contextlib.suppress(KeyError):
        return int(name.group(1)) if name.group(1).isdigit() else pwd.getpwnam(name.group(1)).pw_uid
    return None


def _line(call: Context, env: Dict[str, str], argv: List[str]) -> Optional[str]:
    text = _answer(call, env, argv)
    return text.strip().splitlines()[0] if text and text.strip() else None


def _answer(call: Context, env: Dict[str, str], argv: List[str]) -> Optional[str]:
    """What a program says; None when it is missing or hangs. `is-active` answers with a code of its own."""
    program = tools.program(argv[0], env.get("PATH", os.defpath))
    if program is None:
        return None
    ran = tools.run(call, [program] + argv[1:], QUICK, env, 1 << 20)
    usable = ran.code == 0 or (argv[1] == "is-active" and ran.code is not None)
    return ran.out if usable else None


# The comm of a process holds 15 characters.
MANAGER = "nv-fabricmanage"
_UNIT = "nvidia-fabricmanager"

# cuInit takes no memory on any GPU. The numbers are CUresult's, cuda.h.
_START = """
import ctypes, json, sys
try:
    cuda = ctypes.CDLL(sys.argv[1])
except OSError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit()
code = cuda.cuInit(0)
name, count = ctypes.c_char_p(), ctypes.c_int()
if hasattr(cuda, "cuGetErrorName"):
    cuda.cuGetErrorName(code, ctypes.byref(name))
told = {"code": code, "name": (name.value or b"").decode("ascii", "replace")}
if code == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    told["devices"] = count.value
print(json.dumps(told))
"""


def manager(call: Context, env: Dict[str, str], seconds: float, programs: List[str]) -> Optional[str]:
    """The state of the fabric manager: active, failed, inactive, or absent; None where nobody can say.

    programs: names of the processes that run, since a container may run it.
    """
    if MANAGER in programs:
        return "active"
    systemctl = tools.program("systemctl", env.get("PATH", ""))
    if systemctl is None:
        return None
    shown = tools.run(call, [systemctl, "show", _UNIT, "-p", "LoadState,ActiveState"], seconds, env, 1 << 16)
    said = dict(re.findall(r"^(\w+)=(.*)$", shown.out, re.MULTILINE)) if shown.code == 0 else {}
    if said.get("LoadState") == "not-found":
        return "absent"
    return said.get("ActiveState")


def links(call: Context, env: Dict[str, str], seconds: float) -> Optional[Dict[str, str]]:
    """What `nvidia-smi nvlink` says: `status`, and `errors` where there are links. None where it gives no answer."""
    status = tools.smi(call, ["nvlink", "-s"], seconds, env, 1 << 20)
    if status.code != 0:
        return None
    if "Link " not in status.out:
        return {"status": status.out}
    errors = tools.smi(call, ["nvlink", "-e"], seconds, env, 1 << 20)
    return {"status": status.out, "errors": errors.out if errors.code == 0 else ""}


def start_cuda(call: Context, env: Dict[str, str], seconds: float, library: str = "libcuda.so.1") -> Dict[str, Any]:
    """Start CUDA's driver library in a child: {code, name, devices}, {code: None} without an answer, or {missing}.

    It is shown all devices, whatever the login's environment hides.
    """
    env = {name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"}
    if not _findable(library, env):  # a child would only find the same
        return {"missing": "CUDA's driver library is not there: %s" % library}
    ran = tools.run(call, [sys.executable, "-I", "-c", _START, library], seconds, env, 1 << 16)
    if ran.code is None:
        return {"code": None}
    try:
        said = json.loads(ran.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"missing": "cuInit ended its process with code %d" % ran.code}
    if "missing" in said:
        return {"missing": "CUDA's driver library is not there: %s" % said["missing"]}
    return dict(said)


def _findable(library: str, env: Dict[str, str]) -> bool:
    """Whether the dynamic linker could find a library: by its path, in its cache, or in a folder that it looks into."""
    if os.path.isabs(library):
        return os.path.exists(library)
    folders = [*env.get("LD_LIBRARY_PATH", "").split(":"), "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    if any(folder and os.path.exists(os.path.join(folder, library)) for folder in folders):
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            return library.encode() in cache.read()
    except OSError:
        return True  # a system without that cache: let the linker say


CALLS = {"gather": gather}
