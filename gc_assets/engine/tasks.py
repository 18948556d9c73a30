"""Run stage tasks in this process or in Spark executors, depending on their size.

Every Spark job costs at least a tenth of a second, so small tasks run in this process
(docs/adr/0005-in-process-engine.md). Both variants call the same function on the same files and
therefore publish the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.core.requests import count_requests, share_budget
from gc_assets.engine.progress import count_jobs, count_progress
from gc_assets.engine.sessions import is_local
from gc_assets.engine.tables import PARTS_DDL, REQUESTS, Task, collect, parallelism, run_in_process

# Larger tasks run in executors, to bound the memory of this process. This many rows need about 50
# MB and less than a second.
MAX_IN_PROCESS_ROWS: Final = 100_000
# A single column of this many rows is read in less than a second, batch by batch, with the files in
# memory.
MAX_IN_PROCESS_COLUMN_ROWS: Final = 1_000_000
MAX_IN_PROCESS_COLUMN_BYTES: Final = 128 * 2**20
# Limits the number of single requests to the state.
MAX_IN_PROCESS_FILES: Final = 16
# The first job of a local session also loads classes and starts Python workers. This process scans
# this many rows in the same time.
MAX_FIRST_SCAN_ROWS: Final = 1_000_000
# Executors of a local session need the memory of the same machine. A candidate takes about 400
# bytes, a commit 2 kB.
MAX_LOCAL_ROWS: Final = 500_000
MAX_LOCAL_FILES: Final = 64
# Tasks that read more bytes in total run in executors.
MAX_IN_PROCESS_BYTES: Final = 4 * 2**20
# Larger plans are applied by executors.
MAX_IN_PROCESS_ACTIONS: Final = 2_000
# A task of unknown size starts in this process. If it yields more, it is repeated in executors.
MAX_TRIAL_ROWS: Final = 20_000
MAX_TRIAL_BYTES: Final = 16 * 2**20


def run_single_task(spark: SparkSession, task: Task, rows: int, files: int) -> Sequence[Any]:
    """Run a task over a single row and return the rows that it reports (`PARTS_DDL`).

    Args:
        rows: Number of metadata rows read by the task.
        files: Number of state files read by the task.
    """
    return run_in_process(task, [task_numbers(1)]) if fits_in_process(rows, files) else _run_remote(spark, task, 1)


def run_tasks(spark: SparkSession, task: Task, pieces: int, size_bytes: int) -> Sequence[Any]:
    """Run a task over numbered work items and return the reported rows (`PARTS_DDL`).

    Args:
        task: Task with the input column `id`.
        size_bytes: Total bytes read by all work items.
    """
    return run_in_process(task, [task_numbers(pieces)]) if size_bytes <= MAX_IN_PROCESS_BYTES else _run_remote(spark, task, pieces)


def try_in_process(task: Task, pieces: int) -> list[pa.RecordBatch] | None:
    """Run a task over `pieces` work items in this process, or return None if it is too large.

    The limits are `MAX_TRIAL_ROWS` and `MAX_TRIAL_BYTES`. The task must have no side effects,
    because it is repeated in executors after None.
    """
    found: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    with count_progress("rows read", lambda: rows):
        for batch in task(iter([task_numbers(pieces)])):
            found.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows > MAX_TRIAL_ROWS or size_bytes > MAX_TRIAL_BYTES:
                return None
    return found


def read_in_process(task: Task, pieces: int) -> list[pa.RecordBatch]:
    """Run a task over `pieces` work items (column `id`) in this process.

    The caller checks the size with `fits_in_process` first.
    """
    return list(task(iter([task_numbers(pieces)])))


def fits_in_process(rows: int, files: int) -> bool:
    """Check if a task that reads this many rows and files runs in this process."""
    return rows <= MAX_IN_PROCESS_ROWS and files <= MAX_IN_PROCESS_FILES


def scan_fits_in_process(spark: SparkSession, rows: int, files: int) -> bool:
    """Check if a scan of this many rows and files runs in this process.

    A scan needs the memory of one batch, regardless of the number of rows.
    """
    is_short = rows <= MAX_FIRST_SCAN_ROWS and files <= MAX_LOCAL_FILES
    return fits_in_process(rows, files) or (is_short and has_run_no_job(spark))


def has_run_no_job(spark: SparkSession) -> bool:
    """Return True if the session is local and its application has not started a job yet."""
    return is_local(spark) and count_jobs(spark) == 0


def table_fits_in_process(spark: SparkSession, rows: int, files: int) -> bool:
    """Check if a table of this many rows and files is computed in this process."""
    return fits_in_process(rows, files) or (rows <= MAX_LOCAL_ROWS and files <= MAX_LOCAL_FILES and is_local(spark))


def column_fits_in_process(rows: int, files: Sequence[int]) -> bool:
    """Check if one column of this many rows fits in this process. File sizes are in bytes."""
    return rows <= MAX_IN_PROCESS_COLUMN_ROWS and len(files) <= MAX_IN_PROCESS_FILES and sum(files) <= MAX_IN_PROCESS_COLUMN_BYTES


def task_numbers(pieces: int) -> pa.RecordBatch:
    """Return the input of a task over numbered work items (column `id`)."""
    return pa.RecordBatch.from_pydict({"id": pa.array(range(pieces), pa.int64())})


def map_tasks(spark: SparkSession, task: Task, pieces: int, schema: StructType | str) -> DataFrame:
    """Return a frame with a task's output for numbered work items, one executor task per item."""
    return spark.range(0, pieces, 1, pieces).mapInArrow(task, schema)


def _run_remote(spark: SparkSession, task: Task, pieces: int) -> Sequence[Any]:
    shared = BudgetedTask(task, max_parallel_tasks(spark, pieces))
    return collect(map_tasks(spark, shared, pieces, PARTS_DDL))


def max_parallel_tasks(spark: SparkSession, tasks: int) -> int:
    """Return the maximum number of concurrent tasks.

    The full parallelism is assumed, because a cluster may grow during the stage.
    """
    return min(tasks, spark.sparkContext.defaultParallelism if is_local(spark) else parallelism(spark))


@dataclass(frozen=True)
class BudgetedTask:
    """Executor task that uses its part of each request budget.

    The column `requests` contains the requests that it sent.
    """

    task: Task
    parallel_tasks: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with count_requests() as tally, share_budget(self.parallel_tasks):
            for batch in self.task(batches):
                if batch.num_rows == 0:
                    continue
                sent = tally.take()
                column = pa.array([sent.to_json() if sent else None] + [None] * (batch.num_rows - 1), pa.string())
                index = batch.schema.get_field_index(REQUESTS)
                yield batch.set_column(index, REQUESTS, column) if index >= 0 else batch.append_column(REQUESTS, column)
