"""Run tasks in the driver process if they are small, and on Spark executors otherwise.

Even the smallest Spark job takes a tenth of a second (docs/adr/0005-in-process-engine.md). In both
cases, the same function is called with the same files, so the published rows do not differ.
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

# To limit the memory of this process, larger tasks run on executors. This number of rows needs
# about 50 MB and less than a second.
MAX_IN_PROCESS_ROWS: Final = 100_000
# Reading a single column with this many rows takes less than a second. The files are in memory, and
# the column is read in batches.
MAX_IN_PROCESS_COLUMN_ROWS: Final = 1_000_000
MAX_IN_PROCESS_COLUMN_BYTES: Final = 128 * 2**20
# Each file needs a request to the state.
MAX_IN_PROCESS_FILES: Final = 16
# In a local session, the first job also has to load classes and start Python workers. In that time,
# this process can scan this many rows.
MAX_FIRST_SCAN_ROWS: Final = 1_000_000
# In a local session, using executors does not save memory, because they run on the same machine. A
# candidate takes about 400 bytes, and a commit 2 kB.
MAX_LOCAL_ROWS: Final = 500_000
MAX_LOCAL_FILES: Final = 64
# Single tasks need the same memory in this process as in an executor on this machine, which would
# have to be started first. Most rows of large tasks are edges, with 21 bytes each.
MAX_LOCAL_TASK_ROWS: Final = 20_000_000
# If its work items have more bytes in total, a task runs on executors.
MAX_IN_PROCESS_BYTES: Final = 4 * 2**20
# Plans with more actions are applied by executors.
MAX_IN_PROCESS_ACTIONS: Final = 2_000
# If the size of a task is unknown, it starts in this process. When it exceeds one of these limits,
# it is repeated on executors.
MAX_TRIAL_ROWS: Final = 20_000
MAX_TRIAL_BYTES: Final = 16 * 2**20


def run_single_task(spark: SparkSession, task: Task, rows: int, files: int) -> Sequence[Any]:
    """Run a task that is not divided into work items.

    Args:
        spark: The session.
        task: The task.
        rows: How many rows of the state the task reads.
        files: How many files of the state the task reads.

    Returns:
        The rows that the task reports, with the `PARTS_DDL` columns.
    """
    is_small = fits_in_process(rows, files) or (rows <= MAX_LOCAL_TASK_ROWS and is_local(spark))
    return run_in_process(task, [task_numbers(1)]) if is_small else _run_remote(spark, task, 1)


def run_tasks(spark: SparkSession, task: Task, pieces: int, size_bytes: int, max_first_bytes: int = 0) -> Sequence[Any]:
    """Run a task that is divided into numbered work items.

    Args:
        spark: The session.
        task: The task, whose input is an `id` column with the numbers of work items.
        pieces: The number of work items.
        size_bytes: How many bytes all work items read in total.
        max_first_bytes: Up to this number of bytes, the task runs in the driver process if no Spark
            job has run yet, because the first job is slow to start.

    Returns:
        The rows that the task reports, with the `PARTS_DDL` columns.
    """
    fits = size_bytes <= MAX_IN_PROCESS_BYTES or (size_bytes <= max_first_bytes and has_run_no_job(spark))
    return run_in_process(task, [task_numbers(pieces)]) if fits else _run_remote(spark, task, pieces)


def try_in_process(task: Task, pieces: int) -> list[pa.RecordBatch] | None:
    """Try to run a task in the driver process, but give up if it yields too many rows.

    The result is None if `MAX_TRIAL_ROWS` or `MAX_TRIAL_BYTES` is exceeded. The caller then repeats
    the task on executors, so the task must not have side effects.

    Args:
        task: The task.
        pieces: The number of work items.
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
    """Run a task on `pieces` work items in the driver process.

    The caller must check with `fits_in_process` that the task is small enough.
    """
    return list(task(iter([task_numbers(pieces)])))


def fits_in_process(rows: int, files: int) -> bool:
    """Check whether a task is small enough for the driver process."""
    return rows <= MAX_IN_PROCESS_ROWS and files <= MAX_IN_PROCESS_FILES


def scan_fits_in_process(spark: SparkSession, rows: int, files: int) -> bool:
    """Check whether a scan is small enough for the driver process.

    A scan only needs memory for one batch. Therefore, larger scans are allowed if no Spark job has
    run yet, because the first job is slow to start.
    """
    is_short = rows <= MAX_FIRST_SCAN_ROWS and files <= MAX_LOCAL_FILES
    return fits_in_process(rows, files) or (is_short and has_run_no_job(spark))


def has_run_no_job(spark: SparkSession) -> bool:
    """Check if the session is local and has not run any job yet."""
    return is_local(spark) and count_jobs(spark) == 0


def table_fits_in_process(spark: SparkSession, rows: int, files: int) -> bool:
    """Check whether a table is small enough to be computed in the driver process."""
    return fits_in_process(rows, files) or (rows <= MAX_LOCAL_ROWS and files <= MAX_LOCAL_FILES and is_local(spark))


def column_fits_in_process(rows: int, files: Sequence[int]) -> bool:
    """Check whether a single column is small enough to be read in the driver process.

    Args:
        rows: The number of rows.
        files: The sizes of the files in bytes.
    """
    return rows <= MAX_IN_PROCESS_COLUMN_ROWS and len(files) <= MAX_IN_PROCESS_FILES and sum(files) <= MAX_IN_PROCESS_COLUMN_BYTES


def task_numbers(pieces: int) -> pa.RecordBatch:
    """Build the input of a task: an `id` column with the numbers of work items."""
    return pa.RecordBatch.from_pydict({"id": pa.array(range(pieces), pa.int64())})


def map_tasks(spark: SparkSession, task: Task, pieces: int, schema: StructType | str) -> DataFrame:
    """Return a data frame with the output of a task. Each work item is a separate Spark task."""
    return spark.range(0, pieces, 1, pieces).mapInArrow(task, schema)


def _run_remote(spark: SparkSession, task: Task, pieces: int) -> Sequence[Any]:
    shared = BudgetedTask(task, max_parallel_tasks(spark, pieces))
    return collect(map_tasks(spark, shared, pieces, PARTS_DDL))


def max_parallel_tasks(spark: SparkSession, tasks: int) -> int:
    """Return how many tasks may run concurrently.

    A cluster may grow during a stage, so the number does not depend on its current size.
    """
    return min(tasks, spark.sparkContext.defaultParallelism if is_local(spark) else parallelism(spark))


@dataclass(frozen=True)
class BudgetedTask:
    """Runs a task on an executor, with an equal share of each limit of requests per second.

    The output has a `requests` column with the requests that the task sent.
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
