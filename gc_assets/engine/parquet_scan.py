"""Pass the rows of published parts to a task that reads the Parquet files itself.

Moving rows from Spark to a Python task costs several times more than the task itself. Tasks without
a join therefore read the files, and only their results reach Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.engine.state_scan import ScanTask, group_by_size
from gc_assets.engine.tables import Task
from gc_assets.engine.tasks import max_parallel_tasks
from gc_assets.state.files import Files


@dataclass(frozen=True)
class ParquetScan:
    """Parts of a table to read: paths relative to the state, sizes in bytes, and the columns."""

    files: Files
    schema: pa.Schema
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    def map_arrow(self, spark: SparkSession, task: Task, ddl: str | StructType, most: int | None = None) -> DataFrame:
        """Return the frame of the rows that a task yields for the rows of the parts.

        Args:
            spark: The session of the executors.
            task: The task. Each call gets the rows of a group of parts.
            ddl: The columns that the task yields.
            most: Maximum number of calls.
        """
        together = max_parallel_tasks(spark, max(1, len(self.paths)))
        groups = group_by_size(self.paths, self.sizes, together if most is None else min(most, together))
        pieces = max(1, len(groups))
        return spark.range(0, pieces, 1, pieces).mapInArrow(_MapTask(self._fetch(groups), task), ddl)

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in this process."""
        return self._fetch((self.paths,))(iter([pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})]))

    def _fetch(self, groups: tuple[tuple[str, ...], ...]) -> ScanTask:
        return ScanTask(self.files, groups, tuple(range(len(groups))), self.schema)


@dataclass(frozen=True)
class _MapTask:
    """Read the groups of parts whose numbers come in, and yield the results of a task for their
    rows.
    """

    fetch: ScanTask
    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(self.fetch(batches))
