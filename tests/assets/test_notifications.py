"""The sensor that sends notifications."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gc_assets.assets.notifications import plan_ids
from gc_assets.config.dagster_names import DagsterNames
from gc_assets.config.notify import Webhook
from gc_assets.core.clock import Clock
from gc_assets.definitions import build_definitions
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, record_finished
from gc_assets.state.journal import State
from tests.assets.platforms import NOW, platform, stored_plan
from tests.notify.receivers import Web, web_server


@pytest.fixture
def alerts() -> Iterator[Web]:
    with web_server() as found:
        yield found


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def platform_with_targets(root: Path, alerts: Web, **more: Any) -> Platform:
    at = platform(root, **more)
    hook = Webhook.model_validate({"name": "alerts", "kind": "webhook", "url": alerts.url + "/s3cr3t"})
    return replace(at, config=at.config.model_copy(update={"notify": (hook,)}))


def tick(at: Platform, instance: dg.DagsterInstance, cursor: str | None = None) -> tuple[str, str]:
    """Return the message of a tick, and its cursor."""
    definitions = build_definitions(at)
    context = dg.build_sensor_context(instance=instance, cursor=cursor, resources={"collector": Collector.of(at)}, definitions=definitions)
    result = definitions.resolve_sensor_def("notifications").evaluate_tick(context)
    assert not result.run_requests
    return result.skip_message or "", result.cursor or ""


def received_events(alerts: Web) -> list[list[str]]:
    return [[item["event"] for item in deliveries["notifications"]] for deliveries in alerts.documents]


def test_sensor_is_not_defined_without_targets(tmp_path: Path) -> None:
    assert [sensor.name for sensor in build_definitions(platform(tmp_path)).sensors or ()] == ["approved_plans"]


def test_sensor_is_off_by_default(tmp_path: Path, alerts: Web) -> None:
    sensor = build_definitions(platform_with_targets(tmp_path, alerts)).resolve_sensor_def("notifications")
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED


def test_waiting_plan_is_delivered_once(tmp_path: Path, alerts: Web, instance: dg.DagsterInstance) -> None:
    at = platform_with_targets(tmp_path, alerts)
    stored_plan(at)
    message, cursor = tick(at, instance)
    assert (message, received_events(alerts)) == ("delivered 1 event to alerts", [["plan_ready"]])
    assert tick(at, instance, cursor) == ("no new event", cursor)
    assert received_events(alerts) == [["plan_ready"]]


def test_plan_event_is_delivered_if_plan_is_applied_between_ticks(tmp_path: Path, alerts: Web, instance: dg.DagsterInstance) -> None:
    at = platform_with_targets(tmp_path, alerts)
    _, cursor = tick(at, instance)
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    done = {"quarantine/done": {"files": 2, "bytes": 200}}
    record_finished(State.of(at.config), header, {"at": NOW.isoformat(), "by_outcome": done})
    _, cursor = tick(at, instance, cursor)
    assert received_events(alerts) == [["plan_applied"]]
    assert "Approved by kim." in alerts.documents[0]["notifications"][0]["text"]
    assert tick(at, instance, cursor)[0] == "no new event"


def test_sensor_intervals_are_configurable(tmp_path: Path, alerts: Web) -> None:
    at = platform_with_targets(tmp_path, alerts)
    assert intervals(at) == {"approved_plans": 60, "notifications": 300}
    names = DagsterNames.model_validate({"approved_plans_every": "10m", "notifications_every": "90s"})
    assert intervals(replace(at, config=at.config.model_copy(update={"dagster": names}))) == {"approved_plans": 600, "notifications": 90}


def intervals(at: Platform) -> dict[str, int | None]:
    return {sensor.name: sensor.minimum_interval_seconds for sensor in build_definitions(at).sensors or ()}


def test_missed_run_event_is_delivered(tmp_path: Path, alerts: Web, instance: dg.DagsterInstance) -> None:
    at = platform_with_targets(tmp_path, alerts)
    stored_plan(at)
    tick(replace(at, clock=Clock(NOW + timedelta(hours=31))), instance)
    assert received_events(alerts) == [["run_missed"]]


def test_failed_apply_run_is_delivered_with_error_message(tmp_path: Path, alerts: Web, instance: dg.DagsterInstance) -> None:
    at = platform_with_targets(tmp_path, alerts)
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    build_definitions(at, first=date(2026, 3, 1)).resolve_job_def("apply").execute_in_process(
        run_config={"ops": {"warehouse__deletion_log": {"config": {"plan_id": header.plan_id[:12]}}}},
        partition_key="2026-03-13",
        instance=instance,
        raise_on_error=False,
    )
    _, cursor = tick(at, instance)
    assert received_events(alerts) == [["apply_failed"]]
    (deliveries,) = alerts.documents[0]["notifications"]
    assert deliveries["plan_id"] == header.plan_id
    assert "Run deletion_log of its own storage and partition" in deliveries["text"]
    assert tick(at, instance, cursor)[0] == "no new event"


@pytest.mark.parametrize(
    "run_config, expected",
    [
        (
            {"ops": {"warehouse__deletion_log": {"config": {"plan_id": "3f9c2a71"}}, "b__deletion_log": {"config": {"plan_id": "9"}}}},
            ["3f9c2a71", "9"],
        ),
        ({"ops": {"warehouse__deletion_log": {"config": {"plan_id": ""}}}}, []),
        ({"ops": {"approve_plan": {"config": {"plan_id": "3f9c2a71", "by": "kim"}}}}, []),
        ({}, []),
        (None, []),
        ({"ops": None}, []),
        ({"ops": ["warehouse__deletion_log"]}, []),
        ({"ops": {"warehouse__deletion_log": None}}, []),
        ({"ops": {"warehouse__deletion_log": {"config": ["plan_id"]}}}, []),
        ({"ops": {"warehouse__deletion_log": {"config": {"plan_id": {"env": "PLAN"}}}}}, []),
    ],
)
def test_plan_ids_are_read_from_deletion_log_config(run_config: Any, expected: list[str]) -> None:
    assert plan_ids(run_config) == expected


def test_failed_target_does_not_fail_the_tick_or_leak_secrets(
    tmp_path: Path, alerts: Web, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    at, alerts.status = platform_with_targets(tmp_path, alerts), 500
    stored_plan(at)
    message, cursor = tick(at, instance)
    assert message == "cannot deliver to alerts: the server answered 500"
    alerts.status = 200
    assert tick(at, instance, cursor)[0] == "delivered 1 event to alerts"
    assert "s3cr3t" not in message + cursor + caplog.text


def test_unreadable_state_event_is_delivered_once(tmp_path: Path, alerts: Web, instance: dg.DagsterInstance) -> None:
    at = platform_with_targets(tmp_path, alerts)
    stored_plan(at)
    _, cursor = tick(at, instance)
    (index,) = tmp_path.glob("state/warehouse/deletion_plan/_index.json")
    state_root = index.read_bytes()
    index.write_bytes(b"{")
    message, cursor = tick(at, instance, cursor)
    assert message.startswith("delivered 1 event to alerts; storage warehouse: the state cannot be read")
    assert "gc-assets doctor --repair" in alerts.documents[1]["notifications"][0]["text"]
    assert tick(at, instance, cursor)[0].startswith("no new event; storage warehouse: ")
    index.write_bytes(state_root)
    assert tick(at, instance, cursor)[0] == "no new event"
    assert received_events(alerts) == [["plan_ready"], ["state_unread"]]
