"""Where a piece of a stage's work runs: in this process, or in an executor (design 11).

A Spark job costs a tenth of a second, whatever it does. So little work is done here, and only much
of it in executors. Both places run the same callable over the same files, so they publish the same
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from gc_assets.core.requests import counted, shared_by
from gc_assets.engine.progress import count_progress
from gc_assets.engine.sessions import is_local
from gc_assets.engine.tables import PARTS_DDL, REQUESTS, Task, collect, parallelism, run_in_process

# A task that reads more rows of metadata than this runs in an executor, so that this process stays
# small. This many take some 50 MB and less than a second.
MAX_IN_PROCESS_ROWS: Final = 100_000
# So many rows of one column pass through this process in less than a second, a batch at a time.
# The files that hold them are in memory whole.
MAX_IN_PROCESS_COLUMN_ROWS: Final = 1_000_000
MAX_IN_PROCESS_COLUMN_BYTES: Final = 128 * 2**20
# One that reads more files than this would ask the state for them one by one.
MAX_IN_PROCESS_FILES: Final = 16
# Pieces that read more bytes than this together are spread over executors.
MAX_IN_PROCESS_BYTES: Final = 4 * 2**20
# A plan of so many files is acted on by the process that applies it.
MAX_IN_PROCESS_ACTIONS: Final = 2_000
# A reading of which nobody knows how much it brings is begun here, and left to executors once it
# has brought more than this.
MAX_TRIAL_ROWS: Final = 20_000
MAX_TRIAL_BYTES: Final = 16 * 2**20


def run_single_task(spark: SparkSession, task: Task, rows: int, files: int) -> Sequence[Any]:
    """Runs a task that is called with one batch of one row, and returns what it reports (rows of
    `PARTS_DDL`). The task reads so many rows of metadata from so many files of the state.
    """
    return run_in_process(task, [_task_numbers(1)]) if fits_in_process(rows, files) else _run_remote(spark, task, 1)


def run_tasks(spark: SparkSession, task: Task, pieces: int, size_bytes: int) -> Sequence[Any]:
    """Runs a task over the numbers of independent pieces (column `id`), and returns what it reports
    (rows of `PARTS_DDL`). `size_bytes` is how much the pieces read together.
    """
    return run_in_process(task, [_task_numbers(pieces)]) if size_bytes <= MAX_IN_PROCESS_BYTES else _run_remote(spark, task, pieces)


def try_in_process(task: Task, pieces: int) -> list[pa.RecordBatch] | None:
    """Returns what a task yields for the numbers of so many pieces (column `id`), or null where
    that is more than this process should hold. The task must not write anything.
    """
    found: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    with count_progress("rows read", lambda: rows):
        for batch in task(iter([_task_numbers(pieces)])):
            found.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows > MAX_TRIAL_ROWS or size_bytes > MAX_TRIAL_BYTES:
                return None
    return found


def read_in_process(task: Task, pieces: int) -> list[pa.RecordBatch]:
    """Returns what a task yields for the numbers of so many pieces (column `id`): little, as
    `is_little` says.
    """
    return list(task(iter([_task_numbers(pieces)])))


def fits_in_process(rows: int, files: int) -> bool:
    """Says whether so many rows of metadata in so many files of the state are read here."""
    return rows <= MAX_IN_PROCESS_ROWS and files <= MAX_IN_PROCESS_FILES


def column_fits_in_process(rows: int, files: Sequence[int]) -> bool:
    """Says whether a column of so many rows in files of these sizes (in bytes) passes through this
    process.
    """
    return rows <= MAX_IN_PROCESS_COLUMN_ROWS and len(files) <= MAX_IN_PROCESS_FILES and sum(files) <= MAX_IN_PROCESS_COLUMN_BYTES


def _task_numbers(pieces: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(range(pieces), pa.int64())})


def _run_remote(spark: SparkSession, task: Task, pieces: int) -> Sequence[Any]:
    shared = BudgetedTask(task, max_parallel_tasks(spark, pieces))
    return collect(spark.range(0, pieces, 1, pieces).mapInArrow(shared, PARTS_DDL))


def max_parallel_tasks(spark: SparkSession, tasks: int) -> int:
    """Returns how many of so many tasks run at the same time at most. A cluster may grow, so there
    it is all that a stage spreads over.
    """
    return min(tasks, spark.sparkContext.defaultParallelism if is_local(spark) else parallelism(spark))


@dataclass(frozen=True)
class BudgetedTask:
    """Runs a task in an executor, one of so many at the same time. It keeps to its share of every
    budget of requests, and says in the column `requests` what it sent.
    """

    task: Task
    parallel_tasks: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with counted() as tally, shared_by(self.parallel_tasks):
            for batch in self.task(batches):
                if batch.num_rows == 0:
                    continue
                sent = tally.take()
                told = pa.array([sent.to_json() if sent else None] + [None] * (batch.num_rows - 1), pa.string())
                place = batch.schema.get_field_index(REQUESTS)
                yield batch.set_column(place, REQUESTS, told) if place >= 0 else batch.append_column(REQUESTS, told)
