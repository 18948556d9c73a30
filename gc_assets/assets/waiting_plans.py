"""The plans to choose from in the launchpads of the `approve`, `reject` and `restore` jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import dagster as dg

from gc_assets.assets.plan_card import SHORT_ID
from gc_assets.core.errors import UsageError
from gc_assets.core.units import count_of, format_bytes
from gc_assets.resources.platform import Platform
from gc_assets.stages.records.plans import PARTIALLY_APPLIED, UNFINISHED, ListedPlan, list_plans

# Plans with these statuses can be approved, rejected or restored.
WAITING: Final[Mapping[str, Collection[str]]] = {
    "approve": ("ready", "refused"),
    "reject": ("ready", "refused", "approved"),
    "restore": ("applied", PARTIALLY_APPLIED, UNFINISHED),
}
MAX_LISTED: Final = 5
_LISTED: Final = {"approve": "These plans wait", "reject": "These plans wait", "restore": "These plans were applied"}


def waiting_plans(platform: Platform, job: str) -> list[ListedPlan]:
    """Return the plans on which a job can act, newest first.

    For `approve`, plans that were created under another policy are excluded. Do not call this
    function while the code location is being loaded, because loading must not depend on the state.

    Args:
        platform: The platform.
        job: `approve`, `reject` or `restore`.

    Raises:
        GcError: If the state is unreadable. The launchpad then shows the error instead of a list.
    """
    now = platform.clock.now()
    found = [plan for plan in list_plans(platform.config, empty=True) if plan.status_at(now) in WAITING[job]]
    shown = [plan for plan in found if plan.header.rehearsal == platform.clock.is_rehearsal and plan.is_listed]
    if job == "approve":
        shown = [plan for plan in shown if plan.header.policy_digest in {None, platform.config.policy_digest()}]
    return sorted(shown, key=lambda plan: plan.run.run_id, reverse=True)


def choices(platform: Platform, job: str, config_of: Callable[[str], Mapping[str, Any]]) -> dg.PartitionedConfig:
    """Offer plans as partitions of a job, so that users can choose one in the launchpad.

    The list of plans is read again each time a user opens the launchpad. If the user chooses a
    plan, its configuration is filled in.

    Args:
        platform: The platform.
        job: The name of the job.
        config_of: Returns the configuration to fill in for a plan id.
    """

    def names(_: datetime | None = None) -> Sequence[str]:
        return [_name(platform, plan) for plan in waiting_plans(platform, job)]

    @dg.dynamic_partitioned_config(partition_fn=names)
    def config_of_partition(partition_key: str) -> Mapping[str, Any]:
        return config_of(_plan_of(partition_key))

    return config_of_partition


def require_same_plan(context: dg.OpExecutionContext, plan_id: str) -> None:
    """Check that the chosen partition and the configuration refer to the same plan.

    They can differ because the user may edit the configuration after choosing a partition.

    Args:
        context: The context of the op.
        plan_id: The plan id in the configuration, or an empty string.

    Raises:
        UsageError: If they refer to different plans.
    """
    if not context.has_partition_key:
        return
    partition = context.partition_key
    chosen, entered = _plan_of(partition), plan_id.strip()
    if entered and (chosen.startswith(entered) or entered.startswith(chosen)):
        return
    found = f"contains {entered[:SHORT_ID]}" if entered else "is empty"
    raise UsageError(
        f"Partition `{partition}` selects plan {chosen}, but `plan_id` {found}. Nothing was changed."
        " Choose the partition again to fill in its id, or launch without a partition."
    )


def describe_waiting(platform: Platform, job: str) -> str:
    """Describe the plans on which a job can act, for an error about a missing plan id."""
    plans = waiting_plans(platform, job)
    if not plans:
        return "No plan is waiting. Launch the `run` job to make a plan." if job != "restore" else "No applied plan was found."
    order = "" if len(plans) == 1 else ", the newest first"
    listed = "; ".join(f"{plan.header.plan_id[:SHORT_ID]} ({_describe(platform, plan)})" for plan in plans[:MAX_LISTED])
    more = f"; and {len(plans) - MAX_LISTED:,} more" if len(plans) > MAX_LISTED else ""
    return f"{_LISTED[job]}{order}: {listed}{more}."


def _plan_of(partition: str) -> str:
    return partition.partition(" ")[0]


def _name(platform: Platform, plan: ListedPlan) -> str:
    """Return a plan's label in the launchpad.

    Since long labels are cut, it begins with the plan id.
    """
    header = plan.header
    return f"{header.plan_id[:SHORT_ID]} {header.run_date} {platform.config.label_of(header.storage)}"


def _describe(platform: Platform, plan: ListedPlan) -> str:
    header = plan.header
    files, size_bytes = (sum(getattr(amount, name) for amount in header.totals.values()) for name in ("files", "bytes"))
    refused = ", refused by its gates" if plan.status_at(platform.clock.now()) == "refused" else ""
    edits = f", {count_of(sum(header.expiry_actions.values()), 'history edit')}" if header.expiry_actions else ""
    edits += f", {count_of(paths, 'deleted path')}" if (paths := sum(header.deleted_paths.values())) else ""
    plan_name = f"{platform.config.label_of(header.storage)}, {header.run_date}"
    return f"{plan_name}, {count_of(files, 'file')}, {format_bytes(size_bytes)}{edits}{refused}"
