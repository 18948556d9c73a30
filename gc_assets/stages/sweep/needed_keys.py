"""Find the keys of a plan or of the quarantine that lakes need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE, collect_arrow, frame_from_arrow
from gc_assets.stages.mark.live_set import MAX_KEYS, LiveSet
from gc_assets.stages.sweep.live_filter import expired_keys, live_keys
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.side_tables import EXPIRED_SIDE

# `is_live` is false for files that only expired history needs, in lakes whose history is edited.
# `needed_bytes` is the recorded size.
NEEDED: Final = pa.schema([("key", STRING), ("lake", STRING), ("is_live", pa.bool_()), ("needed_bytes", pa.int64())])
_KEYS: Final = pa.schema([("key", STRING)])


def find_needed(
    spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable], keys: DataFrame | pa.Table
) -> DataFrame:
    """Return the keys among the given ones that lakes need.

    A key occurs once for each lake that needs it. This process looks up at most `MAX_KEYS` keys. If
    there are more, the result contains all files that any lake needs, including keys that were not
    given.

    Args:
        spark: The session of the result.
        storage_name: The storage of the keys.
        live: `live_files` of all lakes.
        keys: Rows with the column key. A key may occur more than once.

    Returns:
        Rows with the columns `NEEDED`.
    """
    rows: pa.Table = keys if isinstance(keys, pa.Table) else collect_arrow(keys.select("key").distinct().limit(MAX_KEYS + 1), _KEYS)
    wanted = pc.unique(rows.column("key"))
    if len(wanted) > MAX_KEYS:
        size = F.coalesce("size_bytes", "container_size_bytes").alias("needed_bytes")
        frames = [
            read(spark, context, storage_name, live).select("key", "lake", F.lit(is_live).alias("is_live"), size)
            for read, is_live in ((live_keys, True), (expired_keys, False))
        ]
        return frames[0].unionByName(frames[1])
    found = [NEEDED.empty_table()]
    for table in live if len(wanted) else ():
        rows = LiveSet(context, table).rows_of(spark, wanted)
        routes = ["", EXPIRED_SIDE] if context.kind(table.receipt.owner).edits_history else [""]
        rows = rows.filter(pc.and_(pc.equal(rows.column("storage"), storage_name), pc.is_in(rows.column(ROUTE), pa.array(routes))))
        columns = {
            "key": rows.column("key"),
            "lake": rows.column("lake"),
            "is_live": pc.equal(rows.column(ROUTE), ""),
            "needed_bytes": pc.coalesce(rows.column("size_bytes"), rows.column("container_size_bytes")),
        }
        found.append(pa.table(columns, NEEDED))
    return frame_from_arrow(spark, pa.concat_tables(found))
