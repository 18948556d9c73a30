"""A sensor that sends notifications to the targets under `notify` in lakes.yaml.

It is off by default. Its cursor records the events that were already delivered. If you reset the
cursor, all current events are sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
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
# Dagster limits a tick to one minute. Deliveries can take up to 40 seconds of it.
STATUS_SECONDS: Final = 15.0
# Failures of older runs have been reported by earlier ticks.
MAX_RUNS: Final = 100
_OP: Final = f"__{DELETION_LOG.name}"
DESCRIPTION: Final = "Send each event once to the targets of `notify`, for example a plan that waits for approval or a missed run."


def notification_sensors(config: Config) -> list[dg.SensorDefinition]:
    """Build the sensor, unless lakes.yaml has no targets."""
    if not config.notify:
        return []

    @dg.sensor(
        name=SENSOR,
        minimum_interval_seconds=int(config.dagster.notifications_every.total_seconds()),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=DESCRIPTION,
    )
    def notify(context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]) -> dg.SkipReason:
        platform = collector.platform
        config, clock = platform.config, platform.clock
        deadline = monotonic() + STATUS_SECONDS
        failed = list(_failed_runs(context.instance))
        summary, unread = list[StorageSummary](), list[Notification]()
        for storage in config.storages:
            try:
                seconds = max(deadline - monotonic(), 1.0)
                read = partial(storage_status, config, clock, storage, failed)
                summary.append(run_with_deadline(seconds, storage.location, read, exclusive=True))
            except (GcError, OSError) as error:
                unread.append(state_unread(storage.name, str(error)))
        active = [*list_notifications(summary, clock.now()), *unread]
        result = deliver(config.notify, active, Deliveries.parse(context.cursor), is_all=not unread)
        context.update_cursor(result.deliveries.to_json)
        for item in unread:
            context.log.error(f"{item.title}: {item.text}")
        for name, reason in result.failed.items():
            context.log.error(f"notify: cannot deliver to {name}: {reason}")
        return dg.SkipReason("; ".join([str(result), *(item.title for item in unread)]))

    return [notify]


def _failed_runs(instance: dg.DagsterInstance) -> Iterator[FailedApply]:
    """Yield failed applies of plans that may still be applied again, newest first."""
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=Clock().now() - APPLY_WITHIN)
    for run in instance.get_runs(filters=wanted, limit=MAX_RUNS):
        for plan_id in plan_ids(run.run_config):
            yield FailedApply(plan_id, f"run {run.run_id}", _failure_text(instance, run.run_id))


def plan_ids(run_config: Any) -> list[str]:
    """Extract the plan ids from the configuration of a failed run.

    The configuration can have any structure, because an invalid one may be the reason of the
    failure.
    """
    ops = _mapping(_mapping(run_config).get("ops"))
    found = [_mapping(_mapping(op).get("config")).get("plan_id") for name, op in ops.items() if str(name).endswith(_OP)]
    return [plan_id for plan_id in found if isinstance(plan_id, str) and plan_id]


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _failure_text(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the message of a failure, but only if it comes from gc-assets.

    Other messages may contain secrets and are not sent to targets.
    """
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        failure = entry.dagster_event.step_failure_data.user_failure_data if entry.dagster_event is not None else None
        if failure is not None and failure.description:
            return f"Run {run_id[:8]}: {failure.description}"
    return f"Run {run_id[:8]} failed. See its log in Dagster."
