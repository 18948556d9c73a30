"""The `deletion_log` asset. No other asset changes a storage or a history.

In `apply` mode, the asset executes an approved plan. It cannot rely on the asset checks of earlier
steps, because a failed check only stops its own Dagster run. The asset's stage therefore computes
the live files again and evaluates all gates itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import dagster as dg

from gc_assets.assets.asset_step import RunDates, asset_keys, build_spec, multi_asset
from gc_assets.assets.checks import COMPLETE, NO_FAILED_KEY, RECEIPT
from gc_assets.assets.failures import translate_errors
from gc_assets.assets.figures import Figures, figures_table
from gc_assets.assets.lineage import column_lineage
from gc_assets.assets.markdown import amounts_table, escape_markdown, wrap_markdown
from gc_assets.assets.names import asset_key
from gc_assets.assets.page_actions import to_page_message
from gc_assets.assets.plan_card import SHORT_ID
from gc_assets.assets.plan_events import plan_event
from gc_assets.assets.plan_metadata import reversibility_metadata
from gc_assets.assets.results import StepOutput, build_result
from gc_assets.assets.step_log import forward_logs
from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.errors import GcError
from gc_assets.core.outcomes import describe_not_done
from gc_assets.core.phases import ABORT, DONE, EXPIRE, PHASES
from gc_assets.core.plan import Amount, PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.report.shares import Amounts
from gc_assets.resources.collector import Collector
from gc_assets.stages.delete.apply import ApplyResult, apply_plan
from gc_assets.stages.delete.execution import header_of_result
from gc_assets.stages.delete.plan_selection import in_mode, select_plan
from gc_assets.stages.read.apply_outcomes import count_reasons
from gc_assets.stages.read.reversibility import describe_outcomes
from gc_assets.stages.records.plans import PARTIALLY_APPLIED, UNFINISHED, StoredPlan, load_plan
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, EXPIRY_LOG
from gc_assets.state.summaries import DeletionLogSummary, ExpiryLogSummary

DELETE_POOL: Final = "gc_delete"
CHECKS: Final = [RECEIPT, COMPLETE, NO_FAILED_KEY]


class Mode(Enum):
    """The mode of an apply. `configured` uses the storage's mode in lakes.yaml."""

    configured = "configured"
    plan = "plan"
    apply = "apply"


class ApplyPlan(dg.Config):
    """Dagster configuration of the `deletion_log` asset.

    Without a plan id, nothing is deleted, but in `apply` mode, quarantined files that are live
    again are restored.
    """

    plan_id: str = ""
    mode: Mode = Mode.configured


