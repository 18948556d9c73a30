"""Find planned files that may be live under an unknown address.

An unknown address may be another name for an object in a storage, for example through an S3 access
point. Because it is unknown which part of the address is the key, only its last components are
compared with keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.external_addresses import HIDDEN, OLD_COPY, split_tail
from gc_assets.core.phases import RESTORE
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import collect, map_arrow, read_paths
from gc_assets.state.journal import PublishedTable
from gc_assets.state.side_tables import UNKNOWN_ADDRESSES, UNKNOWN_ADDRESSES_SIDE
from gc_assets.state.summaries import LiveFilesSummary
from gc_assets.stores.store import read_identity

# Number of matches in a message.
MAX_NAMED: Final = 20
# Number of pairs whose objects are compared, with one request per pair. If there are more matches,
# a whole location has another name.
MAX_COMPARED: Final = 1_000
_PAIRS: Final = pa.schema([("key", pa.string()), ("etag", pa.string()), ("address", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True, slots=True)
class TailMatches:
    """Planned files with the same last path component and size as an unknown address.

    Attributes:
        addresses: Number of unknown addresses in all lakes.
        files: Number of planned files that match any of them.
        samples: Some of the matching files, with the unknown address.
        hidden: Number of planned files with the same size as a file that cannot be examined.
    """

    addresses: int = 0
    files: int = 0
    samples: tuple[str, ...] = ()
    hidden: int = 0


def planned_by_unknown_address(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    live: Sequence[PublishedTable],
    planned_rows: int,
    rows: Callable[[SparkSession], DataFrame],
) -> TailMatches:
    """Compare a plan's rows with the unknown addresses of all lakes.

    A row matches an address if its last path component and its size are the same. Since a mount may
    rename the directory, the directory's name is only compared if a size is unknown and the last
    component is a common name. A file that the driver cannot examine may be a link, so only its
    size is compared, if known. If a store can read the object at the address and it is not the
    planned object, the row does not match.

    Args:
        live: `live_files` of all lakes.
        planned_rows: Number of rows in the plan.
        rows: Returns these rows as a frame of the given session. Only called if there are unknown
            addresses.
    """
    tables = [table for table in live if table.summary(LiveFilesSummary).unknown_addresses]
    count = sum(table.summary(LiveFilesSummary).unknown_addresses for table in tables)
    if not tables:
        return TailMatches()
    columns = ["address", "size_bytes", "reason"]
    paths = [path for table in tables for path in table.paths(UNKNOWN_ADDRESSES_SIDE)]
    session = choose_session(spark, planned_rows + count, len(paths) + 1)
    addresses = read_paths(session, context.state.files, UNKNOWN_ADDRESSES, paths, columns)
    hidden = addresses.filter((F.col("reason") == HIDDEN) & F.col("size_bytes").isNotNull())
    unknown = _with_tail(addresses, "address", "address_parent")
    planned = rows(session).filter(F.col("action") != RESTORE).select("key", "etag", F.col("size_bytes").alias("planned_bytes"))
    no_size = F.col("size_bytes").isNull() | F.col("planned_bytes").isNull()
    same_parent = F.col("address_parent").isNull() | F.col("key_parent").isNull() | (F.col("address_parent") == F.col("key_parent"))
    same_file = (F.col("size_bytes") == F.col("planned_bytes")) | (no_size & same_parent)
    pairs = _with_tail(planned, "key", "key_parent").join(unknown, "base").filter(same_file).select(*_PAIRS.names)
    if collect(hidden.limit(1)):
        by_size = planned.join(hidden, F.col("planned_bytes") == F.col("size_bytes")).select(*_PAIRS.names)
        pairs = pairs.unionByName(by_size).distinct()
    some = collect(pairs.limit(MAX_COMPARED + 1))
    if len(some) > MAX_COMPARED:
        hidden_key = F.when(F.col("reason") == HIDDEN, F.col("key"))
        found = collect(pairs.agg(F.count_distinct("key").alias("files"), F.count_distinct(hidden_key).alias("hidden")))[0]
        return TailMatches(count, found["files"], tuple(_describe(row) for row in some[:MAX_NAMED]), found["hidden"])
    same = list[Any]()
    for row in some:
        # Each comparison is one request, which may fail slowly. The gate does not need the
        # remaining pairs.
        if len(same) >= MAX_NAMED or not _is_another_object(context, storage_name, row):
            same.append(row)
    files, hidden_files = {row["key"] for row in same}, {row["key"] for row in same if row["reason"] == HIDDEN}
    return TailMatches(count, len(files), tuple(sorted(_describe(row) for row in same[:MAX_NAMED])), len(hidden_files))


def _is_another_object(context: RunContext, storage_name: str, row: Any) -> bool:
    """Return True if the object at the address is known not to be the planned object."""
    if row["reason"] == OLD_COPY:
        return False
    location = context.storage(storage_name).location
    found = read_identity(row["address"], location, context.config.connections())
    return found is not None and found != row["etag"]


def _describe(row: Any) -> str:
    return f"{row['key']} and {row['address']} ({row['reason']})"


def _with_tail(frame: DataFrame, name: str, parent: str) -> DataFrame:
    """Add the last two components of a column as `base` and `parent`.

    The spelling of both is normalized.
    """
    schema = pa.schema([*_fields(frame), ("base", pa.string()), (parent, pa.string())])
    return map_arrow(frame, _AddTail(name, schema), schema)


def _fields(frame: DataFrame) -> list[pa.Field]:
    types = {"size_bytes": pa.int64(), "planned_bytes": pa.int64()}
    return [pa.field(name, types.get(name, pa.string())) for name in frame.columns]


@dataclass(frozen=True)
class _AddTail:
    """Add columns with the last two components of the keys or addresses in a column."""

    name: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            parent, base = split_tail(batch.column(self.name))
            yield pa.RecordBatch.from_arrays([*batch.columns, base, parent], schema=self.schema)
