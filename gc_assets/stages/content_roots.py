"""The metadata objects that commits point at, ranked by what the policy makes of their commits. Lazy: no job runs here."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.receipts import Published
from gc_assets.lakes.protocol import EXPIRED, RETAINED
from gc_assets.schemas import COMMIT_GRAPH, EXPIRY_PLAN, LAKE_REFS, PINNED, REACHABLE_SNAPSHOTS
from gc_assets.stages.lake_refs import PINNED_SIDE
from gc_assets.stages.night import Night
from gc_assets.stages.tables import read_paths, read_table

# Lower wins where several commits need one object. What history must let go of first (an expired commit, an unreferenced
# Iceberg snapshot that metadata still lists) ranks before what nothing names any more.
LIVE, HELD, DEAD = 0, 1, 2
RANK_STATE: Final = {HELD: "expired", DEAD: "dangling"}


def inputs_of(night: Night, lake_name: str) -> dict[str, Published]:
    """The published tables that the content roots of a lake come from, by asset name."""
    names = (LAKE_REFS.name, COMMIT_GRAPH.name, REACHABLE_SNAPSHOTS.name, EXPIRY_PLAN.name)
    return {name: night.state.require(night.group(lake_name), name, night.run_date) for name in names}


def content_roots(spark: SparkSession, night: Night, inputs: dict[str, Published]) -> DataFrame:
    """One row per object that a commit or the present state points at.

    Columns: address, kind, is_container, size_bytes, must_exist, storage, key, rank, commit_id, table_uuid. Files of the
    present state have rank `LIVE` and no commit.
    """
    state = night.state
    graph = read_table(spark, state, COMMIT_GRAPH, inputs[COMMIT_GRAPH.name])
    states = read_table(spark, state, REACHABLE_SNAPSHOTS, inputs[REACHABLE_SNAPSHOTS.name]).select("table_uuid", "commit_id", "state")
    removed = (
        read_table(spark, state, EXPIRY_PLAN, inputs[EXPIRY_PLAN.name])
        .filter(F.col("action") == "remove_snapshot")
        .select("table_uuid", F.col("snapshot_id").alias("commit_id"), F.lit(True).alias("removed"))
    )
    same = ["table_uuid", "commit_id"]
    ranked = _null_safe_join(_null_safe_join(graph, states, same, "inner"), removed, same, "left")
    rank = F.when(F.col("state") == RETAINED, LIVE).when((F.col("state") == EXPIRED) | F.col("removed"), HELD).otherwise(DEAD)
    roots = ranked.select(rank.alias("rank"), "commit_id", "table_uuid", F.explode("content_roots").alias("root"))
    pinned = read_paths(spark, state.files, PINNED, inputs[LAKE_REFS.name].paths(PINNED_SIDE))
    columns = ["address", "kind", "is_container", "size_bytes", "must_exist", "storage", "key"]
    return roots.select(*[f"root.{name}" for name in columns], "rank", "commit_id", "table_uuid").unionByName(
        pinned.select(
            *columns,
            F.lit(LIVE).alias("rank"),
            F.lit(None).cast("string").alias("commit_id"),
            F.lit(None).cast("string").alias("table_uuid"),
        )
    )


def _null_safe_join(left: DataFrame, right: DataFrame, on: list[str], how: str) -> DataFrame:
    renamed = right.select(*[F.col(name).alias(f"_{name}" if name in on else name) for name in right.columns])
    condition = F.lit(True)
    for name in on:
        condition = condition & left[name].eqNullSafe(renamed[f"_{name}"])
    return left.join(renamed, condition, how).drop(*[f"_{name}" for name in on])
