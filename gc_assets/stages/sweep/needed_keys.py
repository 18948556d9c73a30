"""Find the keys of a plan or of the quarantine that lakes need.

A lake may need a file under another spelling of its key, such as another percent-encoding. For
example, Iceberg Java writes a path with `%3A` to an Azure blob with `:`. Such keys are found too,
because they may be needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.hashing import xxhash64
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_small, large_session
from gc_assets.engine.tables import ROUTE, collect_arrow, frame_from_arrow, map_arrow
from gc_assets.stages.mark.file_entries import loose_form
from gc_assets.stages.mark.hash_scan import RESPELLED, FindRespelled
from gc_assets.stages.mark.live_set import MAX_KEYS, LiveSet
from gc_assets.stages.sweep.exact_comparison import find_twins, ignores_case
from gc_assets.stages.sweep.live_filter import expired_keys, live_keys
from gc_assets.stages.sweep.live_keys import LIVE_KEYS, LiveKeys
from gc_assets.stages.sweep.orphan_reasons import MAX_MATCHED
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.side_tables import EXPIRED_SIDE

# `is_live` is false for files that only expired history needs, in lakes whose history is edited.
# `needed_bytes` is the recorded size. `respelled` is the lake's spelling of the key, or None if it
# equals `key`.
NEEDED: Final = pa.schema([("key", STRING), ("lake", STRING), ("is_live", pa.bool_()), ("needed_bytes", pa.int64()), ("respelled", STRING)])
_KEYS: Final = pa.schema([("key", STRING)])


def find_needed(
    spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable], keys: DataFrame | pa.Table
) -> DataFrame:
    """Return the keys among the given ones that lakes need, exactly or under another spelling.

    A key occurs once for each lake that needs it. Other spellings only count for keys that no lake
    needs exactly. The driver looks up at most `MAX_KEYS` keys. If there are more, the result
    contains all files that any lake needs, including keys that were not given. The driver compares
    the spellings of at most `MAX_MATCHED` keys by hash. If there are more, executors join the
    hashes.

    Args:
        spark: The session of the result.
        storage_name: The storage of the keys.
        live: `live_files` of all lakes.
        keys: Rows with the column key. A key may occur more than once.

    Returns:
        Rows with the `NEEDED` columns.

    Raises:
        StateError: If an older release published one of the tables.
    """
    rows: pa.Table = keys if isinstance(keys, pa.Table) else collect_arrow(keys.select("key").distinct().limit(MAX_KEYS + 1), _KEYS)
    wanted = pc.unique(rows.column("key"))
    if len(wanted) > MAX_KEYS:
        exact = _read_all(spark, context, storage_name, live)
        given = frame_from_arrow(spark, keys.select(_KEYS.names)) if isinstance(keys, pa.Table) else keys
        respelled = _find_respelled(spark, context, storage_name, live, given.select("key").distinct())
        return exact if respelled is None else exact.unionByName(respelled.join(exact.select("key").distinct(), "key", "left_anti"))
    tables = live if len(wanted) else ()
    found = [_select_needed(context, storage_name, table, LiveSet(context, table).rows_of(spark, wanted)) for table in tables]
    exact_rows = pa.concat_tables([NEEDED.empty_table(), *found])
    others = wanted.filter(pc.invert(pc.is_in(wanted, exact_rows.column("key").combine_chunks())))
    respelled = _find_respelled(spark, context, storage_name, live, pa.table([others], _KEYS)) if len(others) else None
    exact = frame_from_arrow(spark, exact_rows)
    return exact if respelled is None else exact.unionByName(respelled)


def strongest_need() -> Column:
    """Rank the `NEEDED` rows of a key: live above expired history, exact above other spellings."""
    return F.struct("is_live", F.col("respelled").isNull())


def _read_all(spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> DataFrame:
    """Return all files that lakes need, with the `NEEDED` columns."""
    size = F.coalesce("size_bytes", "container_size_bytes").alias("needed_bytes")
    respelled = F.lit(None).cast("string").alias("respelled")
    frames = [
        read(spark, context, storage_name, live).select("key", "lake", F.lit(is_live).alias("is_live"), size, respelled)
        for read, is_live in ((live_keys, True), (expired_keys, False))
    ]
    return frames[0].unionByName(frames[1])


def _select_needed(context: RunContext, storage_name: str, table: PublishedTable, rows: pa.Table) -> pa.Table:
    """Select the files that a lake needs from rows of its live set (`ROUTED_ROWS` columns)."""
    routes = ["", EXPIRED_SIDE] if context.kind(table.receipt.owner).edits_history else [""]
    rows = rows.filter(pc.and_(pc.equal(rows.column("storage"), storage_name), pc.is_in(rows.column(ROUTE), pa.array(routes))))
    columns = {
        "key": rows.column("key"),
        "lake": rows.column("lake"),
        "is_live": pc.equal(rows.column(ROUTE), ""),
        "needed_bytes": pc.coalesce(rows.column("size_bytes"), rows.column("container_size_bytes")),
        "respelled": pa.nulls(rows.num_rows, STRING),
    }
    return pa.table(columns, NEEDED)


def _find_respelled(
    spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable], wanted: pa.Table | DataFrame
) -> DataFrame | None:
    """Find keys that lakes need under another spelling.

    The keys themselves are only compared if hashes show that there may be such keys.

    Args:
        wanted: The distinct keys, in the column key.

    Returns:
        Rows with the `NEEDED` columns, or None if there are no such keys.
    """
    keys = LiveKeys.of(large_session(spark), context, storage_name, live)
    hashes = _find_hashes(spark, keys, wanted)
    if not any(map(len, hashes)):
        return None
    if sum(map(len, hashes)) > MAX_KEYS:
        files = _read_all(spark, context, storage_name, live)
    else:
        found = [
            _select_needed(context, storage_name, item.table, item.rows_of_hashes(spark, own))
            for item, own in zip(keys.sets, hashes, strict=True)
            if len(own)
        ]
        files = frame_from_arrow(spark, pa.concat_tables(found))
    candidates = frame_from_arrow(spark, wanted) if isinstance(wanted, pa.Table) else wanted
    twins = find_twins(candidates, files, ignore_case=ignores_case(context, storage_name)).filter("key <> live_key").distinct()
    needed = files.drop("respelled").withColumnRenamed("key", "live_key")
    return twins.join(needed, "live_key").withColumnRenamed("live_key", "respelled").select(*NEEDED.names)


def _find_hashes(spark: SparkSession, keys: LiveKeys, wanted: pa.Table | DataFrame) -> list[NDArray[np.int64]]:
    """Return the sorted hashes of each lake's keys that may be other spellings of the given keys.

    If there are more than `MAX_KEYS` hashes, some are missing.
    """
    if isinstance(wanted, DataFrame):
        spelled = map_arrow(wanted, _hash_spelling, LIVE_KEYS)
        is_local = keys.runs_in_process or is_small(spark)
        rows = collect_arrow(spelled.limit(MAX_MATCHED + 1), LIVE_KEYS) if is_local else None
        if rows is None or rows.num_rows > MAX_MATCHED:
            return [_join_hashes(keys, number, spelled) for number in range(len(keys.lakes))]
    else:
        rows = pa.Table.from_batches(_hash_spelling(iter(wanted.to_batches())), LIVE_KEYS)
    key_hash, loose_hash = (rows.column(name).to_numpy() for name in LIVE_KEYS.names)
    tasks = [FindRespelled(lake.scan.storages.index(keys.storage), key_hash, loose_hash) for lake in keys.lakes]
    found = [lake.run(task, RESPELLED).column("key_hash").to_numpy() for lake, task in zip(keys.lakes, tasks, strict=True)]
    return [np.unique(hashes) for hashes in found]


def _join_hashes(keys: LiveKeys, number: int, spelled: DataFrame) -> NDArray[np.int64]:
    """Return the hashes that `_find_hashes` finds for one lake, with a join on executors.

    This is used if there are more keys than a task should hold in memory.

    Args:
        number: Index of the lake in `keys.lakes`.
        spelled: The hashes of the given keys (`LIVE_KEYS` columns).
    """
    lake = keys.lakes[number]
    position = lake.scan.storages.index(keys.storage)
    entries = lake.match_frame().filter(F.col("storage") == position).select(*LIVE_KEYS.names)
    wanted = spelled.withColumnRenamed("key_hash", "wanted_hash")
    near = entries.join(wanted, "loose_hash").filter("key_hash <> wanted_hash").select("key_hash").distinct()
    return np.sort(collect_arrow(near.limit(MAX_KEYS + 1), RESPELLED).column("key_hash").to_numpy())


def _hash_spelling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hash keys, and the same keys with normalized spelling. Yields the `LIVE_KEYS` columns."""
    for batch in batches:
        keys = batch.column("key")
        yield pa.RecordBatch.from_arrays([pa.array(xxhash64(keys)), pa.array(xxhash64(loose_form(keys)))], schema=LIVE_KEYS)
