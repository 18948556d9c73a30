"""Reads one column of a storage's live keys, in this process or in executors.

Executors read the parts by themselves. To pass each key through Spark costs several times what is
done with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.stages import engine
from gc_assets.stages.fetched import Fetch, grouped
from gc_assets.stages.few_rows import is_of_few
from gc_assets.stages.night import Night
from gc_assets.stages.tables import Task, collect, here
from gc_assets.state.files import Files
from gc_assets.state.journal import Published
from gc_assets.state.schemas import LIVE_FILES

_STORAGE: Final = "storage"


@dataclass(frozen=True)
class LiveColumn:
    """A column of the rows of `live_files` of all lakes that lie in one storage, read anew at each
    call. `paths` are all parts of `live_files`, of sizes in bytes. They have so many `rows`.
    """

    spark: SparkSession
    files: Files
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: int
    storage: str
    name: str

    @classmethod
    def of(cls, spark: SparkSession, night: Night, storage_name: str, live: Sequence[Published], name: str) -> Self:
        parts = [part for table in live for part in table.parts()]
        paths, sizes = tuple(path for table in live for path in table.paths()), tuple(part.size_bytes for part in parts)
        return cls(spark, night.state.files, paths, sizes, sum(table.rows for table in live), storage_name, name)

    @property
    def is_little(self) -> bool:
        """Says whether this process reads it."""
        return is_of_few(self.spark) or engine.is_little(self.rows, len(self.paths))

    def answers(self, task: Task, ddl: str, task_bytes: int = 0) -> Sequence[Any]:
        """Returns what a task yields for the column (rows of `ddl`). The task reads `task_bytes` of
        its own.
        """
        if self.is_little and (task_bytes <= engine.HERE_BYTES or is_of_few(self.spark)):
            return here(task, self.batches())
        return collect(self.passed(task, ddl))

    def passed(self, task: Task, ddl: str | StructType, most: int | None = None) -> DataFrame:
        """Returns the frame of what a task yields for the column (columns of `ddl`). It runs in
        executors, at most so many times.
        """
        at_once = engine.at_once(self.spark, max(1, len(self.paths)))
        groups = grouped(self.paths, self.sizes, at_once if most is None else min(most, at_once))
        pieces = max(1, len(groups))
        return self.spark.range(0, pieces, 1, pieces).mapInArrow(_Over(self._fetch(groups), self.storage, self.name, task), ddl)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the column in this process."""
        numbers = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
        return _column(self._fetch((self.paths,)), self.storage, self.name, iter([numbers]))

    def _fetch(self, groups: tuple[tuple[str, ...], ...]) -> Fetch:
        wanted = pa.schema([LIVE_FILES.schema.field(name) for name in (_STORAGE, self.name)])
        return Fetch(self.files, groups, tuple(range(len(groups))), wanted)


@dataclass(frozen=True)
class _Over:
    """Takes numbers of groups of parts, and yields what a task yields for the column in them."""

    fetch: Fetch
    storage: str
    name: str
    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(_column(self.fetch, self.storage, self.name, batches))


def _column(fetch: Fetch, storage: str, name: str, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in fetch(numbers):
        yield batch.filter(pc.equal(batch.column(_STORAGE), storage)).select([name])
