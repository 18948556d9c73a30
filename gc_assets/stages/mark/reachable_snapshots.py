"""Apply the retention policy to the whole commit graph, in one task per lake."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.config.models import LakeConfig
from gc_assets.core.errors import LakeUnreadable, StateError, StoreError
from gc_assets.core.phases import DONE
from gc_assets.core.printable import to_message
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts, merge_written, publish, report_parts, write_rows
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.protocol import (
    DANGLING,
    EXPIRED,
    REMOVE_SNAPSHOT,
    RETAINED,
    ExpiryAction,
    FrozenRefs,
    Lake,
    Retention,
    as_filtered,
)
from gc_assets.stages.mark.idle_branches import BranchLog, IdleBranchSearch, find_deleted_branches, keep_deleted, search_idle_branches
from gc_assets.stages.mark.lake_refs import read_frozen_refs
from gc_assets.stages.mark.previous_refs import build_freeze, find_previous_refs
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_LOG, EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, REACHABLE_SNAPSHOTS
from gc_assets.state.summaries import CommitGraphSummary, ExpiryPlanSummary, LakeRefsSummary, LiveContentsSummary, ReachableSnapshotsSummary

# Columns that identify a commit.
_COMMIT: Final = ["table_uuid", "commit_id"]


@dataclass(frozen=True, slots=True)
class _Runs:
    """The unpublished runs of the tables. `contents` is None for lakes without `live_contents`."""

    reachable: TableRun
    expiry: TableRun
    contents: TableRun | None


@log_progress(REACHABLE_SNAPSHOTS)
def reachable_snapshots(spark: SparkSession, context: RunContext, lake_name: str) -> tuple[PublishedTable, ...]:
    """Publish `reachable_snapshots`, `expiry_plan` and, for some kinds, `live_contents`.

    If a single-repository lake is unreadable, all its commits are retained, and the summary
    contains the reason.

    Raises:
        LakeUnreadable: If a commit that must be kept is unreadable.
        StateError: If the policy did not return exactly one state per commit.
    """
    refs = context.table(LAKE_REFS, lake_name)
    graph = context.table(COMMIT_GRAPH, lake_name)
    summary = refs.summary(LakeRefsSummary)
    group, kind = context.group(lake_name), context.kind(lake_name)
    runs = _Runs(
        start_run(context, group, REACHABLE_SNAPSHOTS),
        start_run(context, group, EXPIRY_PLAN),
        start_run(context, group, LIVE_CONTENTS) if kind.has_live_contents else None,
    )
    lake = context.lake(lake_name)
    frozen = read_policy_refs(context, lake, refs)
    task = _ApplyRetention(
        lake,
        frozen,
        graph.summary(CommitGraphSummary).unread or next((item.reason for item in frozen.unreadable if item.table_name is None), None),
        kind.fails_alone,
        context.state.files,
        tuple(graph.paths()),
        find_expiry_logs(context, lake_name),
        summary.as_of,
        summary.frozen_at - context.longest_grace(),
        runs,
        find_unused_rules(context.config.lake(lake_name), frozen, summary.as_of),
        search_idle_branches(context, lake_name, frozen, summary.frozen_at, summary.as_of),
    )
    log_activity(f"applying the retention policy to {graph.receipt.rows:,} commits")
    rows = run_single_task(spark, task, graph.rows, len(task.graph_paths) + len(task.logs))
    written = {json.loads(row["summary"])["asset"]: merge_written([row]) for row in rows}
    return _publish(context, runs, [refs, graph], written)


def _publish(
    context: RunContext, runs: _Runs, inputs: list[PublishedTable], written: dict[str, WrittenParts]
) -> tuple[PublishedTable, ...]:
    publish_run = partial(publish, context.state, clock=context.clock, unsafe=context.unsafe)
    reachable, expiry = written[REACHABLE_SNAPSHOTS.name], written[EXPIRY_PLAN.name]
    balance = Balance(name="commits", expected=inputs[1].receipt.rows, found=reachable.rows)
    summary = ReachableSnapshotsSummary(**reachable.summary)
    published = [publish_run(runs.reachable, reachable, inputs=inputs, balances=[balance], summary=summary)]
    published.append(publish_run(runs.expiry, expiry, inputs=inputs, summary=ExpiryPlanSummary(**expiry.summary)))
    if runs.contents is not None:
        contents = written[LIVE_CONTENTS.name]
        inputs = [*inputs, published[0]]
        published.append(publish_run(runs.contents, contents, inputs=inputs, summary=LiveContentsSummary(contents=contents.rows)))
    return tuple(published)


def find_unused_rules(lake: LakeConfig, refs: FrozenRefs, as_of: datetime) -> tuple[str, ...]:
    """Return notes about retention rules that do not have any effect on the lake."""
    properties = refs.sources[0].properties if refs.sources else {}
    return lake.unused_rules(((ref.ref_type, ref.ref_name) for ref in refs.refs), as_of, properties)


def read_policy_refs(context: RunContext, lake: Lake, refs: PublishedTable) -> FrozenRefs:
    """Read the recorded refs for the policy, including refs changed within the grace period.

    History edits are not included (see `read_edits`).
    """
    frozen, frozen_at = read_frozen_refs(context, lake.name, refs), refs.summary(LakeRefsSummary).frozen_at
    if as_filtered(lake) is None:
        return frozen
    current = build_freeze(frozen_at, frozen.refs)
    return replace(frozen, previous=find_previous_refs(context, lake.name, current, frozen_at - context.longest_grace()))


def find_expiry_logs(context: RunContext, lake_name: str, until: str | None = None) -> tuple[str, ...]:
    """Find the `expiry_log` parts of all applies, oldest first.

    If `until` is a run id, only the parts of applies that began before this run are returned.
    """
    logs = [log for log in context.state.history(lake_name, EXPIRY_LOG.name) if until is None or log.run_id < until]
    return tuple(context.state.paths(sorted(logs, key=lambda log: log.run_id)))


def read_edits(files: Files, logs: Sequence[str]) -> tuple[ExpiryAction, ...]:
    """Read history edits made by plans and not undone since.

    Removals of table snapshots are skipped, because commit graphs do not contain removed snapshots.
    """
    return _select_made(_read_log(files, logs))


def _read_log(files: Files, logs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of history edits, oldest first, without removals of table snapshots."""
    for path in logs:
        rows = read_parts(files, [path], EXPIRY_LOG.schema)
        is_of_table = pc.and_(pc.equal(rows.column("action"), REMOVE_SNAPSHOT), pc.is_valid(rows.column("table_uuid")))
        yield from rows.filter(pc.invert(is_of_table)).to_pylist()


