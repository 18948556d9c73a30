"""Execute rows of a plan like an executor, without Spark, for processes that are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from gc_assets.core.clock import Clock
from gc_assets.stages.delete.execute_rows import RowExecutor
from gc_assets.state.files import Files
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import open_log
from tests.stores.builders import PLAN


def execute_all(root: Path, state: Path, rows: pa.RecordBatch, clock: Clock) -> pa.Table:
    """Take the lease, open the log, execute the rows and release the lease. `state` is used for one
    action.
    """
    store = open_store(f"file://{root}/")
    lease = store.acquire(PLAN, str(os.getpid()), clock)
    log = open_log(Files(str(state)), "wal", PLAN, rows.num_rows)
    outcomes = pa.Table.from_batches(RowExecutor(store, log, lease, clock, PLAN)(iter([rows])))
    lease.release()
    return outcomes
