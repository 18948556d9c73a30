"""Report the actions of `gc-assets` commands to Dagster.

The events have the same metadata, partition and checks as those of the `deletion_log` asset. A new
plan status is reported as an observation of `deletion_plan`. Unlike the events of an asset, they do
not belong to a Dagster run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import dagster as dg
import pyarrow.compute as pc

from gc_assets.assets.deletion_log import effects_metadata, expiry_log_events, log_result, outcome_metadata
from gc_assets.assets.names import asset_key
from gc_assets.assets.plan_events import find_plan_event, plan_event
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.apply import ApplyResult
from gc_assets.stages.read.browse import batches
from gc_assets.stages.records.plans import StoredPlan
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.state.summaries import DeletionLogSummary

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def report_plan(context: RunContext, header: PlanHeader, applied: ApplyResult) -> None:
    """Report to Dagster that a plan was executed, including its history edits."""
    of_plan = replace(context, run_date=header.run_date)
    edits = expiry_log_events(of_plan, header.expiry_actions) if applied.edited else ()
    extra = {**outcome_metadata(of_plan, header, applied), **effects_metadata(of_plan, header, applied)}
    log = _log_events(of_plan, header.storage, header.plan_id, extra) if applied.published is not None else ()
    _report([*edits, *log, *find_plan_event(context, header.storage, header.plan_id)])


def report_restore(context: RunContext, storage_name: str, log: PublishedTable) -> None:
    """Report to Dagster that quarantined files were restored."""
    _report(list(restore_events(context, storage_name, log)))


def report_history_undo(context: RunContext, header: PlanHeader) -> None:
    """Report to Dagster that a plan's history edits were undone."""
    _report(list(history_undo_events(context, header)))


def restore_events(context: RunContext, storage_name: str, log: PublishedTable) -> Iterator[Event]:
    """Yield the Dagster events of a restore, and the new status of plans whose files it restored."""
    yield from _log_events(context, storage_name, log.summary(DeletionLogSummary).plan_id)
    for plan_id in _source_plans(context, log):
        yield from find_plan_event(context, storage_name, plan_id)


def _source_plans(context: RunContext, log: PublishedTable) -> list[str]:
    found: set[str | None] = set()
    for batch in batches(context.state, DELETION_LOG.schema, log.paths(), ["source_plan_id"]):
        found.update(pc.unique(batch.column(0)).to_pylist())
    return sorted(plan_id for plan_id in found if plan_id)


def history_undo_events(context: RunContext, header: PlanHeader) -> Iterator[dg.AssetMaterialization]:
    """Yield the Dagster events that report undone history edits."""
    return expiry_log_events(replace(context, run_date=header.run_date), header.expiry_actions)


def report_decision(context: RunContext, plan: StoredPlan) -> None:
    """Report to Dagster that a plan was approved or rejected."""
    _report([plan_event(context, plan)])


def _log_events(context: RunContext, storage_name: str, plan_id: str, extra: Mapping[str, Any] = MappingProxyType({})) -> Iterator[Event]:
    result = log_result(context, storage_name, {"plan_id": plan_id, **extra})
    key, partition = asset_key(context.config, storage_name, DELETION_LOG), context.run_date.isoformat()
    version = {"dagster/data_version": result.data_version.value} if result.data_version is not None else {}
    yield dg.AssetMaterialization(key, metadata=result.metadata, partition=partition, tags=version)
    for check in result.check_results or ():
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=str(check.check_name),
            passed=check.passed,
            metadata=check.metadata,
            severity=check.severity,
            description=check.description,
        )


def _report(events: Sequence[Event]) -> None:
    with dg.DagsterInstance.get() as instance:
        for event in events:
            instance.report_runless_asset_event(event)
