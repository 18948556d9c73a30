"""Observations of plan statuses, which Dagster's page shows in the plans' partitions."""

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
    """Return an observation of a plan's current status, in its partition of `deletion_plan`.

    The page shows it instead of the status at the time of the run. If a later run has replaced the
    plan in its partition, the later plan's status stays visible.
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
    """Yield the observation of a plan, or nothing if the state does not contain the plan."""
    for listed in list_plans(context.config, storage_name, empty=True):
        if listed.header.plan_id == plan_id:
            yield plan_event(context, load_plan(context.config, context.state.open(listed.run)))
