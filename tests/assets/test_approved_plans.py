"""The sensor that requests a run for each approved plan."""

from pathlib import Path

import dagster as dg

from gc_assets.definitions import build_definitions
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve
from tests.assets.platforms import NOW, TODAY, platform, stored_plan


def tick(at: Platform) -> dg.SensorResult | object:
    definitions = build_definitions(at)
    sensor = definitions.resolve_sensor_def("approved_plans")
    context = dg.build_sensor_context(resources={"collector": Collector.of(at)}, definitions=definitions)
    return sensor.evaluate_tick(context)


def test_each_approved_plan_requests_one_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    (request,) = tick(at).run_requests
    assert (request.run_key, request.partition_key) == (header.plan_id, TODAY)
    assert request.asset_selection == [dg.AssetKey(["warehouse", "deletion_log"])]
    assert request.run_config["ops"]["warehouse__deletion_log"]["config"]["plan_id"] == header.plan_id
    assert request.tags["gc/approved_by"] == "kim"


def test_run_key_of_an_approval_is_stable(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    assert [request.run_key for request in tick(at).run_requests] == [request.run_key for request in tick(at).run_requests]


def test_unapproved_plan_requests_no_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at)
    result = tick(at)
    assert not result.run_requests
    assert result.skip_message == "no approved plan is waiting"


def test_mode_plan_requests_no_run(tmp_path: Path) -> None:
    at = platform(tmp_path)
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    result = tick(at)
    assert not result.run_requests
    assert "mode plan" in (result.skip_message or "")


def test_expired_approval_requests_no_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    later = platform(tmp_path, mode="apply", now=NOW.replace(day=20))
    assert not tick(later).run_requests


def test_job_accepts_the_requested_run(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "kim")
    (request,) = tick(at).run_requests
    assert dg.validate_run_config(build_definitions(at).resolve_job_def("apply"), request.run_config)
