"""The sensor that tells the targets of `notify` what happens. It is off until somebody turns it on.

What was told is remembered in the sensor's cursor. To be told everything anew, reset the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any, Final

import dagster as dg

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.deliveries import Deliveries
from gc_assets.core.errors import GcError
from gc_assets.core.notifications import FailedApply, Notification, StorageSummary, list_notifications, state_unread
from gc_assets.core.plan import APPLY_WITHIN
from gc_assets.notify.dispatch import deliver
from gc_assets.resources.collector import Collector
from gc_assets.stages.read.status import storage_status
from gc_assets.state.schemas import DELETION_LOG

SENSOR: Final = "notifications"
EVERY_SECONDS: Final = 300
# Dagster gives a tick a minute, and telling takes up to 40 s of it.
STATUS_SECONDS: Final = 15.0
# The newest of the failed runs. An apply that failed before them has been looked at since.
MAX_RUNS: Final = 100
_OP: Final = f"__{DELETION_LOG.name}"
DESCRIPTION: Final = "Tells the targets of `notify` what happens, each event once: a plan that waits, a night that was missed, and so on."


def notification_sensors(config: Config) -> list[dg.SensorDefinition]:
    """Returns the sensor, or none where lakes.yaml names no target."""
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
        until = monotonic() + STATUS_SECONDS
        failed = list(_failed_runs(context.instance))
        summary, unread = list[StorageSummary](), list[Notification]()
        for storage in at.config.storages:
            try:
                left = max(until - monotonic(), 1.0)
                summary.append(
                    run_with_deadline(left, storage.location, lambda storage=storage: storage_status(at.config, at.clock, storage, failed))
                )
            except (GcError, OSError) as error:
                unread.append(state_unread(storage.name, str(error)))
        happening = [*list_notifications(summary, at.clock.now()), *unread]
        found = deliver(at.config.notify, happening, Deliveries.parse(context.cursor), is_all=not unread)
        context.update_cursor(found.told.to_json)
        for item in unread:
            context.log.error(f"{item.title}: {item.text}")
        for name, why in found.failed.items():
            context.log.error(f"could not tell {name}: {why}")
        return dg.SkipReason("; ".join([str(found), *(item.title for item in unread)]))

    return [told]


def _failed_runs(instance: dg.DagsterInstance) -> Iterator[FailedApply]:
    """Returns the runs that were to execute a plan and failed within the time that a plan may be
    applied, newest first.
    """
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=Clock().now() - APPLY_WITHIN)
    for run in instance.get_runs(filters=wanted, limit=MAX_RUNS):
        for plan_id in plan_ids(run.run_config):
            yield FailedApply(plan_id, f"run {run.run_id}", _failure_text(instance, run.run_id))


def plan_ids(run_config: Any) -> list[str]:
    """Returns the plans that a run was to execute, as its configuration names them. A run may have
    failed because its configuration is nonsense, so nothing is known of it.
    """
    ops = _mapping(_mapping(run_config).get("ops"))
    found = [_mapping(_mapping(op).get("config")).get("plan_id") for name, op in ops.items() if str(name).endswith(_OP)]
    return [plan_id for plan_id in found if isinstance(plan_id, str) and plan_id]


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _failure_text(instance: dg.DagsterInstance, run_id: str) -> str:
    """Returns what the platform says of a failure. Other words may be anybody's."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        told = entry.dagster_event.step_failure_data.user_failure_data if entry.dagster_event is not None else None
        if told is not None and told.description:
            return f"Run {run_id[:8]}: {told.description}"
    return f"Run {run_id[:8]} failed; its log says why."
