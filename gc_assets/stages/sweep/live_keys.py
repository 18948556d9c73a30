"""Hash the live keys of a storage, in the driver or on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.commands import command
from gc_assets.core.errors import StateError
from gc_assets.core.sorted_hashes import sort_distinct
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Task, TaskChain, spark_schema
from gc_assets.stages.mark.live_hashes import LiveHashes
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.journal import PublishedTable
from gc_assets.state.side_tables import STATES_SIDE

LIVE_KEYS: Final = pa.schema([("key_hash", pa.int64()), ("loose_hash", pa.int64())])
_DISTINCT: Final = pa.schema([("key_hash", pa.int64())])


@dataclass(frozen=True)
class LiveKeys:
    """Hashes of all lakes' live keys in one storage.

    If several lakes need a key, it occurs once for each of them.

    Attributes:
        sets: Live sets of the lakes that have one.
        lakes: The key hashes of each live set, in the order of `sets`.
    """

    spark: SparkSession
    storage: str
    sets: tuple[LiveSet, ...]
    lakes: tuple[LiveHashes, ...]

    @classmethod
    def of(cls, spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> Self:
        """Open the live keys of `live`, the published `live_files` of all lakes.

        Raises:
            StateError: If one of the tables was published by an older release.
        """
        sets = [LiveSet(context, table) for table in live]
        for item in sets:
            if not item.is_view:
                run_date = item.table.receipt.run_date
                raise StateError(
                    f"Cannot read live_files of lake {item.lake} of {run_date}: an older release of gc-assets published it. Compute all "
                    f"tables of this run date again with `{command('run', run_date=str(run_date))}`"
                )
        sets = [item for item in sets if item.table.parts(STATES_SIDE)]
        return cls(spark, storage_name, tuple(sets), tuple(item.hashes(spark) for item in sets))

    @property
    def runs_in_process(self) -> bool:
        """True if the driver reads the hashes, False if executors do."""
        return all(lake.runs_in_process for lake in self.lakes)

    def distinct(self) -> Iterator[pa.RecordBatch]:
        """Yield the distinct key hashes of each lake in the driver."""
        for lake in self.lakes:
            selected = pa.Table.from_batches(lake.live_keys(self.storage)(lake.match()), LIVE_KEYS)
            yield pa.RecordBatch.from_arrays([pa.array(sort_distinct(selected.column("key_hash").to_numpy()))], schema=_DISTINCT)

    def distinct_frame(self) -> DataFrame:
        """Return the distinct key hashes of each lake as a frame, in the column key_hash."""
        schema = spark_schema(LIVE_KEYS)
        frames = [lake.map_frame(lake.live_keys(self.storage), schema).select("key_hash").distinct() for lake in self.lakes]
        return reduce(DataFrame.unionAll, frames) if frames else self.spark.createDataFrame([], spark_schema(_DISTINCT))

    def run_task(self, task: Task, schema: pa.Schema) -> pa.Table:
        """Run a task over the hashes of all live entries, and return its output rows.

        Args:
            task: Called with batches of the `LIVE_KEYS` columns. A key occurs once for each
                container that references it.
            schema: The columns of the result.
        """
        found = (lake.run(TaskChain(lake.live_keys(self.storage), task), schema) for lake in self.lakes)
        return pa.concat_tables([schema.empty_table(), *found])
