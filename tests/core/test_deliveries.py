"""Everybody hears of each event once, and what is remembered does not grow."""

from __future__ import annotations

from gc_assets.core.deliveries import Deliveries
from gc_assets.core.notifications import EVENTS, Event, Notification


def event(name: str, kind: Event = "plan_ready") -> Notification:
    return Notification(kind, name, name, "")


A, B, SICK = event("a"), event("b"), event("c", "table_unreadable")
NOBODY = Deliveries()


def test_what_a_target_was_told_is_no_news_to_it_and_is_to_another() -> None:
    told = NOBODY.record({"mail": [A]}, ["mail", "pager"], [A, B])
    assert told.pending("mail", EVENTS, [A, B]) == (B,)
    assert told.pending("pager", EVENTS, [A, B]) == (A, B)


def test_a_target_hears_only_of_the_events_that_it_asks_for() -> None:
    assert NOBODY.pending("mail", {"table_unreadable"}, [A, SICK]) == (SICK,)


def test_what_was_not_delivered_stays_news() -> None:
    assert NOBODY.record({}, ["mail"], [A]).pending("mail", EVENTS, [A]) == (A,)


def test_an_event_that_is_over_is_forgotten_and_is_news_when_it_comes_again() -> None:
    told = NOBODY.record({"mail": [A]}, ["mail"], [A]).record({}, ["mail"], [])
    assert told.by_target == {"mail": frozenset()}
    assert told.pending("mail", EVENTS, [A]) == (A,)


def test_nothing_is_forgotten_while_nobody_knows_what_is_over() -> None:
    told = NOBODY.record({"mail": [A]}, ["mail"], [A]).record({}, ["mail"], None)
    assert told.pending("mail", EVENTS, [A]) == ()


def test_a_target_that_left_the_configuration_is_forgotten() -> None:
    assert NOBODY.record({"mail": [A]}, ["mail"], [A]).record({}, ["pager"], [A]).by_target == {"pager": frozenset()}


def test_it_is_read_as_it_was_written() -> None:
    told = NOBODY.record({"mail": [B, A], "pager": [A]}, ["mail", "pager"], [A, B])
    assert Deliveries.parse(told.to_json) == told


def test_of_another_text_nobody_was_told() -> None:
    for text in (None, "", "{", "[]", '{"mail": 1}', "3"):
        assert Deliveries.parse(text) == NOBODY
