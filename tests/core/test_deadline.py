from __future__ import annotations

import os
import threading
import time
from contextvars import ContextVar
from pathlib import Path

import pytest

from gc_assets.core.deadline import run_with_deadline

SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


def test_deadline_raises_timeout_that_contains_subject() -> None:
    reader, writer = os.pipe()
    began = time.monotonic()
    with pytest.raises(OSError, match=r"no complete answer in 0\.2 s \(`read_timeout`\).*'/mnt/manifest'"):
        run_with_deadline(0.2, "/mnt/manifest", lambda: os.read(reader, 1))
    assert time.monotonic() - began < 5
    os.close(writer)


def test_deadline_passes_results_and_errors_through() -> None:
    token = SEEN.set("as the caller sees it")
    assert run_with_deadline(60, "x", SEEN.get) == "as the caller sees it"
    SEEN.reset(token)
    assert run_with_deadline(60, "x", lambda: None) is None
    with pytest.raises(FileNotFoundError):
        run_with_deadline(60, "x", lambda: Path("/nowhere").stat())


def test_exclusive_call_is_refused_while_earlier_call_hangs() -> None:
    reader, writer = os.pipe()
    with pytest.raises(TimeoutError, match="no complete answer"):
        run_with_deadline(0.05, "/mnt/state", lambda: os.read(reader, 1), exclusive=True)
    threads = threading.active_count()
    for _ in range(20):
        with pytest.raises(TimeoutError, match=r"an earlier call still waits.*'/mnt/state'"):
            run_with_deadline(60, "/mnt/state", lambda: None, exclusive=True)
    assert threading.active_count() == threads
    assert run_with_deadline(60, "/mnt/other", lambda: "read", exclusive=True) == "read"
    os.close(writer)
    while threading.active_count() == threads:
        time.sleep(0.01)
    assert run_with_deadline(60, "/mnt/state", lambda: "read", exclusive=True) == "read"
    os.close(reader)
