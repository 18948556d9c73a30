"""Notification events and texts.

Each event keeps its id while it lasts, so that targets receive it only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal, get_args

from gc_assets.core.commands import command
from gc_assets.core.gate_messages import message_of
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Unreadable
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of, format_bytes

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
# Event names used up to release 0.3.
RENAMED_EVENTS: Final[dict[str, Event]] = {"table_sick": "table_unreadable", "night_missed": "run_missed"}

NOTIFIED_BY: Final = "the Dagster sensor `notifications` sends the messages, and commands send none"
# Time before a plan deadline at which the event begins.
ENDS_SOON: Final = timedelta(hours=6)
# A run is missed if it is this late.
RUN_INTERVAL: Final = timedelta(days=1)
MAX_RUN_DELAY: Final = timedelta(hours=6)
# An apply remains an event for this long, so that a sensor that was off still reports it.
APPLIED_WITHIN: Final = timedelta(days=3)
# Additional events are only counted, because a failed catalog can cause a thousand.
MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class FailedApply:
    """Failed plan execution, identified by `attempt`."""

    plan_id: str
    attempt: str
    reason: str


@dataclass(frozen=True, slots=True)
class LastRun:
    """Plan from the last run of a storage.

    Attributes:
        missing: Reason why the plan is not approved, or None.
        reversibility: Messages about effects that can be undone.
    """

    header: PlanHeader
    status: str
    missing: str | None
    reversibility: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """Plan whose execution has ended.

    Attributes:
        header: The plan, with the amounts that were done.
        finished_at: Time at which the execution ended.
        not_done: Message about actions that were not executed, or "".
        reversibility: Messages about effects that can be undone.
    """

    header: PlanHeader
    status: str
    finished_at: datetime
    approved_by: str | None = None
    not_done: str = ""
    reversibility: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageSummary:
    """Storage status.

    Attributes:
        approved: Plans waiting to be applied.
        applied: Plans whose execution ended within `APPLIED_WITHIN`.
        failed: Failed executions that no later one continued.
    """

    storage: str
    last: LastRun | None
    approved: tuple[PlanSummary, ...] = ()
    failed: tuple[FailedApply, ...] = ()
    applied: tuple[AppliedPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class Notification:
    """Event with its message.

    Attributes:
        id: Stable while the event lasts.
        title: Title in one line.
        text: Remaining lines. Unprintable characters are replaced by blanks in both.
        lake: The lake, or None if the event concerns a whole storage.
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
    """Return the current events, each once."""
    found = [notification for storage in summary for notification in _storage_notifications(storage, now)]
    return list({notification.id: notification for notification in found}.values())


def state_unread(storage: str, reason: str) -> Notification:
    """Return the event for an unreadable storage state."""
    title = f"storage {storage}: the state cannot be read, so other events of it are unknown"
    return Notification("state_unread", f"{storage}/state_unread", title, f"{reason}\nSee `gc-assets doctor`.", storage=storage)


def target_failed(name: str, reason: str) -> Notification:
    """Return the event for an unreachable `notify` target, which is sent to the other targets."""
    text = f"{reason}. Its notifications are sent again until they are delivered. Fix `notify` in lakes.yaml, or the target."
    return Notification("target_failed", f"target_failed/{name}", f"notifications cannot be delivered to {name}", text)


def format_subject(notifications: Sequence[Notification]) -> str:
    """Return the subject line for these notifications."""
    more = f" (and {len(notifications) - 1:,} more)" if len(notifications) > 1 else ""
    return f"gc-assets: {notifications[0].title}{more}"


def format_body(notifications: Sequence[Notification]) -> str:
    """Return the message text for these notifications. Only the first ones are listed."""
    parts = [f"{item.title}\n{item.text}".strip() for item in notifications[:MAX_LISTED]]
    if len(notifications) > MAX_LISTED:
        parts.append(f"And {len(notifications) - MAX_LISTED:,} more: see `gc-assets plans` and `gc-assets doctor`.")
    return "\n\n".join(parts)


