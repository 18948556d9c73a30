"""Each target receives an event once, and the record does not grow."""

from __future__ import annotations

from gc_assets.core.deliveries import Deliveries
from gc_assets.core.notifications import EVENTS, Event, Notification


def event(name: str, kind: Event = "plan_ready") -> Notification:
    return Notification(kind, name, name, "")


A, B, UNREADABLE = event("a"), event("b"), event("c", "table_unreadable")
NONE = Deliveries()


def test_delivered_event_is_pending_only_for_other_targets() -> None:
    deliveries = NONE.record({"mail": [A]}, ["mail", "pager"], [A, B])
    assert deliveries.pending("mail", EVENTS, [A, B]) == (B,)
    assert deliveries.pending("pager", EVENTS, [A, B]) == (A, B)


def test_target_receives_only_subscribed_events() -> None:
    assert NONE.pending("mail", {"table_unreadable"}, [A, UNREADABLE]) == (UNREADABLE,)


def test_undelivered_event_stays_pending() -> None:
    assert NONE.record({}, ["mail"], [A]).pending("mail", EVENTS, [A]) == (A,)


def test_ended_event_is_pending_again_when_it_recurs() -> None:
    deliveries = NONE.record({"mail": [A]}, ["mail"], [A]).record({}, ["mail"], [])
    assert deliveries.by_target == {"mail": frozenset()}
    assert deliveries.pending("mail", EVENTS, [A]) == (A,)


def test_deliveries_are_kept_while_current_events_are_unknown() -> None:
    deliveries = NONE.record({"mail": [A]}, ["mail"], [A]).record({}, ["mail"], None)
    assert deliveries.pending("mail", EVENTS, [A]) == ()


def test_removed_target_is_forgotten() -> None:
    assert NONE.record({"mail": [A]}, ["mail"], [A]).record({}, ["pager"], [A]).by_target == {"pager": frozenset()}


def test_deliveries_round_trip() -> None:
    deliveries = NONE.record({"mail": [B, A], "pager": [A]}, ["mail", "pager"], [A, B])
    assert Deliveries.parse(deliveries.to_json) == deliveries


def test_unreadable_delivery_record_is_treated_as_empty() -> None:
    for text in (None, "", "{", "[]", '{"mail": 1}', "3"):
        assert Deliveries.parse(text) == NONE
