"""Applies the retention policy to the whole commit graph, in one task per lake."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.errors import LakeUnreadable, StateError, StoreError
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import merge_written, publish, report_parts, write_rows
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.protocol import DANGLING, EXPIRED, REMOVE_SNAPSHOT, RETAINED, ExpiryAction, FrozenRefs, Lake, Retention, as_filtered
from gc_assets.stages.mark.lake_refs import read_frozen_refs
from gc_assets.stages.mark.previous_refs import build_freeze, find_previous_refs
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_LOG, EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, REACHABLE_SNAPSHOTS
from gc_assets.state.summaries import CommitGraphSummary, ExpiryPlanSummary, LakeRefsSummary, LiveContentsSummary, ReachableSnapshotsSummary


@log_progress(REACHABLE_SNAPSHOTS)
def reachable_snapshots(spark: SparkSession, context: RunContext, lake_name: str) -> tuple[PublishedTable, ...]:
    """Publishes `reachable_snapshots` and `expiry_plan` of a run date, and `live_contents` for
    lakes that have it.

    Raises `LakeUnreadable` where a commit that must be kept cannot be read, unless the lake is one
    repository: then all its commits stay, and the facts say why. Raises `StateError`
    where the policy did not speak about every commit exactly once.
    """
    state = context.state
    refs = context.table(LAKE_REFS, lake_name)
    graph = context.table(COMMIT_GRAPH, lake_name)
    told = refs.summary(LakeRefsSummary)
    frozen_at, as_of = told.frozen_at, told.as_of
    reachable_run = start_run(context, context.group(lake_name), REACHABLE_SNAPSHOTS)
    expiry_run = start_run(context, context.group(lake_name), EXPIRY_PLAN)
    has_contents = context.kind(lake_name).has_live_contents
    contents_run = start_run(context, context.group(lake_name), LIVE_CONTENTS) if has_contents else None
    grace_cutoff = frozen_at - context.longest_grace()
    lake = context.lake(lake_name)
    frozen = read_policy_refs(context, lake, refs)
    task = _Retain(
        lake,
        frozen,
        graph.summary(CommitGraphSummary).unread or next((item.reason for item in frozen.unreadable if item.table_name is None), None),
        context.kind(lake_name).is_one_table,
        state.files,
        tuple(graph.paths()),
        find_expiry_logs(context, lake_name),
        as_of,
        grace_cutoff,
        reachable_run,
        expiry_run,
        contents_run,
    )
    log_activity(f"{graph.receipt.rows:,} commits to judge")
    rows = run_single_task(spark, task, graph.rows, len(task.graph_paths) + len(task.logs))
    written = {json.loads(row["summary"])["asset"]: merge_written([row]) for row in rows}
    reachable, expiry = written[REACHABLE_SNAPSHOTS.name], written[EXPIRY_PLAN.name]
    published = [
        publish(
            state,
            reachable_run,
            reachable,
            context.clock,
            inputs=[refs, graph],
            balances=[Balance(name="commits", expected=graph.receipt.rows, found=reachable.rows)],
            summary=ReachableSnapshotsSummary(**reachable.summary),
            unsafe=context.unsafe,
        ),
        publish(
            state,
            expiry_run,
            expiry,
            context.clock,
            inputs=[refs, graph],
            summary=ExpiryPlanSummary(**expiry.summary),
            unsafe=context.unsafe,
        ),
    ]
    if contents_run is not None:
        contents = written[LIVE_CONTENTS.name]
        inputs = [refs, graph, published[0]]
        shown = LiveContentsSummary(contents=contents.rows)
        published.append(publish(state, contents_run, contents, context.clock, inputs=inputs, summary=shown, unsafe=context.unsafe))
    return tuple(published)


def read_policy_refs(context: RunContext, lake: Lake, refs: PublishedTable) -> FrozenRefs:
    """Returns the refs that a run froze as the policy is given them: with those that a night within
    the grace period missed. `read_edits` adds the edits of history.
    """
    frozen, frozen_at = read_frozen_refs(context, lake.name, refs), refs.summary(LakeRefsSummary).frozen_at
    if as_filtered(lake) is None:
        return frozen
    return replace(
        frozen, previous=find_previous_refs(context, lake.name, build_freeze(frozen_at, frozen.refs), frozen_at - context.longest_grace())
    )


def find_expiry_logs(context: RunContext, lake_name: str, until: str | None = None) -> tuple[str, ...]:
    """Returns the parts of `expiry_log` of all executions, oldest first, or only of those that began
    before the run `until`.
    """
    logs = [log for log in context.state.history(lake_name, EXPIRY_LOG.name) if until is None or log.run_id < until]
    return tuple(context.state.paths(sorted(logs, key=lambda log: log.run_id)))


def read_edits(files: Files, logs: Sequence[str]) -> tuple[ExpiryAction, ...]:
    """Returns the edits that plans of ours made and that still stand, of histories that a lake
    keeps.

    Removals of Iceberg snapshots are left out: such snapshots are in no graph any more.
    """
    newest: dict[tuple[str, ExpiryAction], str] = {}
    for path in logs:
        rows = read_parts(files, [path], EXPIRY_LOG.schema)
        for row in rows.filter(pc.not_equal(rows.column("action"), REMOVE_SNAPSHOT)).to_pylist():
            newest[row["plan_id"], ExpiryAction(**{name: row[name] for name in EXPIRY_PLAN.schema.names})] = row["outcome"]
    return tuple(action for (_, action), outcome in newest.items() if outcome == "done")


@dataclass(frozen=True)
class _Retain:
    """Reads the published graph, asks the lake, and writes the tables.

    One task, here or in an executor (`run_single_task`).
    """

    lake: Lake
    refs: FrozenRefs
    unread: str | None
    is_one_table: bool
    files: Files
    graph_paths: tuple[str, ...]
    logs: tuple[str, ...]
    as_of: datetime
    grace_cutoff: datetime
    reachable_run: TableRun
    expiry_run: TableRun
    contents_run: TableRun | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            commits = read_parts(self.files, list(self.graph_paths), COMMIT_GRAPH.schema)
            refs = replace(self.refs, edits=read_edits(self.files, self.logs))
            retention, unread = self._judged(refs, commits)
            self._check(commits, retention.reachable)
            reachable = write_rows(retention.reachable, REACHABLE_SNAPSHOTS, self.reachable_run, self.files)
            expiry = write_rows(retention.expiry, EXPIRY_PLAN, self.expiry_run, self.files)
            states = {
                state: pc.sum(pc.equal(retention.reachable.column("state"), state)).as_py() or 0 for state in (RETAINED, EXPIRED, DANGLING)
            }
            summary = {"asset": REACHABLE_SNAPSHOTS.name, **states, "notes": list(retention.notes), "unread": unread}
            yield report_parts(reachable.parts, reachable.digest, summary=summary)
            yield report_parts(expiry.parts, expiry.digest, summary={"asset": EXPIRY_PLAN.name, "actions": expiry.rows})
            if self.contents_run is not None:
                if retention.contents is None:
                    raise StateError(f"lake {self.refs.lake}: the policy did not say which contents are live, so nothing is published")
                contents = write_rows(retention.contents, LIVE_CONTENTS, self.contents_run, self.files)
                yield report_parts(contents.parts, contents.digest, summary={"asset": LIVE_CONTENTS.name})

    def _judged(self, refs: FrozenRefs, commits: pa.Table) -> tuple[Retention, str | None]:
        """Returns the policy's word, or why a lake that is one repository cannot have one. Then
        every commit stays.
        """
        unread = self.unread
        if unread is None:
            try:
                return self.lake.retain(refs, commits, self.as_of, self.grace_cutoff), None
            except (LakeUnreadable, StoreError) as error:
                if not self.is_one_table:
                    raise
                unread = str(error)
        rows = [
            {"commit_id": commit_id, "state": RETAINED, "refs": [], "refs_count": 0, "reason": "the repository cannot be read in full"}
            for commit_id in commits.column("commit_id").to_pylist()
        ]
        reachable = pa.Table.from_pylist(rows, REACHABLE_SNAPSHOTS.schema)
        return Retention(reachable, EXPIRY_PLAN.schema.empty_table()), unread

    def _check(self, commits: pa.Table, reachable: pa.Table) -> None:
        asked, answered = _commit_keys(commits), _commit_keys(reachable)
        if asked != answered or len(answered) != reachable.num_rows:
            example = next(iter(asked ^ answered), None)
            raise StateError(
                f"lake {self.refs.lake}: the policy gave {reachable.num_rows:,} answers for {len(asked):,} commits, see {example}; "
                "a commit without an answer would lose its files, so nothing is published"
            )


def _commit_keys(rows: pa.Table) -> set[tuple[str | None, str]]:
    return set(zip(rows.column("table_uuid").to_pylist(), rows.column("commit_id").to_pylist(), strict=True))
