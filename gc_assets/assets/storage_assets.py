"""The Dagster assets of a storage, which combine the live sets of all lakes that may use it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import dagster as dg

from gc_assets.assets.asset_step import AssetStep, RunDates, asset_keys, build_asset
from gc_assets.assets.checks import ALL_LISTED, COMPLETE, GATES, HOLDS_LIVE_KEYS, NO_LIVE_CANDIDATE, PLAN_INTACT, RECEIPT
from gc_assets.assets.deletion_log import deletion_log
from gc_assets.assets.figures import Figures
from gc_assets.assets.markdown import breakdown_steps, dropped_tables_markdown, escape_markdown, storage_breakdown_markdown
from gc_assets.assets.observations import observe_tables
from gc_assets.assets.plan_metadata import plan_metadata
from gc_assets.assets.results import StepOutput
from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.commands import command
from gc_assets.core.notifications import MAX_RUN_DELAY, RUN_INTERVAL
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import PlanHeader
from gc_assets.core.units import format_bytes
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.report.storage_breakdown import Step
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN, LAKE_REFS, LIVE_FILES, LIVE_FILTER, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.summaries import LiveFilterSummary, OrphanFilesSummary, StorageInventorySummary
from gc_assets.stores.store import find_link_sources

# A run may take longer than the previous one, so the failure is reported only after some delay. It
# coincides with the notification `run_missed`.
RUN_MISSED: Final = dg.FreshnessPolicy.time_window(fail_window=RUN_INTERVAL + MAX_RUN_DELAY, warn_window=RUN_INTERVAL + timedelta(hours=2))


def storage_assets(config: Config, storage: StorageConfig, run_dates: RunDates) -> list[dg.AssetsDefinition]:
    others = find_link_sources(storage, config.storages)

    def deps(step: AssetStep) -> list[dg.AssetKey]:
        return [
            *asset_keys(config, storage, step.inputs),
            *(key for other in others for key in asset_keys(config, other, step.link_inputs)),
        ]

    assets = [build_asset(config, step, storage, deps(step), run_dates) for step in STORAGE_STEPS]
    return [*assets, deletion_log(config, storage, run_dates)]


def _filter_figures(published: PublishedTable) -> Figures:
    summary = published.summary(LiveFilterSummary)
    return {
        "live_keys": summary.keys,
        "filter_slices": summary.slices,
        "bits_per_key": summary.bits_per_key,
        "false_positive_rate_measured": summary.false_positives_measured,
    }


def _inventory_figures(published: PublishedTable) -> Figures:
    summary = published.summary(StorageInventorySummary)
    found = {"stored_files": summary.objects, "stored_bytes": summary.bytes, "not_files": sum(summary.problems.values())}
    if summary.unfinished is None:
        return found
    return found | {"unfinished_uploads": summary.unfinished.uploads, "unfinished_upload_bytes": summary.unfinished.bytes}


def _inventory_report(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(StorageInventorySummary)
    problems = summary.problem_samples
    read = (
        f"Read from the report {summary.report}, of {summary.report_as_of.isoformat()}. " if summary.report and summary.report_as_of else ""
    )
    if summary.earlier is not None and summary.as_of is not None:
        read += f"Not listed in this run: the rows come from the listing of {summary.as_of:%Y-%m-%d %H:%M} UTC. "
    elif summary.listed_because is not None:
        read += f"Listed, because {summary.listed_because}. "
    if not problems:
        return f"{read}All listed objects are regular files."
    rows = [f"| {escape_markdown(item.key)} | {escape_markdown(item.kind)} | {escape_markdown(item.detail)} |" for item in problems]
    return "\n".join([f"{read}These entries are kept and never become candidates:", "", "| key | kind | detail |", "|---|---|---|", *rows])


def _orphan_figures(published: PublishedTable) -> Figures:
    summary = published.summary(OrphanFilesSummary)
    steps = {step.label: step for step in breakdown_steps(summary)}
    expired, garbage = steps["expired history"], steps["garbage"]
    return {
        "orphan_files": expired.files + garbage.files,
        "orphan_bytes": expired.size_bytes + garbage.size_bytes,
        "reclaimable_files": garbage.files,
        "reclaimable_bytes": garbage.size_bytes,
        "expired_files": expired.files,
        "expired_bytes": expired.size_bytes,
        "unowned_files": steps["unowned"].files,
        "within_grace_files": steps["within the grace period"].files,
        **_kept_figures(steps),
        **({"dropped_tables": summary.dropped_tables} if summary.dropped_tables else {}),
    }


def _kept_figures(steps: Mapping[str, Step]) -> Figures:
    """Return the amounts of protected and foreign files, which are never deleted, if any."""
    kept = [steps[name] for name in ("foreign", "protected") if name in steps]
    return {f"{step.label}_{unit}": value for step in kept for unit, value in (("files", step.files), ("bytes", step.size_bytes))}


def _orphan_report(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(OrphanFilesSummary)
    lines = [storage_breakdown_markdown(summary), f"Grace cut-off: {summary.grace_cutoff.isoformat()}."]
    if summary.dropped:
        lines.append(dropped_tables_markdown(summary))
    return "\n\n".join(lines + [f"- {escape_markdown(note)}" for note in summary.notes])


def _plan_figures(published: PublishedTable) -> Figures:
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


def _plan_report(context: RunContext, published: PublishedTable) -> str:
    header = header_of(published)
    amounts = [f"| {name} | {amount.files:,} | {format_bytes(amount.bytes)} |" for name, amount in header.totals.items()]
    if header.uploads.count:
        amounts.append(f"| abort of unfinished uploads | {header.uploads.count:,} | {format_bytes(header.uploads.bytes)} |")
    gates = [
        f"| {escape_markdown(gate.name)} | {'passed' if gate.passed else '**refused**'} | {escape_markdown(gate.message)} |"
        for gate in header.gates
    ]
    return "\n".join(
        [
            f"Plan `{header.plan_id}` for {escape_markdown(header.location)}",
            *(line for note in header.notes for line in ("", escape_markdown(note))),
            "",
            "| action | files | bytes |",
            "|---|--:|--:|",
            *(amounts or ["| nothing to do | 0 | 0 B |"]),
            "",
            *(f"- {escape_markdown(line)}" for line in describe_reversibility(header, context.config).lines if header.has_work),
            *(f"- {escape_markdown(str(item))}" for item in header.left_out),
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
        return "**Historical**: the refs were read after this run date. The plan cannot be applied."
    if not header.has_work:
        return "Nothing to approve."
    return f"Approve before {header.approve_before:%Y-%m-%d %H:%M}Z: `{command('approve', header.plan_id[:12], by='WHO')}`"


STORAGE_STEPS: Final = (
    # Any lake may refer to files of the storage.
    AssetStep(
        outputs=(StepOutput(LIVE_FILTER, _filter_figures),),
        inputs=(LIVE_FILES,),
        stage=live_filter,
        checks=(RECEIPT, COMPLETE, HOLDS_LIVE_KEYS),
    ),
    # The listing must start after the refs were read. Otherwise it could lack files that the refs
    # need. The grace period is also counted back from the time when the refs were read.
    AssetStep(
        outputs=(StepOutput(STORAGE_INVENTORY, _inventory_figures, _inventory_report),),
        inputs=(LAKE_REFS,),
        stage=storage_inventory,
        checks=(RECEIPT, COMPLETE),
    ),
    # The refs are an input because they contain the claims, and only claimed files are candidates.
    AssetStep(
        outputs=(StepOutput(ORPHAN_FILES, _orphan_figures, _orphan_report),),
        inputs=(LIVE_FILTER, STORAGE_INVENTORY, LAKE_REFS),
        stage=orphan_files,
        checks=(RECEIPT, COMPLETE, NO_LIVE_CANDIDATE, ALL_LISTED),
    ),
    # The plan reads the inventories of other storages, because their links may lead into this one.
    # It also uses the last sweep of every storage that its lakes claim. The sweeps are not inputs,
    # since a storage that cannot be listed would then stop the plans of all others. Instead, these
    # plans only contain files that are older than its last listing. If such a storage was never
    # swept, the `foreign_metadata` gate refuses the plan until the run after its first sweep. With
    # the low priority, plans start after all sweeps if Dagster executes one step at a time.
    AssetStep(
        outputs=(StepOutput(DELETION_PLAN, _plan_figures, _plan_report, plan_metadata),),
        inputs=(ORPHAN_FILES, EXPIRY_PLAN, table_with(TableRole.PATH_EDITS)),
        link_inputs=(STORAGE_INVENTORY,),
        stage=deletion_plan,
        checks=(RECEIPT, PLAN_INTACT, GATES),
        freshness=RUN_MISSED,
        priority=-1,
        reporter=observe_tables,
    ),
)
