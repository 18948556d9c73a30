"""Publish objects that lakeFS lifecycle rules release, even if another reference keeps them.

A released object may be deleted although a retained commit references it. Every run evaluates all
references in the cached entries of all ranges. Therefore, a kept object is released by the first
run after its last reference was removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.plan import Amount
from gc_assets.core.printable import to_message
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import collect, map_arrow, publish, read_paths, read_table, write_frame
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.lifecycle import Rule, evaluate, find_used
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, POTENTIAL_COMMITS
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.stages.mark.lakefs.result_files import write_results
from gc_assets.stages.mark.lakefs.rules import read_lifecycle_rules
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.state.arrow_types import STRINGS
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LAKE_REFS, MANIFEST_ENTRIES
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, PINNED, PINNED_SIDE, RANGES, RANGES_SIDE
from gc_assets.state.summaries import LifecycleObjectsSummary, PotentialCommitsSummary

MAX_PATHS: Final = 100
# Branch names cannot contain this character (git check-ref-format, which lakeFS follows).
_SEPARATOR: Final = "\x1f"
EVALUATED: Final = pa.schema(
    [
        ("storage", pa.string()),
        ("key", pa.string()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("commits", pa.int64()),
        ("potential", pa.bool_()),
        ("released", pa.bool_()),
        ("rules", STRINGS),
    ]
)

USED: Final = pa.schema([("rule_id", pa.string()), ("used", pa.bool_())])


class MovedClaim(NamedTuple):
    """A claim that resolves to another storage or key than in an earlier run."""

    storage: str
    key: str
    new_storage: str
    new_key: str


@log_progress(LIFECYCLE_OBJECTS)
def lifecycle_objects(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish the objects that lifecycle rules release under at least one path.

    An object is marked `deduplicated` and kept if it is not released under another path or branch,
    if a tagged commit contains it, or if it is staged. With `verify_deduplicated: false`, it is
    also kept if an earlier run kept it.
    """
    state, group = context.state, context.group(lake_name)
    potential = context.table(POTENTIAL_COMMITS, lake_name)
    refs = context.table(LAKE_REFS, lake_name)
    entries = context.table(MANIFEST_ENTRIES, lake_name)
    run = start_run(context, group, LIFECYCLE_OBJECTS)
    log_activity(f"evaluating the lifecycle rules for {potential.rows:,} potential commits")
    cache, previous = find_segments(context, lake_name), _previously_kept(context, lake_name)
    parts = [*potential.parts(RANGES_SIDE), *refs.parts(PINNED_SIDE), *(previous.parts() if previous is not None else ())]
    paths = state.paths(cache)
    spark = choose_session(spark, sum(part.rows for part in parts) + sum(segment.rows for segment in cache), len(parts) + len(paths))
    ranges = read_paths(spark, state.files, RANGES, potential.paths(RANGES_SIDE))
    rows = read_paths(spark, state.files, MANIFEST_ENTRIES.schema, paths)
    claimed, rules = _list_claims(context, refs), tuple(read_lifecycle_rules(context, lake_name))
    evaluated = map_arrow(_references(rows, ranges, claimed), _ApplyRules(rules), EVALUATED)
    pinned = read_paths(spark, state.files, PINNED, refs.paths(PINNED_SIDE)).select("storage", "key").distinct()
    if previous is not None:
        kept = read_table(spark, state, LIFECYCLE_OBJECTS, previous).filter("deduplicated").select("storage", "key")
        pinned = pinned.unionByName(follow_moved_claims(kept, _moved_claims(context, previous, refs))).distinct()
    written = write_frame(_group_by_object(evaluated, pinned), LIFECYCLE_OBJECTS, run, state, ["deduplicated"])
    amounts = {deduplicated: total.amount for (deduplicated,), total in written.totals.items()}
    released = read_paths(spark, state.files, LIFECYCLE_OBJECTS.schema, written.paths(run))
    # An unreadable lake has no ranges, so the effect of its rules is unknown. Notes of a
    # verification mark are not shown.
    is_known = potential.summary(PotentialCommitsSummary).ranges > 0 and context.verification_id is None
    references = _named_entries(rows, claimed).join(ranges, "container")
    releasing = _list_rule_ids(released) if is_known and written.rows else set[str]()
    unused = describe_unused(rules, releasing, references) if is_known else ()
    summary = LifecycleObjectsSummary(
        released=amounts.get("false", Amount()),
        deduplicated=amounts.get("true", Amount()),
        unused_rules=tuple(to_message(f"lake {lake_name}: {text}") for text in unused),
        notes=tuple(map(to_message, write_results(context, refs, run, written))),
    )
    return publish(state, run, written, context.clock, inputs=[potential, refs, entries], summary=summary, unsafe=context.unsafe)


