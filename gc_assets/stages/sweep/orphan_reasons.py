"""Find the reason and the last witness of each candidate.

A candidate that equals a live key, or that differs from one only in its spelling, is routed to a
side table and not planned.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.foreign import OTHER_FORMAT
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE, frame_from_arrow, map_arrow, read_paths
from gc_assets.stages.mark.released_files import find_released_files
from gc_assets.stages.sweep.exact_comparison import find_hits, ignores_case, may_hit
from gc_assets.stages.sweep.foreign_files import FOREIGN, ForeignFinder
from gc_assets.stages.sweep.live_filter import live_keys
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES, ORPHAN_FILES
from gc_assets.state.side_tables import (
    CANDIDATES,
    EXPIRED_SIDE,
    FALSE_NEGATIVES_SIDE,
    LIFECYCLE_SIDE,
    NEAR_MISSES_SIDE,
    RELEASED_SIDES,
)

_WITNESS: Final = [("strength", pa.int32()), *((name, STRING) for name in ("commit_id", "container", "kind", "lake", "table_uuid"))]
WITNESSED: Final = pa.schema([("key", STRING), ("w", pa.struct(_WITNESS))])
RULED_CANDIDATES: Final = CANDIDATES.append(ORPHAN_FILES.schema.field("foreign_rule"))
DANGLING_COMMITS: Final = pa.schema([("key", STRING), ("dangling_commits", pa.int64())])
# Several lakes may name a released file. The lowest number applies: expired history that must be
# edited first, expired history that is never edited, a lifecycle rule, a dangling commit.
HELD, RELEASED, LIFECYCLE, MENTIONED = 0, 1, 2, 3


def find_reasons(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    candidate_paths: list[str],
    live: list[PublishedTable],
    foreign: ForeignFinder | None = None,
) -> DataFrame:
    """Return the candidates with their reasons and witnesses.

    `foreign` finds files of others, or is None. A file that a commit named is one of them only if it
    is in a dataset of another format.

    A candidate that equals a live key is routed to the false negatives. One that differs from a
    live key only in its spelling is routed to the near misses.
    """
    candidates = read_paths(spark, context.state.files, CANDIDATES, candidate_paths)
    if foreign is None:
        candidates = candidates.withColumn("foreign_rule", F.lit(None).cast("string"))
    else:
        candidates = map_arrow(candidates, foreign, RULED_CANDIDATES)
    compared = candidates.withColumn("exact", F.lit(None).cast("boolean"))
    if may_hit(spark, context, storage_name, live, candidate_paths):
        keys, ignore_case = live_keys(spark, context, storage_name, live), ignores_case(context, storage_name)
        compared = candidates.join(find_hits(candidates, keys, ignore_case=ignore_case), "key", "left")
    joined = compared.join(_witnesses(spark, context, storage_name, live), "key", "left")
    joined = joined.join(_dangling_commits(spark, context, storage_name), "key", "left")
    named = F.col("w").isNotNull()
    unnamed = _never_committed(context)
    lifecycle = F.coalesce(F.col("w.strength") == LIFECYCLE, F.lit(False))
    is_foreign = F.col("foreign_rule").isNotNull() & (~named | (F.col("foreign_rule") == OTHER_FORMAT))
    is_held = (F.col("w.strength") == HELD) & ~is_foreign
    return joined.select(
        *[name for name in ORPHAN_FILES.schema.names if name in CANDIDATES.names],
        F.when(is_foreign, FOREIGN)
        .when(lifecycle, "lifecycle")
        .when(named & ((F.col("w.strength") <= RELEASED) | unnamed.isNotNull()), "expired")
        .otherwise(F.coalesce(unnamed, F.lit("unreferenced")))
        .alias("reason"),
        F.col("w.commit_id").alias("last_commit_id"),
        F.col("w.container").alias("last_container"),
        F.when(is_held, F.col("w.lake")).alias("held_by"),
        F.when(is_held, F.col("w.table_uuid")).alias("held_by_table"),
        F.col("w.kind").alias("kind"),
        F.when(lifecycle & ~is_foreign, F.col("dangling_commits")).alias("dangling_commits"),
        F.when(is_foreign, F.col("foreign_rule")).alias("foreign_rule"),
        F.when(F.col("exact"), FALSE_NEGATIVES_SIDE).when(F.col("exact").isNotNull(), NEAR_MISSES_SIDE).otherwise("").alias(ROUTE),
    )


def _dangling_commits(spark: SparkSession, context: RunContext, storage_name: str) -> DataFrame:
    """Return how many retained commits name each key that lifecycle rules release.

    These commits keep a path to a missing object (columns key, dangling_commits).
    """
    tables = [find_released_files(context, lake.name) for lake in context.config.lakes]
    frames = [table.read(spark, context.state) for table in tables if table is not None]
    if not frames:
        return frame_from_arrow(spark, DANGLING_COMMITS.empty_table())
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    mine = union.filter((F.col("storage") == storage_name) & ~F.col("deduplicated"))
    return mine.groupBy("key").agg(F.sum("commits").alias("dangling_commits"))


def _never_committed(context: RunContext) -> Column:
    """Return a column with the reason of the owning lake for files that no commit named, or null."""
    reason = F.lit(None).cast("string")
    for lake in context.config.lakes:
        if (own := context.kind(lake.name).files.never_committed) is not None:
            reason = F.when(F.col("lake") == lake.name, own).otherwise(reason)
    return reason


def _witnesses(spark: SparkSession, context: RunContext, storage_name: str, live: list[PublishedTable]) -> DataFrame:
    """Return the witness with the lowest strength number for each released key (columns key, w)."""
    parts = [(table, side) for table in live for side in RELEASED_SIDES if table.paths(side)]
    frames = [
        read_paths(spark, context.state.files, LIVE_FILES.schema, table.paths(side))
        .filter(F.col("storage") == storage_name)
        .withColumn("strength", F.lit(_strength(context, table, side)))
        .select("key", F.struct("strength", "commit_id", "container", "kind", "lake", "table_uuid").alias("w"))
        for table, side in parts
    ]
    if not frames:
        return frame_from_arrow(spark, WITNESSED.empty_table())
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    # Each lake names a key once, so a key can occur twice only if there are several lakes.
    several = len({table.receipt.owner for table, _ in parts}) > 1
    return union.groupBy("key").agg(F.min("w").alias("w")) if several else union


def _strength(context: RunContext, live: PublishedTable, side: str) -> int:
    if side != EXPIRED_SIDE:
        return LIFECYCLE if side == LIFECYCLE_SIDE else MENTIONED
    return HELD if context.kind(live.receipt.owner).edits_history else RELEASED
