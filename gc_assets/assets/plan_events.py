"""Observations that update the status of a plan on Dagster's page."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from gc_assets.assets.names import asset_key
from gc_assets.assets.plan_card import SHORT_ID
from gc_assets.assets.plan_metadata import status_metadata
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import StoredPlan, list_plans, load_plan
from gc_assets.state.schemas import DELETION_PLAN


def plan_event(context: RunContext, plan: StoredPlan) -> dg.AssetObservation:
    """Build an observation of `deletion_plan` with the current status of a plan.

    Without such an observation, the page would keep showing the status from the time of the run. If
    a newer plan has replaced this one in its partition, the page still shows the metadata of the
    newer plan.
    """
    header = plan.header
    current = context.state.current(header.storage, DELETION_PLAN.name, header.run_date)
    if current is not None and header_of(current).plan_id == header.plan_id:
        metadata = status_metadata(context, plan)
    else:
        metadata = {"earlier_plan": f"{header.plan_id[:SHORT_ID]}: {plan.status_at(context.clock.now())}"}
    key = asset_key(context.config, header.storage, DELETION_PLAN)
    return dg.AssetObservation(key, partition=header.run_date.isoformat(), metadata=metadata)


def find_plan_event(context: RunContext, storage_name: str, plan_id: str) -> Iterator[dg.AssetObservation]:
    """Find a plan by its id and yield its observation. Unknown plans are skipped."""
    for listed in list_plans(context.config, storage_name, empty=True):
        if listed.header.plan_id == plan_id:
            yield plan_event(context, load_plan(context.config, context.state.open(listed.run)))
