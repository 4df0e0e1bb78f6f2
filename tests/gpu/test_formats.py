"""Shapes of output that no capture here has, written after the tools' own formats; named synthetic for that reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
from pathlib import Path

import pytest

from opsctl.errors import Unreadable
from opsctl.gpu.judge import judge
from opsctl.gpu.read import bundle, capture, klog, smi_text
from opsctl.gpu.settings import Settings
from tests.gpu import take_capture
from tests.gpu.judging import DATA, text_of, verdicts

OLD_TABLE = """\
Mon Jun  3 10:00:00 2019
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.67       Driver Version: 418.67       CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:00:1B.0 Off |                    0 |
| N/A   38C    P0    58W / 300W |  15079MiB / 16130MiB |     93%   E. Process |
+-------------------------------+----------------------+----------------------+
|   1  ERR!                ERR! | 00000000:00:1C.0 Off |                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 16130MiB |     ERR!        ERR! |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0      4242      C   python3                                    15068MiB |
+-----------------------------------------------------------------------------+
"""

WINDOWS_TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 560.94                 Driver Version: 560.94         CUDA Version: 12.6     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                  Driver-Model | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 4090      WDDM  |   00000000:01:00.0  On |                  Off |
|  0%   41C    P8             20W /  450W |    1423MiB /  24564MiB |      2%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A      1528    C+G   C:\\Windows\\explorer.exe                     N/A      |
+-----------------------------------------------------------------------------------------+
"""

V100_TEXT = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Jun  3 10:00:00 2019
Driver Version                            : 418.67
CUDA Version                              : 10.1

Attached GPUs                             : 1
GPU 00000000:00:1B.0
    Product Name                          : Tesla V100-SXM2-16GB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory             : 0
                Total                     : 0
            Double Bit
                Device Memory             : {volatile}
                Total                     : {volatile}
        Aggregate
            Double Bit
                Total                     : {aggregate}
    Processes                             : None