def _list_claims(context: RunContext, refs: PublishedTable) -> list[tuple[str, str]]:
    """List the storage and prefix of each claim. Rules only apply to objects under claims."""
    return [(row["storage"], row["key"]) for row in read_side_rows(context, refs, CLAIMS_SIDE, CLAIMS) if row["storage"] is not None]


def _references(entries: DataFrame, ranges: DataFrame, claimed: list[tuple[str, str]]) -> DataFrame:
    """Return one row per object and lakeFS path, with all classes of branches that reach the pair."""
    return (
        _named_entries(entries, claimed)
        .join(ranges, "container")
        .groupBy("storage", "key", "path")
        .agg(
            F.greatest(F.max("written_at"), F.min("first_commit_at")).alias("age"),
            F.array_join(F.array_sort(F.array_distinct(F.flatten(F.collect_set("classes")))), _SEPARATOR).alias("classes"),
            F.sum("commits").alias("commits"),
            F.max("tagged").alias("tagged"),
            F.max("potential").alias("potential"),
            F.max("size_bytes").alias("size_bytes"),
            F.max(F.size("classes")).alias("reached_by"),
        )
    )


def _named_entries(entries: DataFrame, claimed: list[tuple[str, str]]) -> DataFrame:
    is_claimed = F.lit(False)
    for storage, prefix in claimed:
        is_claimed = is_claimed | ((F.col("storage") == storage) & F.col("key").startswith(prefix))
    return entries.filter("not is_container").filter(is_claimed).select("container", "storage", "key", "path", "written_at", "size_bytes")


def _list_rule_ids(released: DataFrame) -> set[str]:
    """Return the ids of rules that release at least one object."""
    return {row["rule_id"] for row in collect(released.select(F.explode("matched_rules").alias("rule_id")).distinct())}


def describe_unused(rules: tuple[Rule, ...], releasing: set[str], references: DataFrame) -> Iterator[str]:
    """Yield messages about enabled rules that do not apply to any object.

    The paths are only read if some rule does not release an object.
    """
    enabled = dict.fromkeys(rule.rule_id for rule in rules if rule.enabled)
    if not enabled:
        yield "no lifecycle rule is enabled, so no object is released"
    if enabled.keys() <= releasing:
        return
    found = collect(map_arrow(references.filter(F.size("classes") > 0).select("path", "classes"), _FindUsed(rules), USED).distinct())
    matching, used = {row["rule_id"] for row in found}, {row["rule_id"] for row in found if row["used"]}
    for rule_id in sorted(enabled.keys() - releasing - used):
        if rule_id in matching:
            yield f"lifecycle rule {rule_id!r} applies to no object, because longer prefixes of other rules match the same paths"
        else:
            yield f"lifecycle rule {rule_id!r} matches no object on its branches; compare its prefix or glob with the paths"


