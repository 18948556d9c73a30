"""Delivery to all targets."""

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
UNREADABLE = Notification("table_unreadable", "sales/table_unreadable/u", "table shop.orders cannot be read", "torn", lake="sales")


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


def received_events(server: Web) -> list[list[str]]:
    """Return the events of each request."""
    return [[item["event"] for item in deliveries["notifications"]] for deliveries in server.documents]


def test_all_kinds_of_targets_receive_equal_events(alerts: Web, team: Web, tmp_path: Path) -> None:
    with smtp_server() as mailbox:
        targets = [
            hook("alerts", alerts),
            target("team", "slack", url=team.url),
            target(
                "mail", "email", server="localhost", port=mailbox.port, security="none", sender="gc@example.org", to=["ada@example.org"]
            ),
            target("pager", "command", command=["sh", "-c", 'cat > "$0"', str(tmp_path / "paged")]),
        ]
        deliveries = deliver(targets, [READY, UNREADABLE], Deliveries())
    assert str(deliveries) == "; ".join(f"delivered 2 events to {name}" for name in ("alerts", "team", "mail", "pager"))
    assert received_events(alerts) == [["plan_ready", "table_unreadable"]]
    assert READY.title in team.documents[0]["text"]
    assert UNREADABLE.title in team.documents[0]["text"]
    assert READY.text in mailbox.mails[0].get_content()
    assert READY.id in (tmp_path / "paged").read_text()


def test_event_is_delivered_once(alerts: Web) -> None:
    targets = [hook("alerts", alerts)]
    deliveries = deliver(targets, [READY], Deliveries()).deliveries
    again = deliver(targets, [READY], Deliveries.parse(deliveries.to_json))
    assert (str(again), again.deliveries) == ("no new event", deliveries)
    deliver(targets, [READY, UNREADABLE], deliveries)
    assert received_events(alerts) == [["plan_ready"], ["table_unreadable"]]


def test_nothing_is_sent_without_events(alerts: Web) -> None:
    assert str(deliver([hook("alerts", alerts)], [], Deliveries())) == "no new event"
    assert received_events(alerts) == []


def test_target_receives_only_configured_events(alerts: Web, team: Web) -> None:
    deliver(
        [hook("alerts", alerts, events=["table_unreadable"]), hook("team", team, events=["run_missed"])], [READY, UNREADABLE], Deliveries()
    )
    assert (received_events(alerts), received_events(team)) == ([["table_unreadable"]], [])


def test_failed_target_is_reported_once_to_other_targets(alerts: Web, team: Web) -> None:
    alerts.status = 500
    targets = [hook("alerts", alerts), hook("team", team)]
    first = deliver(targets, [READY], Deliveries())
    assert first.failed == {"alerts": "the server answered 500"}
    assert str(first) == "delivered 2 events to team; cannot deliver to alerts: the server answered 500"
    second = deliver(targets, [READY], first.deliveries)
    assert received_events(team) == [["plan_ready"], ["target_failed"]]
    assert team.documents[1]["notifications"][0]["title"] == "notifications cannot be delivered to alerts"
    alerts.status = 200
    third = deliver(targets, [READY], second.deliveries)
    assert (str(third), third.failed) == ("delivered 1 event to alerts", {})
    assert received_events(alerts)[-1] == ["plan_ready"]


def test_unexpected_error_is_reported_without_error_message(alerts: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object) -> None:
        raise ZeroDivisionError("s3cr3t")

    monkeypatch.setattr("gc_assets.notify.dispatch.run_command", raise_error)
    found = deliver([target("pager", "command", command=["true"]), hook("alerts", alerts)], [READY], Deliveries())
    assert found.failed == {"pager": "ZeroDivisionError"}
    assert received_events(alerts) == [["plan_ready"], ["target_failed"]]
    assert found.deliveries.pending("alerts", EVENTS, [READY]) == ()


def test_failure_after_a_success_is_reported_again(alerts: Web, team: Web) -> None:
    targets, deliveries = [hook("alerts", alerts), hook("team", team)], Deliveries()
    for status, active in ((500, [READY]), (200, [READY]), (500, [READY, UNREADABLE])):
        alerts.status = status
        deliveries = deliver(targets, active, deliveries).deliveries
    assert received_events(team) == [["plan_ready"], ["target_failed"], ["table_unreadable"], ["target_failed"]]


def test_failed_delivery_is_retried(alerts: Web) -> None:
    alerts.status = 503
    targets = [hook("alerts", alerts)]
    deliveries = deliver(targets, [READY], Deliveries()).deliveries
    alerts.status = 200
    deliver(targets, [READY], deliveries)
    assert received_events(alerts) == [["plan_ready"], ["plan_ready"]]


def test_incomplete_event_list_does_not_end_earlier_events(alerts: Web) -> None:
    targets = [hook("alerts", alerts)]
    deliveries = deliver(targets, [READY], Deliveries()).deliveries
    deliveries = deliver(targets, [], deliveries, is_all=False).deliveries
    deliver(targets, [READY], deliveries)
    assert received_events(alerts) == [["plan_ready"]]
