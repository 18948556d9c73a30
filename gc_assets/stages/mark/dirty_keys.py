"""Frames of dirty keys (column `key_hash`), whose rows in `live_files` must be recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.tables import PARTS_DDL, WrittenParts, merge_written, report_parts, run_over_frame
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter
from gc_assets.state.side_tables import DIRTY_KEYS, DIRTY_KEYS_SIDE

# Maximum number of hashes sent to every executor.
BROADCAST_ROWS: Final = 2_000_000


def file_key(frame: DataFrame) -> Column:
    """Build the key column of a file, or its address if it is outside all storages.

    A frame without an address column has no files outside the storages.
    """
    return F.coalesce("key", "address") if "address" in frame.columns else F.col("key")


def write_dirty_keys(frames: Sequence[DataFrame], files: Files, run: TableRun) -> WrittenParts:
    """Write the distinct keys of the frames with their hashes (`DIRTY_KEYS_SIDE`)."""
    keys = [frame.select(file_key(frame).alias("key")) for frame in frames]
    distinct = reduce(DataFrame.unionByName, keys).distinct().withColumn("key_hash", F.xxhash64("key"))
    return merge_written(run_over_frame(distinct, _WriteRows(files, run.path, DIRTY_KEYS, DIRTY_KEYS_SIDE), PARTS_DDL))


def filter_dirty(frame: DataFrame, dirty: DataFrame, count: int) -> DataFrame:
    """Select the rows of dirty keys. `count` is the row count of `dirty`."""
    return frame.withColumn("key_hash", F.xxhash64(file_key(frame))).join(_to_join(dirty, count), "key_hash", "left_semi").drop("key_hash")


def filter_clean(rows: DataFrame, dirty: DataFrame, count: int) -> DataFrame:
    """Select the rows of `live_files` with clean keys.

    `count` is the number of rows of `dirty`.
    """
    return rows.join(_to_join(dirty, count), "key_hash", "left_anti").select(rows.columns)


def _to_join(dirty: DataFrame, count: int) -> DataFrame:
    return F.broadcast(dirty) if count <= BROADCAST_ROWS else dirty


@dataclass(frozen=True)
class _WriteRows:
    """Write rows as parts of a side table, in executors."""

    files: Files
    directory: str
    schema: pa.Schema
    prefix: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.directory, self.schema, self.prefix)
        for batch in batches:
            writer.write(batch)
        yield report_parts(writer.close())
