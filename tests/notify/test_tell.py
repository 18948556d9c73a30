"""Telling all targets: each hears of each event once, and one that fails holds up nobody and is told to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.notify import TARGETS, Target
from gc_assets.core.deliveries import Deliveries
from gc_assets.core.notifications import EVENTS, Notification
from gc_assets.notify.dispatch import deliver
from tests.notify.receivers import Web, smtp_server, web_server

READY = Notification("plan_ready", "warehouse/plan_ready/1", "warehouse: plan 1 waits", "gc-assets approve 1 --by WHO", "warehouse")
SICK = Notification("table_unreadable", "sales/table_unreadable/u", "table shop.orders cannot be read", "torn", lake="sales")


@pytest.fixture
def alerts() -> Iterator[Web]:
    with web_server() as found:
        yield found


@pytest.fixture
def team() -> Iterator[Web]:
    with web_server() as found:
        yield found


def target(name: str, kind: str, **settings: Any) -> Target:
    return TARGETS[kind].model_validate({"name": name, "kind": kind, **settings})


def hook(name: str, server: Web, **settings: Any) -> Target:
    return target(name, "webhook", url=server.url, **settings)


def heard(server: Web) -> list[list[str]]:
    """The events of each request."""
    return [[item["event"] for item in told["notifications"]] for told in server.documents]


def test_all_kinds_of_targets_are_told_of_the_same(alerts: Web, team: Web, tmp_path: Path) -> None:
    with smtp_server() as mailbox:
        targets = [
            hook("alerts", alerts),
            target("team", "slack", url=team.url),
            target(
                "mail", "email", server="localhost", port=mailbox.port, security="none", sender="gc@example.org", to=["ada@example.org"]
            ),
            target("pager", "command", command=["sh", "-c", 'cat > "$0"', str(tmp_path / "paged")]),
        ]
        told = deliver(targets, [READY, SICK], Deliveries())
    assert str(told) == "; ".join(f"told {name} of 2 events" for name in ("alerts", "team", "mail", "pager"))
    assert heard(alerts) == [["plan_ready", "table_unreadable"]]
    assert READY.title in team.documents[0]["text"]
    assert SICK.title in team.documents[0]["text"]
    assert READY.text in mailbox.mails[0].get_content()
    assert READY.id in (tmp_path / "paged").read_text()


def test_nobody_is_told_twice(alerts: Web) -> None:
    targets = [hook("alerts", alerts)]
    told = deliver(targets, [READY], Deliveries()).deliveries
    again = deliver(targets, [READY], Deliveries.parse(told.to_json))
    assert (str(again), again.deliveries) == ("nothing new", told)
    deliver(targets, [READY, SICK], told)
    assert heard(alerts) == [["plan_ready"], ["table_unreadable"]]


def test_where_nothing_happens_nobody_is_told(alerts: Web) -> None:
    assert str(deliver([hook("alerts", alerts)], [], Deliveries())) == "nothing new"
    assert heard(alerts) == []


def test_a_target_is_told_of_the_events_that_it_asks_for(alerts: Web, team: Web) -> None:
    deliver([hook("alerts", alerts, events=["table_unreadable"]), hook("team", team, events=["run_missed"])], [READY, SICK], Deliveries())
    assert (heard(alerts), heard(team)) == ([["table_unreadable"]], [])


def test_a_target_that_fails_holds_up_nobody_and_the_others_hear_of_it_once(alerts: Web, team: Web) -> None:
    alerts.status = 500
    targets = [hook("alerts", alerts), hook("team", team)]
    first = deliver(targets, [READY], Deliveries())
    assert first.failed == {"alerts": "the server answered 500"}
    assert str(first) == "told team of 2 events; could not tell alerts: the server answered 500"
    second = deliver(targets, [READY], first.deliveries)
    assert heard(team) == [["plan_ready"], ["target_failed"]]
    assert team.documents[1]["notifications"][0]["title"] == "notifications cannot be delivered to alerts"
    alerts.status = 200
    third = deliver(targets, [READY], second.deliveries)
    assert (str(third), third.failed) == ("told alerts of 1 event", {})
    assert heard(alerts)[-1] == ["plan_ready"]


def test_a_fault_that_nobody_thought_of_is_told_without_its_words(alerts: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("s3cr3t")

    monkeypatch.setattr("gc_assets.notify.dispatch.run_command", broken)
    found = deliver([target("pager", "command", command=["true"]), hook("alerts", alerts)], [READY], Deliveries())
    assert found.failed == {"pager": "ZeroDivisionError"}
    assert heard(alerts) == [["plan_ready"], ["target_failed"]]
    assert found.deliveries.pending("alerts", EVENTS, [READY]) == ()


def test_a_target_that_fails_again_after_it_was_mended_is_told_again(alerts: Web, team: Web) -> None:
    targets, told = [hook("alerts", alerts), hook("team", team)], Deliveries()
    for status, happening in ((500, [READY]), (200, [READY]), (500, [READY, SICK])):
        alerts.status = status
        told = deliver(targets, happening, told).deliveries
    assert heard(team) == [["plan_ready"], ["target_failed"], ["table_unreadable"], ["target_failed"]]


def test_a_single_target_that_fails_is_told_again_until_it_hears(alerts: Web) -> None:
    alerts.status = 503
    targets = [hook("alerts", alerts)]
    told = deliver(targets, [READY], Deliveries()).deliveries
    alerts.status = 200
    deliver(targets, [READY], told)
    assert heard(alerts) == [["plan_ready"], ["plan_ready"]]


def test_while_not_all_is_known_nothing_is_told_a_second_time(alerts: Web) -> None:
    targets = [hook("alerts", alerts)]
    told = deliver(targets, [READY], Deliveries()).deliveries
    told = deliver(targets, [], told, is_all=False).deliveries
    deliver(targets, [READY], told)
    assert heard(alerts) == [["plan_ready"]]
