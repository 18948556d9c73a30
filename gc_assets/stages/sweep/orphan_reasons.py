"""Find the reason and the last witness of each candidate.

A candidate that equals a live key, or that differs from one only in its spelling, is routed to a
side table and not planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.foreign import OTHER_FORMAT
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import ROUTE, frame_from_arrow, map_arrow, read_paths
from gc_assets.stages.mark.live_set import MAX_KEYS, LiveSet
from gc_assets.stages.mark.released_files import find_released_files
from gc_assets.stages.sweep.exact_comparison import find_collisions, find_hits, ignores_case, may_hit
from gc_assets.stages.sweep.foreign_files import FOREIGN, ForeignFinder
from gc_assets.stages.sweep.live_filter import live_keys
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import (
    CANDIDATES,
    EXPIRED_SIDE,
    FALSE_NEGATIVES_SIDE,
    LIFECYCLE_SIDE,
    NEAR_MISSES_SIDE,
    RELEASED_SIDES,
)
from gc_assets.state.summaries import LiveFilesSummary

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
    rows: int,
    live: list[PublishedTable],
    foreign: ForeignFinder | None = None,
) -> DataFrame:
    """Return the candidates with their reasons and witnesses.

    A candidate that equals a live key is routed to the false negatives. One that differs from a
    live key only in its spelling is routed to the near misses, as is a live one whose hash is that
    of a released file.

    Args:
        spark: The session. Few candidates are joined in a small session.
        context: The run.
        storage_name: The storage.
        candidate_paths: Parts with the candidates (columns `CANDIDATES`).
        rows: Number of candidates.
        live: `live_files` of all lakes.
        foreign: Finds files of others, or None. A file that a commit named is one of them only if it
            is in a dataset of another format.
    """
    keys = read_parts(context.state.files, candidate_paths, CANDIDATES, ["key"]).column("key") if rows <= MAX_KEYS else None
    collisions = find_collisions(context, storage_name, live, candidate_paths)
    is_hit = bool(len(collisions)) or may_hit(spark, context, storage_name, live, candidate_paths)
    session = spark if keys is None or is_hit else choose_session(spark, *_size(context, rows))
    witnesses = _witnesses(spark, session, context, storage_name, live, keys)
    candidates = read_paths(session, context.state.files, CANDIDATES, candidate_paths)
    if foreign is None:
        candidates = candidates.withColumn("foreign_rule", F.lit(None).cast("string"))
    else:
        candidates = map_arrow(candidates, foreign, RULED_CANDIDATES)
    compared = candidates.withColumn("exact", F.lit(None).cast("boolean"))
    if is_hit:
        live_files, ignore_case = live_keys(session, context, storage_name, live), ignores_case(context, storage_name)
        compared = candidates.join(find_hits(candidates, live_files, ignore_case=ignore_case), "key", "left")
    joined = compared.join(witnesses, "key", "left")
    joined = joined.join(_dangling_commits(session, context, storage_name), "key", "left")
    named = F.col("w").isNotNull()
    unnamed = _never_committed(context)
    lifecycle = F.coalesce(F.col("w.strength") == LIFECYCLE, F.lit(False))
    is_foreign = F.col("foreign_rule").isNotNull() & (~named | (F.col("foreign_rule") == OTHER_FORMAT))
    # The live keys lack a file whose hash is that of a released file, which is no error of the filter.
    is_lost = F.col("exact") & ~F.col("key").isin(collisions.to_pylist())
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
        F.when(is_lost, FALSE_NEGATIVES_SIDE).when(F.col("exact").isNotNull(), NEAR_MISSES_SIDE).otherwise("").alias(ROUTE),
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


def _size(context: RunContext, candidates: int) -> tuple[int, int]:
    """Return the rows and files that are joined with the candidates."""
    released = [find_released_files(context, lake.name) for lake in context.config.lakes]
    parts = [part for table in released if table is not None for part in table.published.parts()]
    return candidates * (1 + len(context.config.lakes)) + sum(part.rows for part in parts), len(parts)


def _witnesses(
    spark: SparkSession,
    session: SparkSession,
    context: RunContext,
    storage_name: str,
    live: list[PublishedTable],
    candidates: pa.ChunkedArray | None,
) -> DataFrame:
    """Return the witness with the lowest strength number for each released key (columns key, w).

    `candidates` are the keys to look for, or None to return all. The frame belongs to `session`.
    """
    tables = [table for table in live if _has_released(table)]
    frames = [frame for table in tables for frame in _released_rows(spark, session, context, table, candidates)]
    if not frames:
        return frame_from_arrow(session, WITNESSED.empty_table())
    mine = reduce(DataFrame.unionByName, frames).filter(F.col("storage") == storage_name)
    union = mine.select("key", F.struct("strength", "commit_id", "container", "kind", "lake", "table_uuid").alias("w"))
    # Each lake names a key once, so a key can occur twice only if there are several lakes.
    return union.groupBy("key").agg(F.min("w").alias("w")) if len(tables) > 1 else union


def _has_released(live: PublishedTable) -> bool:
    summary = live.summary(LiveFilesSummary)
    return bool(summary.expired_files or summary.dangling_files or summary.lifecycle_files)


def _released_rows(
    spark: SparkSession, session: SparkSession, context: RunContext, live: PublishedTable, candidates: pa.ChunkedArray | None
) -> Iterator[DataFrame]:
    """Yield the released rows of a lake (columns of `live_files`, and strength)."""
    view = LiveSet(context, live)
    known = None if candidates is None else view.rows_of(spark, candidates.combine_chunks())
    for side in RELEASED_SIDES:
        if known is None:
            frame = view.read(session, side)
        else:
            frame = frame_from_arrow(session, known.filter(pc.equal(known.column(ROUTE), side)).drop_columns([ROUTE]))
        yield frame.withColumn("strength", F.lit(_strength(context, live, side)))


def _strength(context: RunContext, live: PublishedTable, side: str) -> int:
    if side != EXPIRED_SIDE:
        return LIFECYCLE if side == LIFECYCLE_SIDE else MENTIONED
    return HELD if context.kind(live.receipt.owner).edits_history else RELEASED
