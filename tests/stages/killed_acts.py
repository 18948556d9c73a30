"""Rows of a plan acted on in a process that kills itself for real before it moves its n-th file."""

from __future__ import annotations

import multiprocessing
import os
from itertools import count
from pathlib import Path

import pyarrow as pa

from gc_assets.core.clock import Clock
from gc_assets.core.files import Files
from gc_assets.stages.acting import Act
from gc_assets.stores.lease import acquire
from gc_assets.stores.write_ahead import open_log
from tests.stores.builders import PLAN
from tests.stores.killed import counting

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.stages.killed_acts"])


def act(root: Path, state: Path, rows: pa.RecordBatch, clock: Clock) -> pa.Table:
    """A whole run: lease, log, actions, release. `state` is of one action."""
    lease = acquire(f"file://{root}/", PLAN, str(os.getpid()), clock)
    log = open_log(Files(str(state)), "wal", PLAN, rows.num_rows)
    outcomes = pa.Table.from_batches(Act(f"file://{root}/", log, lease, clock, PLAN)(iter([rows])))
    lease.release()
    return outcomes


def killed_before(step: int, root: Path, state: Path, rows: pa.RecordBatch, clock: Clock) -> None:
    """Exits with 0 where the run moves fewer files."""
    numbers = count(1)
    for name in ("rename", "link"):
        setattr(os, name, counting(getattr(os, name), numbers, step))
    act(root, state, rows, clock)
