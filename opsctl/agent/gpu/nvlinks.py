"""What ties the GPUs together: NVLinks, the fabric manager, and whether CUDA's driver library starts."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Dict, List, Optional

from opsctl.agent.gpu import smi
from opsctl.agent.process import detached
from opsctl.wire.protocol import Context

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
    systemctl = detached.program("systemctl", env.get("PATH", ""))
    if systemctl is None:
        return None
    shown = detached.run(call, [systemctl, "show", _UNIT, "-p", "LoadState,ActiveState"], seconds, env, 1 << 16)
    said = dict(re.findall(r"^(\w+)=(.*)$", shown.out, re.MULTILINE)) if shown.code == 0 else {}
    if said.get("LoadState") == "not-found":
        return "absent"
    return said.get("ActiveState")


def links(call: Context, env: Dict[str, str], seconds: float) -> Optional[Dict[str, str]]:
    """What `nvidia-smi nvlink` says: `status`, and `errors` where there are links. None where it gives no answer."""
    status = smi.ask(call, ["nvlink", "-s"], seconds, env, 1 << 20)
    if status.code != 0:
        return None
    if "Link " not in status.out:
        return {"status": status.out}
    errors = smi.ask(call, ["nvlink", "-e"], seconds, env, 1 << 20)
    return {"status": status.out, "errors": errors.out if errors.code == 0 else ""}


def cuda(call: Context, env: Dict[str, str], seconds: float, library: str = "libcuda.so.1") -> Dict[str, Any]:
    """Start CUDA's driver library in a child: {code, name, devices}, {code: None} without an answer, or {missing}.

    It is shown all devices, whatever the login's environment hides.
    """
    env = {name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"}
    if not _findable(library, env):  # a child would only find the same
        return {"missing": "CUDA's driver library is not there: %s" % library}
    ran = detached.run(call, [sys.executable, "-I", "-c", _START, library], seconds, env, 1 << 16)
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