@dataclass(frozen=True)
class _FindUsed:
    """Find the lifecycle rules that match paths of objects. The output has the `USED` columns."""

    rules: tuple[Rule, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            classes = pc.binary_join(batch.column("classes"), _SEPARATOR).dictionary_encode()
            class_lists = [text.split(_SEPARATOR) for text in classes.dictionary.to_pylist()]
            matching, used = find_used(self.rules, batch.column("path"), classes.indices.to_numpy().astype(np.int64), class_lists)
            yield pa.RecordBatch.from_pylist([{"rule_id": rule_id, "used": rule_id in used} for rule_id in sorted(matching)], USED)


@dataclass(frozen=True)
class _ApplyRules:
    """Evaluate lifecycle rules for each object and path. The output has the `EVALUATED` columns."""

    rules: tuple[Rule, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            classes = batch.column("classes").dictionary_encode()
            class_lists = [text.split(_SEPARATOR) for text in classes.dictionary.to_pylist()]
            releases = evaluate(
                self.rules, batch.column("path"), batch.column("age"), classes.indices.to_numpy().astype(np.int64), class_lists
            )
            is_reached = pc.greater(batch.column("reached_by"), 0)
            released = pc.and_(pc.and_(pa.array(releases.released), is_reached), pc.invert(batch.column("tagged")))
            columns = {"released": released, "rules": releases.rules}
            yield pa.RecordBatch.from_arrays(
                [columns.get(n) if n in columns else batch.column(n) for n in EVALUATED.names], schema=EVALUATED
            )


def _group_by_object(evaluated: DataFrame, kept: DataFrame) -> DataFrame:
    grouped = (
        evaluated.groupBy("storage", "key")
        .agg(
            F.slice(F.array_sort(F.collect_set("path")), 1, MAX_PATHS).alias("paths"),
            F.array_sort(F.array_distinct(F.flatten(F.collect_set(F.when(F.col("released"), F.col("rules")))))).alias("matched_rules"),
            F.max("released").alias("any_released"),
            F.min("released").alias("all_released"),
            F.max("size_bytes").alias("size_bytes"),
            F.sum("commits").alias("commits"),
            F.max("potential").alias("potential"),
        )
        .filter("any_released")
    )
    flagged = grouped.join(kept.withColumn("is_kept", F.lit(True)), ["storage", "key"], "left")
    return flagged.withColumn("deduplicated", ~F.col("all_released") | F.coalesce("is_kept", F.lit(False)))


def _previously_kept(context: RunContext, lake_name: str) -> PublishedTable | None:
    """Return the newest `lifecycle_objects` before this run, if its deduplicated objects stay kept.

    Returns None if `verify_deduplicated` is true or the table does not exist.
    """
    lake = context.config.lake(lake_name)
    previous = context.state.latest(lake_name, LIFECYCLE_OBJECTS.name, before=context.run_date)
    if not isinstance(lake, LakeFsLakeConfig) or lake.verify_deduplicated or previous is None:
        return None
    return previous


def _moved_claims(context: RunContext, previous: PublishedTable, refs: PublishedTable) -> list[MovedClaim]:
    """Return the claims that had another storage or key in an earlier run."""
    run_ids = [text.partition(":")[0] for name, text in previous.receipt.inputs.items() if name.split("/")[-2] == LAKE_REFS.name]
    runs = [run for run in context.state.history(refs.receipt.owner, LAKE_REFS.name) if run.run_id in run_ids]
    then, now = (
        {row["address"]: (row["storage"], row["key"]) for table in tables for row in read_side_rows(context, table, CLAIMS_SIDE, CLAIMS)}
        for tables in (list(map(context.state.open, runs)), [refs])
    )
    moved = [(then[address], now[address]) for address in sorted(then.keys() & now.keys()) if then[address] != now[address]]
    return [MovedClaim(*old, *new) for old, new in moved if None not in (*old, *new)]


def follow_moved_claims(kept: DataFrame, moved: Sequence[MovedClaim]) -> DataFrame:
    """Add the current keys of kept objects if the storage or symbolic links of their claim changed.

    `kept` and the result have the columns storage and key.
    """
    frames = [kept]
    for claim in moved:
        mine = kept.filter((F.col("storage") == claim.storage) & F.col("key").startswith(claim.key))
        name = F.expr(f"substring(key, {len(claim.key) + 1})")
        frames.append(mine.select(F.lit(claim.new_storage).alias("storage"), F.concat(F.lit(claim.new_key), name).alias("key")))
    return reduce(DataFrame.unionByName, frames)
