"""What a person should hear of without looking: the events there are now, and the words for them.

Pure: facts of the state and a time in, values out. An event has the same id for as long as it
lasts, so whoever tells it can know that it was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal, get_args

from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Unreadable
from gc_assets.core.units import format_bytes

Event = Literal[
    "plan_ready", "plan_refused", "approval_ends", "table_sick", "night_missed", "apply_failed", "state_unread", "target_failed"
]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)

# Before a plan can no longer be approved or applied.
ENDS_SOON: Final = timedelta(hours=6)
# One night a day, and as long for one that starts late or is slow.
NIGHT_EVERY: Final = timedelta(days=1)
MAY_BE_LATE: Final = timedelta(hours=6)
# More events than this are counted and not spelled out: a catalog that is down has a thousand.
MOST_SPELLED_OUT: Final = 20


@dataclass(frozen=True, slots=True)
class FailedApply:
    """An execution of a plan that did not come to its end. `attempt` tells one from the next."""

    plan_id: str
    attempt: str
    why: str


@dataclass(frozen=True, slots=True)
class LastRun:
    """The plan of a storage's last night. `missing` says what it lacks of being approved, and
    `undoing` what of it can be undone.
    """

    header: PlanHeader
    status: str
    missing: str | None
    undoing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StorageSummary:
    """What the state says of a storage. `approved` are plans that wait to be applied. `failed` are
    executions that nobody goes on with. `last` is null before the first night.
    """

    storage: str
    last: LastRun | None
    approved: tuple[PlanSummary, ...] = ()
    failed: tuple[FailedApply, ...] = ()


@dataclass(frozen=True, slots=True)
class Notification:
    """An event in words. `title` is one line. `lake` is null for what concerns a whole storage, and
    `storage` for what concerns none. What a terminal or a mail could take for more than text is
    blank in both.
    """

    event: Event
    id: str
    title: str
    text: str
    storage: str | None = None
    lake: str | None = None
    plan_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", _blanked(self.title))
        object.__setattr__(self, "text", _blanked(self.text, keep="\n"))


def notifications(summary: Iterable[StorageSummary], now: datetime) -> list[Notification]:
    """Returns the events there are now, each once."""
    found = [notification for each in summary for notification in _of_storage(each, now)]
    return list({notification.id: notification for notification in found}.values())


def state_unread(storage: str, why: str) -> Notification:
    """Returns the event that nobody can say how a storage stands."""
    title = f"storage {storage}: the state cannot be read, so nothing else is told of it"
    return Notification("state_unread", f"{storage}/state_unread", title, f"{why}\nSee `gc-assets doctor`.", storage=storage)


def target_failed(name: str, why: str) -> Notification:
    """Returns the event that a target of `notify` could not be told, for the other targets."""
    text = f"{why}. What it was to be told is told again until it is delivered. Mend `notify` of lakes.yaml, or the target."
    return Notification("target_failed", f"target_failed/{name}", f"notifications do not reach {name}", text)


def subject(told: Sequence[Notification]) -> str:
    """Returns one line for all of them."""
    more = f" (and {len(told) - 1:,} more)" if len(told) > 1 else ""
    return f"gc-assets: {told[0].title}{more}"


def body(told: Sequence[Notification]) -> str:
    """Returns the words of all of them, the first ones in full."""
    parts = [f"{item.title}\n{item.text}".strip() for item in told[:MOST_SPELLED_OUT]]
    if len(told) > MOST_SPELLED_OUT:
        parts.append(f"And {len(told) - MOST_SPELLED_OUT:,} more: see `gc-assets plans` and `gc-assets doctor`.")
    return "\n\n".join(parts)


def document(told: Sequence[Notification]) -> dict[str, Any]:
    """Returns all of them for JSON."""
    return {"source": "gc-assets", "notifications": [asdict(item) for item in told]}


def _of_storage(summary: StorageSummary, now: datetime) -> Iterator[Notification]:
    if summary.last is not None:
        yield from _of_plan(summary.last, now)
        yield from (_unreadable(summary.storage, item) for item in summary.last.header.unreadable)
        yield from _missed(summary.last.header, now)
    for waiting in summary.approved:
        if now >= waiting.apply_before - ENDS_SOON:
            title = f"{waiting.storage}: plan {_short(waiting)} is approved, and can be applied until {_minute(waiting.apply_before)} only"
            yield _about(waiting, "approval_ends", title, "Nobody applied it yet. Later it takes a new plan and a new approval.", "/apply")
    for failed in summary.failed:
        plan, name = failed.plan_id[:12], f"{summary.storage}/apply_failed/{failed.plan_id}/{failed.attempt}"
        text = f"{failed.why}\n`gc-assets plans` says how the plan stands. `gc-assets apply {plan}` goes on from its log."
        title = f"{summary.storage}: plan {plan} could not be applied to its end"
        yield Notification("apply_failed", name, title, text, storage=summary.storage, plan_id=failed.plan_id)


def _of_plan(last: LastRun, now: datetime) -> Iterator[Notification]:
    header = last.header
    plan = f"{header.storage}: plan {_short(header)} of {header.run_date}"
    if last.status == "refused":
        gates = ", ".join(gate.name for gate in header.failed_gates)
        reasons = "\n".join(f"{gate.name}: {gate.message}" for gate in header.failed_gates)
        yield _about(header, "plan_refused", f"{plan} is refused by {gates}", reasons)
    if last.status != "ready" or not header.has_work:
        return
    missing = f"It is {last.missing}.\n" if last.missing is not None else ""
    next_step = f"{missing}gc-assets approve {_short(header)} --by WHO   (until {_minute(header.approve_before)})"
    yield _about(header, "plan_ready", f"{plan} waits for approval: {_amounts(header)}", "\n".join([*last.undoing, next_step]))
    if now >= header.approve_before - ENDS_SOON:
        yield _about(header, "approval_ends", f"{plan} can be approved until {_minute(header.approve_before)} only", next_step, "/approve")


def _unreadable(storage: str, item: Unreadable) -> Notification:
    name = f"{item.lake}/table_sick/{item.table_uuid or item.table_name or ''}/{item.since.isoformat()}"
    title = f"{item.name} cannot be read since {_minute(item.since)}"
    return Notification("table_sick", name, title, item.told, storage=storage, lake=item.lake)


def _missed(header: PlanHeader, now: datetime) -> Iterator[Notification]:
    nights = (now - header.created_at - MAY_BE_LATE) // NIGHT_EVERY
    if nights < 1:
        return
    missed: date = header.run_date + nights * NIGHT_EVERY
    title = f"{header.storage}: no night since that of {header.run_date}, {nights:,} missed"
    text = f"Its plan was made at {_minute(header.created_at)}. See the runs of the job `night`, or start one with `gc-assets run`."
    yield Notification("night_missed", f"{header.storage}/night_missed/{missed}", title, text, storage=header.storage)


def _about(plan: PlanHeader | PlanSummary, event: Event, title: str, text: str, more: str = "") -> Notification:
    name = f"{plan.storage}/{event}/{plan.plan_id}{more}"
    return Notification(event, name, title, text, storage=plan.storage, plan_id=plan.plan_id)


def _amounts(header: PlanHeader) -> str:
    total = Amount.total(header.totals.values())
    edits = sum(header.expiry_actions.values())
    found = [f"{total.files:,} files ({format_bytes(total.bytes)})"] if total.files else []
    found += [f"{edits:,} edits of history"] if edits else []
    return ", ".join([*found, *([str(header.uploads)] if header.uploads.count else [])])


def _short(plan: PlanHeader | PlanSummary) -> str:
    return plan.plan_id[:12]


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _blanked(text: str, keep: str = "") -> str:
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)
