"""Load the data of the report from the published tables of a run date.

This needs neither Spark nor access to lakes and storages. Large tables are read part by part, so
that only sums, the newest commits and the largest files are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets._version import __version__
from gc_assets.config.models import StorageConfig
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount
from gc_assets.core.rehearsals import REHEARSAL, mark_rehearsal
from gc_assets.engine.run_context import RunContext
from gc_assets.report.lakes import lake_page
from gc_assets.report.run_report import (
    FigureChange,
    PastPlan,
    PlannedFile,
    PlannedUpload,
    QuarantinedPlan,
    RunReport,
    StoragePage,
    StoredBytes,
    TableRequests,
)
from gc_assets.report.shares import breakdown_steps
from gc_assets.report.storage_breakdown import Step
from gc_assets.report.trend import Point
from gc_assets.stages.delete.uploads import planned_uploads
from gc_assets.stages.read.browse import batches
from gc_assets.stages.read.reversibility import apply_command, describe_reversibility, summarize_reversibility
from gc_assets.stages.read.usage import usage_by_table
from gc_assets.stages.records.fencing_tokens import quarantine_renewed_at
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import StoredPlan, list_plans, load_plan
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_PLAN, ORPHAN_FILES, SHARED_TABLES, STORAGE_INVENTORY
from gc_assets.state.side_tables import WAITING_SIDE
from gc_assets.state.summaries import OrphanFilesSummary, StorageInventorySummary, SweepSummary, requests_of

MAX_FILES: Final = 20
MAX_TABLES: Final = 20
MAX_RUNS: Final = 30
MAX_PLANS: Final = 10


def load_report(context: RunContext, storages: Iterable[str] = (), lakes: Iterable[str] = ()) -> RunReport:
    """Load the report of a run date.

    Args:
        context: The run context.
        storages: Limit the report to these storages.
        lakes: Limit the report to these lakes.

    Raises:
        StateError: If a table is not published for the run date. The message contains its name.
    """
    wanted_storages, wanted_lakes = set(storages), set(lakes)
    lake_pages = [
        lake_page(context, lake.name, lake.kind) for lake in context.config.lakes if not wanted_lakes or lake.name in wanted_lakes
    ]
    pages = [_storage_page(context, item) for item in context.config.storages if not wanted_storages or item.name in wanted_storages]
    owners = {"storage": [page.name for page in pages], "lake": [page.name for page in lake_pages]}
    return RunReport(
        context.run_date,
        context.clock.now(),
        __version__,
        tuple(_warnings(context, pages)),
        pages,
        lake_pages,
        list(_request_counts(context, owners)),
    )


def _request_counts(context: RunContext, owners: Mapping[str, Sequence[str]]) -> Iterator[TableRequests]:
    for table in SHARED_TABLES:
        for owner in owners[table.scope]:
            published = context.find(table, owner)
            sent = requests_of(published.receipt.summary) if published is not None else None
            if sent:
                yield TableRequests(owner, table.name, sent)


def _warnings(context: RunContext, pages: list[StoragePage]) -> Iterator[str]:
    headers = [page.header for page in pages if page.header is not None]
    if any(header.historical for header in headers):
        yield (
            f"Historical: this run of {context.run_date} began on a later date. It is an analysis with today's policy. "
            "Its plan cannot be applied."
        )
    if context.clock.is_rehearsal or any(header.rehearsal for header in headers):
        yield f"{REHEARSAL}: GC_ASSETS_UNSAFE_NOW sets the clock, so ages and dates are not real."
    for text in sorted({text for header in headers for text in header.unsafe} | set(context.unsafe)):
        yield f"Warning: {text}."


def _storage_page(context: RunContext, storage: StorageConfig) -> StoragePage:
    orphans = context.table(ORPHAN_FILES, storage.name)
    published = context.find(DELETION_PLAN, storage.name)
    plan = load_plan(context.config, published) if published is not None else None
    summary = orphans.summary(OrphanFilesSummary)
    runs = [] if summary.historical else _previous_runs(context, storage.name)
    previous = runs[-2] if len(runs) > 1 else None
    steps = breakdown_steps(summary)
    shares = [share for share in usage_by_table(context, [storage.name]) if share.garbage]
    live = next(step for step in steps if step.label == "live")
    page = StoragePage(
        name=storage.name,
        location=storage.location,
        steps=tuple(steps),
        headline=_headline(context, plan),
        stored=tuple(_stored_bytes(context, steps[0].size_bytes, plan)),
        tables=tuple(shares[:MAX_TABLES]),
        tables_left_out=len(shares[MAX_TABLES:]),
        trend=tuple(_point(table) for table in runs) if len(runs) > 1 else (),
        plans=tuple(past_plans(context, storage.name)),
        live_named=summary.live_keys if summary.live_keys != live.files else None,
        quarantined=tuple(_quarantined_plans(context, storage)),
        previous_run_date=previous.receipt.run_date if previous is not None else None,
        changes=tuple(_changes(previous, orphans)) if previous is not None else (),
        problems=dict(summary.problems),
        notes=summary.notes,
        dropped=summary.dropped,
        dropped_left_out=summary.dropped_tables - len(summary.dropped),
        usd_per_gb_month=storage.money.usd_per_gb_month if storage.money is not None else None,
        unfinished=_describe_unfinished(context, storage.name),
    )
    return page if plan is None else _add_plan(context, page, plan)


def _add_plan(context: RunContext, page: StoragePage, plan: StoredPlan) -> StoragePage:
    return replace(
        page,
        header=plan.header,
        status=plan.status_at(context.clock.now()),
        decisions=tuple(map(str, plan.verdict.events)),
        approvals_missing=plan.verdict.missing,
        reversibility=_reversibility(context, plan),
        apply_command=apply_command(plan.header, context.config),
        largest=tuple(_largest_files(context, plan.published)),
        uploads=tuple(_uploads(context, plan.published)),
    )


def _headline(context: RunContext, plan: StoredPlan | None) -> str:
    if plan is None:
        return "This run date has no plan yet. Nothing becomes free."
    if not plan.header.has_work:
        return "Nothing to do: the plan changes nothing, so there is nothing to undo."
    restored = plan.restored_at is not None
    sentence = summarize_reversibility(plan.effective_header, context.config, restored=restored, applied_at=plan.finished_at)
    headline = f"Plan {plan.header.plan_id[:12]} is {plan.status_at(context.clock.now())}: {sentence}."
    return mark_rehearsal(headline, plan.header.rehearsal)


def _stored_bytes(context: RunContext, listed_bytes: int, plan: StoredPlan | None) -> Iterator[StoredBytes]:
    """Yield how many bytes are stored now, after the plan is applied, and after a later purge.

    The bytes of quarantined files are added, because listings do not contain these files.
    """
    if plan is None or not plan.header.has_work:
        return
    purged, restored, quarantined = (plan.header.totals.get(action, Amount()).bytes for action in (PURGE, RESTORE, QUARANTINE))
    in_quarantine = 0 if plan.header.quarantine == "deferred" else purged + restored + _waiting_bytes(context, plan.published)
    yield StoredBytes("in this run", listed_bytes + in_quarantine)
    yield StoredBytes("after this plan is applied", listed_bytes + in_quarantine - purged)
    yield StoredBytes("after its quarantined files are purged", listed_bytes + in_quarantine - purged - quarantined)


def _waiting_bytes(context: RunContext, plan: PublishedTable) -> int:
    sizes = batches(context.state, DELETION_PLAN.schema, plan.paths(WAITING_SIDE), ["size_bytes"])
    return sum(pc.sum(batch.column("size_bytes")).as_py() or 0 for batch in sizes)


def _previous_runs(context: RunContext, storage_name: str) -> list[PublishedTable]:
    """Return the sweeps of the last runs up to this one, oldest first, without historical runs."""
    runs = {
        run.run_date: run
        for run in context.state.history(storage_name, ORPHAN_FILES.name)
        if run.run_date <= context.run_date and not run.summary(SweepSummary).historical
    }
    return [context.state.open(run) for _, run in sorted(runs.items())[-MAX_RUNS:]]


def _point(table: PublishedTable) -> Point:
    by = {step.label: step.size_bytes for step in breakdown_steps(table.summary(OrphanFilesSummary))}
    held, garbage = by["expired history"], by["garbage"]
    return Point(table.receipt.run_date, by["stored"] - held - garbage, held, garbage)


def past_plans(context: RunContext, storage_name: str) -> Iterator[PastPlan]:
    """Yield the last plans up to this run date, newest first, without those of historical runs."""
    known = (
        item for item in list_plans(context.config, storage_name) if item.header.run_date <= context.run_date and not item.header.historical
    )
    for plan in islice(known, MAX_PLANS):
        header = plan.header
        yield PastPlan(
            header.plan_id,
            header.run_date,
            mark_rehearsal(plan.status_at(context.clock.now()), header.rehearsal),
            dict(header.totals),
            sum(header.expiry_actions.values()),
            tuple(map(str, plan.verdict.events)),
        )


def _reversibility(context: RunContext, plan: StoredPlan) -> tuple[str, ...]:
    if not plan.header.has_work:
        return ()
    return describe_reversibility(
        plan.effective_header, context.config, restored=plan.restored_at is not None, applied_at=plan.finished_at
    ).lines


def _describe_unfinished(context: RunContext, storage_name: str) -> str | None:
    inventory = context.find(STORAGE_INVENTORY, storage_name)
    found = inventory.summary(StorageInventorySummary).unfinished if inventory is not None else None
    return str(found) if found is not None and (found.uploads or found.unknown) else None


def _largest_files(context: RunContext, plan: PublishedTable) -> Iterator[PlannedFile]:
    columns = ["key", "action", "reason", "size_bytes"]
    top = DELETION_PLAN.schema.empty_table().select(columns)
    for batch in batches(context.state, DELETION_PLAN.schema, plan.paths(), columns):
        both = pa.concat_tables([top, pa.Table.from_batches([batch])])
        top = both.take(pc.sort_indices(both, sort_keys=[("size_bytes", "descending"), ("key", "ascending")])[:MAX_FILES])
    for row in top.to_pylist():
        yield PlannedFile(**row)


def _uploads(context: RunContext, plan: PublishedTable) -> Iterator[PlannedUpload]:
    for row in planned_uploads(context.state, plan).slice(0, MAX_FILES).to_pylist():
        yield PlannedUpload(row["key"], row["upload_id"], row["initiated"], row["size_bytes"])


def _quarantined_plans(context: RunContext, storage: StorageConfig) -> Iterator[QuarantinedPlan]:
    """Sum the files in quarantine for each plan that moved them there, newest plan first."""
    moments = ("quarantined_at", "min"), ("quarantined_at", "max")
    copies = read_quarantine(context.state, storage.name, rehearsal=context.clock.is_rehearsal)
    renewed_at = quarantine_renewed_at(context, storage.name)
    by_plan = copies.group_by("source_plan_id").aggregate([([], "count_all"), ("size_bytes", "sum"), *moments])
    for row in by_plan.sort_by([("quarantined_at_max", "descending")]).to_pylist():
        yield QuarantinedPlan(
            row["source_plan_id"],
            row["count_all"],
            row["size_bytes_sum"],
            row["quarantined_at_min"],
            max(row["quarantined_at_max"], renewed_at or row["quarantined_at_max"]) + timedelta(days=storage.quarantine_days),
        )


def _changes(previous: PublishedTable, now: PublishedTable) -> Iterator[FigureChange]:
    earlier = {step.label: step for step in breakdown_steps(previous.summary(OrphanFilesSummary))}
    for step in breakdown_steps(now.summary(OrphanFilesSummary)):
        old = earlier.get(step.label, Step(step.label, 0, 0, step.tone))  # some categories are omitted if they are empty
        yield FigureChange(f"{step.label}, bytes", old.size_bytes, step.size_bytes, is_bytes=True)
        yield FigureChange(f"{step.label}, files", old.files, step.files, is_bytes=False)
