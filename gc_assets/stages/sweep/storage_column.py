"""Read one column of the rows of one storage, in the driver or on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.engine import tasks
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.sessions import is_small
from gc_assets.engine.tables import Task, TaskChain, collect, run_in_process

_STORAGE: Final = "storage"


@dataclass(frozen=True)
class StorageColumn:
    """One column of the rows of one storage. Each call of a method reads it again.

    Attributes:
        parts: Parts with the columns storage and `name`.
        rows: Approximate number of their rows.
    """

    spark: SparkSession
    parts: ParquetScan
    rows: int
    storage: str
    name: str

    @property
    def runs_in_process(self) -> bool:
        """True if the driver reads the column, False if executors do."""
        return is_small(self.spark) or tasks.column_fits_in_process(self.rows, self.parts.sizes)

    def run_task(self, task: Task, ddl: str, task_bytes: int = 0) -> Sequence[Any]:
        """Run a task over the column, and return the rows that it yields.

        Args:
            task: The task to run over batches of the column.
            ddl: The columns of the result.
            task_bytes: Size of the data that the task itself reads.
        """
        if self.runs_in_process and (task_bytes <= tasks.MAX_IN_PROCESS_BYTES or is_small(self.spark)):
            return run_in_process(task, self.batches())
        return collect(self.map_arrow(task, ddl))

    def map_arrow(self, task: Task, ddl: str | StructType, max_tasks: int | None = None) -> DataFrame:
        """Run a task over the column, and return its output as a frame with the columns of `ddl`.

        The work is split into at most `max_tasks` Spark tasks.
        """
        return self.parts.map_arrow(self.spark, TaskChain(self._select, task), ddl, max_tasks)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the column's batches in the driver."""
        return self._select(self.parts.read_batches())

    @property
    def _select(self) -> _SelectColumn:
        return _SelectColumn(self.storage, self.name)


@dataclass(frozen=True)
class _SelectColumn:
    """Select one column of the rows of one storage."""

    storage: str
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.equal(batch.column(_STORAGE), self.storage)).select([self.name])