def _select_made(log: Iterable[Mapping[str, Any]]) -> tuple[ExpiryAction, ...]:
    newest: dict[tuple[str, ExpiryAction], str] = {}
    for row in log:
        newest[row["plan_id"], ExpiryAction(**{name: row[name] for name in EXPIRY_PLAN.schema.names})] = row["outcome"]
    return tuple(action for (_, action), outcome in newest.items() if outcome == DONE)


@dataclass(frozen=True)
class _ApplyRetention:
    """Apply the lake's retention policy to the published commit graph, and write the results.

    `run_single_task` calls it in the driver process or on an executor.

    Attributes:
        unread: Why the whole lake is unreadable, or None.
        logs: Parts of `expiry_log`, oldest first.
    """

    lake: Lake
    refs: FrozenRefs
    unread: str | None
    fails_alone: bool
    files: Files
    graph_paths: tuple[str, ...]
    logs: tuple[str, ...]
    as_of: datetime
    grace_cutoff: datetime
    runs: _Runs
    unused_rules: tuple[str, ...]
    idle: IdleBranchSearch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            commits = read_parts(self.files, list(self.graph_paths), COMMIT_GRAPH.schema)
            rows = list(_read_log(self.files, self.logs))
            refs, log = replace(self.refs, edits=_select_made(rows)), BranchLog.of(rows)
            retention, unread = self._retain(refs, commits, log)
            verify_states(self.refs.lake, commits, retention.reachable)
            reachable = write_rows(retention.reachable, REACHABLE_SNAPSHOTS, self.runs.reachable, self.files)
            edits = retention.expiry
            if unread is None:
                edits = pa.concat_tables([edits, self.idle.plan(commits, edits, log)])
            expiry = write_rows(edits, EXPIRY_PLAN, self.runs.expiry, self.files)
            states = {
                state: pc.sum(pc.equal(retention.reachable.column("state"), state)).as_py() or 0 for state in (RETAINED, EXPIRED, DANGLING)
            }
            unused = [to_message(note) for note in self.unused_rules]
            notes = {"notes": [*unused, *map(to_message, retention.notes)], "unused_rules": unused}
            summary = {"asset": REACHABLE_SNAPSHOTS.name, **states, **notes, "unread": unread}
            yield report_parts(reachable.parts, reachable.digest, summary=summary)
            yield report_parts(expiry.parts, expiry.digest, summary={"asset": EXPIRY_PLAN.name, "actions": expiry.rows})
            if self.runs.contents is not None:
                if retention.contents is None:
                    raise StateError(
                        f"lake {self.refs.lake}: live_contents cannot be published, because the policy returned none. Report this as a bug"
                    )
                contents = write_rows(retention.contents, LIVE_CONTENTS, self.runs.contents, self.files)
                yield report_parts(contents.parts, contents.digest, summary={"asset": LIVE_CONTENTS.name})

    def _retain(self, refs: FrozenRefs, commits: pa.Table, log: BranchLog) -> tuple[Retention, str | None]:
        """Apply the policy. If a single-repository lake is unreadable, also return the reason.

        All commits of an unreadable lake are retained.
        """
        unread = self.unread
        if unread is None:
            try:
                deleted = find_deleted_branches(log, self.grace_cutoff, refs, commits)

                def retain(of: FrozenRefs) -> Retention:
                    return self.lake.retain(of, commits, self.as_of, self.grace_cutoff)

                return keep_deleted(self.lake, refs, deleted, commits, retain), None
            except (LakeUnreadable, StoreError) as error:
                if not self.fails_alone:
                    raise
                unread = str(error)
        rows = [
            {"commit_id": commit_id, "state": RETAINED, "refs": [], "refs_count": 0, "reason": "the repository cannot be read in full"}
            for commit_id in commits.column("commit_id").to_pylist()
        ]
        reachable = pa.Table.from_pylist(rows, REACHABLE_SNAPSHOTS.schema)
        return Retention(reachable, EXPIRY_PLAN.schema.empty_table()), unread


def verify_states(lake_name: str, commits: pa.Table, reachable: pa.Table) -> None:
    """Verify that a policy has returned exactly one state for each commit.

    Args:
        commits: Rows of `commit_graph`.
        reachable: Rows of `reachable_snapshots`.

    Raises:
        StateError: If a commit has no state or several, or a state belongs to no commit.
    """
    expected = commits.group_by(_COMMIT).aggregate([])
    weighted = [
        rows.append_column("weight", pa.repeat(weight, rows.num_rows)) for weight, rows in ((1, expected), (2, reachable.select(_COMMIT)))
    ]
    sums = pa.concat_tables(weighted).group_by(_COMMIT).aggregate([("weight", "sum")])
    wrong = sums.filter(pc.not_equal(sums.column("weight_sum"), 3))  # one commit and one state
    if wrong.num_rows:
        example = tuple(wrong.select(_COMMIT).slice(0, 1).to_pylist()[0].values())
        raise StateError(
            f"lake {lake_name}: reachable_snapshots cannot be published: the policy returned {reachable.num_rows:,} states "
            f"for {expected.num_rows:,} commits, for example {example}. A commit without a state would lose its files. Report "
            "this as a bug"
        )
