"""Determine events that users are notified about, and format the messages.

As long as an event lasts, it keeps its id, so that each target receives it only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal, get_args

from gc_assets.core.commands import command
from gc_assets.core.gates import message_of
from gc_assets.core.moments import format_minute
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Unreadable
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of

Event = Literal[
    "plan_ready",
    "plan_refused",
    "plan_applied",
    "approval_ends",
    "table_unreadable",
    "run_missed",
    "apply_failed",
    "state_unread",
    "target_failed",
]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
# Names that events had up to release 0.3.
RENAMED_EVENTS: Final[dict[str, Event]] = {"table_sick": "table_unreadable", "night_missed": "run_missed"}

NOTIFIED_BY: Final = "the `notifications` sensor of Dagster sends the messages, and commands send none"
# The event begins this long before a deadline of a plan.
ENDS_SOON: Final = timedelta(hours=6)
# Runs are expected daily. One counts as missed if it is late by the maximum delay.
RUN_INTERVAL: Final = timedelta(days=1)
MAX_RUN_DELAY: Final = timedelta(hours=6)
# An apply remains an event for this long, so that it is reported even if the sensor was off.
APPLIED_WITHIN: Final = timedelta(days=3)
# Further events are only counted, because a failed catalog may cause a thousand of them.
MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class FailedApply:
    """A failed execution of a plan. `attempt` distinguishes it from other executions of the plan."""

    plan_id: str
    attempt: str
    reason: str


@dataclass(frozen=True, slots=True)
class LastRun:
    """The plan made by the last run of a storage, and its status.

    Attributes:
        missing: Why the plan is not approved, or None if it is.
        reversibility: Sentences about what can be undone.
    """

    header: PlanHeader
    status: str
    missing: str | None
    reversibility: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """A plan whose execution has ended.

    Attributes:
        header: The header of the plan, with the amounts that were completed.
        finished_at: When the execution ended.
        not_done: A message about actions that were not executed, or "".
        reversibility: Sentences about what can be undone.
    """

    header: PlanHeader
    status: str
    finished_at: datetime
    approved_by: str | None = None
    not_done: str = ""
    reversibility: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageSummary:
    """The status of a storage's plans.

    Attributes:
        approved: Approved plans that wait to be applied.
        failed: Executions that failed and have not been continued.
        applied: Plans whose execution ended within `APPLIED_WITHIN`.
    """

    storage: str
    last: LastRun | None
    approved: tuple[PlanSummary, ...] = ()
    failed: tuple[FailedApply, ...] = ()
    applied: tuple[AppliedPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class Notification:
    """An event and the message about it.

    In title and text, unprintable characters are replaced by blanks.

    Attributes:
        id: Identifier of the event, which stays the same as long as the event lasts.
        title: The title, in one line.
        text: The rest of the message.
        lake: The affected lake, or None if the event affects a whole storage.
    """

    event: Event
    id: str
    title: str
    text: str
    storage: str | None = None
    lake: str | None = None
    plan_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", _blank_unprintable(self.title))
        object.__setattr__(self, "text", _blank_unprintable(self.text, keep="\n"))


def list_notifications(summary: Iterable[StorageSummary], now: datetime) -> list[Notification]:
    """Determine all current events. An event that several storages report is returned once."""
    found = [notification for storage in summary for notification in _storage_notifications(storage, now)]
    return list({notification.id: notification for notification in found}.values())


def state_unread(storage: str, reason: str) -> Notification:
    """Create the event for a storage whose state cannot be read."""
    title = f"storage {storage}: the state cannot be read, so its other events are unknown"
    return Notification("state_unread", f"{storage}/state_unread", title, f"{reason}\nSee `gc-assets doctor`.", storage=storage)


def target_failed(name: str, reason: str) -> Notification:
    """Create the event that all other targets receive if notifications cannot be sent to one."""
    text = f"{reason}. Its notifications are sent again until they are delivered. Fix `notify` in lakes.yaml, or the target."
    return Notification("target_failed", f"target_failed/{name}", f"notifications cannot be delivered to {name}", text)


def format_subject(notifications: Sequence[Notification]) -> str:
    """Format the subject line of a message with these notifications."""
    more = f" (and {len(notifications) - 1:,} more)" if len(notifications) > 1 else ""
    return f"gc-assets: {notifications[0].title}{more}"


def format_body(notifications: Sequence[Notification]) -> str:
    """Format the text of a message. If there are many notifications, some are only counted."""
    parts = [f"{item.title}\n{item.text}".strip() for item in notifications[:MAX_LISTED]]
    if len(notifications) > MAX_LISTED:
        parts.append(f"And {len(notifications) - MAX_LISTED:,} more: see `gc-assets plans` and `gc-assets doctor`.")
    return "\n\n".join(parts)


def to_document(notifications: Sequence[Notification]) -> dict[str, Any]:
    """Return the JSON document that contains these notifications."""
    return {"source": "gc-assets", "notifications": [asdict(item) for item in notifications]}


def _storage_notifications(summary: StorageSummary, now: datetime) -> Iterator[Notification]:
    if summary.last is not None:
        yield from _plan_notifications(summary.last, now)
        yield from (_unreadable_notification(summary.storage, item) for item in summary.last.header.unreadable)
        yield from _missed_run(summary.last.header, now)
    yield from (_applied_notification(applied) for applied in summary.applied)
    for waiting in summary.approved:
        if now >= waiting.apply_before - ENDS_SOON:
            title = (
                f"{waiting.storage}: plan {_short(waiting)} is approved and must be applied before {format_minute(waiting.apply_before)}"
            )
            text = "It has not been applied. After that time, a new plan and a new approval are needed."
            yield _plan_notification(waiting, "approval_ends", title, text, "/apply")
    for failed in summary.failed:
        plan, name = failed.plan_id[:12], f"{summary.storage}/apply_failed/{failed.plan_id}/{failed.attempt}"
        text = f"{failed.reason}\n`gc-assets plans` shows the status of the plan. `{command('apply', plan)}` resumes from its log."
        title = f"{summary.storage}: plan {plan} could not be applied completely"
        yield Notification("apply_failed", name, title, text, storage=summary.storage, plan_id=failed.plan_id)


def _plan_notifications(last: LastRun, now: datetime) -> Iterator[Notification]:
    header = last.header
    plan = f"{header.storage}: plan {_short(header)} of {header.run_date}"
    if last.status == "refused":
        gates = ", ".join(gate.name for gate in header.failed_gates)
        reasons = "\n".join(f"{gate.name}: {message_of(gate, header.failed_gates)}" for gate in header.failed_gates)
        yield _plan_notification(header, "plan_refused", f"{plan} is refused by {gates}", reasons)
    if last.status != "ready" or not header.has_work:
        return
    missing = f"It is {last.missing}.\n" if last.missing is not None else ""
    next_step = f"{missing}{command('approve', _short(header), by='WHO')}   (before {format_minute(header.approve_before)})"
    yield _plan_notification(
        header, "plan_ready", f"{plan} waits for approval: {_amounts(header)}", "\n".join([*last.reversibility, next_step])
    )
    if now >= header.approve_before - ENDS_SOON:
        yield _plan_notification(
            header, "approval_ends", f"{plan} must be approved before {format_minute(header.approve_before)}", next_step, "/approve"
        )


def _applied_notification(applied: AppliedPlan) -> Notification:
    """Create the event for a finished apply.

    If a plan was approved and applied between two deliveries, this is the only event about it.
    """
    header = applied.header
    plan, amounts = f"{header.storage}: plan {_short(header)} of {header.run_date}", _amounts(header) or "nothing was changed"
    title = f"{plan} was {applied.status} at {format_minute(applied.finished_at)}: {amounts}"
    lines = [f"Approved by {applied.approved_by}."] if applied.approved_by else []
    lines += [f"Not done: {applied.not_done}."] if applied.not_done else []
    return _plan_notification(header, "plan_applied", title, "\n".join([*lines, *applied.reversibility]))


def _unreadable_notification(storage: str, item: Unreadable) -> Notification:
    name = f"{item.lake}/table_unreadable/{item.table_uuid or item.table_name or ''}/{item.since.isoformat()}"
    title = f"{item.name} has been unreadable since {format_minute(item.since)}"
    return Notification("table_unreadable", name, title, item.message, storage=storage, lake=item.lake)


def _missed_run(header: PlanHeader, now: datetime) -> Iterator[Notification]:
    count = (now - header.created_at - MAX_RUN_DELAY) // RUN_INTERVAL
    if count < 1:
        return
    missed: date = header.run_date + count * RUN_INTERVAL
    title = f"{header.storage}: no run since {header.run_date}, {count:,} missed"
    made_at = format_minute(header.created_at)
    text = f"The last plan was made at {made_at}. See the scheduled runs in Dagster, or start one with `gc-assets run`."
    yield Notification("run_missed", f"{header.storage}/run_missed/{missed}", title, text, storage=header.storage)


def _plan_notification(plan: PlanHeader | PlanSummary, event: Event, title: str, text: str, more: str = "") -> Notification:
    name = f"{plan.storage}/{event}/{plan.plan_id}{more}"
    return Notification(event, name, mark_rehearsal(title, plan.rehearsal), text, storage=plan.storage, plan_id=plan.plan_id)


def _amounts(header: PlanHeader) -> str:
    total = Amount.total(header.totals.values())
    edits = sum(header.expiry_actions.values())
    found = [str(total)] if total.files else []
    found += [f"{count_of(edits, 'history edit')}"] if edits else []
    paths = sum(header.deleted_paths.values())
    found += [f"{count_of(paths, 'path')} deleted on branches"] if paths else []
    return ", ".join([*found, *([str(header.uploads)] if header.uploads.count else [])])


def _short(plan: PlanHeader | PlanSummary) -> str:
    return plan.plan_id[:12]


def _blank_unprintable(text: str, keep: str = "") -> str:
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)
