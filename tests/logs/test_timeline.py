# ruff: noqa: E501  log lines stay in one piece
"""The timeline of real and composed logs; expected values were read off the logs by eye."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from opsctl.sglang.logs import log_lines
from opsctl.sglang.logs.timeline import build, document, scan_files
from opsctl.wire.log_scan import Scanner
from tests.commands import opsctl
from tests.logs.releases import WORDINGS, Wording, log

DATA = Path(__file__).parent.parent / "data" / "logs"


def summary(text: str | bytes, sizes: tuple[int, ...] = (1 << 20,)) -> dict[str, Any]:
    data = text.encode() if isinstance(text, str) else text
    scanner, at, i = Scanner(), 0, 0
    while at < len(data):
        scanner.feed(data[at : at + sizes[i % len(sizes)]])
        at += sizes[i % len(sizes)]
        i += 1
    return document(build(scanner.finish()))


def of_file(path: Path) -> dict[str, Any]:
    return document(build(scan_files([path])))


# name, version, at, ready_at, ended, end_reason, decode lines, mean accept length, kind of the first error
REAL = [
    ("0.5.9-llama-good", "0.5.9", "12:56:45", "12:57:01", "12:57:16", "stopped", 1, 4.0, None),
    ("0.5.9-llama-layers0", "0.5.9", "12:57:27", "12:57:46", "12:58:07", "stopped", 3, 1.9167, None),
    ("0.5.9-llama-absolute-d2t", "0.5.9", "13:00:28", "13:00:41", "13:00:48", "crashed", 0, None, "index_out_of_range"),
    ("0.5.9-k25-good-stock", "0.5.9", "13:12:09", None, "13:12:16", "crashed", 0, None, "missing_method"),
    ("0.5.9-llama-none", "0.5.9", "13:01:22", "13:01:29", "13:01:35", "stopped", 5, None, None),
    ("0.5.23-llama-good", "0.5.23", "13:01:43", "13:01:52", "13:02:05", "stopped", 1, 4.0, None),
    (
        "0.5.23-llama-absolute-d2t",
        "0.5.23",
        "13:04:11",
        "13:04:19",
        "13:04:24",
        "crashed",
        0,
        None,
        "index_out_of_range",
    ),
    ("0.5.23-k25-good", "0.5.23", "13:10:48", "13:11:01", "13:11:10", "stopped", 1, 4.0, None),
    ("0.5.23-llama-none", "0.5.23", "13:13:28", "13:13:36", "13:13:37", "stopped", 5, None, None),
]


@pytest.mark.parametrize("case", REAL, ids=lambda case: case[0])
def test_a_real_log(case: tuple[Any, ...]) -> None:
    name, version, at, ready_at, ended, reason, lines, accept, kind = case
    found = of_file(DATA / f"{name}.log")
    (start,) = found["starts"]
    day = "2026-11-29 "
    assert found["version"] == version
    assert (start["at"], start["ended"], start["end_reason"]) == (day + at, day + ended, reason)
    assert start["ready_at"] == (ready_at and day + ready_at)
    assert found["decode"]["lines"] == lines
    assert found["decode"]["accept_length"]["mean"] == accept
    assert (found["first_error"] or {}).get("kind") == kind
    assert start["flags"]["tp_size"] == 1
    assert start["flags"]["speculative_algorithm"] == (None if name.endswith("none") else "EAGLE3")


def test_the_missing_method_is_named_with_its_place_and_its_remedy() -> None:
    error = of_file(DATA / "0.5.9-k25-good-stock.log")["first_error"]
    assert error["at"] == "2026-11-29 13:12:16"
    assert error["message"].startswith("AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute")
    assert error["where"] == "sglang/srt/model_executor/model_runner.py:622"
    assert "opsctl patch sglang" in error["cause"]


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda w: w.release)
def test_the_wording_of_every_release(wording: Wording) -> None:
    found = summary(log(wording))
    (start,) = found["starts"]
    phases = {p["name"]: (p["begin"], p["seconds"]) for p in start["phases"]}
    elapsed = "elapsed=" in wording.load_end
    assert found["version"] == wording.version
    assert start["ready_at"] == "2026-02-08 03:04:30"
    assert start["ended"] is None
    assert phases["init_distributed"] == ("2026-02-08 03:00:10", 4.21 if elapsed else 4.0)
    assert phases["load_weights"] == ("2026-02-08 03:00:14", 152.31 if elapsed else 152.0)
    assert phases["memory_pool"] == ("2026-02-08 03:02:46", 2.0)
    assert phases["load_weights_draft"] == ("2026-02-08 03:03:22", 2.05 if elapsed else 2.0)
    graphs = [seconds for name, (_, seconds) in phases.items() if name.startswith("capture_graphs")]
    assert graphs == [31.25, 11.42]
    assert phases["warmup"] == ("2026-02-08 03:03:41", 49.0)
    assert found["decode"]["accept_length"] == {"mean": 3.0, "last": 3.29, "min": 2.71, "max": 3.29}
    assert found["decode"]["throughput"] == {"mean": 130.0, "max": 141.6}
    assert found["decode"]["lines"] == 2
    assert set(found["ranks"]) == {f"TP{rank}" for rank in range(8)}


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_how_the_log_is_cut_into_blocks_changes_nothing(sizes: list[int]) -> None:
    text = log(WORDINGS[-1], ranks=2, flags=True)
    assert summary(text, tuple(sizes)) == summary(text)


def test_a_line_that_looks_wrapped_a_thousand_times_is_read() -> None:
    found = summary("web | " * 5000 + "\n" + log(WORDINGS[-1], flags=True))
    assert found["starts"] == summary(log(WORDINGS[-1], flags=True))["starts"]


def test_a_key_in_the_flags_is_masked() -> None:
    found = summary(log(WORDINGS[4], flags=True))
    assert "abcd1234secret" not in json.dumps(found)
    assert found["starts"][0]["flags"]["api_key"].startswith("[REDACTED/")
    assert found["starts"][0]["flags"]["tp_size"] == 8


TRACE = (
    "[2026-02-08 03:20:00 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 3130, in run_scheduler_process\n'
    "    scheduler.event_loop_normal()\n"
    '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 12, in f\n'
    "{error}\n\n"
)
END = "[2026-02-08 03:20:01] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
XID = "Feb 08 03:20:00 gpu1 kernel: NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
OOM_KILL = (
    "[Sun Feb  8 03:20:00 2026] Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB, anon-rss:2kB\n"
)

# what is written after a start that is ready -> kind, rank, part of the message
LATER = [
    (TRACE.format(rank=3, error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 3 has") + END, "cuda_out_of_memory", "TP3", "Tried to allocate"),
    (TRACE.format(rank=1, error="RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported") + END, "cuda", "TP1", "illegal memory"),
    (TRACE.format(rank=0, error="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited") + TRACE.format(rank=5, error="torch.OutOfMemoryError: CUDA out of memory.") + END, "cuda_out_of_memory", "TP5", "out of memory"),
    ("[rank3]:[E208 03:20:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n" + END, "nccl_timeout", None, "collective operation timeout"),
    ("[2026-02-08 03:20:00 TP3] Watchdog timeout (self.watchdog_timeout=300)\n" + END, "watchdog", "TP3", "watchdog_timeout=300"),
    ("[2026-02-08 03:20:00 TP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n" + END, "watchdog", "TP3", "soft=False"),
    (XID + TRACE.format(rank=2, error="RuntimeError: CUDA error: unspecified launch failure") + END, "xid", None, "79"),
    (OOM_KILL + "[2026-02-08 03:20:01] Subprocess scheduler_3 (pid=4711) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n" + END, "host_out_of_memory", None, "4711"),
    ("Feb 08 03:20:00 gpu1 systemd[1]: sglang.service: Main process exited, code=killed, status=9/KILL\n", "killed", None, "status=9/KILL"),
    ("../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [1,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n" + TRACE.format(rank=0, error="RuntimeError: CUDA error: device-side assert triggered") + END, "index_out_of_range", None, "srcIndex"),
    (TRACE.format(rank=0, error="triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376.") + END, "shared_memory", "TP0", "106496"),
]  # fmt: skip


@pytest.mark.parametrize("case", LATER, ids=lambda case: case[1])
def test_the_first_error_of_a_server_that_served(case: tuple[str, str, str | None, str]) -> None:
    text, kind, rank, part = case
    found = summary(log(WORDINGS[4]) + text)
    error = found["first_error"]
    assert (error["kind"], error["rank"]) == (kind, rank)
    assert part in error["message"]
    assert error["at"] is not None
    assert found["starts"][0]["end_reason"] in ("crashed", "killed")


# what is written by a server that never gets ready -> kind, part of the cause
EARLY = [
    ("Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nValueError: User-specified context_length (300000) is greater than the derived context_length (262144).\n", "context_length", "--context-length"),
    ("Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nOSError: [Errno 98] Address already in use\n", "port_in_use", "taken"),
    ("[2026-02-08 03:03:42] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use\n", "port_in_use", "taken"),
    (TRACE.format(rank=0, error="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.7") + "[2026-02-08 03:20:00] Received sigquit from a child process. It usually means the child failed.\n", "not_enough_memory", "--mem-fraction-static"),
]  # fmt: skip


@pytest.mark.parametrize("case", EARLY, ids=lambda case: case[1])
def test_the_first_error_of_a_server_that_never_served(case: tuple[str, str, str]) -> None:
    text, kind, part = case
    found = summary(log(WORDINGS[4], ready=False) + text)
    assert found["first_error"]["kind"] == kind
    assert part in found["first_error"]["cause"]
    assert found["starts"][0]["ready_at"] is None


def test_refused_flags_leave_no_start_but_an_error() -> None:
    found = summary(
        "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --speculative-foo 3\n"
    )
    assert found["starts"] == []
    assert found["first_error"]["kind"] == "bad_arguments"


def test_a_chain_of_exceptions_is_told_from_its_root() -> None:
    chain = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/v/sglang/srt/model_executor/cuda_graph_runner.py", line 370, in __init__\n'
        "    raise Exception(\n"
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.\n"
        "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
    )
    error = summary(log(WORDINGS[4], ready=False) + TRACE.format(rank=7, error=chain) + END)["first_error"]
    assert error["chain"] == [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.",
    ]
    assert (error["kind"], error["rank"]) == ("cuda_out_of_memory", "TP7")
    assert error["where"] == "sglang/srt/model_executor/cuda_graph_runner.py:370"
    assert error["cause"].startswith("torch.OutOfMemoryError")


def test_tracebacks_of_two_ranks_that_ran_into_each_other() -> None:
    one = TRACE.format(rank=1, error="torch.OutOfMemoryError: CUDA out of memory.").splitlines()
    two = TRACE.format(rank=2, error="torch.OutOfMemoryError: CUDA out of memory.").splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair) + "\n"
    found = summary(log(WORDINGS[4]) + mixed + END)
    assert found["first_error"]["rank"] == "TP1"
    assert found["first_error"]["chain"] == ["torch.OutOfMemoryError: CUDA out of memory."]


def test_restarts_and_a_crash_loop() -> None:
    crash = TRACE.format(rank=0, error="torch.OutOfMemoryError: CUDA out of memory.") + END
    once = log(WORDINGS[4], ranks=1, flags=True, ready=False) + crash
    found = summary(once * 4)
    assert [s["end_reason"] for s in found["starts"]] == ["crashed"] * 4
    assert "crash_loop" in {e["kind"] for e in found["events"]}
    assert found["starts"][1]["at"] == "2026-02-08 03:00:00"


def test_a_server_that_was_killed_without_a_word_has_vanished() -> None:
    life = log(WORDINGS[4], ranks=1, flags=True)
    found = summary(life + life.replace("2026-02-08", "2026-02-09"))
    assert [s["end_reason"] for s in found["starts"]] == ["vanished", None]
    assert found["starts"][0]["ended"] == "2026-02-08 03:12:45"


def test_what_goes_wrong_while_it_stops_is_no_error() -> None:
    stop = "[2026-02-08 03:20:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    late = TRACE.format(rank=0, error="zmq.error.ZMQError: Socket operation on non-socket")
    killed = "[2026-02-08 03:20:01] Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
    found = summary(log(WORDINGS[4]) + stop + late + killed + END)
    assert found["first_error"] is None
    assert found["starts"][0]["end_reason"] == "stopped"


def test_an_interrupt_from_the_keyboard_is_a_stop() -> None:
    found = summary(log(WORDINGS[4]) + TRACE.format(rank=0, error="KeyboardInterrupt"))
    assert found["first_error"] is None
    assert found["starts"][0]["end_reason"] == "stopped"


def test_a_clock_set_back_gives_no_negative_duration() -> None:
    text = log(WORDINGS[0], ranks=1).replace("03:02:46", "02:02:46")
    found = summary(text)
    assert {p["name"]: p["seconds"] for p in found["starts"][0]["phases"]}["load_weights"] is None
    assert "clock_jump" in {e["kind"] for e in found["events"]}


def _journal(text: str) -> str:
    lines = []
    for i, line in enumerate(text.splitlines()):
        message: Any = list(line.encode()) if i % 3 == 0 else line
        lines.append(
            json.dumps({"__REALTIME_TIMESTAMP": str(1770519600000000 + i), "MESSAGE": message, "_HOSTNAME": "gpu1"})
        )
    return "\n".join(lines) + "\n"


WRAPPERS = {
    "journald JSON": _journal,
    "journald short": lambda t: "".join(f"Feb 08 03:00:00 gpu1 python[77]: {line}\n" for line in t.splitlines()),
    "journald short-iso": lambda t: "".join(f"2026-02-08T03:00:00+0100 gpu1 python[77]: {line}\n" for line in t.splitlines()),
    "docker json-file": lambda t: "".join(json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-02-08T03:00:00.1Z"}) + "\n" for line in t.splitlines()),
    "compose": lambda t: "".join(f"sglang-1  | {line}\n" for line in t.splitlines()),
    "kubernetes": lambda t: "".join(f"2026-02-08T03:00:00.123456789Z stderr F {line}\n" for line in t.splitlines()),
    "colours": lambda t: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in t.splitlines()),
    "CRLF": lambda t: t.replace("\n", "\r\n"),
    "milliseconds": lambda t: t.replace("] ", "] ").replace(" TP", ".123 TP"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_whatever_is_wrapped_around_the_lines(name: str) -> None:
    text = (
        log(WORDINGS[4], flags=True) + TRACE.format(rank=3, error="torch.OutOfMemoryError: CUDA out of memory.") + END
    )
    plain, wrapped = summary(text), summary(WRAPPERS[name](text))
    assert wrapped["decode"]["accept_length"] == plain["decode"]["accept_length"]
    assert wrapped["starts"][0]["flags"] == plain["starts"][0]["flags"]
    assert wrapped["starts"][0]["ready_at"] == plain["starts"][0]["ready_at"]
    assert wrapped["starts"][0]["end_reason"] == "crashed"
    assert [p["name"] for p in wrapped["starts"][0]["phases"]] == [p["name"] for p in plain["starts"][0]["phases"]]
    assert (wrapped["first_error"]["kind"], wrapped["first_error"]["rank"]) == ("cuda_out_of_memory", "TP3")


def test_a_progress_bar_without_line_end_does_not_hide_the_next_message() -> None:
    text = log(WORDINGS[4], ranks=1).replace(
        "[2026-02-08 03:02:46 TP0] ",
        "\rLoading shards: 100%|####| 64/64 [02:30<00:00, 2.2s/it][2026-02-08 03:02:46 TP0] ",
    )
    assert {p["name"]: p["seconds"] for p in summary(text)["starts"][0]["phases"]}["load_weights"] == 152.31


def test_words_of_a_user_are_not_taken_for_the_server() -> None:
    prompt = r"[2026-02-08 03:15:00] Receive: obj=GenerateReqInput(text='[2026-02-08 03:15:00] Scheduler hit an exception: Traceback (most recent call last):\nKilled', rid='1')"
    found = summary(log(WORDINGS[4]) + prompt + "\n")
    assert found["first_error"] is None
    assert len(found["starts"]) == 1


def test_a_log_that_grows_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    text = log(WORDINGS[4], ranks=1)
    cut = text.index("The server is fired up") + 5
    path = tmp_path / "server.log"
    path.write_text(text[:cut])
    first = scan_files([path])
    assert first["bytes"] == text.rindex("\n", 0, cut) + 1
    path.write_text(text)
    rest = scan_files([path], offset=first["bytes"])
    assert [m["name"] for m in rest["marks"]] == ["ready"]
    assert rest["decode"]["lines"] == 2


def test_packed_logs(tmp_path: Path) -> None:
    data = (DATA / "0.5.9-llama-layers0.log").read_bytes()
    plain = of_file(DATA / "0.5.9-llama-layers0.log")
    (tmp_path / "a.gz").write_bytes(gzip.compress(data[:9000]) + gzip.compress(data[9000:]))
    (tmp_path / "a.zst").write_bytes(zstandard.compress(data))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(data)[:-9])
    for name in ("a.gz", "a.zst", "cut.gz"):
        assert of_file(tmp_path / name)["starts"] == plain["starts"]
    if shutil.which("zstd"):
        hidden = (
            "import sys; sys.modules['zstandard'] = None; from pathlib import Path; "
            "from opsctl.sglang.logs.timeline import scan_files; print(scan_files([Path(sys.argv[1])])['lines'])"
        )
        out = subprocess.run(
            [sys.executable, "-c", hidden, str(tmp_path / "a.zst")], capture_output=True, text=True, check=True
        )
        assert int(out.stdout) == plain["log"]["lines"]


@given(st.binary(max_size=400))
def test_no_input_breaks_the_reader(junk: bytes) -> None:
    found = summary(log(WORDINGS[4], ranks=1).encode() + junk + b"\n" + log(WORDINGS[-1], ranks=1).encode())
    assert len(found["starts"]) == 2
    list(log_lines.lines(build(scan_of(junk))))


def scan_of(data: bytes) -> dict[str, Any]:
    scanner = Scanner()
    scanner.feed(data)
    return scanner.finish()


def test_the_command_gives_one_json_object() -> None:
    words = ("logs", "summary", str(DATA / "0.5.23-llama-good.log"))
    assert json.loads(opsctl(*words, "--json", folder=DATA).out) == of_file(DATA / "0.5.23-llama-good.log")
    text = opsctl(*words, folder=DATA).out
    assert "ready after 9.00 s" in text
    assert "accept length mean 4.00" in text


def test_a_file_that_is_not_there_is_the_users_mistake() -> None:
    said = opsctl("logs", "summary", "/no/such.log", folder=DATA)
    assert said.code == 2
    assert "no such log" in said.err


def test_a_server_that_runs_is_not_blamed_for_the_crash_before_its_start() -> None:
    """`server`, `diagnose` and `logs summary` of a host tell of the start that serves; the older crash is an event."""
    crashed = (
        log(WORDINGS[4], ready=False) + TRACE.format(rank=0, error="torch.OutOfMemoryError: CUDA out of memory.") + END
    )
    scanner = Scanner()
    scanner.feed((crashed + log(WORDINGS[4])).encode())
    scan = scanner.finish()
    now = build(scan, current=True)
    assert now.first_error is None
    assert [event.kind for event in now.events].count("cuda_out_of_memory") == 1
    assert build(scan).first_error is not None
    again = TRACE.format(rank=0, error="KeyError: 'd2t'") + END
    scanner = Scanner()
    scanner.feed((crashed + log(WORDINGS[4], ready=False) + again).encode())
    error = build(scanner.finish(), current=True).first_error
    assert error is not None
    assert error.message == "KeyError: 'd2t'"
