"""The practice host of a campaign: made once, in service with drafter `one` again before each case."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from opsctl.practice.host import PracticeHost
from tests.story.conftest import Story, host_with_drafters, serving_one


@functools.cache
def _host() -> PracticeHost:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="campaign-host-", ignore_cleanup_errors=True))
    return stack.enter_context(host_with_drafters(Path(folder)))


@contextlib.contextmanager
def in_service() -> Iterator[Story]:
    with serving_one(_host()) as story:
        yield story
