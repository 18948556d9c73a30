"""Run Python tasks on Parquet files without Spark's reader.

Passing rows from Spark to Python takes several times longer than most tasks. Therefore, if no join
is needed, tasks read the files themselves, and only their results go through Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.engine.state_scan import ScanTask, group_by_size
from gc_assets.engine.tables import Task, TaskChain, collect, run_in_process
from gc_assets.engine.tasks import map_tasks, max_parallel_tasks, scan_fits_in_process, task_numbers
from gc_assets.state.files import Files
from gc_assets.state.receipts import PartFile


@dataclass(frozen=True)
class ParquetScan:
    """The parts of a table to read.

    Attributes:
        files: The files of the state.
        schema: The columns to read.
        paths: The paths of the parts, relative to the state.
        sizes: The sizes of the parts in bytes.
    """

    files: Files
    schema: pa.Schema
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, files: Files, schema: pa.Schema, directory: str, parts: Sequence[PartFile]) -> Self:
        """Describe parts in a directory of the state."""
        return cls(files, schema, tuple(f"{directory}/{part.name}" for part in parts), tuple(part.size_bytes for part in parts))

    def run_task(self, spark: SparkSession, task: Task, ddl: str | StructType, rows: int) -> Sequence[Any]:
        """Run a task on all rows of the parts.

        If the scan is small enough (`scan_fits_in_process`), the task runs in the driver process.

        Returns:
            The rows that the task yields, with the columns of `ddl`.
        """
        if scan_fits_in_process(spark, rows, len(self.paths)):
            return run_in_process(task, self.read_batches())
        return collect(self.map_arrow(spark, task, ddl))

    def map_arrow(self, spark: SparkSession, task: Task, ddl: str | StructType, most: int | None = None) -> DataFrame:
        """Run a task on executors and return the rows that it yields as a data frame.

        Args:
            spark: The session.
            task: Called once for each group of parts, with their rows.
            ddl: The columns that the task yields.
            most: Maximum number of calls of the task, or None for Spark's parallelism.
        """
        together = max_parallel_tasks(spark, max(1, len(self.paths)))
        groups = group_by_size(self.paths, self.sizes, together if most is None else min(most, together))
        pieces = max(1, len(groups))
        return map_tasks(spark, TaskChain(self._fetch(groups), task), pieces, ddl)

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows of the parts in the driver process."""
        return self._fetch((self.paths,))(iter([task_numbers(1)]))

    def _fetch(self, groups: tuple[tuple[str, ...], ...]) -> ScanTask:
        return ScanTask(self.files, groups, tuple(range(len(groups))), self.schema)