def to_document(notifications: Sequence[Notification]) -> dict[str, Any]:
    """Return the JSON document for these notifications."""
    return {"source": "gc-assets", "notifications": [asdict(item) for item in notifications]}


def _storage_notifications(summary: StorageSummary, now: datetime) -> Iterator[Notification]:
    if summary.last is not None:
        yield from _plan_notifications(summary.last, now)
        yield from (_unreadable_notification(summary.storage, item) for item in summary.last.header.unreadable)
        yield from _missed_run(summary.last.header, now)
    yield from (_applied_notification(applied) for applied in summary.applied)
    for waiting in summary.approved:
        if now >= waiting.apply_before - ENDS_SOON:
            title = f"{waiting.storage}: plan {_short(waiting)} is approved and must be applied before {_minute(waiting.apply_before)}"
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
    next_step = f"{missing}{command('approve', _short(header), by='WHO')}   (before {_minute(header.approve_before)})"
    yield _plan_notification(
        header, "plan_ready", f"{plan} waits for approval: {_amounts(header)}", "\n".join([*last.reversibility, next_step])
    )
    if now >= header.approve_before - ENDS_SOON:
        yield _plan_notification(
            header, "approval_ends", f"{plan} must be approved before {_minute(header.approve_before)}", next_step, "/approve"
        )


def _applied_notification(applied: AppliedPlan) -> Notification:
    """Return the event of an apply.

    A plan that was approved and applied since the last delivery has no other event.
    """
    header = applied.header
    plan, amounts = f"{header.storage}: plan {_short(header)} of {header.run_date}", _amounts(header) or "nothing was changed"
    title = f"{plan} was {applied.status} at {_minute(applied.finished_at)}: {amounts}"
    lines = [f"Approved by {applied.approved_by}."] if applied.approved_by else []
    lines += [f"Not done: {applied.not_done}."] if applied.not_done else []
    return _plan_notification(header, "plan_applied", title, "\n".join([*lines, *applied.reversibility]))


def _unreadable_notification(storage: str, item: Unreadable) -> Notification:
    name = f"{item.lake}/table_unreadable/{item.table_uuid or item.table_name or ''}/{item.since.isoformat()}"
    title = f"{item.name} has been unreadable since {_minute(item.since)}"
    return Notification("table_unreadable", name, title, item.message, storage=storage, lake=item.lake)


def _missed_run(header: PlanHeader, now: datetime) -> Iterator[Notification]:
    count = (now - header.created_at - MAX_RUN_DELAY) // RUN_INTERVAL
    if count < 1:
        return
    missed: date = header.run_date + count * RUN_INTERVAL
    title = f"{header.storage}: no run since {header.run_date}, {count:,} missed"
    text = f"The last plan was made at {_minute(header.created_at)}. See the scheduled runs in Dagster, or start one with `gc-assets run`."
    yield Notification("run_missed", f"{header.storage}/run_missed/{missed}", title, text, storage=header.storage)


def _plan_notification(plan: PlanHeader | PlanSummary, event: Event, title: str, text: str, more: str = "") -> Notification:
    name = f"{plan.storage}/{event}/{plan.plan_id}{more}"
    return Notification(event, name, mark_rehearsal(title, plan.rehearsal), text, storage=plan.storage, plan_id=plan.plan_id)


def _amounts(header: PlanHeader) -> str:
    total = Amount.total(header.totals.values())
    edits = sum(header.expiry_actions.values())
    found = [f"{count_of(total.files, 'file')} ({format_bytes(total.bytes)})"] if total.files else []
    found += [f"{count_of(edits, 'history edit')}"] if edits else []
    paths = sum(header.deleted_paths.values())
    found += [f"{count_of(paths, 'path')} deleted on branches"] if paths else []
    return ", ".join([*found, *([str(header.uploads)] if header.uploads.count else [])])


def _short(plan: PlanHeader | PlanSummary) -> str:
    return plan.plan_id[:12]


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _blank_unprintable(text: str, keep: str = "") -> str:
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)
