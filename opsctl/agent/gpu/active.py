"""Load the GPUs with what is installed: nvbandwidth, all_reduce_perf, two ranks of torch.distributed. Installs nothing.

One after the other, each in a session of its own with a limit; whatever a test leaves is ended with it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Dict, List, Optional

from opsctl.agent.core import rights
from opsctl.agent.gpu import tools
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.gpu import ActiveTest, Test

RANKS = 2
MIB = 64  # what each rank contributes
# The parent starts the ranks in its own session, so that one signal ends them all.
ALL_REDUCE = """
import datetime, json, os, subprocess, sys, time
ranks, mib, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if len(sys.argv) == 4:
    started = [subprocess.Popen([sys.executable, "-c", os.environ["OPSCTL_TEST"], *sys.argv[1:], str(rank)])
               for rank in range(ranks)]
    sys.exit(max(process.wait() != 0 for process in started))
import torch, torch.distributed as dist
rank = int(sys.argv[4])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method="file://" + meeting, rank=rank, world_size=ranks,
                        timeout=datetime.timedelta(seconds=60))
values = torch.full((mib << 18,), float(rank + 1), device="cuda")
dist.all_reduce(values)
torch.cuda.synchronize()
right = bool((values == ranks * (ranks + 1) / 2).all())
began, rounds = time.monotonic(), 10
for _ in range(rounds):
    dist.all_reduce(values)
torch.cuda.synchronize()
seconds = (time.monotonic() - began) / rounds
if rank == 0:
    print("OPSCTL " + json.dumps({"right": right, "gb_per_s": mib / 953.674 * 2 * (ranks - 1) / ranks / seconds}))
dist.destroy_process_group()
sys.exit(not right)
"""


def run(
    call: Context,
    gpus: int,
    limit: float,
    python: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    programs: Optional[List[str]] = None,
) -> List[ActiveTest]:
    """What each test said, or why it was not run.

    limit: seconds per test. python: the interpreter that serves. env: NCCL's and CUDA's variables of the server. As
    root, a program that belongs to somebody else runs with their rights.
    """
    path = ":".join([*(programs or []), os.environ.get("PATH", os.defpath), "/usr/local/bin", "/usr/local/cuda/bin"])
    around = dict(env or {}, PATH=path)
    copy = "device_to_device_memcpy_read_ce" if gpus > 1 else "host_to_device_memcpy_ce"
    reduce = ["-b", "64M", "-e", "64M", "-g", str(gpus), "-c", "1", "-n", "5"]
    told = [
        _installed(call, "nvbandwidth", ["-t", copy], limit, around),
        _installed(call, "all_reduce_perf", reduce, limit, around),
    ]
    return told + [_torch(call, python, gpus, limit, around)]


def _installed(call: Context, name: Test, words: List[str], limit: float, env: Dict[str, str]) -> ActiveTest:
    program = shutil.which(name, path=env["PATH"])
    if program is None:
        return {"test": name, "missing": "%s is not installed" % name}
    return _told(call, name, [program, *words], limit, env)


def _torch(call: Context, python: Optional[str], gpus: int, limit: float, env: Dict[str, str]) -> ActiveTest:
    if gpus < RANKS:
        return {"test": "torch", "missing": "one GPU: there is nobody to exchange data with"}
    if python is None:
        return {"test": "torch", "missing": "the interpreter that serves is not known: sglang.environment or python"}
    if shutil.which(python) is None:
        return {"test": "torch", "missing": "%s is not there" % python}
    with tempfile.TemporaryDirectory(prefix="opsctl-") as folder:
        words = [python, "-c", ALL_REDUCE, str(RANKS), str(MIB), os.path.join(folder, "meeting")]
        return _told(call, "torch", words, limit, dict(env, OPSCTL_TEST=ALL_REDUCE), folder)


def _told(
    call: Context, test: Test, argv: List[str], limit: float, env: Dict[str, str], folder: Optional[str] = None
) -> ActiveTest:
    """What a test said. `folder`: one that it writes into."""
    try:
        who = rights.of_program(argv[0])
    except AgentError as error:
        return {"test": test, "missing": error.message}
    if folder is not None:
        os.chown(folder, who.uid, who.gid)
    call.progress({"text": "%s runs" % test})
    ran = tools.run(call, [*rights.words(who), *argv], limit, dict(rights.environment(who), **env), 1 << 20)
    return {"test": test, "code": ran.code, "seconds": ran.seconds, "text": ran.out[-65536:]}


CALLS = {"run": run}
