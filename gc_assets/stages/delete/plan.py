"""Make a run's plan, which lists what to quarantine, purge and restore.

Making a plan never changes files in a storage. The same inputs always result in the same plan id,
which is the digest that a user approves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core import gates
from gc_assets.core.errors import GcError
from gc_assets.core.gates import SMALL_PLAN
from gc_assets.core.hashing import digest as digest_rows
from gc_assets.core.plan import Amount, BranchShare, PlanHeader, Unreadable, repeat
from gc_assets.core.printable import to_message
from gc_assets.core.units import count_of
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import (
    WrittenParts,
    merge_written,
    publish,
    read_paths,
    report_parts,
    write_parts,
    write_routed,
)
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_PATHS
from gc_assets.stages.delete.close import close_outdated_plans
from gc_assets.stages.delete.expired_since import ExpiredSince, count_expired_since
from gc_assets.stages.delete.foreign_findings import ForeignFindings
from gc_assets.stages.delete.foreign_rows import ForeignRows
from gc_assets.stages.delete.left_out import (
    ExpirySource,
    History,
    KeptEdits,
    describe_kept,
    describe_unlisted,
    expiry_sources,
    find_impossible_edits,
    find_kept_by_others,
    select_editable,
    sum_left_out,
    without_kept,
)
from gc_assets.stages.delete.plan_header import PlanContent, build_header
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.delete.plan_rows import plan_rows, sum_files
from gc_assets.stages.delete.table_drops import find_table_drops
from gc_assets.stages.delete.uploads import find_old_uploads, upload_totals
from gc_assets.stages.records.accepted_runs import AcceptedRun, last_accepted_run
from gc_assets.stages.records.fencing_tokens import note_unknown_leases
from gc_assets.stages.records.ledger import LogReader
from gc_assets.stages.records.newest_sweeps import next_generation
from gc_assets.stages.records.plans import index_summary, used_plan_ids
from gc_assets.stages.sweep.link_aliases import planned_by_alias
from gc_assets.stages.sweep.listings import Listing
from gc_assets.stages.sweep.live_filter import live_count
from gc_assets.stages.sweep.tail_matches import TailMatches, planned_by_unknown_address
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN
from gc_assets.state.side_tables import (
    CLAIMS,
    EXPIRY_ACTIONS,
    EXPIRY_SIDE,
    HELD_SIDE,
    LEFT_OUT_SIDES,
    UPLOADS_SIDE,
    WAITING_SIDE,
)
from gc_assets.state.summaries import DeletionPlanSummary, OrphanFilesSummary

HEADER: Final = "_header.json"


@log_progress(DELETION_PLAN)
def deletion_plan(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """Make and publish the `deletion_plan` of a run date.

    The plan consists of:

    - history edits required by the policy (see `planned_actions`) and the files that they release
      (`after_expiry`), but no edits of history that another lake keeps,
    - all other orphans, except those held by histories that this plan does not edit
      (`held_for_expiry`),
    - quarantined files to restore or purge,
    - unfinished uploads to abort (see `planned_uploads`).

    The plan's header is stored twice: in the summary of the receipt and as `_header.json`, next to
    the rows.
    """
    open_plans = close_outdated_plans(spark, context, storage_name)
    _note_unknown_leases(context, storage_name)
    state, inputs = context.state, PlanInputs.of(context, storage_name)
    run = start_run(context, storage_name, DELETION_PLAN)
    log_activity(f"{count_of(inputs.orphans.receipt.rows, 'orphan file')}")
    kept, of_others = find_kept_by_others(inputs)
    excluded = find_impossible_edits(inputs, kept)
    expiry = _plan_expiry(spark, inputs, run, excluded, kept)
    log = LogReader.of(state, storage_name)
    session = choose_session(spark, *_size(inputs, expiry, log))
    foreign = ForeignFindings.of(inputs)
    rows, deferred = plan_rows(session, inputs, run, expiry, log, foreign.prefixes)
    totals_by = ["action", "reason", "after_expiry", "kind"]
    written = write_routed(rows, DELETION_PLAN, run, state, totals_by, [WAITING_SIDE, HELD_SIDE, *LEFT_OUT_SIDES])
    aliases, unknown = _find_other_addresses(spark, inputs, run, written)
    check_foreign = partial(ForeignRows.of_uploads, session, context, storage_name, [*inputs.refs, *inputs.live], inputs.live)
    uploads, later = find_old_uploads(inputs, inputs.orphans.summary(OrphanFilesSummary).grace_cutoff, foreign, check_foreign)
    files_left_out, expired = sum_left_out(inputs, written, run, foreign)
    waiting = sum_files(deferred)
    content = PlanContent(
        written,
        expiry,
        aliases,
        unknown,
        upload_totals(uploads, later),
        waiting if inputs.blocks_purges else Amount(),
        foreign,
        (*of_others, *excluded.values(), *files_left_out, *describe_kept(inputs), *describe_unlisted(inputs, waiting)),
        expired,
        tuple(open_plans),
        *_explain_drop(spark, inputs),
    )
    header = _reuse_header(context, storage_name, build_header(inputs, content))
    aborted = {UPLOADS_SIDE: tuple(write_parts(uploads, run, state.files, UPLOADS_SIDE))} if uploads.num_rows else {}
    written = replace(written, side={**written.side, **expiry.side, **aborted})
    state.files.replace(f"{run.path}/{HEADER}", header.model_dump_json(indent=1).encode())
    generation = next_generation(context, storage_name)
    summary = DeletionPlanSummary(plan_id=header.plan_id, header=header, generation=generation)
    return publish(state, run, written, context.clock, inputs=inputs.tables, summary=summary, unsafe=context.unsafe)


def _note_unknown_leases(context: RunContext, storage_name: str) -> None:
    """Record leases that the state does not contain, unless the plan will purge nothing."""
    if not Listing.of(context, storage_name).is_earlier:
        with suppress(GcError, OSError):  # if this user may not read the counter, the next apply compares it
            note_unknown_leases(context, storage_name, context.store(storage_name))


def _find_other_addresses(spark: SparkSession, inputs: PlanInputs, run: TableRun, written: WrittenParts) -> tuple[list[str], TailMatches]:
    """Find planned files that are, or may be, live under another address.

    Returns:
        Messages about planned files that are live under another address, and the planned files that
        may be live under an unknown address.
    """
    context, storage, parts = inputs.context, inputs.storage, written.paths(run)

    def read(session: SparkSession) -> DataFrame:
        return read_paths(session, context.state.files, DELETION_PLAN.schema, parts)

    aliases = planned_by_alias(spark, context, storage, inputs.live, lambda: read(spark))
    return aliases, planned_by_unknown_address(spark, context, storage, inputs.live, written.rows, read)


def _explain_drop(spark: SparkSession, inputs: PlanInputs) -> tuple[ExpiredSince, tuple[str, ...]]:
    """Find reasons for a drop in the number of live files.

    The drop is examined only if the `live_drop` gate would otherwise fail.

    Returns:
        The files that the policy has expired since the last accepted run, and descriptions of the
        tables that lost the most other files.
    """
    context, storage = inputs.context, inputs.storage
    accepted, earlier = last_accepted_run(context, storage), AcceptedRun.find_last(context, storage)
    if accepted is None or earlier is None:
        return ExpiredSince(), ()
    live = live_count(inputs.live, storage)
    previous = earlier.count(live)
    if gates.live_drop(live, previous, context.storage(storage).gates.max_live_drop).passed:
        return ExpiredSince(), ()
    # Plans made before release 0.4 do not record live files by lake.
    compared = [table for table in inputs.live if not previous.by_lake or table.receipt.owner in previous.by_lake]
    expired = count_expired_since(spark, context, storage, accepted, compared)
    drops = find_table_drops(context, storage, accepted, compared, expired.by_table)
    return expired, tuple(map(str, drops))


def _plan_expiry(spark: SparkSession, inputs: PlanInputs, run: TableRun, excluded: Collection[History], kept: KeptEdits) -> WrittenParts:
    """Write the history edits of readable tables with a claim in the storage as parts of the plan.

    Edits of histories in `excluded` and edits in `kept` are left out.

    Returns:
        The written parts. Their `summary` counts the edits by lake and by action.
    """
    sources = expiry_sources(inputs)
    copy = _CopyExpiry(
        inputs.storage,
        tuple(sources),
        inputs.context.state.files,
        run,
        inputs.unreadable,
        frozenset(excluded),
        kept,
    )
    return merge_written(
        run_single_task(spark, copy, sum(source.rows for source in sources), sum(len(source.edits) + 1 for source in sources))
    )


@dataclass(frozen=True)
class _CopyExpiry:
    """Copies rows of `expiry_plan` into the plan, so that they can no longer change.

    It runs as the only task of `run_single_task`. Its `summary` counts rows by lake and by action,
    and branch edits by lake.
    """

    storage: str
    sources: tuple[ExpirySource, ...]
    files: Files
    run: TableRun
    unreadable: tuple[Unreadable, ...]
    excluded: frozenset[History]
    kept: KeptEdits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            tables = [self._actions(source) for source in self.sources]
            rows = pa.concat_tables([EXPIRY_ACTIONS.empty_table(), *tables])
            columns = {"lake": rows.column("lake"), "action": rows.column("action")}
            for name, action in (("idle_branches", DELETE_IDLE_BRANCH), ("path_edits", DELETE_PATHS)):
                columns[name] = rows.filter(pc.equal(rows.column("action"), action)).column("lake")
            counts = {name: dict(sorted(Counter(column.to_pylist()).items())) for name, column in columns.items()}
            yield report_parts(
                write_parts(rows, self.run, self.files, EXPIRY_SIDE) if rows.num_rows else [],
                digest_rows(rows),
                summary={**counts, **_sum_deleted_paths(rows)},
            )

    def _actions(self, source: ExpirySource) -> pa.Table:
        lake, rows = source.lake, read_parts(self.files, list(source.edits), EXPIRY_PLAN.schema)
        mine = select_editable(rows, lake, read_parts(self.files, list(source.claims), CLAIMS), self.storage, self.unreadable)
        mine = without_kept(mine, lake, self.kept)
        uuids = mine.column("table_uuid").to_pylist()
        mine = mine.filter(pa.array([(lake, uuid) not in self.excluded for uuid in uuids], pa.bool_()))
        return mine.add_column(0, EXPIRY_ACTIONS.field("lake"), pa.repeat(pa.scalar(lake), mine.num_rows)).cast(EXPIRY_ACTIONS)


def _sum_deleted_paths(rows: pa.Table) -> dict[str, Any]:
    """Count the paths deleted by commits in each lake, and find the most affected branches.

    Up to two branches are returned. The first loses the largest share of its paths. The second
    loses the largest share among branches that lose more paths than a small plan has files.
    """
    by_lake, shares = Counter[str](), list[BranchShare]()
    for row in rows.filter(pc.equal(rows.column("action"), DELETE_PATHS)).to_pylist():
        details = json.loads(row["details"])
        paths = details["paths"]
        by_lake[row["lake"]] += paths
        share = paths / max(details.get("branch_paths", 0), paths, 1)
        shares.append(BranchShare(share, to_message(f"branch {row['ref_name']} of lake {row['lake']}"), paths))
    large = [item for item in shares if item.paths > SMALL_PLAN.files]
    largest = [max(found) for found in (shares, large) if found]
    return {"deleted_paths": dict(sorted(by_lake.items())), "branch_shares": [asdict(item) for item in largest]}


def _size(inputs: PlanInputs, expiry: WrittenParts, log: LogReader) -> tuple[int, int]:
    """Return how many rows and files have to be read to make a plan.

    If files of the storage were ever in quarantine, this includes the ledger and the inventory,
    because they are compared.
    """
    sources = [*inputs.orphans.parts(), *expiry.side.get(EXPIRY_SIDE, ())]
    if log.parts:
        sources += inputs.inventory.parts()
    return sum(part.rows for part in sources) + log.rows, len(sources) + log.part_count


def header_of(published: PublishedTable) -> PlanHeader:
    return published.summary(DeletionPlanSummary).header


def _reuse_header(context: RunContext, storage_name: str, header: PlanHeader) -> PlanHeader:
    """Return the header of an identical earlier plan if there is one, or else the given header.

    Reusing the header keeps the earlier creation time, so that making the same plan again never
    extends its validity. If the earlier plan was applied or restored, it cannot be used any more,
    and the same content gets a new plan id. Warnings and descriptions of left-out files always come
    from this run, because they are not part of the content.
    """
    previous = {index_summary(run).plan.plan_id: run for run in context.state.history(storage_name, DELETION_PLAN.name)}
    if header.plan_id in previous:
        used = used_plan_ids(context.config, storage_name)
        while header.plan_id in used:
            header = repeat(header, context.config.plan_secret())
    if header.plan_id not in previous:
        return header
    return header_of(context.state.open(previous[header.plan_id])).model_copy(
        update={"warnings": header.warnings, "left_out": header.left_out}
    )
