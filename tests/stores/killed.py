"""Applies a plan in a process of its own, which kills itself for real before its n-th step on the disk."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused
from gc_assets.core.files import Files
from gc_assets.stores.execution import execute
from gc_assets.stores.lease import acquire
from gc_assets.stores.protocol import Outcome, Planned, QuarantineMode
from gc_assets.stores.quarantine import open_quarantine
from gc_assets.stores.write_ahead import open_log
from tests.stores.builders import PLAN

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.stores.killed"])

STEPS = ("mkdir", "rename", "link", "unlink", "replace", "fsync")


def apply(root: Path, state: Path, rows: Sequence[Planned], mode: QuarantineMode, clock: Clock) -> list[Outcome]:
    """A whole run: lease, log, actions, release."""
    lease = acquire(str(root), PLAN, str(os.getpid()), clock)
    log = open_log(Files(str(state)), "wal", PLAN, len(rows))
    outcomes = list(execute(rows, open_quarantine(mode, str(root), PLAN), log, lease, clock, batch_size=2))
    lease.release()
    return outcomes


def killed_before(step: int, root: Path, state: Path, rows: Sequence[Planned], mode: QuarantineMode, clock: Clock) -> None:
    """Exits with 0 where the run has fewer steps."""
    numbers = count(1)
    for name in STEPS:
        setattr(os, name, counting(getattr(os, name), numbers, step))
    apply(root, state, rows, mode, clock)


def racing(start, root: Path, state: Path, rows: Sequence[Planned], mode: QuarantineMode, clock: Clock) -> None:
    """Exits with 3 where another process holds the lease."""
    start.wait()
    try:
        apply(root, state, rows, mode, clock)
    except GateRefused:
        sys.exit(GateRefused.exit_code)


def counting(real, numbers, step: int):
    def call(*args, **kwargs):
        if next(numbers) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    return call
