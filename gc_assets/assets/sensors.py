"""The sensor that requests a run of `deletion_log` for each approved plan. It is off by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import dagster as dg

from gc_assets.assets.deletion_log import ApplyPlan
from gc_assets.assets.names import asset_key, step_name
from gc_assets.config.models import Config
from gc_assets.resources.collector import Collector
from gc_assets.stages.records.plans import ListedPlan, list_plans
from gc_assets.state.schemas import DELETION_LOG

SENSOR: Final = "approved_plans"


def approved_plans(config: Config, apply: dg.UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Build the sensor. The run key is the plan id, so a plan is requested only once."""

    @dg.sensor(
        name=SENSOR,
        job=apply,
        minimum_interval_seconds=int(config.dagster.approved_plans_every.total_seconds()),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Request a run of deletion_log for each approved plan of a storage in mode apply.",
    )
    def request_applies(collector: dg.ResourceParam[Collector]) -> Iterator[dg.RunRequest | dg.SkipReason]:
        config, now = collector.platform.config, collector.platform.clock.now()
        waiting = [plan for plan in list_plans(config) if plan.awaits_apply(now)]
        idle = [plan for plan in waiting if config.storage(plan.header.storage).mode != "apply"]
        for plan in waiting:
            if plan not in idle:
                yield _request(config, plan)
        if idle:
            names = ", ".join(f"{plan.header.plan_id[:12]} of {plan.header.storage}" for plan in idle)
            way_out = "Set mode: apply in lakes.yaml to apply them, and reload the definitions"
            yield dg.SkipReason(f"approved plans of storages in mode plan: {names}. {way_out}.")
        elif not waiting:
            yield dg.SkipReason("no approved plan is waiting")

    return request_applies


def _request(config: Config, plan: ListedPlan) -> dg.RunRequest:
    header, key = plan.header, asset_key(config, plan.header.storage, DELETION_LOG)
    return dg.RunRequest(
        run_key=header.plan_id,
        partition_key=header.run_date.isoformat(),
        asset_selection=[key],
        run_config=dg.RunConfig(ops={step_name(key): ApplyPlan(plan_id=header.plan_id)}),
        tags={"gc/plan_id": header.plan_id, "gc/approved_by": plan.verdict.approved_by or ""},
    )
