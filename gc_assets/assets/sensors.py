"""A sensor that requests runs of `deletion_log` to apply approved plans. It is off by default."""

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
# The daemon sets these tags on runs that a sensor requested.
_RUN_KEY: Final = "dagster/run_key"
_SENSOR_NAME: Final = "dagster/sensor_name"


def approved_plans(config: Config, apply: dg.UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Build the sensor.

    Because the run key is the plan id, the sensor requests at most one run for each plan.
    """

    @dg.sensor(
        name=SENSOR,
        job=apply,
        minimum_interval_seconds=int(config.dagster.approved_plans_every.total_seconds()),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Request a run of deletion_log for each approved plan of a storage in apply mode.",
    )
    def request_applies(
        context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        config, now = collector.platform.config, collector.platform.clock.now()
        waiting = [plan for plan in list_plans(config) if plan.awaits_apply(now)]
        idle = [plan for plan in waiting if config.storage(plan.header.storage).mode != "apply"]
        reasons: list[str] = []
        is_requested = False
        for plan in waiting:
            if plan in idle:
                continue
            if (run := _find_run(context.instance, plan)) is not None:
                reasons.append(_describe_run(config, plan, run))
                continue
            is_requested = True
            yield _request(config, plan)
        if idle:
            names = ", ".join(f"{plan.header.plan_id[:12]} of {plan.header.storage}" for plan in idle)
            way_out = "Set mode: apply in lakes.yaml to apply them, and reload the definitions"
            reasons.append(f"approved plans are not applied, because their storages are in plan mode: {names}. {way_out}.")
        if not is_requested:  # Dagster refuses a tick with a request and a reason
            yield dg.SkipReason("\n".join(reasons) if waiting else "no approved plan is waiting")

    return request_applies


def _find_run(instance: dg.DagsterInstance, plan: ListedPlan) -> dg.DagsterRun | None:
    """Find the run that this sensor has already requested for a plan.

    Runs that were created but never started are ignored, because Dagster's daemon launches them
    later by itself, even if it died after creating them.
    """
    runs = instance.get_runs(filters=dg.RunsFilter(tags={_RUN_KEY: plan.header.plan_id}))
    found = (run for run in runs if run.tags.get(_SENSOR_NAME) == SENSOR and run.status is not dg.DagsterRunStatus.NOT_STARTED)
    return next(found, None)


def _describe_run(config: Config, plan: ListedPlan, run: dg.DagsterRun) -> str:
    plan_id, run_id, status = plan.header.plan_id[:12], run.run_id[:8], run.status.value.lower()
    name = f"plan {plan_id} of {config.label_of(plan.header.storage)}"
    if not run.is_finished:
        return f"{name}: its run {run_id} has the status {status}"
    way_out = f"launch the job apply for {plan.header.run_date} with plan_id: {plan_id}, or make a new plan with the job run"
    return (
        f"{name} waits, but its run {run_id} has ended with the status {status} and is not repeated. "
        f"Fix the cause in the run's log, then {way_out}."
    )


def _request(config: Config, plan: ListedPlan) -> dg.RunRequest:
    header, key = plan.header, asset_key(config, plan.header.storage, DELETION_LOG)
    return dg.RunRequest(
        run_key=header.plan_id,
        partition_key=header.run_date.isoformat(),
        asset_selection=[key],
        run_config=dg.RunConfig(ops={step_name(key): ApplyPlan(plan_id=header.plan_id)}),
        tags={"gc/plan_id": header.plan_id, "gc/approved_by": plan.verdict.approved_by or ""},
    )
