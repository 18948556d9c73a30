"""A sensor that requests runs of `deletion_log` to apply approved plans. It is off by default."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Final

import dagster as dg

from gc_assets.assets.deletion_log import ApplyPlan
from gc_assets.assets.names import asset_key, step_name
from gc_assets.config.models import Config
from gc_assets.core.commands import command
from gc_assets.core.errors import GcError
from gc_assets.resources.collector import Collector
from gc_assets.stages.records.plans import ListedPlan, list_plans
from gc_assets.state.schemas import DELETION_LOG

SENSOR: Final = "approved_plans"
# The daemon sets these tags on runs that a sensor requested.
_RUN_KEY: Final = "dagster/run_key"
_SENSOR_NAME: Final = "dagster/sensor_name"


def approved_plans(config: Config, apply: dg.UnresolvedAssetJobDefinition, first: date) -> dg.SensorDefinition:
    """Build the sensor.

    Because the run key is the plan id, the sensor requests at most one run for each plan. A plan
    or storage for which it cannot request a run does not block the others.

    Args:
        apply: The job to request.
        first: The first partition of `deletion_log`.
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
        reasons, errors = list[str](), list[GcError | OSError]()
        is_requested = False
        for storage in config.storages:
            try:
                waiting = [plan for plan in list_plans(config, storage.name) if plan.awaits_apply(now)]
                refusals = [_find_refusal(context, config, plan, first) for plan in waiting]
            except (GcError, OSError) as error:
                reasons.append(f"cannot read the plans of storage {storage.name}: {error}")
                errors.append(error)
                continue
            for plan, refusal in zip(waiting, refusals, strict=True):
                if refusal is None:
                    is_requested = True
                    yield _request(config, plan)
                else:
                    reasons.append(f"plan {plan.header.plan_id[:12]} of {config.label_of(plan.header.storage)} {refusal}")
        if errors and len(errors) == len(config.storages):
            raise errors[0]  # Dagster shows failed ticks, and can send alerts
        if not is_requested:  # Dagster refuses a tick with a request and a reason
            yield dg.SkipReason("\n".join(reasons) or "no approved plan is waiting")
        elif reasons:
            context.log.warning("\n".join(reasons))

    return request_applies


def _find_refusal(context: dg.SensorEvaluationContext, config: Config, plan: ListedPlan, first: date) -> str | None:
    """Explain why no run is requested for an approved plan, or return None to request one."""
    header = plan.header
    if config.storage(header.storage).mode != "apply":
        return "is not applied, because its storage is in plan mode. Set mode: apply in lakes.yaml, and reload the definitions."
    if header.run_date < first:
        found = f"is not applied, because its run date {header.run_date} is before the first partition {first}"
        return f"{found}. Reload the definitions, or run `{command('apply', header.plan_id[:12])}`."
    if (run := _find_run(context, header.plan_id)) is not None:
        return _describe_run(plan, run)
    if header.policy_digest not in {None, config.policy_digest()} and not plan.record.is_started:
        return "cannot be applied, because the policy in lakes.yaml has changed since it was made. Make a new plan with the job run."
    return None


def _find_run(context: dg.SensorEvaluationContext, plan_id: str) -> dg.DagsterRun | None:
    """Find the run that this sensor has already requested for a plan, or one that applies it now.

    Runs that were created but never started are ignored, because Dagster's daemon launches them
    later by itself, even if it died after creating them. Finished runs of an equally named sensor
    of another code location are ignored too.
    """
    for run in context.instance.get_runs(filters=dg.RunsFilter(tags={_RUN_KEY: plan_id, _SENSOR_NAME: SENSOR})):
        if run.status is not dg.DagsterRunStatus.NOT_STARTED and not (run.is_finished and _is_of_other_location(context, run)):
            return run
    return None


def _is_of_other_location(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    location, job = context.code_location_origin, run.remote_job_origin
    if location is None or job is None:
        return False
    other = job.repository_origin.get_selector()
    return (other.location_name, other.repository_name) != (location.location_name, context.repository_name)


def _describe_run(plan: ListedPlan, run: dg.DagsterRun) -> str:
    plan_id, run_id, status = plan.header.plan_id[:12], run.run_id[:8], run.status.value.lower()
    if not run.is_finished:
        return f"is not requested again: its run {run_id} has the status {status}"
    way_out = f"launch the job apply for {plan.header.run_date} with plan_id: {plan_id}, or make a new plan with the job run"
    return (
        f"waits, but its run {run_id} has ended with the status {status} and is not repeated. "
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
