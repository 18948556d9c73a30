"""The sensor that requests a run for each approved plan."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from gc_assets.core.errors import StateError
from gc_assets.definitions import build_definitions
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve
from tests.assets.platforms import NOW, TODAY, platform, stored_plan


def tick(at: Platform, instance: dg.DagsterInstance | None = None, first: date | None = None) -> Any:
    definitions = build_definitions(at, first=first)
    sensor = definitions.resolve_sensor_def("approved_plans")
    with dg.DagsterInstance.ephemeral() as empty:
        resources: Any = {"collector": Collector.of(at)}
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            instance=instance or empty,
            definitions=definitions,
            resources=resources,
            repository_name="__repository__",
            code_location_origin=RegisteredCodeLocationOrigin("here"),
        )
        return sensor.evaluate_tick(context)


def add_run(
    instance: dg.DagsterInstance, plan_id: str, status: dg.DagsterRunStatus, sensor: str = "approved_plans", location: str = "here"
) -> dg.DagsterRun:
    """Add a run as the daemon does for a request."""
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__"), "apply")
    tags = {"dagster/run_key": plan_id, "dagster/sensor_name": sensor}
    return instance.add_run(dg.DagsterRun(job_name="apply", run_id=str(uuid4()), status=status, tags=tags, remote_job_origin=origin))


def tick_after(status: dg.DagsterRunStatus, tmp_path: Path) -> tuple[str, dg.DagsterRun, Any]:
    """Return an approved plan's id, its requested run with this status, and the result of the next tick."""
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at)).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    with dg.DagsterInstance.ephemeral() as instance:
        run = add_run(instance, plan_id, status)
        return plan_id, run, tick(at, instance)


def test_sensor_requests_one_run_per_approved_plan(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    (request,) = tick(at).run_requests
    assert (request.run_key, request.partition_key) == (header.plan_id, TODAY)
    assert request.asset_selection == [dg.AssetKey(["warehouse", "deletion_log"])]
    assert request.run_config["ops"]["warehouse__deletion_log"]["config"]["plan_id"] == header.plan_id
    assert request.tags["gc/approved_by"] == "kim"


def test_run_key_of_an_approved_plan_is_stable(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    assert [request.run_key for request in tick(at).run_requests] == [request.run_key for request in tick(at).run_requests]


def test_unapproved_plan_requests_no_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at)
    result = tick(at)
    assert not result.run_requests
    assert result.skip_message == "no approved plan is waiting"


def test_storage_in_plan_mode_requests_no_run(tmp_path: Path) -> None:
    at = platform(tmp_path)
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    result = tick(at)
    assert not result.run_requests
    assert "plan mode" in (result.skip_message or "")


def test_expired_approval_requests_no_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    later = platform(tmp_path, mode="apply", now=NOW.replace(day=20))
    assert not tick(later).run_requests


def test_failed_run_is_reported_in_skip_message(tmp_path: Path) -> None:
    """The daemon drops a repeated request without a reason."""
    plan_id, run, result = tick_after(dg.DagsterRunStatus.FAILURE, tmp_path)
    assert not result.run_requests
    assert result.skip_message == (
        f"plan {plan_id[:12]} of warehouse waits, but its run {run.run_id[:8]} has ended with the status failure and is not repeated. "
        f"Fix the cause in the run's log, then launch the job apply for {TODAY} with plan_id: {plan_id[:12]}, "
        "or make a new plan with the job run."
    )


def test_running_run_is_reported_in_skip_message(tmp_path: Path) -> None:
    plan_id, run, result = tick_after(dg.DagsterRunStatus.STARTED, tmp_path)
    reason = f"its run {run.run_id[:8]} has the status started"
    assert result.skip_message == f"plan {plan_id[:12]} of warehouse is not requested again: {reason}"


@pytest.mark.parametrize(
    "status, sensor, location",
    [
        (dg.DagsterRunStatus.NOT_STARTED, "approved_plans", "here"),
        (dg.DagsterRunStatus.FAILURE, "another_sensor", "here"),
        (dg.DagsterRunStatus.FAILURE, "approved_plans", "another_location"),
    ],
)
def test_plan_is_requested_again_if_sensor_did_not_launch_a_run(
    tmp_path: Path, status: dg.DagsterRunStatus, sensor: str, location: str
) -> None:
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at)).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    with dg.DagsterInstance.ephemeral() as instance:
        add_run(instance, plan_id, status, sensor, location)
        assert [request.run_key for request in tick(at, instance).run_requests] == [plan_id]


