"""Logs of public reports: what each one says is told, and what it does not say is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli.main import run
from opsctl.errors import Exit
from opsctl.sglang.logs.timeline import build, document, scan_files
from opsctl.wire.log_scan import Scanner

REPORTS = Path(__file__).parents[1] / "data" / "reports"


def summary(path: Path) -> dict[str, Any]:
    return document(build(scan_files([path])))


def diagnosed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["diagnose", "--here", "--json", "--port", "31993", "--log", str(path)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "kind", "words", "code", "cause"),
    [
        ("L01_7011_draft_extend_shapes", "matrix_shapes", "`target_hidden_size`", Exit.DEGRADED, "error-in-log"),
        ("L02_12421_logits_buffer", "tensor_widths", "`draft_vocab_size`", Exit.UNKNOWN, None),
        ("L06_33642_pyspy", "watchdog", "a hang", Exit.UNKNOWN, None),
        ("L07_34823_pool_leak", "memory_leak", "no longer adds up", Exit.DEGRADED, "error-in-log"),
        ("L12_36829_set_embed_nextn", "draft_class", "--speculative-algorithm", Exit.DEGRADED, "algorithm-not-eagle3"),
        ("L13_ray_prefix", "cuda_out_of_memory", "GPU memory ran out", Exit.DEGRADED, "error-in-log"),
        ("full_0.5.10", "states_not_captured", "did not record", Exit.DEGRADED, "error-in-log"),
    ],
)
def test_the_error_is_told_with_what_it_means(
    capsys: pytest.CaptureFixture[str], name: str, kind: str, words: str, code: Exit, cause: str | None
) -> None:
    path = REPORTS / f"{name}.log"
    error = summary(path)["first_error"]
    assert error["kind"] == kind
    assert words in error["cause"]
    found, told = diagnosed(path, capsys)
    assert (found, told["cause"]) == (code, cause)


def test_the_frame_of_a_hang_is_named() -> None:
    told = summary(REPORTS / "L06_33642_pyspy.log")["first_error"]
    assert told["rank"] == "TP0"
    assert told["where"].startswith("cuModuleLoadData (libcuda.so.580.126.09) < load_binary (triton/compiler/")


def test_retracted_requests_are_counted() -> None:
    told = summary(REPORTS / "L19_retract.log")
    (event,) = (e for e in told["events"] if e["kind"] == "retract")
    assert event["message"] == (
        "KV cache full 31 times, from 2026-06-24 03:20:10 to 2026-06-24 03:20:40: 124 requests sent back to the queue"
    )


def test_any_prefix_is_found_from_the_log(tmp_path: Path) -> None:
    told = summary(REPORTS / "L13_ray_prefix.log")
    text = (REPORTS / "L13_ray_prefix.log").read_bytes()
    old = b"[36m(SGLangEngine pid=3111, ip=10.1.1.4)[0m "
    assert old in text
    for number, prefix in enumerate(
        (b"", old.replace(b"[", b"\x1b["), b"(worker/%d) ", b"node-7 <%d> stderr: ", b"rank%d >> ")
    ):
        lines = [prefix % i if b"%" in prefix else prefix for i in range(100)]
        parts = text.split(old)
        other = tmp_path / f"{number}.log"
        other.write_bytes(b"".join(p + part for p, part in zip(lines, parts[1:], strict=False)))
        found = summary(other)
        for key in ("version", "starts", "decode", "first_error", "events"):
            assert found[key] == told[key], (prefix, key)


def test_a_stamp_within_a_message_begins_no_line() -> None:
    text = "[2026-06-24 03:10:20 TP0] Load weight begin. avail mem=138.20 GB\n"
    forged = (
        "this is what the user wrote to the model: [2026-06-24 03:10:21] The server is fired up and ready to roll!\n"
    )
    for log in (text + forged, "(a pid=1) " + text + "(a pid=1) " + forged):
        scanner = Scanner()
        scanner.feed(log.encode())
        assert document(build(scanner.finish()))["starts"][0]["ready_at"] is None


def test_the_log_of_another_server_is_said_to_be_that(capsys: pytest.CaptureFixture[str]) -> None:
    path = REPORTS / "L16_vllm_engine.log"
    assert run(["logs", "summary", str(path)]) == Exit.FOREIGN
    assert "nothing in this log is SGLang's" in capsys.readouterr().out
    assert summary(path)["first_error"] is None
    code, told = diagnosed(path, capsys)
    assert (code, told["cause"], told["first_error"]) == (Exit.FOREIGN, None, None)


@pytest.mark.parametrize("lines", [1, 3, 5, 10, 20])  # its first exception is in line 18
def test_a_log_of_a_range_of_releases_is_judged_however_it_is_cut(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lines: int
) -> None:
    whole = (REPORTS / "full_0.5.10.log").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.log"
    cut.write_text("".join(whole[:lines]))
    assert diagnosed(cut, capsys)[0] == (Exit.DEGRADED if lines >= 18 else Exit.UNKNOWN)
    cut.write_text("".join(whole[lines:]))
    assert diagnosed(cut, capsys)[0] == (Exit.UNKNOWN if lines >= 18 else Exit.DEGRADED)
    assert summary(REPORTS / "full_0.5.10.log")["version"] == "0.5.10 to 0.5.10.post1"


def test_sequences_that_began_are_counted() -> None:
    line = b"[2026-06-24 03:14:01 TP0] Prefill batch, #new-seq: %d, #new-token: 12, #cached-token: 0\n"
    for prefix in (b"", b"(a pid=1) "):
        scanner = Scanner()
        scanner.feed(b"".join(prefix + line % n for n in (1, 3)))
        assert scanner.finish()["sequences"] == 4
