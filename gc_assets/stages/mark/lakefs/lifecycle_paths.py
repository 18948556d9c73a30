"""Publish the paths that lakeFS lifecycle rules delete by commits, and one edit per branch.

Rules apply to paths at branch heads. Each branch is evaluated separately, so a path may be deleted
on one branch and stay on another. The objects are not released, because older commits still
reference them. Paths that are not UTF-8 are left out, because the API cannot represent them: its
name for one may be another path.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.plan import Amount
from gc_assets.core.printable import show_list, to_message
from gc_assets.core.units import count_of, format_bytes
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import ROUTE, WrittenParts, collect, map_arrow, publish, read_paths, write_frame, write_parts
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.exact_paths import REPLACED
from gc_assets.lakes.lakefs.lifecycle import Rule, class_of, evaluate
from gc_assets.lakes.lakefs.tables import LIFECYCLE_PATHS, POTENTIAL_COMMITS
from gc_assets.lakes.protocol import DELETE_PATHS, UNEDITABLE, Ref
from gc_assets.stages.mark.lake_refs import read_frozen_refs
from gc_assets.stages.mark.lakefs.lifecycle_objects import describe_unused
from gc_assets.stages.mark.lakefs.rules import read_lifecycle_rules
from gc_assets.stages.mark.lakefs.unedited_branches import describe_unedited_branches
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, MANIFEST_ENTRIES
from gc_assets.state.side_tables import EDITS_SIDE, HEADS, HEADS_SIDE, INEXACT_PATHS_SIDE, RANGES, RANGES_SIDE
from gc_assets.state.summaries import LifecyclePathsSummary, PotentialCommitsSummary

_COLUMNS: Final = ["storage", "key", "path", "size_bytes", "age", "branch"]


@log_progress(LIFECYCLE_PATHS)
def lifecycle_paths(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish `lifecycle_paths` for a run date: paths at branch heads that are due under a rule.

    The age of a path is computed as in `lifecycle_objects`. The side table of edits (columns of
    `expiry_plan`) contains one row per branch, unless the branch must not be edited.
    """
    state = context.state
    potential, refs, entries = (context.table(table, lake_name) for table in (POTENTIAL_COMMITS, LAKE_REFS, MANIFEST_ENTRIES))
    run = start_run(context, context.group(lake_name), LIFECYCLE_PATHS)
    log_activity("evaluating the lifecycle rules for the heads of branches")
    cache = find_segments(context, lake_name)
    parts, paths = [*potential.parts(RANGES_SIDE), *potential.parts(HEADS_SIDE)], state.paths(cache)
    spark = choose_session(spark, sum(part.rows for part in parts) + sum(segment.rows for segment in cache), len(parts) + len(paths))
    ranges = read_paths(spark, state.files, RANGES, potential.paths(RANGES_SIDE))
    heads = read_paths(spark, state.files, HEADS, potential.paths(HEADS_SIDE))
    rows = read_paths(spark, state.files, MANIFEST_ENTRIES.schema, paths).filter("not is_container")
    rules = tuple(read_lifecycle_rules(context, lake_name))
    route = F.when(F.col("path").contains(REPLACED), INEXACT_PATHS_SIDE).otherwise("")
    due = map_arrow(_paths_at_heads(rows, ranges, heads), _FindDue(rules), LIFECYCLE_PATHS.schema).withColumn(ROUTE, route)
    written = write_frame(due, LIFECYCLE_PATHS, run, state, ["branch", "rule_id"], [INEXACT_PATHS_SIDE])
    inexact = read_parts(state.files, written.paths(run, INEXACT_PATHS_SIDE), LIFECYCLE_PATHS.schema, ["branch"])
    branches = {ref.ref_name: ref for ref in read_frozen_refs(context, lake_name, refs).refs if ref.ref_type == "branch"}
    by_branch = _sum_by_branch(written)
    paths_of = _count_paths(rows, heads) if by_branch else {}
    editable = {name: by_rule for name, by_rule in by_branch.items() if UNEDITABLE not in branches[name].properties}
    edits = [_build_edit(branches[name], by_rule, paths_of[name], written) for name, by_rule in editable.items()]
    notes = [
        f"lake {lake_name}: {count_of(_total(by_rule).files, 'path')} on branch {name} will not be deleted: "
        f"{branches[name].properties[UNEDITABLE]}"
        for name, by_rule in by_branch.items()
        if UNEDITABLE in branches[name].properties
    ]
    notes += [
        f"lake {lake_name}: {count_of(paths, 'path')} on branch {branch} will not be deleted, because the server's API "
        "cannot name paths that are not UTF-8; rename or delete them with the client that wrote them"
        for branch, paths in sorted((row["values"], row["counts"]) for row in inexact.column("branch").value_counts().to_pylist())
    ]
    side = write_parts(pa.Table.from_pylist(edits, EXPIRY_PLAN.schema), run, state.files, EDITS_SIDE) if edits else []
    # An unreadable lake has no ranges, so the effect of its rules is unknown.
    is_known = potential.summary(PotentialCommitsSummary).ranges > 0
    releasing = {rule_id for by_rule in by_branch.values() for rule_id in by_rule}
    unused = describe_unused(rules, releasing, rows.join(ranges, "container")) if is_known else ()
    summary = LifecyclePathsSummary(
        paths=Amount.total(map(_total, by_branch.values())),
        edits=len(edits),
        unused_rules=tuple(to_message(f"lake {lake_name}: {text}") for text in unused),
        notes=tuple(map(to_message, notes)),
        unedited=tuple(map(to_message, describe_unedited_branches(context, lake_name, {edit["ref_name"] for edit in edits}))),
    )
    written = replace(written, side={**written.side, **({EDITS_SIDE: tuple(side)} if side else {})})
    return publish(state, run, written, context.clock, inputs=[potential, refs, entries], summary=summary, unsafe=context.unsafe)


