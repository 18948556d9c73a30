"""Which events there are, as a function of what the state says and of the time."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest

from gc_assets.core.gates import delete_bytes, live_drop
from gc_assets.core.notifications import (
    EVENTS,
    MAX_LISTED,
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
SICK = Unreadable(
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


def test_a_storage_without_a_night_has_no_events() -> None:
    assert events(StorageSummary("warehouse", None), after=timedelta(days=900)) == []


def test_a_plan_that_waits_is_told_with_what_it_would_do_and_the_next_command() -> None:
    plan = header(expiry_actions={"sales": 3})
    told = only(summary(plan))
    assert (told.event, told.storage, told.plan_id) == ("plan_ready", "warehouse", plan.plan_id)
    assert told.title == f"warehouse: plan {plan.plan_id[:12]} of 2026-03-14 waits for approval: 2 files (200 B), 3 edits of history"
    assert told.text.splitlines() == [
        "Can be undone: all of it.",
        "It is not approved.",
        f"gc-assets approve {plan.plan_id[:12]} --by WHO   (until 2026-03-15 09:30 UTC)",
    ]


def test_a_plan_that_only_aborts_uploads_names_them() -> None:
    plan = header(totals={}, rows=0, uploads=Uploads(count=4, bytes=5_000_000))
    assert only(summary(plan)).title.endswith("waits for approval: 4 unfinished uploads (5 MB)")


def test_a_plan_that_lacks_a_second_name_says_so() -> None:
    assert "It is approved by 1 of 2 names" in only(summary(missing="approved by 1 of 2 names that its storage requires")).text


def test_a_plan_with_nothing_to_do_is_no_event() -> None:
    assert events(summary(header(totals={}, rows=0))) == []


@pytest.mark.parametrize("status", ["approved", "rejected", "applied", "restored", "expired", "historical"])
def test_a_plan_that_waits_for_nobody_is_no_event(status: str) -> None:
    assert events(summary(status=status)) == []


def test_a_refused_plan_is_told_with_its_gates_and_their_numbers_even_if_it_has_nothing_to_do() -> None:
    told = only(summary(header(gates=GATES, totals={}, rows=0), "refused"))
    assert told.event == "plan_refused"
    assert told.title.endswith("is refused by delete_bytes, live_drop")
    assert told.text.splitlines() == [f"{gate.name}: {gate.message}" for gate in GATES]


@pytest.mark.parametrize(
    "after, expected",
    [
        (APPROVE_WITHIN - timedelta(hours=6) - SECOND, ["plan_ready"]),
        (APPROVE_WITHIN - timedelta(hours=6), ["plan_ready", "approval_ends"]),
    ],
)
def test_six_hours_before_a_plan_can_no_longer_be_approved_it_is_told(after: timedelta, expected: list[str]) -> None:
    assert events(summary(), after=after) == expected


@pytest.mark.parametrize(
    "after, expected", [(APPLY_WITHIN - timedelta(hours=6) - SECOND, []), (APPLY_WITHIN - timedelta(hours=6), ["approval_ends"])]
)
def test_six_hours_before_an_approval_runs_out_unused_it_is_told(after: timedelta, expected: list[str]) -> None:
    assert events(StorageSummary("warehouse", None, approved=(header().summary,)), after=after) == expected


def test_the_end_of_approving_and_the_end_of_applying_are_two_events() -> None:
    ready = list_notifications([summary()], NOW + APPROVE_WITHIN - timedelta(hours=1))
    approved = list_notifications(
        [StorageSummary("warehouse", None, approved=(header().summary,))], NOW + APPLY_WITHIN - timedelta(hours=1)
    )
    assert len({item.id for item in [*ready, *approved]}) == 3


def test_a_sick_table_is_told_with_since_when_and_why() -> None:
    told = only(summary(header(unreadable=(SICK,)), "applied"))
    assert (told.event, told.lake) == ("table_unreadable", "sales")
    assert told.title == "table shop.orders of lake sales has been unreadable since 2026-03-12 09:30 UTC"
    assert "torn manifest" in told.text


def test_a_sick_table_that_concerns_two_storages_is_one_event() -> None:
    both = [summary(header(storage=name, unreadable=(SICK,)), "applied") for name in ("warehouse", "archive")]
    assert events(*both) == ["table_unreadable"]


def test_a_table_that_was_mended_and_is_sick_again_is_another_event() -> None:
    def told(**changes: Any) -> str:
        return only(summary(header(unreadable=(SICK.model_copy(update=changes),)), "applied")).id

    assert told(why="the store says it in other words") == told()
    assert told(since=NOW) != told()


@pytest.mark.parametrize(
    "after, missed",
    [
        (timedelta(hours=30) - SECOND, None),
        (timedelta(hours=30), date(2026, 3, 15)),
        (timedelta(hours=54) - SECOND, date(2026, 3, 15)),
        (timedelta(hours=54), date(2026, 3, 16)),
    ],
)
def test_a_night_is_missed_thirty_hours_after_the_last_one_and_each_day_again(after: timedelta, missed: date | None) -> None:
    found = list_notifications([summary(status="applied")], NOW + after)
    assert [item.id for item in found] == ([] if missed is None else [f"warehouse/run_missed/{missed}"])


def test_an_apply_that_failed_is_told_with_why_and_how_to_go_on() -> None:
    failed = FailedApply("a" * 64, "run 1", "no longer matches the lakes")
    told = only(StorageSummary("warehouse", None, failed=(failed,)))
    assert (told.event, told.plan_id) == ("apply_failed", "a" * 64)
    assert told.text.startswith("no longer matches the lakes\n")
    assert "gc-assets apply aaaaaaaaaaaa" in told.text


def test_each_attempt_to_apply_that_fails_is_an_event_of_its_own() -> None:
    attempts = [StorageSummary("warehouse", None, failed=(FailedApply("a" * 64, attempt, ""),)) for attempt in ("run 1", "run 2")]
    assert events(*attempts) == ["apply_failed", "apply_failed"]


def test_an_event_keeps_its_id_while_it_lasts() -> None:
    found = summary(header(gates=GATES, unreadable=(SICK,)), "refused", failed=(FailedApply("a" * 64, "run 1", ""),))
    first = {item.id for item in list_notifications([found], NOW)}
    assert first == {item.id for item in list_notifications([found], NOW + timedelta(hours=20))}
    assert len(first) == 3


def test_a_title_is_one_line_whatever_the_names_hold() -> None:
    hostile = SICK.model_copy(update={"table_name": "a\r\nBcc: x\x1b[2J\u2028b\udcff"})
    told = only(summary(header(unreadable=(hostile,)), "applied"))
    assert told.title.startswith("table a  Bcc: x [2J b  of lake sales")
    assert (told.title + told.text.replace("\n", "")).isprintable()
    assert format_body([told]).encode()


def test_every_event_has_words() -> None:
    now = NOW + timedelta(hours=30)
    found = [
        *list_notifications([summary(header(unreadable=(SICK,)), failed=(FailedApply("a" * 64, "run 1", ""),))], now),
        *list_notifications([summary(header(gates=GATES), "refused")], NOW),
        state_unread("warehouse", "the index is damaged"),
        target_failed("team", "the server answered 404"),
    ]
    assert {item.event for item in found} == set(EVENTS)
    assert all(item.title and item.text for item in found)


def many(count: int) -> list[Notification]:
    return [target_failed(f"t{index}", "no answer") for index in range(count)]


def test_one_subject_stands_for_all() -> None:
    assert format_subject(many(1)) == "gc-assets: notifications cannot be delivered to t0"
    assert format_subject(many(3)) == "gc-assets: notifications cannot be delivered to t0 (and 2 more)"


def test_a_thousand_events_are_counted_and_not_spelled_out() -> None:
    text = format_body(many(1_000 + MAX_LISTED))
    assert text.count("no answer") == MAX_LISTED
    assert text.endswith("And 1,000 more: see `gc-assets plans` and `gc-assets doctor`.")


def test_the_document_is_json_with_every_event() -> None:
    (told,) = json.loads(json.dumps(to_document([only(summary())])))["notifications"]
    assert told.keys() == {"event", "id", "title", "text", "storage", "lake", "plan_id"}
    assert to_document([only(summary())]) == to_document([only(summary())])
