"""The current events follow from the state and the time."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest

from gc_assets.core.gates import delete_bytes, live_drop
from gc_assets.core.notifications import (
    EVENTS,
    MAX_LISTED,
    AppliedPlan,
    FailedApply,
    LastRun,
    Notification,
    StorageSummary,
    format_body,
    format_subject,
    list_notifications,
    state_unread,
    target_failed,
    to_document,
)
from gc_assets.core.plan import APPLY_WITHIN, APPROVE_WITHIN, Amount, LiveCount, PlanHeader, Unreadable, Uploads, seal
from tests.core.test_plan import NOW, SUBSTANCE

SECOND = timedelta(seconds=1)
GATES = (delete_bytes(Amount(files=2, bytes=200), 1), live_drop(LiveCount(1), LiveCount(100), 0.2))
UNREADABLE = Unreadable(
    lake="sales", table_uuid="u1", table_name="shop.orders", why="torn manifest", since=NOW - timedelta(days=2), good_on=date(2026, 3, 12)
)


def header(**changes: Any) -> PlanHeader:
    return seal(**{**SUBSTANCE, "created_at": NOW, **changes})


def summary(plan: PlanHeader | None = None, status: str = "ready", missing: str | None = "not approved", **more: Any) -> StorageSummary:
    plan = plan or header()
    return StorageSummary(plan.storage, LastRun(plan, status, missing, ("Can be undone: all of it.",)), **more)


def events(*found: StorageSummary, after: timedelta = timedelta(minutes=1)) -> list[str]:
    return [item.event for item in list_notifications(found, NOW + after)]


def only(*found: StorageSummary, after: timedelta = timedelta(minutes=1)) -> Notification:
    (notification,) = list_notifications(found, NOW + after)
    return notification


def test_storage_without_run_has_no_events() -> None:
    assert events(StorageSummary("warehouse", None), after=timedelta(days=900)) == []


def test_notification_counts_paths_that_commits_delete() -> None:
    plan = header(totals={}, expiry_actions={"ml": 2}, edits_by_action={"delete_paths": 2}, deleted_paths={"ml": 1_234})
    assert only(summary(plan)).title.endswith("waits for approval: 2 history edits, 1,234 paths deleted on branches")


def test_plan_ready_event_contains_effects_and_next_command() -> None:
    plan = header(expiry_actions={"sales": 3})
    item = only(summary(plan))
    assert (item.event, item.storage, item.plan_id) == ("plan_ready", "warehouse", plan.plan_id)
    assert item.title == f"warehouse: plan {plan.plan_id[:12]} of 2026-03-14 waits for approval: 2 files (200 B), 3 history edits"
    assert item.text.splitlines() == [
        "Can be undone: all of it.",
        "It is not approved.",
        f"gc-assets approve {plan.plan_id[:12]} --by WHO   (before 2026-03-15 09:30 UTC)",
    ]


def test_plan_ready_event_contains_aborted_uploads() -> None:
    plan = header(totals={}, rows=0, uploads=Uploads(count=4, bytes=5_000_000))
    assert only(summary(plan)).title.endswith("waits for approval: 4 unfinished uploads (5 MB)")


def test_plan_ready_event_contains_missing_approvals() -> None:
    assert "It is approved by 1 of 2 people" in only(summary(missing="approved by 1 of 2 people that its storage requires")).text


def test_empty_plan_creates_no_event() -> None:
    assert events(summary(header(totals={}, rows=0))) == []


@pytest.mark.parametrize("status", ["approved", "rejected", "applied", "restored", "expired", "historical"])
def test_finished_plan_creates_no_event(status: str) -> None:
    assert events(summary(status=status)) == []


def test_plan_refused_event_contains_gates_and_numbers() -> None:
    item = only(summary(header(gates=GATES, totals={}, rows=0), "refused"))
    assert item.event == "plan_refused"
    assert item.title.endswith("is refused by delete_bytes, live_drop")
    assert item.text.splitlines() == [f"{gate.name}: {gate.message}" for gate in GATES]


@pytest.mark.parametrize(
    "after, expected",
    [
        (APPROVE_WITHIN - timedelta(hours=6) - SECOND, ["plan_ready"]),
        (APPROVE_WITHIN - timedelta(hours=6), ["plan_ready", "approval_ends"]),
    ],
)
def test_approval_deadline_event_is_sent_six_hours_before(after: timedelta, expected: list[str]) -> None:
    assert events(summary(), after=after) == expected


@pytest.mark.parametrize(
    "after, expected", [(APPLY_WITHIN - timedelta(hours=6) - SECOND, []), (APPLY_WITHIN - timedelta(hours=6), ["approval_ends"])]
)
def test_apply_deadline_event_is_sent_six_hours_before(after: timedelta, expected: list[str]) -> None:
    assert events(StorageSummary("warehouse", None, approved=(header().summary,)), after=after) == expected


def test_approval_and_apply_deadlines_are_separate_events() -> None:
    ready = list_notifications([summary()], NOW + APPROVE_WITHIN - timedelta(hours=1))
    approved = list_notifications(
        [StorageSummary("warehouse", None, approved=(header().summary,))], NOW + APPLY_WITHIN - timedelta(hours=1)
    )
    assert len({item.id for item in [*ready, *approved]}) == 3


def test_plan_applied_event_contains_completed_and_remaining_work() -> None:
    plan = header(expiry_actions={"sales": 3})
    lines = ("Can be undone: all of it.",)
    done = AppliedPlan(plan, "partially applied", NOW, "kim", "1 files of phase quarantine (denied)", lines)
    item = only(StorageSummary("warehouse", None, applied=(done,)))
    assert (item.event, item.id) == ("plan_applied", f"warehouse/plan_applied/{plan.plan_id}")
    assert item.title == (
        f"warehouse: plan {plan.plan_id[:12]} of 2026-03-14 was partially applied at 2026-03-14 09:30 UTC: 2 files (200 B), 3 history edits"
    )
    assert item.text.splitlines() == ["Approved by kim.", "Not done: 1 files of phase quarantine (denied).", *lines]


def test_plan_applied_without_effect_creates_event() -> None:
    done = AppliedPlan(header(totals={}, rows=0), "applied", NOW)
    assert only(StorageSummary("warehouse", None, applied=(done,))).title.endswith("nothing was changed")


def test_rehearsal_event_is_marked() -> None:
    assert only(summary(header(rehearsal=True))).title.startswith("REHEARSAL warehouse: plan ")


def test_table_unreadable_event_contains_time_and_error() -> None:
    item = only(summary(header(unreadable=(UNREADABLE,)), "applied"))
    assert (item.event, item.lake) == ("table_unreadable", "sales")
    assert item.title == "table shop.orders of lake sales has been unreadable since 2026-03-12 09:30 UTC"
    assert "torn manifest" in item.text


def test_table_unreadable_in_two_storages_creates_one_event() -> None:
    both = [summary(header(storage=name, unreadable=(UNREADABLE,)), "applied") for name in ("warehouse", "archive")]
    assert events(*both) == ["table_unreadable"]


def test_table_that_is_unreadable_again_creates_new_event() -> None:
    def event_id(**changes: Any) -> str:
        return only(summary(header(unreadable=(UNREADABLE.model_copy(update=changes),)), "applied")).id

    assert event_id(why="the same error with another wording") == event_id()
    assert event_id(since=NOW) != event_id()


@pytest.mark.parametrize(
    "after, missed",
    [
        (timedelta(hours=30) - SECOND, None),
        (timedelta(hours=30), date(2026, 3, 15)),
        (timedelta(hours=54) - SECOND, date(2026, 3, 15)),
        (timedelta(hours=54), date(2026, 3, 16)),
    ],
)
def test_run_missed_event_is_sent_after_thirty_hours_and_then_daily(after: timedelta, missed: date | None) -> None:
    found = list_notifications([summary(status="applied")], NOW + after)
    assert [item.id for item in found] == ([] if missed is None else [f"warehouse/run_missed/{missed}"])


def test_apply_failed_event_contains_error_and_next_command() -> None:
    failed = FailedApply("a" * 64, "run 1", "no longer matches the lakes")
    item = only(StorageSummary("warehouse", None, failed=(failed,)))
    assert (item.event, item.plan_id) == ("apply_failed", "a" * 64)
    assert item.text.startswith("no longer matches the lakes\n")
    assert "gc-assets apply aaaaaaaaaaaa" in item.text


def test_each_failed_apply_creates_separate_event() -> None:
    attempts = [StorageSummary("warehouse", None, failed=(FailedApply("a" * 64, attempt, ""),)) for attempt in ("run 1", "run 2")]
    assert events(*attempts) == ["apply_failed", "apply_failed"]


def test_event_keeps_its_id() -> None:
    found = summary(header(gates=GATES, unreadable=(UNREADABLE,)), "refused", failed=(FailedApply("a" * 64, "run 1", ""),))
    first = {item.id for item in list_notifications([found], NOW)}
    assert first == {item.id for item in list_notifications([found], NOW + timedelta(hours=20))}
    assert len(first) == 3


def test_event_title_is_one_printable_line() -> None:
    hostile = UNREADABLE.model_copy(update={"table_name": "a\r\nBcc: x\x1b[2J\u2028b\udcff"})
    item = only(summary(header(unreadable=(hostile,)), "applied"))
    assert item.title.startswith("table a  Bcc: x [2J b  of lake sales")
    assert (item.title + item.text.replace("\n", "")).isprintable()
    assert format_body([item]).encode()


def test_every_event_has_title_and_text() -> None:
    now = NOW + timedelta(hours=30)
    found = [
        *list_notifications([summary(header(unreadable=(UNREADABLE,)), failed=(FailedApply("a" * 64, "run 1", ""),))], now),
        *list_notifications([summary(header(gates=GATES), "refused")], NOW),
        *list_notifications([StorageSummary("warehouse", None, applied=(AppliedPlan(header(), "applied", NOW, "kim"),))], NOW),
        state_unread("warehouse", "the index is damaged"),
        target_failed("team", "the server answered 404"),
    ]
    assert {item.event for item in found} == set(EVENTS)
    assert all(item.title and item.text for item in found)


def many(count: int) -> list[Notification]:
    return [target_failed(f"t{index}", "no answer") for index in range(count)]


def test_message_subject_summarises_all_notifications() -> None:
    assert format_subject(many(1)) == "gc-assets: notifications cannot be delivered to t0"
    assert format_subject(many(3)) == "gc-assets: notifications cannot be delivered to t0 (and 2 more)"


def test_message_body_lists_only_some_of_many_notifications() -> None:
    text = format_body(many(1_000 + MAX_LISTED))
    assert text.count("no answer") == MAX_LISTED
    assert text.endswith("And 1,000 more: see `gc-assets plans` and `gc-assets doctor`.")


def test_json_document_contains_every_notification() -> None:
    (item,) = json.loads(json.dumps(to_document([only(summary())])))["notifications"]
    assert item.keys() == {"event", "id", "title", "text", "storage", "lake", "plan_id"}
    assert to_document([only(summary())]) == to_document([only(summary())])