def _count_paths(entries: DataFrame, heads: DataFrame) -> dict[str, int]:
    objects = entries.filter(F.col("kind") == Kind.OBJECT).join(heads.select("container", "branch").distinct(), "container")
    return {row["branch"]: row["count"] for row in collect(objects.groupBy("branch").count())}


def _paths_at_heads(entries: DataFrame, ranges: DataFrame, heads: DataFrame) -> DataFrame:
    """Return one row per object, path, and branch whose head contains the path.

    Unlike released objects, these objects may be outside the repository's claims.
    """
    branches = heads.groupBy("container").agg(F.collect_set("branch").alias("branches"))
    objects = entries.withColumn("object", F.coalesce("key", "address")).join(ranges, "container").join(branches, "container", "left")
    return (
        objects.groupBy("storage", "object", "path")
        .agg(
            F.max("key").alias("key"),
            F.greatest(F.max("written_at"), F.min("first_commit_at")).alias("age"),
            F.max("size_bytes").alias("size_bytes"),
            F.array_distinct(F.flatten(F.collect_set("branches"))).alias("branches"),
        )
        .withColumn("branch", F.explode("branches"))
        .select(*_COLUMNS)
    )


@dataclass(frozen=True)
class _FindDue:
    """Find the paths that a lifecycle rule of their branch deletes at this time."""

    rules: tuple[Rule, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            branches = batch.column("branch").dictionary_encode()
            classes = [[class_of(self.rules, name)] for name in branches.dictionary.to_pylist()]
            indices = branches.indices.to_numpy().astype(np.int64)
            releases = evaluate(self.rules, batch.column("path"), batch.column("age"), indices, classes)
            due = pa.table({name: batch.column(name) for name in _COLUMNS} | {"rules": releases.rules}).filter(pa.array(releases.released))
            rule_ids = pa.array([rules[0] for rules in due.column("rules").to_pylist()], pa.string())
            found = due.append_column("rule_id", rule_ids).select(LIFECYCLE_PATHS.schema.names).cast(LIFECYCLE_PATHS.schema)
            yield from found.combine_chunks().to_batches()


def _sum_by_branch(written: WrittenParts) -> dict[str, dict[str, Amount]]:
    """Return the files and bytes of due paths for each branch and rule, both sorted by name."""
    found: dict[str, dict[str, Amount]] = {}
    for (branch, rule_id), total in sorted(written.totals.items()):
        found.setdefault(str(branch), {})[str(rule_id)] = total.amount
    return found


def _total(amounts: Mapping[str, Amount]) -> Amount:
    return Amount.total(amounts.values())


def _build_edit(ref: Ref, by_rule: Mapping[str, Amount], paths: int, written: WrittenParts) -> dict[str, Any]:
    """Build the edit that deletes due paths of a branch, as a row of `expiry_plan`.

    The digest covers all due paths of the lake, because they were written together.

    Args:
        paths: Number of all paths at the branch's head.
    """
    total = _total(by_rule)
    counts = Counter({rule_id: amount.files for rule_id, amount in by_rule.items()})
    deleted = f"{total.files:,} of {count_of(paths, 'path')}"
    rules = show_list([f"{rule_id} {count:,}" for rule_id, count in counts.most_common()])
    details = {"paths": total.files, "bytes": total.bytes, "rules": counts, "digest": f"{written.digest:016x}", "branch_paths": paths}
    return {
        "snapshot_id": ref.head_commit_id,
        "action": DELETE_PATHS,
        "ref_name": ref.ref_name,
        "ref_type": ref.ref_type,
        "reason": f"lifecycle: a commit deletes {deleted} ({format_bytes(total.bytes)}), by rule: {rules}",
        "details": json.dumps(details, sort_keys=True),
    }
