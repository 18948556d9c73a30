"""Join files with their witnesses: the commit and container that keep the file live.

One query, `build_live_rows`, serves both full and incremental runs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.tables import ROUTE
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.stages.mark.content_roots import RELEASED, SPARED
from gc_assets.stages.mark.dirty_keys import file_key
from gc_assets.stages.mark.needs import build_needs
from gc_assets.state.side_tables import DANGLING_SIDE, DIRECT_FILES, EXPIRED_SIDE, EXTERNAL_SIDE, LIFECYCLE_SIDE, WITNESSES

# Columns that identify a witness. A witness that lists a file under several kinds has one number
# per kind.
_ORDER: Final = ("rank", "commit_id", "table_uuid", "container", "expands", "must_exist", "kind")
# Expressions are strings here, because column functions cost JVM calls.
_KINDS: Final = len(FILE_KINDS)
_KIND_NAMES: Final = f"array({', '.join(repr(str(kind)) for kind in FILE_KINDS)})"
# Index of the kind in `FILE_KINDS`. An unknown kind stops the run, because its file would be
# missing from the live set.
_UNKNOWN_KIND: Final = "raise_error(concat('live_files: unknown file kind ', coalesce(kind, 'null')))"
_KIND_POSITION: Final = f"array_position({_KIND_NAMES}, kind)"
_KIND_NUMBER: Final = f"case when {_KIND_POSITION} > 0 then {_KIND_POSITION} - 1 else cast({_UNKNOWN_KIND} as bigint) end"


def build_witnesses(containers: pa.Table, lengths: pa.ChunkedArray, leaves: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Assign numbers to the witnesses by strength.

    Args:
        containers: All containers of the walk (columns `ROOTS`).
        lengths: Column with the decoded length of each container in bytes, null if it was not
            decoded.
        leaves: Content roots that are not containers (columns `ROOTS`).

    Returns:
        Witnesses (columns `WITNESSES`), directly referenced files (columns `DIRECT_FILES`), and
        both without numbers (columns `NEEDS`).
    """
    count = containers.num_rows
    direct = pa.concat_tables([containers, leaves])
    columns = ["rank", "commit_id", "table_uuid", "must_exist", "kind"]
    own = direct.select(columns).append_column("container", direct.column("parent"))
    expanding = containers.select(columns).append_column("container", containers.column("address"))
    candidates = pa.concat_tables([own, expanding]).append_column("expands", pa.array([False] * direct.num_rows + [True] * count))
    order = pc.sort_indices(candidates, sort_keys=[(name, "ascending") for name in _ORDER])
    numbers = np.empty(candidates.num_rows, np.int64)
    numbers[order.to_numpy()] = np.arange(candidates.num_rows)
    names = {"must_exist": "container_must_exist"}
    candidates = candidates.rename_columns([names.get(name, name) for name in candidates.column_names])
    witnesses = candidates.append_column("witness", pa.array(numbers)).select(WITNESSES.names).cast(WITNESSES)
    decoded = pa.chunked_array([*lengths.chunks, pa.nulls(leaves.num_rows, pa.int64())], pa.int64())
    files = direct.append_column("witness", pa.array(numbers[: direct.num_rows])).append_column("container_size_bytes", decoded)
    needs = build_needs(direct, np.arange(direct.num_rows) < count, decoded)
    return witnesses, files.select(DIRECT_FILES.names).cast(DIRECT_FILES), needs


def build_live_rows(entries: DataFrame, direct: DataFrame, witnesses: DataFrame, lake_name: str) -> DataFrame:
    """Build one row per file with its strongest witness (columns of `live_files`, and the route).

    Args:
        entries: Result of `CachedEntries.read`.
        direct: Directly referenced files (columns `DIRECT_FILES`).
        witnesses: Witnesses (columns `WITNESSES`).
        lake_name: The lake.
    """
    expanding = witnesses.filter("expands").select("witness", "container", "container_must_exist")
    children = entries.join(expanding, "container").withColumns(
        {"must_exist": F.expr("must_exist and container_must_exist"), "container_size_bytes": F.expr("cast(null as bigint)")}
    )
    files = _with_file_key(direct).unionByName(_with_file_key(children))
    # Witness and kind form one number, because Spark aggregates numbers by hashing, but text only
    # by sorting.
    grouped = (
        files.withColumn("strongest", F.expr(f"witness * {_KINDS} + {_KIND_NUMBER}"))
        .groupBy("storage", "key")
        .agg(
            F.min("strongest").alias("strongest"),
            F.max("size_bytes").alias("size_bytes"),
            F.max("must_exist").alias("must_exist"),
            F.max("container_size_bytes").alias("container_size_bytes"),
        )
    )
    numbered = grouped.withColumn("witness", F.expr(f"strongest div {_KINDS}"))
    return numbered.join(witnesses, "witness").select(
        "storage",
        "key",
        F.expr("xxhash64(key)").alias("key_hash"),
        F.expr(f"{_KIND_NAMES}[int(strongest % {_KINDS})]").alias("kind"),
        F.expr("coalesce(size_bytes, container_size_bytes)").alias("size_bytes"),
        F.lit(lake_name).alias("lake"),
        "commit_id",
        "container",
        "table_uuid",
        "must_exist",
        "container_size_bytes",
        _route().alias(ROUTE),
    )


def route_released(files: DataFrame, released: DataFrame) -> DataFrame:
    """Route live files released by the owner's rules to their side table.

    `released` has the columns storage and key.
    """
    flagged = files.join(released.select("storage", "key", F.lit(True).alias("is_released")), ["storage", "key"], "left")
    route = F.when((F.col(ROUTE) == "") & F.coalesce("is_released", F.lit(False)), LIFECYCLE_SIDE).otherwise(F.col(ROUTE))
    return flagged.withColumn(ROUTE, route).select(*files.columns)


def _with_file_key(files: DataFrame) -> DataFrame:
    return files.select("witness", "storage", file_key(files).alias("key"), "kind", "size_bytes", "must_exist", "container_size_bytes")


def _route() -> Column:
    by_rank = f"case when rank <= {SPARED} then '' when rank <= {RELEASED} then '{EXPIRED_SIDE}' else '{DANGLING_SIDE}' end"
    return F.expr(f"if(storage is null, '{EXTERNAL_SIDE}', {by_rank})")
