"""Live files and garbage of recorded lakeFS repositories after all stages equal those of the recording."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.mark.lakefs.uncommitted_objects import uncommitted_objects
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.depth import full_suite_only
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of, moment
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording
from tests.stages.forecasts import Forecast, difference, forecast_orphans, orphan_sizes, orphans_under_policy
from tests.stages.lakehouse import STORAGE, Lakehouse

pytestmark = pytest.mark.spark
# Long after the recording, so that no grace period keeps recorded garbage.
LATER = timedelta(days=40)
GATES = {"max_delete_share": 1, "max_live_drop": 1}


@dataclass
class RecordedRepository:
    """A recorded repository in `<warehouse>/<name>/`, with a fake server."""

    recording: Recording
    house: Lakehouse
    server: FakeServer

    def context(self, scenario: dict[str, Any], tags: str) -> dict[str, str]:
        """Return the reason by key of a run at the time of the scenario."""
        recording, house = self.recording, self.house
        self.server.repositories[recording.name].rules = scenario["rules"]
        house.lakes = [house.lakes[0].model_copy(update={"retention": house.lakes[0].retention.model_copy(update={"tags": tags})})]
        as_of = moment(scenario["as_of"])
        house.now += timedelta(days=1)
        context = RunContext.of(house.config, house.clock, house.clock.today(), as_of)
        mark(house.spark, context, "ml")
        live_filter(house.spark, context, STORAGE)
        storage_inventory(house.spark, context, STORAGE)
        orphan_files(house.spark, context, STORAGE)
        self.header = header_of(deletion_plan(house.spark, context, STORAGE))
        return house.orphans(f"{recording.name}/")

    def live(self) -> set[str]:
        return {key.removeprefix(f"{self.recording.name}/") for key in self.house.live()}


@pytest.fixture(scope="module")
def basic(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedRepository]:
    yield from _serve_recording("basic", spark, tmp_path_factory.mktemp("basic"))


def _serve_recording(name: str, spark: SparkSession, folder: Path) -> Iterator[RecordedRepository]:
    recording = Recording(name)
    house = Lakehouse(spark, folder, settings={"gates": GATES})
    namespace = recording.unpack(house.warehouse)
    at = max(scenario["as_of"] for scenario in recording.expected["scenarios"])
    house.now = moment(at) + LATER
    server = FakeServer(recorded_repository(recording, namespace))
    with server.running() as url:
        house.lakes = [config_of(url, name, location=f"file://{namespace}/")]
        yield RecordedRepository(recording, house, server)


STRAY = "data/loose.bin"


def claimed_keys(keys: list[str]) -> set[str]:
    """Return the keys without the stray file in the root of the namespace, which is under no claim, and the foreign one in `data/`."""
    return {key for key in keys if key.startswith("data/")} - {STRAY}


def scenario(recorded: RecordedRepository, name: str) -> dict[str, Any]:
    return next(item for item in recorded.recording.expected["scenarios"] if item["name"] == name)


@pytest.mark.parametrize("name, tags, dead", [("A+30d", "ignore", "dead_if_tags_ignored"), ("A", "keep", "dead_if_tags_protect")])
def test_plan_contains_exactly_the_recorded_garbage(basic: RecordedRepository, name: str, tags: str, dead: str) -> None:
    found = basic.context(scenario(basic, name), tags)
    assert found.pop(STRAY) == "foreign"
    assert found.keys() == claimed_keys(scenario(basic, name)[dead])
    assert basic.header.failed_gates == []
    assert basic.house.keys("deletion_plan") == {f"basic/{key}" for key in found}
    assert {key for key in scenario(basic, name)["must_keep"] if "://" not in key} <= basic.live() or tags == "ignore"
    committed = {item["key"] for item in basic.recording.expected["objects"] if item["in_commits"]}
    assert {key for key, reason in found.items() if reason == "expired"} == committed & found.keys()
    assert {reason for key, reason in found.items() if key not in committed} == {"uncommitted"}


@full_suite_only
def test_what_if_forecast_equals_run_with_policy(basic: RecordedRepository) -> None:
    """Uses the run of the previous test, like the next."""
    house = basic.house
    current, (forecast,) = orphan_sizes(house), forecast_orphans(house, [Scenario("shorter", ("ml",), retention="1d")])
    real = orphans_under_policy(house, [lake.with_retention("1d") for lake in house.lakes])
    assert forecast == Forecast(real, *difference(current, real))
    assert forecast.freed.files > 0


def test_stray_file_in_the_root_is_unowned(basic: RecordedRepository) -> None:
    """Uses the run of the previous test, like the next."""
    assert "basic/stray.bin" not in basic.house.keys("orphan_files")
    summary = basic.house.summary("orphan_files")
    metadata = sum(path.is_file() for path in (basic.house.warehouse / "basic" / "_lakefs").rglob("*"))
    unneeded = summary["storage_breakdown"]["unowned"]["files"]
    assert 1 <= unneeded <= metadata + 1
    tables = summary["unneeded_metadata"]
    assert 0 < tables["files"] < unneeded
    assert tables["bytes"] > 500 * tables["files"]


def test_staged_objects_are_published_by_branch_and_path(basic: RecordedRepository) -> None:
    uncommitted_objects(basic.house.run_context(), "ml")
    found = {(row["branch"], row["path"]): row["key"].removeprefix("basic/") for row in basic.house.rows("uncommitted_objects", "ml")}
    staged = basic.recording.expected["branches"]
    assert found == {(branch, path): key for branch, summary in staged.items() for path, key in summary["staged"].items()}


@full_suite_only
def test_plan_of_large_repository_contains_exactly_the_recorded_garbage(spark: SparkSession, tmp_path: Path) -> None:
    for many in _serve_recording("many", spark, tmp_path):
        found = many.context(scenario(many, "A"), "keep")
        digest = hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()
        assert (len(found), digest) == (scenario(many, "A")["dead_if_tags_protect"], scenario(many, "A")["dead_digest"])
        assert many.header.failed_gates == []
