"""Find keys of live files that are reached through the current symbolic links.

The mark only resolves links outside storages. Inside a storage, keys are taken literally, but one
of their directories may be a link that was created after the listing. Files outside all storages
may be links themselves. Paths are compared instead of objects, because a quarantined file is no
longer at the target of its link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import frame_from_arrow, read_table, spark_schema
from gc_assets.stages.mark.live_set import MAX_KEYS
from gc_assets.stages.sweep.listings import Listing
from gc_assets.stages.sweep.live_filter import live_keys
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.stages.sweep.needed_keys import NEEDED
from gc_assets.stages.sweep.sweep_checks import has_links
from gc_assets.stages.sweep.unlisted_files import find_unlisted_hashes, read_unlisted_rows
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import EXTERNAL_SIDE
from gc_assets.state.summaries import LiveFilesSummary
from gc_assets.stores.store import find_link_sources, resolve_links


def find_link_targets(spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> Iterator[DataFrame]:
    """Yield the keys in a storage to which live files' addresses lead through symbolic links.

    Listings never contain files behind a link, so only unlisted live files are resolved. This run's
    listing shows whether there are any links.

    Args:
        live: `live_files` of all lakes.

    Yields:
        Frames with the `NEEDED` columns.
    """
    storage, store, resolver = context.storage(storage_name), context.store(storage_name), context.resolver()
    if not store.has_aliases:
        return
    resolve, size = _ResolveLinks(resolver.address(storage_name, "")), F.coalesce("size_bytes", "container_size_bytes").alias("size_bytes")
    for source in (storage, *find_link_sources(storage, context.config.storages)):
        listing = Listing.of(context, source.name)
        if context.verification_id is None and not listing.is_earlier and not has_links(listing.inventory):
            continue
        rows = _read_unlisted(spark, context, source.name, live, listing.inventory)
        if rows is not None:
            address = F.concat(F.lit(resolver.address(source.name, "")), "key").alias("address")
            yield rows.select(address, "lake", size).mapInArrow(resolve, spark_schema(NEEDED))
    for table in live:
        if table.summary(LiveFilesSummary).external_files:
            rows = read_table(spark, context.state, LIVE_FILES, table, EXTERNAL_SIDE)
            yield rows.select(F.col("key").alias("address"), "lake", size).mapInArrow(resolve, spark_schema(NEEDED))


def _read_unlisted(
    spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable], inventory: PublishedTable
) -> DataFrame | None:
    """Return the live files that a listing does not contain, or None if all are listed.

    The rows have the columns of `live_files`.
    """
    keys = LiveKeys.of(spark, context, storage_name, live)
    hashes = find_unlisted_hashes(context, keys, inventory)
    if hashes is not None and len(hashes) <= MAX_KEYS:
        rows = read_unlisted_rows(keys, hashes)
        return frame_from_arrow(spark, rows) if rows.num_rows else None
    listed = read_table(spark, context.state, STORAGE_INVENTORY, inventory, columns=["key"])
    return live_keys(spark, context, storage_name, live).join(listed, "key", "left_anti")


@dataclass(frozen=True)
class _ResolveLinks:
    """Resolve addresses that lead into the storage through symbolic links, and yield their keys.

    It is pickled and sent to Spark executors.
    """

    location: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        root = resolve_links(self.location)
        for batch in batches:
            found = [resolve_links(address) for address in batch.column("address").to_pylist()]
            keys = [None if root is None or path is None or not path.startswith(f"{root}/") else path[len(root) + 1 :] for path in found]
            columns = [pa.array(keys, pa.string()), batch.column("lake"), pa.repeat(pa.scalar(True), batch.num_rows)]
            rows = pa.RecordBatch.from_arrays([*columns, batch.column("size_bytes"), pa.nulls(batch.num_rows, STRING)], schema=NEEDED)
            yield rows.filter(rows.column("key").is_valid())