"""


def test_table_of_an_old_driver() -> None:
    reading = smi_text.read_table(OLD_TABLE)
    assert [g.memory_used for g in reading.gpus] == [15079, 0]
    assert reading.gpus[0].processes is not None
    assert reading.gpus[0].processes[0].memory_mib == 15068
    found = verdicts(OLD_TABLE)
    assert found["gpu.lost"] == found["gpu.mode"] == "fail"
    assert found["gpu.leftover"] == "pass"


def test_table_of_windows() -> None:
    """The driver model is no persistence, and processes do not tell their memory."""
    found = verdicts(WINDOWS_TABLE)
    assert found["gpu.persistence"] == found["gpu.leftover"] == "skip"
    assert {"warn", "fail"}.isdisjoint(found.values())


@pytest.mark.parametrize(("volatile", "aggregate", "verdict"), [(0, 0, "pass"), (1, 1, "fail"), (0, 3, "warn")])
def test_double_bit_counters(volatile: int, aggregate: int, verdict: str) -> None:
    text = V100_TEXT.format(volatile=volatile, aggregate=aggregate)
    assert smi_text.read(text).gpus[0].ecc_volatile == volatile
    assert verdicts(text)["ecc.uncorrected"] == verdict


def test_csv_with_the_reasons_as_a_mask() -> None:
    head = "index, uuid, name, clocks_event_reasons.active, remapped_rows.pending, remapped_rows.failure\n"
    row = "0, GPU-00001008-0000-0000-0000-000000001008, NVIDIA H100, {}, {}, No\n"
    assert verdicts(head + row.format("0x0000000000000005", "No"))["gpu.throttle"] == "pass"
    assert verdicts(head + row.format("0x0000000000000088", "No"))["gpu.throttle"] == "fail"
    assert verdicts(head + row.format("0x0000000000000001", "Yes"))["ecc.rows"] == "warn"


def test_listing_and_link_states() -> None:
    listing = "GPU 0: NVIDIA H100 (UUID: GPU-11)\nGPU 1: NVIDIA H100 (UUID: GPU-12)\n"
    assert verdicts(listing)["gpu.count"] == "pass"
    links = "GPU 0: NVIDIA A100 (UUID: GPU-11)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
    answered = {check for check, verdict in verdicts(links).items() if verdict != "skip"}
    assert answered == {"gpu.nvlink", "p2p.config"}


XID = "NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus."
RECORD = json.dumps({"__REALTIME_TIMESTAMP": "1700000000000000", "MESSAGE": XID})


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (XID, None),
        (f"[  388.565288] {XID}", "388.565288"),
        (f"[  388.565288] [   T4242] {XID}", "388.565288"),
        (f"[  +0.000844] {XID}", "+0.000844"),
        (f"[  388.565288 <    0.000844>] {XID}", "388.565288"),
        (f"[Jun24 15:44] {XID}", "Jun24 15:44"),
        (f"[  388.565288] host kernel: {XID}", "388.565288"),
        (f"[  388.565288 <   0.000844 >] host kernel: {XID}", "388.565288"),
        (f"1782315882.123456 host kernel: {XID}", "1782315882.123456"),
        (f"Wed 2026-06-24 15:44:42 UTC host kernel: {XID}", "Wed 2026-06-24 15:44:42 UTC"),
        (f"data: {RECORD}", "2023-11-14T22:13:20+00:00"),
        (json.dumps(json.loads(RECORD), indent="\t").replace('":', '" :'), "2023-11-14T22:13:20+00:00"),
        (f"__REALTIME_TIMESTAMP=1700000000000000\n_TRANSPORT=kernel\nMESSAGE={XID}", "2023-11-14T22:13:20+00:00"),
        (
            f"Wed 2026-06-24 15:44:42.123 UTC [s=1;i=2]\n    _TRANSPORT=kernel\n    MESSAGE={XID}",
            "Wed 2026-06-24 15:44:42.123 UTC",
        ),
        (f"[Wed Jun 24 15:44:42 2026] {XID}", "Wed Jun 24 15:44:42 2026"),
        (f"kern  :err   : [Wed Jun 24 15:44:42 2026] {XID}", "Wed Jun 24 15:44:42 2026"),
        (f"kern  :err   : 2025-01-25T10:34:54,859532+00:00 {XID}", "2025-01-25T10:34:54,859532+00:00"),
        (f"2025-01-25T10:34:54+0000 host kernel: {XID}", "2025-01-25T10:34:54+0000"),
        (f"2025-01-25T10:34:54.123456+01:00 host kernel: [  12.3] {XID}", "2025-01-25T10:34:54.123456+01:00"),
        (f"Mar  9 15:38:59 host kernel: {XID}", "Mar  9 15:38:59"),
        (f"<3>[   12.000001] {XID}", "12.000001"),
        (f"3,1234,5678901,-;{XID}", "5.678901"),
        (RECORD, "2023-11-14T22:13:20+00:00"),
    ],
)
def test_fronts_of_kernel_lines(line: str, time: str | None) -> None:
    (event,) = klog.read(line + "\n").events
    assert (event.xid, event.text, event.time) == (79, XID, time)
    assert klog.looks_like(line)


def test_bundle_of_one_host(tmp_path: Path) -> None:
    """Members are told apart by content, whatever they are called; what is unknown in an archive is passed over."""
    archive = tmp_path / "host.tar.gz"
    members = {
        "h/a": text_of("k8s-test-infra/hardware/qx-h100.xml"),
        "h/b": f"[ 1.5] {XID}\n",
        "h/c": text_of("gpud/os/file-nr"),
        "h/readme": "a text about something else\n",
        "h/inner.gz": "not unpacked",
    }
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    ((_, evidence),) = capture.hosts(bundle.members([archive]))
    assert len(evidence.readings[0].gpus) == 8
    assert evidence.kernel is not None
    assert evidence.kernel.events[0].xid == 79
    assert evidence.host.fd_max == 1000000


@pytest.mark.parametrize("damage", [b"\x1f\x8b\x08\x00broken", b"PK\x03\x04broken", b"\x28\xb5\x2f\xfdbroken"])
def test_damaged_archives_are_told(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "x").write_bytes(damage)
    with pytest.raises(Unreadable):
        list(bundle.members([tmp_path / "x"]))


def test_everything_in_the_data_folder_is_recognised() -> None:
    for path in (p for p in DATA.rglob("*") if p.is_file() and p.suffix not in (".md", ".txt", ".json")):
        assert capture.read(path.read_text(errors="replace"), path.name) is not None, path.name


def test_a_new_capture_names_nobody() -> None:
    uuid = "GPU-0a1b2c3d-1111-2222-3333-0123456789ab"
    text = (
        f"<serial>1652922001234</serial><uuid>{uuid}</uuid><pdi>0xdeadbeef12345678</pdi><board_id>N/A</board_id>"
        "<process_name>/home/jane/run --token hf_secret</process_name>\n"
        f"2025-01-01T00:00:00+0000 node7 kernel: NVRM: GPU at PCI: {uuid}\n"
    )
    found = take_capture.masked(text)
    for secret in ("1652922001234", uuid, "deadbeef", "jane", "node7", "hf_secret"):
        assert secret not in found
    assert len(set(re.findall(r"GPU-[0-9a-f-]{36}", found))) == 1
    assert "<board_id>N/A</board_id>" in found


def test_what_a_terminal_puts_around_an_answer_does_not_hide_it() -> None:
    """A prompt before, a warning and kernel lines after: all of it is about the host."""
    xml = text_of("k8s-test-infra/hardware/qx-h100.xml")
    log = "[ 12.5] NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.\n"
    found = verdicts(f"root@n1:~# nvidia-smi -q -x\n{xml}\nroot@n1:~# dmesg\n{log}")
    assert found["gpu.count"] == found["ecc.rows"] == "pass"
    assert found["klog.xid"] == "fail"
    table = text_of("gpud/nvidia-smi-text/nvidia-smi.550.90.07.out.0.valid")
    assert verdicts(f"{table}\n{log}")["klog.xid"] == "fail"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_encodings_line_ends_and_packing(encoding: str, tmp_path: Path) -> None:
    text = text_of("gpud/nvidia-smi-text/nvidia-smi-query.560.35.03.out.0.valid")
    right = verdicts(text)
    for packed, ends in ((bytes, "\r\n"), (gzip.compress, "\r"), (lzma.compress, "\n"), (bz2.compress, "\r\n")):
        target = tmp_path / "capture.png"
        target.write_bytes(packed(text.replace("\n", ends).encode(encoding)))
        ((_, evidence),) = capture.hosts(bundle.members([target]))
        by_check = judge("h", evidence, Settings()).by_check
        assert {check: r.verdict.value for check, r in by_check.items()} == right
