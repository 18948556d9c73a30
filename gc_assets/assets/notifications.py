"""The sensor that tells the targets of `notify` what happens. It is off until somebody turns it on.

What was told is remembered in the sensor's cursor. To be told everything anew, reset the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import dagster as dg

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError
from gc_assets.core.notifications import FailedApply, Notification, StorageFacts, notifications, state_unread
from gc_assets.core.plan import APPLY_WITHIN
from gc_assets.core.told import Told
from gc_assets.notify.tell import tell
from gc_assets.resources.collector import Collector
from gc_assets.stages.read.standing import standing

SENSOR: Final = "notifications"
EVERY_SECONDS: Final = 300
# Of the newest runs. More applies than this do not fail within their time.
MOST_RUNS: Final = 50
DESCRIPTION: Final = "Tells the targets of `notify` what happens, each event once: a plan that waits, a night that was missed, and so on."


def notification_sensors(config: Config, apply: str) -> list[dg.SensorDefinition]:
    """Returns the sensor, or none where lakes.yaml names no target. `apply` is the job that executes
    plans.
    """
    if not config.notify:
        return []

    @dg.sensor(
        name=SENSOR,
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=DESCRIPTION,
    )
    def told(context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]) -> dg.SkipReason:
        at = collector.platform
        failed = list(_failed_runs(context.instance, apply))
        facts, unread = list[StorageFacts](), list[Notification]()
        for storage in at.config.storages:
            try:
                facts.append(standing(at.config, at.clock, storage, failed))
            except (GcError, OSError) as error:
                unread.append(state_unread(storage.name, str(error)))
        happening = [*notifications(facts, at.clock.now()), *unread]
        found = tell(at.config.notify, happening, Told.parsed(context.cursor), is_all=not unread)
        context.update_cursor(found.told.text)
        for item in unread:
            context.log.error(f"{item.title}: {item.text}")
        for name, why in found.failed.items():
            context.log.error(f"could not tell {name}: {why}")
        return dg.SkipReason("; ".join([str(found), *(item.title for item in unread)]))

    return [told]


def _failed_runs(instance: dg.DagsterInstance, job: str) -> Iterator[FailedApply]:
    """Returns the runs of a job that failed within the time that a plan may be applied, newest
    first.
    """
    since = Clock().now() - APPLY_WITHIN
    wanted = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.FAILURE], created_after=since)
    for run in instance.get_runs(filters=wanted, limit=MOST_RUNS):
        for plan_id in _plan_ids(run.run_config):
            yield FailedApply(plan_id, f"run {run.run_id}", _why(instance, run.run_id))


def _plan_ids(run_config: Any) -> Sequence[str]:
    ops = run_config.get("ops") or {}
    return [str(op["config"]["plan_id"]) for op in ops.values() if op.get("config", {}).get("plan_id")]


def _why(instance: dg.DagsterInstance, run_id: str) -> str:
    """Returns what the platform says of a failure. Other words may be anybody's."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        told = entry.dagster_event.step_failure_data.user_failure_data if entry.dagster_event is not None else None
        if told is not None and told.description:
            return f"Run {run_id[:8]}: {told.description}"
    return f"Run {run_id[:8]} failed; its log says why."
