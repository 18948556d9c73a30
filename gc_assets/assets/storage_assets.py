"""The boxes of a storage. They work out what the live sets of all lakes together mean for its
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import dagster as dg

from gc_assets.assets.asset_step import Box, LakeConfig, RunDates, asset_of, keys_of
from gc_assets.assets.checks import COMPLETE, GATES, HOLDS_LIVE_KEYS, NO_LIVE_CANDIDATE, PLAN_INTACT, RECEIPT
from gc_assets.assets.deletion_log import deletion_log
from gc_assets.assets.figures import Figures
from gc_assets.assets.markdown import plain
from gc_assets.assets.plan_metadata import plan_told
from gc_assets.assets.results import Shown
from gc_assets.assets.waterfalls import steps_of, waterfall_markdown
from gc_assets.config.models import StorageConfig
from gc_assets.core.notifications import MAY_BE_LATE, NIGHT_EVERY
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import PlanHeader
from gc_assets.core.units import format_bytes
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN, LAKE_REFS, LIVE_FILES, LIVE_FILTER, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.summaries import LiveFilterSummary, OrphanFilesSummary, StorageInventorySummary
from gc_assets.stores.store import may_lead_to

# Fails when `night_missed` is told. A long night may end some time later than the last one did.
RUN_MISSED: Final = dg.FreshnessPolicy.time_window(fail_window=NIGHT_EVERY + MAY_BE_LATE, warn_window=NIGHT_EVERY + timedelta(hours=2))


def storage_assets(
    storage: StorageConfig, lakes: Sequence[LakeConfig], storages: Sequence[StorageConfig], run_dates: RunDates
) -> list[dg.AssetsDefinition]:
    others = may_lead_to(storage, storages)

    def made_from(box: Box) -> list[dg.AssetKey]:
        return [*keys_of(storage, box.made_from, lakes), *(key for other in others for key in keys_of(other, box.beside))]

    boxes = [asset_of(box, storage, made_from(box), run_dates) for box in STORAGE_STEPS]
    return [*boxes, deletion_log(storage, lakes, run_dates)]


def _filter(published: PublishedTable) -> Figures:
    summary = published.summary(LiveFilterSummary)
    return {
        "live_keys": summary.keys,
        "filter_slices": summary.slices,
        "bits_per_key": summary.bits_per_key,
        "false_positive_rate_measured": summary.false_positives_measured,
    }


def _stored(published: PublishedTable) -> Figures:
    summary = published.summary(StorageInventorySummary)
    found = {"stored_files": summary.objects, "stored_bytes": summary.bytes, "not_files": sum(summary.problems.values())}
    if summary.unfinished is None:
        return found
    return found | {"unfinished_uploads": summary.unfinished.uploads, "unfinished_upload_bytes": summary.unfinished.bytes}


def _problems(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(StorageInventorySummary)
    problems = summary.problem_samples
    read = (
        f"Read from the report {summary.report}, of {summary.report_as_of.isoformat()}. " if summary.report and summary.report_as_of else ""
    )
    if not problems:
        return f"{read}Everything that was met is a plain file."
    rows = [f"| {plain(item.key)} | {plain(item.kind)} | {plain(item.detail)} |" for item in problems]
    return "\n".join([f"{read}Kept, never candidates:", "", "| where | what | found |", "|---|---|---|", *rows])


def _orphans(published: PublishedTable) -> Figures:
    steps = {step.label: step for step in steps_of(published.summary(OrphanFilesSummary))}
    expired, garbage = steps["expired history"], steps["garbage"]
    return {
        "orphan_files": published.receipt.rows,
        "orphan_bytes": expired.size_bytes + garbage.size_bytes,
        "reclaimable_files": garbage.files,
        "reclaimable_bytes": garbage.size_bytes,
        "expired_files": expired.files,
        "expired_bytes": expired.size_bytes,
        "unowned_files": steps["unowned"].files,
        "within_grace_files": steps["within the grace period"].files,
    }


def _waterfall(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(OrphanFilesSummary)
    lines = [waterfall_markdown(summary), f"Grace cut-off: {summary.grace_cutoff.isoformat()}."]
    return "\n\n".join(lines + [f"- {note}" for note in summary.notes])


def _planned(published: PublishedTable) -> Figures:
    header = header_of(published)
    figures = {
        "planned_files": header.rows,
        "planned_bytes": sum(amount.bytes for amount in header.totals.values()),
        "after_expiry_files": header.after_expiry.files,
        "after_expiry_bytes": header.after_expiry.bytes,
        "held_for_expiry_files": header.held_for_expiry.files,
        "held_for_expiry_bytes": header.held_for_expiry.bytes,
        "waiting_in_quarantine_files": header.quarantined.files,
        "expiry_actions": sum(header.expiry_actions.values()),
        "live_files": header.live_files,
        "live_bytes": header.live_bytes,
        "gates_failed": len(header.failed_gates),
    }
    if header.uploads.count:
        figures |= {"uploads_to_abort": header.uploads.count, "upload_bytes_to_abort": header.uploads.bytes}
    for action in (QUARANTINE, PURGE, RESTORE):
        amount = header.totals.get(action)
        figures |= {f"{action}_files": amount.files if amount else 0, f"{action}_bytes": amount.bytes if amount else 0}
    return figures


def _plan(context: RunContext, published: PublishedTable) -> str:
    header = header_of(published)
    amounts = [f"| {name} | {amount.files:,} | {format_bytes(amount.bytes)} |" for name, amount in header.totals.items()]
    if header.uploads.count:
        amounts.append(f"| abort of unfinished uploads | {header.uploads.count:,} | {format_bytes(header.uploads.bytes)} |")
    gates = [f"| {plain(gate.name)} | {'passed' if gate.passed else '**refused**'} | {plain(gate.message)} |" for gate in header.gates]
    return "\n".join(
        [
            f"Plan `{header.plan_id}` for {plain(header.location)}",
            "",
            "| action | files | bytes |",
            "|---|--:|--:|",
            *(amounts or ["| nothing to do | 0 | 0 B |"]),
            "",
            *(f"- {plain(line)}" for line in describe_reversibility(header, context.config).lines if header.has_work),
            "",
            _next_step(header),
            "",
            "| gate | verdict | numbers |",
            "|---|---|---|",
            *gates,
        ]
    )


def _next_step(header: PlanHeader) -> str:
    if header.historical:
        return "**Historical**: this date was never frozen on its day. The plan can be shown and never applied."
    if not header.has_work:
        return "Nothing to approve."
    return f"Approve before {header.approve_before:%Y-%m-%d %H:%M}Z: `gc-assets approve {header.plan_id[:12]} --by WHO`"


STORAGE_STEPS: Final = (
    # Any lake may point into the storage.
    Box(
        shown=(Shown(LIVE_FILTER, _filter),),
        made_from=(LIVE_FILES,),
        stage=live_filter,
        checks=(RECEIPT, COMPLETE, HOLDS_LIVE_KEYS),
    ),
    # Files are listed after every lake's refs were frozen. The listing must hold what the refs
    # name, and grace counts from the freezing.
    Box(
        shown=(Shown(STORAGE_INVENTORY, _stored, _problems),),
        made_from=(LAKE_REFS,),
        stage=storage_inventory,
        checks=(RECEIPT, COMPLETE),
    ),
    # The refs bring the claims: only a claimed file can be a candidate.
    Box(
        shown=(Shown(ORPHAN_FILES, _orphans, _waterfall),),
        made_from=(LIVE_FILTER, STORAGE_INVENTORY, LAKE_REFS),
        stage=orphan_files,
        checks=(RECEIPT, COMPLETE, NO_LIVE_CANDIDATE),
    ),
    # This box decides, and changes nothing. A link in another storage may lead here.
    Box(
        shown=(Shown(DELETION_PLAN, _planned, _plan, plan_told),),
        made_from=(ORPHAN_FILES, EXPIRY_PLAN),
        beside=(STORAGE_INVENTORY,),
        stage=deletion_plan,
        checks=(RECEIPT, PLAN_INTACT, GATES),
        freshness=RUN_MISSED,
    ),
)
