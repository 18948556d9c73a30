"""The live set of a lake: every file below its retained commits, with a witness, and beside it what the other commits name."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.parts import read_parts
from gc_assets.core.receipts import Published
from gc_assets.lakes.registry import CONTAINER_LEVELS
from gc_assets.schemas import CONTAINERS, EDGES, LIVE_FILES, MANIFEST_ENTRIES, UNREADABLE
from gc_assets.stages.content_roots import DEAD, HELD, LIVE, content_roots, inputs_of
from gc_assets.stages.manifest_entries import CONTAINERS_SIDE, EDGES_SIDE, UNREADABLE_SIDE, segment_paths, segments
from gc_assets.stages.night import Night
from gc_assets.stages.tables import ROUTE, Totals, publish, read_paths, write_frame

EXPIRED_SIDE, DANGLING_SIDE, EXTERNAL_SIDE, UNDECODED_SIDE = "_expired", "_dangling", "_external", "_undecoded"
_CLOSURE: Final = ["address", "kind", "storage", "key", "size_bytes", "must_exist", "rank", "commit_id", "table_uuid", "parent"]


def live_files(spark: SparkSession, night: Night, lake_name: str) -> Published:
    """`live_files` of a run date, with side tables for files that only expired or only dangling commits name.

    Raises `LakeUnreadable` naming every container of a retained or expired commit that could not be decoded: without it
    the live set would be too small. External addresses are written aside and counted.
    """
    state = night.state
    inputs = inputs_of(night, lake_name)
    entries = state.require(lake_name, MANIFEST_ENTRIES.name, night.run_date)
    cache = segments(night, lake_name)
    run = state.start(night.group(lake_name), LIVE_FILES.name, night.run_date, night.clock)
    # What could not be read tonight is undecoded even if an earlier object of that name once was decoded.
    failed = read_paths(spark, state.files, UNREADABLE, entries.paths(UNREADABLE_SIDE)).select(F.col("address").alias("container"))
    index = read_paths(spark, state.files, CONTAINERS, segment_paths(cache, CONTAINERS_SIDE)).join(failed, "container", "left_anti")
    edges = read_paths(spark, state.files, EDGES, segment_paths(cache, EDGES_SIDE))
    rows = read_paths(spark, state.files, MANIFEST_ENTRIES.schema, segment_paths(cache))
    roots = content_roots(spark, night, inputs)
    closure = _closure(roots, edges, CONTAINER_LEVELS[night.config.lake(lake_name).kind])
    files = _files(roots, closure, index, rows, lake_name)
    routes = [EXPIRED_SIDE, DANGLING_SIDE, EXTERNAL_SIDE, UNDECODED_SIDE]
    written = write_frame(files, LIVE_FILES, run, state, totals_by=["storage", "kind"], routes=routes)
    undecoded = written.side.get(UNDECODED_SIDE)
    if undecoded:
        names = [f"{run.path}/{part.name}" for part in undecoded]
        raise LakeUnreadable(_explain(night, lake_name, cache, names))
    facts = {
        "files": written.rows,
        "live_bytes": sum(total.size_bytes for total in written.totals.values()),
        "by_kind": _by(written.totals, 1),
        "by_storage": _by(written.totals, 0),
        **{f"{side.lstrip('_')}_files": sum(part.rows for part in written.side.get(side, ())) for side in routes[:3]},
    }
    return publish(state, run, written, night.clock, inputs=[*inputs.values(), entries], facts=facts, unsafe=night.unsafe)


def _by(totals: dict[tuple[str, ...], Totals], position: int) -> dict[str, dict[str, int]]:
    grouped: dict[str, Totals] = {}
    for key, value in totals.items():
        grouped[key[position]] = grouped.get(key[position], Totals()) + value
    return {name: {"files": value.rows, "bytes": value.size_bytes} for name, value in sorted(grouped.items())}


def _closure(roots: DataFrame, edges: DataFrame, levels: int) -> DataFrame:
    """Every container below the roots, once, with the strongest commit that needs it (columns `_CLOSURE`)."""
    frontier = _strongest(roots.filter("is_container").withColumn("parent", F.lit(None).cast("string")))
    everything = frontier
    for _ in range(levels - 1):
        above = frontier.select(F.col("address").alias("container"), "rank", "commit_id", "table_uuid")
        children = edges.join(above, "container").withColumnRenamed("container", "parent")
        frontier = _strongest(children)
        everything = everything.unionByName(frontier)
    return _strongest(everything) if levels > 1 else everything


def _strongest(containers: DataFrame) -> DataFrame:
    witness = F.min(F.struct("rank", "commit_id", "table_uuid", "parent")).alias("w")
    facts = [F.first(name, ignorenulls=True).alias(name) for name in ("kind", "storage", "key")]
    grouped = containers.groupBy("address").agg(
        *facts, F.max("size_bytes").alias("size_bytes"), F.max("must_exist").alias("must_exist"), witness
    )
    return grouped.select("address", "kind", "storage", "key", "size_bytes", "must_exist", "w.*").select(*_CLOSURE)


def _files(roots: DataFrame, closure: DataFrame, index: DataFrame, entries: DataFrame, lake_name: str) -> DataFrame:
    """All files with their strongest witness and the route they are written by, columns of `live_files`."""
    decoded = index.groupBy(F.col("container").alias("address")).agg(F.max("container_size_bytes").alias("decoded_bytes"))
    containers = closure.join(decoded, "address", "left")
    above = closure.select(F.col("address").alias("container"), "rank", "commit_id", "table_uuid")
    children = (
        entries.filter("not is_container and (entry_status is null or entry_status <> 'deleted')")
        .select("container", "storage", "key", "address", "kind", "size_bytes", "must_exist")
        .join(above, "container")
    )
    nothing = F.lit(None).cast("long")
    leaves = roots.filter("not is_container").withColumn("container", F.lit(None).cast("string"))
    named = ["storage", "key", "address", "kind", "size_bytes", "must_exist", "rank", "commit_id", "table_uuid", "container"]
    everything = (
        containers.withColumnRenamed("parent", "container")
        .select(*named, F.coalesce("decoded_bytes", F.lit(-1)).alias("decoded_bytes"))
        .unionByName(children.select(*named, nothing.alias("decoded_bytes")))
        .unionByName(leaves.select(*named, nothing.alias("decoded_bytes")))
    )
    external = F.col("storage").isNull()
    placed = everything.select(
        F.coalesce("storage", F.lit("")).alias("storage"),
        F.when(external, F.col("address")).otherwise(F.col("key")).alias("key"),
        *named[3:],
        "decoded_bytes",
    )
    witness = F.min(F.struct("rank", "commit_id", "container", "table_uuid", "kind")).alias("w")
    grouped = placed.groupBy("storage", "key").agg(
        witness,
        F.max("size_bytes").alias("size_bytes"),
        F.max("must_exist").alias("must_exist"),
        F.max("decoded_bytes").alias("decoded_bytes"),
    )
    return grouped.select(
        F.when(F.col("storage") == "", None).otherwise(F.col("storage")).alias("storage"),
        "key",
        F.xxhash64("key").alias("key_hash"),
        "w.kind",
        F.coalesce("size_bytes", "decoded_bytes").alias("size_bytes"),
        F.lit(lake_name).alias("lake"),
        "w.commit_id",
        "w.container",
        "w.table_uuid",
        "must_exist",
        F.col("decoded_bytes").alias("container_size_bytes"),
        _route().alias(ROUTE),
    )


def _route() -> Column:
    rank = F.col("w.rank")
    return (
        F.when((F.col("decoded_bytes") == -1) & (rank < DEAD), UNDECODED_SIDE)
        .when(F.col("storage") == "", EXTERNAL_SIDE)
        .when(rank == LIVE, "")
        .when(rank == HELD, EXPIRED_SIDE)
        .otherwise(DANGLING_SIDE)
    )


def _explain(night: Night, lake_name: str, cache: list[Published], undecoded: list[str]) -> str:
    files = night.state.files
    errors: dict[str, str] = {}
    for row in read_parts(files, segment_paths(cache, UNREADABLE_SIDE), UNREADABLE).to_pylist():
        errors[row["key"] or row["address"]] = row["error"]
    missing: list[dict[str, Any]] = read_parts(files, undecoded, LIVE_FILES.schema).to_pylist()
    lines = [f"  {errors.get(row['key'], row['kind'] + ' ' + row['key'])} (needed by commit {row['commit_id']})" for row in missing[:5]]
    more = f"\n  and {len(missing) - 5:,} more" if len(missing) > 5 else ""
    return (
        f"lake {lake_name}: {len(missing):,} metadata objects of commits that must be kept cannot be read, so no live set and no plan:\n"
        + "\n".join(lines)
        + more
        + "\n  Repair or restore them, or remove the commits that need them with the lake's own tools; then run again."
    )
