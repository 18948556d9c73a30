from __future__ import annotations

import os
import time
from contextvars import ContextVar
from pathlib import Path

import pytest

from gc_assets.core.deadline import run_with_deadline

SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


def test_deadline_raises_timeout_with_subject() -> None:
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
