"""Find planned objects that are live files under another address.

The other address leads through a symbolic link, a bind mount, or a file system that is mounted
twice, so no live set contains the keys of these objects. Therefore, the store compares object
identities at each address that may lead to them. These are addresses outside all storages, and live
keys at links of other storages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StoreError
from gc_assets.core.phases import RESTORE
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import collect, read_table
from gc_assets.stages.sweep.listings import Listing
from gc_assets.stages.sweep.live_filter import expired_keys, live_keys
from gc_assets.stages.sweep.sweep_checks import MAX_NAMED, has_links, keys_at_links
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import EXTERNAL_SIDE
from gc_assets.state.summaries import LiveFilesSummary
from gc_assets.stores.protocol import Store
from gc_assets.stores.store import find_link_sources

_IDENTITIES_DDL: Final = "address string, etag string, problem string"


def planned_by_alias(
    spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable], rows: Callable[[], DataFrame]
) -> list[str]:
    """Find plan rows that would remove an object needed by a lake under another address.

    If the store cannot examine a live file behind a link of another storage, a message reports it,
    because it may be any planned file. A live file outside all storages has an unknown address in
    this case (`stages/mark/unknown_addresses.py`), which another gate compares.

    Args:
        live: `live_files` of all lakes.
        rows: Returns the plan's rows (columns action, key, etag). Only called if needed.

    Returns:
        At most `MAX_NAMED` messages, one per object.
    """
    store = context.store(storage_name)
    if not store.has_aliases:
        return []
    outside, behind_links = list(_outside(spark, context, live)), list(_behind_links(spark, context, storage_name, live))
    if not outside and not behind_links:
        return []
    identify = _Identify(store)
    taken = rows().filter(F.col("action") != RESTORE).select("key", "etag")
    messages = set[str]()
    for frames in (outside, behind_links):
        if frames:
            identified = reduce(DataFrame.unionByName, frames).distinct().mapInArrow(identify, _IDENTITIES_DDL)
            same = identified.join(taken, "etag").select("key", "address").limit(MAX_NAMED)
            messages |= {f"{row['key']}, which is {row['address']}" for row in collect(same)}
            if frames is behind_links:
                messages |= {row["problem"] for row in collect(identified.filter("problem is not null").limit(MAX_NAMED))}
    return sorted(messages)[:MAX_NAMED]


def _outside(spark: SparkSession, context: RunContext, live: Sequence[PublishedTable]) -> Iterator[DataFrame]:
    for table in live:
        if table.summary(LiveFilesSummary).external_files:
            yield read_table(spark, context.state, LIVE_FILES, table, EXTERNAL_SIDE, columns=["key"]).select(F.col("key").alias("address"))


def _behind_links(spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> Iterator[DataFrame]:
    """Yield addresses of live files in other storages that are reached through a link."""
    for other in find_link_sources(context.storage(storage_name), context.config.storages):
        inventory = Listing.of(context, other.name).inventory
        if not has_links(inventory):  # Reading all live files takes long.
            continue
        needed = [read(spark, context, other.name, list(live)).select("key") for read in (live_keys, expired_keys)]
        keys = keys_at_links(spark, context, reduce(DataFrame.unionByName, needed), inventory)
        if keys is not None:
            yield keys.select(F.concat(F.lit(context.resolver().address(other.name, "")), "key").alias("address"))


@dataclass(frozen=True)
class _Identify:
    """Add the identity of the object at each address, or why it is unknown, on Spark executors."""

    store: Store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = list(map(self._identify, batch.column("address").to_pylist()))
            etags, problems = (pa.array([row[column] for row in found], pa.string()) for column in range(2))
            yield batch.append_column("etag", etags).append_column("problem", problems)

    def _identify(self, address: str) -> tuple[str | None, str | None]:
        try:
            return self.store.identity(address), None
        except StoreError as error:
            return None, str(error)
