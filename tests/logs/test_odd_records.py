"""Records and numbers that no journal and no server writes, and that a file can hold all the same."""

from __future__ import annotations

import json

import pytest

from opsctl.sglang.logs.timeline import build, document
from opsctl.wire.log_scan import Scanner

NUMBERS = (
    "[2026-02-08 03:12:01 TP0] Decode batch, #running-req: 1, #token: 1, token usage: 0.00, "
    "accept len: {n}, accept rate: {n}, cuda graph: True, gen throughput (token/s): {n}, #queue-req: 0\n"
)
RECORDS = {
    "too deep": '{"MESSAGE":' + "[" * 20_000,
    "half a surrogate": '{"MESSAGE":"\\ud800"}',
    "half a surrogate as time": '{"log":"x","time":"\\ud800"}',
    "after the last year": '{"MESSAGE":"x","__REALTIME_TIMESTAMP":"99999999999999999999999999"}',
    "time is an object": '{"MESSAGE":"x","__REALTIME_TIMESTAMP":{"a":1}}',
    "no bytes": '{"MESSAGE":[1,300,"a",null]}',
}


def summary(text: str) -> str:
    scanner = Scanner()
    scanner.feed(text.encode())
    return json.dumps(document(build(scanner.finish())), allow_nan=False)


@pytest.mark.parametrize("name", RECORDS)
def test_an_odd_record_does_not_stop_the_reader(name: str) -> None:
    told = json.loads(summary(RECORDS[name] + "\n" + NUMBERS.format(n="2.50")))
    assert told["decode"]["accept_length"]["mean"] == 2.5


def test_endless_numbers_leave_the_answer_valid_json() -> None:
    summary(NUMBERS.format(n="9" * 400))