def test_plan_that_another_code_location_applies_is_not_requested(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at)).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    with dg.DagsterInstance.ephemeral() as instance:
        add_run(instance, plan_id, dg.DagsterRunStatus.STARTED, location="another_location")
        assert not tick(at, instance).run_requests


def with_two_storages(tmp_path: Path, mode: str) -> tuple[Platform, list[str]]:
    """Return a platform with the storages `warehouse` and `archive`, and the ids of their approved plans."""
    at = platform(tmp_path, mode="apply")
    (storage,) = at.config.storages
    other = storage.model_copy(update={"name": "archive", "location": "file:///nowhere/archive/", "mode": mode})
    at = replace(at, config=at.config.model_copy(update={"storages": (storage, other)}))
    plan_ids = [header_of(stored_plan(at, storage=name)).plan_id for name in ("warehouse", "archive")]
    for plan_id in plan_ids:
        approve(at.config, at.clock, plan_id, "kim")
    return at, plan_ids


def test_storage_in_plan_mode_does_not_block_other_requests(tmp_path: Path) -> None:
    """Dagster refuses a tick with a request and a reason."""
    at, _ = with_two_storages(tmp_path, "plan")
    assert [request.partition_key for request in tick(at).run_requests] == [TODAY]


def test_unreadable_approval_of_a_storage_does_not_block_requests_of_others(tmp_path: Path) -> None:
    at, (plan_id, _) = with_two_storages(tmp_path, "apply")
    (approval,) = (tmp_path / "state/archive/approvals").glob("*.json")
    approval.with_name(f"{'0' * 64}.json").write_text("{}")
    assert [request.run_key for request in tick(at).run_requests] == [plan_id]


def test_tick_fails_if_no_plan_can_be_read(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    bad = tmp_path / f"state/warehouse/approvals/{'0' * 64}.json"
    bad.write_text("{}")
    with pytest.raises(StateError, match=bad.name):
        tick(at)


def test_plan_before_the_first_partition_does_not_block_requests_of_others(tmp_path: Path) -> None:
    """Dagster validates the partitions of all requests of a tick together."""
    at = platform(tmp_path, mode="apply")
    old = header_of(stored_plan(at, run_date="2026-03-13")).plan_id
    new = header_of(stored_plan(at, files=3)).plan_id
    for plan_id in (old, new):
        approve(at.config, at.clock, plan_id, "kim")
    assert [request.run_key for request in tick(at, first=date(2026, 3, 14)).run_requests] == [new]


def test_plan_before_the_first_partition_is_reported(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at, run_date="2026-03-13")).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    result = tick(at, first=date(2026, 3, 14))
    assert not result.run_requests
    assert result.skip_message == (
        f"plan {plan_id[:12]} of warehouse is not applied, because its run date 2026-03-13 is before the first partition 2026-03-14. "
        f"Reload the definitions, or run `gc-assets apply {plan_id[:12]}`."
    )


def test_plan_of_another_policy_is_reported_and_not_requested(tmp_path: Path) -> None:
    """The requested run would be refused, and never repeated."""
    at = platform(tmp_path, mode="apply")
    plan_id = header_of(stored_plan(at, policy_digest="0" * 64)).plan_id
    approve(at.config, at.clock, plan_id, "kim")
    result = tick(at)
    assert not result.run_requests
    assert "the policy in lakes.yaml has changed" in result.skip_message


def test_job_accepts_the_requested_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    (request,) = tick(at).run_requests
    assert dg.validate_run_config(build_definitions(at).resolve_job_def("apply"), request.run_config)
