"""Record the GPU state of this machine as a capture for the tests: `make capture-gpu`.

Asks through the agent on a local connection, as `opsctl health --host localhost` does, and masks what names the
machine or its owner. Read the files before publishing them.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

from opsctl.gpu.judge import judge
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted
from opsctl.remote.host import connect
from opsctl.remote.spec import ConnectionSpec
from opsctl.report.health import show

TARGET = Path(__file__).parent.parent / "data" / "gpu" / "own"
_TAGS = ("serial", "pdi", "board_id", "chassis_serial_number", "gpu_fabric_guid", "clusterUuid")
_SPLIT = "\n\0\n"


def masked(text: str) -> str:
    """`text` with serial numbers, UUIDs, user and host names replaced; the same value always by the same one."""
    seen: dict[str, str] = {}

    def number(value: str) -> str:
        return seen.setdefault(value.lower(), f"{len(seen) + 1:012d}")

    for tag in _TAGS:
        text = re.sub(
            rf"(<{tag}>)([0-9A-Za-z-]{{2,}})(</{tag}>)",
            lambda m: m[0] if m[2] == "N/A" else f"{m[1]}{_shaped(m[2], number(m[2]))}{m[3]}",
            text,
        )
    text = re.sub(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", lambda m: _shaped(m[0], number(m[0])), text)
    text = re.sub(r"(Serial Number: )(\S+)", lambda m: m[1] + number(m[2]), text)
    text = re.sub(r"/home/[^/\s<]+", "/home/user", text)
    text = re.sub(r"(<process_name>[^\s<]*) [^<]*", r"\1", text)  # arguments hold names, paths and keys
    text = re.sub(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w-])", "host", text)
    return re.sub(r"(?m)^(\S+ )\S+( kernel: )", r"\1host\2", text)


def _shaped(value: str, number: str) -> str:
    """The number in the shape of the value, so that readers see what they expect."""
    if value.startswith("GPU-"):
        return f"GPU-{number[-8:]}-0000-0000-0000-{number}"
    return f"0x{number}" if value.startswith("0x") else number


def main() -> int:
    with connect(ConnectionSpec("localhost", "local")) as host:
        found = host.call(gathered.ask(Wanted()), timeout=Wanted().seconds).result
    evidence = gathered.evidence(found, Wanted())
    show([judge("localhost", evidence, Wanted().settings)])
    text = (found.get("smi") or {}).get("text")
    if not text or not evidence.readings:
        print("no reading of nvidia-smi on this machine: nothing written", file=sys.stderr)
        return 1
    reading = evidence.readings[0]
    name = re.sub(r"[^a-z0-9]+", "-", f"{len(reading.gpus)}x-{reading.gpus[0].name}-{reading.driver}".lower())
    folder = TARGET / name
    folder.mkdir(parents=True, exist_ok=True)
    # Masked as one, so that the same GPU has the same name in both.
    smi, _, klog = masked(text + _SPLIT + (found.get("klog") or {}).get("text", "")).partition(_SPLIT)
    (folder / "smi.xml").write_text(smi)
    (folder / "klog.txt").write_text(klog)
    print(f"written to {folder}: read it, then add its verdicts to expected.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
