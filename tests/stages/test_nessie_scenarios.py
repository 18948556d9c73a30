"""Collect all scenarios on a real server in one run, and check every file after plan, apply and purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from gc_assets.core.clock import start_of_day
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.nessie.builder import NessieBuilder, open_table
from tests.lakes.nessie.oracle import contents_since_cutoff
from tests.lakes.nessie.scenarios import SCENARIOS, PlayedScenario, play
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = [pytest.mark.spark, in_turn]

START = next_noon(days=2)
AS_OF = start_of_day(START.date())


class ScenarioRun:
    """All scenarios and the run that collects them."""

    def __init__(self, spark: SparkSession, server: Server, root: Path) -> None:
        server.reset()
        self.house = Lakehouse(spark, root, now=START, settings={"gates": {"max_delete_share": 1}})
        self.nessie = NessieBuilder(server.uri, self.house.warehouse)
        self.scenarios = [play(self.nessie, self.house.warehouse, number, scenario) for number, scenario in enumerate(SCENARIOS)]
        self.house.lakes = [self.nessie.config(retention={"default": "none", "refs": self.rules(AS_OF)})]
        self.header = self.house.plan()
        self.planned = self.house.keys("deletion_plan")

    def rules(self, as_of: datetime) -> list[dict[str, object]]:
        return [rule for played in self.scenarios for rule in played.rules(as_of)]


@pytest.fixture(scope="module")
def scenario_run(spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory) -> ScenarioRun:
    return ScenarioRun(spark, nessie_server, tmp_path_factory.mktemp("scenarios"))


def test_run_over_all_scenarios_passes_all_gates(scenario_run: ScenarioRun) -> None:
    assert scenario_run.header.failed_gates == []


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=[scenario.name for scenario in SCENARIOS])
def test_scenario_deletes_the_expected_files(scenario_run: ScenarioRun, number: int) -> None:
    played: PlayedScenario = scenario_run.scenarios[number]
    mine = {key for key in scenario_run.planned if key.startswith(f"s{number:02}/")}
    assert mine == {scenario_run.house.key(path) for path in played.deleted}


def test_each_file_is_either_kept_or_planned(scenario_run: ScenarioRun) -> None:
    kept = {scenario_run.house.key(path) for played in scenario_run.scenarios for path in played.kept}
    assert set(scenario_run.house.files()) == kept | scenario_run.planned
    assert not kept & scenario_run.planned


def test_all_contents_are_readable_after_the_purge(scenario_run: ScenarioRun) -> None:
    house = scenario_run.house
    house.approve_and_apply(scenario_run.header)
    house.now = START + timedelta(minutes=5)
    purge = house.plan()
    assert set(house.planned_actions().values()) == {"purge"}
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert not [key for key in scenario_run.planned if (house.warehouse / key).exists()]
    assert read_everything(scenario_run) > len(SCENARIOS)
    house.now = START + timedelta(minutes=10)
    house.plan()
    assert house.keys("deletion_plan") == set()


def read_everything(scenario_run: ScenarioRun) -> int:
    """Read all contents that the server shows for refs at times since their cut-offs, and return their number."""
    cutoffs = {rule["match"].replace("\\", ""): rule.get("cutoff", rule.get("max_age")) for rule in scenario_run.rules(AS_OF)}
    needed = contents_since_cutoff(scenario_run.nessie.api, lambda name: _plain(cutoffs.get(name)), AS_OF)
    for _, location, _ in needed:
        address = Path(location.removeprefix("file://"))
        assert address.exists(), location
        if '"view-uuid"' not in address.read_text():
            read(open_table(location))
    return len(needed)


def read(table: Table) -> None:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    entries = [entry for manifest in snapshot.manifests(table.io) for entry in manifest.fetch_manifest_entry(table.io)]
    assert all(Path(entry.data_file.file_path.removeprefix("file://")).exists() for entry in entries)
    if all(entry.data_file.content != DataFileContent.EQUALITY_DELETES for entry in entries):  # pyiceberg cannot apply equality deletes
        assert table.scan().to_arrow().num_rows > 0


def _plain(value: Any) -> Any:
    """Convert a cut-off for the rules of `oracle`."""
    if value == "none":
        return None
    return datetime(2999, 1, 1, tzinfo=UTC) if isinstance(value, str) else value
