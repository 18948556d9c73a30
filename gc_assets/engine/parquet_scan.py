"""Run tasks that read Parquet parts directly, bypassing Spark's reader.

Moving rows from Spark to a Python task costs several times more than the task itself. Tasks without
a join therefore read the files themselves and return only their results to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.engine.state_scan import ScanTask, group_by_size
from gc_assets.engine.tables import Task, collect, run_in_process
from gc_assets.engine.tasks import map_tasks, max_parallel_tasks, scan_fits_in_process, task_numbers
from gc_assets.state.files import Files
from gc_assets.state.receipts import PartFile


@dataclass(frozen=True)
class ParquetScan:
    """Table parts to read: paths relative to the state, sizes in bytes, and columns."""

    files: Files
    schema: pa.Schema
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, files: Files, schema: pa.Schema, directory: str, parts: Sequence[PartFile]) -> Self:
        """Select parts in a directory, which is relative to the state."""
        return cls(files, schema, tuple(f"{directory}/{part.name}" for part in parts), tuple(part.size_bytes for part in parts))

    def run_task(self, spark: SparkSession, task: Task, ddl: str | StructType, rows: int) -> Sequence[Any]:
        """Run a task over the rows of the parts, in this process if it fits (`scan_fits_in_process`).

        Returns:
            The rows that it yields (columns of `ddl`).
        """
        if scan_fits_in_process(spark, rows, len(self.paths)):
            return run_in_process(task, self.read_batches())
        return collect(self.map_arrow(spark, task, ddl))

    def map_arrow(self, spark: SparkSession, task: Task, ddl: str | StructType, most: int | None = None) -> DataFrame:
        """Run a task over the rows of the parts and return its output as a frame.

        Args:
            task: Called with the rows of each group of parts.
            ddl: Columns yielded by the task.
            most: Maximum number of calls.
        """
        together = max_parallel_tasks(spark, max(1, len(self.paths)))
        groups = group_by_size(self.paths, self.sizes, together if most is None else min(most, together))
        pieces = max(1, len(groups))
        return map_tasks(spark, _MapTask(self._fetch(groups), task), pieces, ddl)

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in this process."""
        return self._fetch((self.paths,))(iter([task_numbers(1)]))

    def _fetch(self, groups: tuple[tuple[str, ...], ...]) -> ScanTask:
        return ScanTask(self.files, groups, tuple(range(len(groups))), self.schema)


@dataclass(frozen=True)
class _MapTask:
    """Task that receives numbers of part groups, reads these groups and runs `task` on their rows."""

    fetch: ScanTask
    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(self.fetch(batches))