def deletion_log(config: Config, storage: StorageConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    spec = build_spec(config, storage, DELETION_LOG, asset_keys(config, storage, [DELETION_PLAN, EXPIRY_LOG]), run_dates)

    @multi_asset([spec], CHECKS, DELETE_POOL)
    def run(context: dg.AssetExecutionContext, config: ApplyPlan, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with translate_errors(retry_io=False, page=collector.platform.config if config.plan_id else None), forward_logs(context):
            run_context = collector.run_context(context.partition_key)
            if config.mode is not Mode.configured:
                run_context = in_mode(run_context, storage.name, config.mode.value)
            choice = select_plan(run_context, storage.name, config.plan_id)
            if choice.plan is None:
                context.log.info(choice.reason)
                return log_result(run_context, storage.name, {"nothing_changed": choice.reason})
            header = choice.plan.header
            try:
                applied = apply_plan(collector.spark(), run_context, choice.plan, choice.phases)
            finally:
                _observe_plan(context, run_context, choice.plan)
            if applied.nothing_to_do is not None:
                extra = {"nothing_changed": applied.nothing_to_do, "plan_id": header.plan_id}
                return log_result(run_context, storage.name, {**extra, **_ended_effects(run_context, choice.plan)})
            if applied.edited:
                for event in expiry_log_events(run_context, header.expiry_actions):
                    context.log_event(event)
            outcomes = outcome_metadata(run_context, header, applied)
            return log_result(
                run_context, storage.name, {**outcomes, "plan_id": header.plan_id, **effects_metadata(run_context, header, applied)}
            )

    return run


def outcome_metadata(run_context: RunContext, header: PlanHeader, applied: ApplyResult) -> dict[str, Any]:
    """Describe which actions of a plan were executed, and why others were not."""
    reasons = count_reasons(run_context, header, applied.published) if applied.not_done else {}
    counts = {key: total.rows for key, total in applied.by_outcome.items()}
    lines = [to_page_message(line, run_context.config) for line in describe_outcomes(header, counts, reasons)]
    status = UNFINISHED if applied.has_failed else PARTIALLY_APPLIED if applied.not_done else "applied"
    not_done = {"not_done": describe_not_done(applied.not_done)} if applied.not_done else {}
    # Each sentence is a paragraph, and the reasons under it are a list.
    text = "\n".join(_escape_line(line) for line in lines)
    return {"status": status, **not_done, "outcomes": dg.MetadataValue.md(text)}


def effects_metadata(run_context: RunContext, header: PlanHeader, applied: ApplyResult) -> dict[str, Any]:
    """Describe which effects of an apply can be undone, and how much space becomes free."""
    result = header_of_result(header, applied)
    return reversibility_metadata(result, run_context.config, applied_at=run_context.clock.now())


def _ended_effects(run_context: RunContext, plan: StoredPlan) -> dict[str, Any]:
    """Describe the effects of a plan that was already applied before this run."""
    restored = plan.restored_at is not None
    return reversibility_metadata(plan.effective_header, run_context.config, restored=restored, applied_at=plan.finished_at)


def _escape_line(line: str) -> str:
    """Escape a line of an apply's result for Markdown, keeping list items."""
    if line.startswith("- "):
        return f"- {wrap_markdown(escape_markdown(line[2:]), '  ')}"
    return f"\n{wrap_markdown(escape_markdown(line))}\n"


def _observe_plan(context: dg.AssetExecutionContext, run_context: RunContext, plan: StoredPlan) -> None:
    """Update a plan's status on Dagster's page after its apply, whether it succeeded or failed."""
    try:
        context.log_event(plan_event(run_context, load_plan(run_context.config, plan.published)))
    except (GcError, OSError) as error:
        context.log.warning(f"Cannot show the status of plan {plan.header.plan_id[:SHORT_ID]}: {error}")


def log_result(run_context: RunContext, storage_name: str, extra: Mapping[str, Any]) -> dg.MaterializeResult:
    """Build the materialization of the deletion log of a run date.

    If no log exists yet, the checks pass with a note that no action was executed.
    """
    if run_context.find(DELETION_LOG, storage_name) is not None:
        return build_result(run_context, storage_name, OUTPUT, CHECKS, extra)
    passed = [dg.AssetCheckResult(passed=True, check_name=check.name, description="no action was executed") for check in CHECKS]
    key = asset_key(run_context.config, storage_name, DELETION_LOG)
    return dg.MaterializeResult(asset_key=key, metadata={**extra, **_amounts({})}, check_results=passed)


def expiry_log_events(run_context: RunContext, lakes: Iterable[str]) -> Iterator[dg.AssetMaterialization]:
    """Yield materializations of `expiry_log` for the lakes whose histories the plan has edited.

    The table has no step of its own, so the asset that applies the plan reports it.
    """
    for lake in lakes:
        published = run_context.find(EXPIRY_LOG, lake)
        if published is None:
            continue  # the plan stopped before it edited this lake
        summary = published.summary(ExpiryLogSummary)
        figures = {f"{verdict}_edits": count for verdict, count in summary.by_outcome.items()}
        metadata = {"plan_id": summary.plan_id, "figures": figures_table(figures), **figures}
        metadata |= {"dagster/row_count": published.rows, **column_lineage(run_context.config, lake, EXPIRY_LOG)}
        key = asset_key(run_context.config, lake, EXPIRY_LOG)
        yield dg.AssetMaterialization(key, partition=run_context.run_date.isoformat(), metadata=metadata)


def _figures(published: PublishedTable) -> Figures:
    return _amounts(published.summary(DeletionLogSummary).by_outcome)


def _amounts(by_outcome: Amounts) -> dict[str, int]:
    file_phases = [phase for phase in PHASES if phase not in {EXPIRE, ABORT}]
    uploads = {name.partition("/")[2]: amount for name, amount in by_outcome.items() if name.startswith(f"{ABORT}/")}
    files = {name: amount for name, amount in by_outcome.items() if not name.startswith(f"{ABORT}/")}
    units = ("files", "bytes")
    figures = {f"{phase}d_{unit}": getattr(files.get(f"{phase}/done", Amount()), unit) for phase in file_phases for unit in units}
    if uploads:
        figures |= {"aborted_upload_bytes": uploads.get(DONE, Amount()).bytes}
        figures |= {f"{'aborted' if outcome == DONE else outcome}_uploads": amount.files for outcome, amount in uploads.items()}
    other = {name: amount for name, amount in files.items() if not name.endswith("/done")}
    return figures | {
        f"{outcome}_files": sum(amount.files for name, amount in other.items() if name.endswith(f"/{outcome}"))
        for outcome in ("absent", "changed", "denied", "failed")
    }


def _report(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(DeletionLogSummary)
    by = f", approved by {escape_markdown(summary.approved_by)}" if summary.approved_by else ""
    decisions = "".join(f"- {escape_markdown(str(event))}\n" for event in summary.approval_events)
    return f"Plan `{summary.plan_id[:SHORT_ID]}`{by}.\n\n{decisions}\n" + amounts_table("phase/outcome", summary.by_outcome)


def _approval_metadata(_: RunContext, published: PublishedTable) -> dict[str, str]:
    approved_by = published.summary(DeletionLogSummary).approved_by
    return {"approved_by": approved_by} if approved_by else {}


OUTPUT: Final = StepOutput(DELETION_LOG, _figures, _report, _approval_metadata)
