"""Hashes of the live keys of a storage, in this process or in executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.core.errors import StateError
from gc_assets.engine import tasks
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_small
from gc_assets.engine.tables import Task, collect, run_in_process, spark_schema
from gc_assets.stages.mark.hash_scan import HashScan, SelectLive
from gc_assets.stages.mark.live_hashes import LiveHashes
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.journal import PublishedTable
from gc_assets.state.side_tables import STATES_SIDE

LIVE_KEYS: Final = pa.schema([("key_hash", pa.int64()), ("loose_hash", pa.int64())])
_DISTINCT: Final = pa.schema([("key_hash", pa.int64())])


@dataclass(frozen=True)
class LiveKeys:
    """Hashes of the live keys of all lakes in one storage. Each call reads them again.

    A key that two lakes need occurs once for each.
    """

    spark: SparkSession
    storage: str
    lakes: tuple[LiveHashes, ...]

    @classmethod
    def of(cls, spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> Self:
        """Open the live keys of published tables.

        Raises:
            StateError: If an older release published one of them.
        """
        sets = [LiveSet(context, table) for table in live]
        for item in sets:
            if not item.is_view:
                raise StateError(f"live_files of lake {item.lake} was published by an older release of gc-assets; run live_files again")
        return cls(spark, storage_name, tuple(item.hashes(spark) for item in sets if item.table.parts(STATES_SIDE)))

    @property
    def runs_in_process(self) -> bool:
        """True if this process reads the hashes."""
        return all(lake.runs_in_process for lake in self.lakes)

    def distinct(self) -> Iterator[pa.RecordBatch]:
        """Yield the distinct hashes of each lake in this process (column key_hash)."""
        for lake in self.lakes:
            selected = pa.Table.from_batches(lake.live_keys(self.storage)(lake.match()), LIVE_KEYS)
            yield pa.RecordBatch.from_arrays([pa.array(np.unique(selected.column("key_hash").to_numpy()))], schema=_DISTINCT)

    def distinct_frame(self) -> DataFrame:
        """Return the distinct hashes of each lake as a frame (column key_hash)."""
        frames = [self._map(lake, _pass, spark_schema(LIVE_KEYS)).select("key_hash").distinct() for lake in self.lakes]
        return reduce(DataFrame.unionAll, frames) if frames else self.spark.createDataFrame([], spark_schema(_DISTINCT))

    def run_task(self, task: Task, ddl: str, task_bytes: int = 0) -> Sequence[Any]:
        """Run a task over the hashes of all live entries, and return the rows that it yields.

        Args:
            task: Called with batches of the columns `LIVE_KEYS`. A key occurs once per container that
                names it.
            ddl: The columns of the result.
            task_bytes: Size of the data that the task itself reads.
        """
        if self.runs_in_process and (task_bytes <= tasks.MAX_IN_PROCESS_BYTES or is_small(self.spark)):
            return run_in_process(task, self._entries())
        found = list[Any]()
        for lake in self.lakes:
            found += collect(self._map(lake, task, ddl))
        return found

    def _entries(self) -> Iterator[pa.RecordBatch]:
        for lake in self.lakes:
            yield from lake.live_keys(self.storage)(lake.match())

    def _map(self, lake: LiveHashes, task: Task, schema: StructType | str) -> DataFrame:
        return tasks.map_tasks(self.spark, _MapLive(lake.scan, lake.live_keys(self.storage), task), lake.scan.tasks, schema)


@dataclass(frozen=True)
class _MapLive:
    """Task that reads groups of hash parts, and runs another task over their live rows."""

    scan: HashScan
    select: SelectLive
    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(self.select(self.scan(batches)))


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
