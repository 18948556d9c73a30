"""Collect all scenarios on a real server in one run, and check every file after plan, apply and purge.

Some scenarios are random. The files that they need, and the reasons of the others, follow from the server's own logs and states, and from
the metadata as pyiceberg reads it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from gc_assets.core.clock import start_of_day
from tests.dates import next_noon
from tests.depth import example_count, in_turn
from tests.lakes.iceberg.builder import TableBuilder
from tests.lakes.nessie.builder import NessieBuilder, open_table
from tests.lakes.nessie.oracle import Content, apply_readable_rule, committed_contents, contents_since_cutoff
from tests.lakes.nessie.scenarios import SCENARIOS, PlayedScenario, draw_scenario, play
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = [pytest.mark.spark, in_turn]

START = next_noon(days=2)
AS_OF = start_of_day(START.date())


RANDOM_SCENARIOS = example_count(3, 30)
# Properties with the location of data files.
DATA_PATHS = ("write.data.path", "write.object-storage.path")


class ScenarioRun:
    """All scenarios and the run that collects them. The last ones are random."""

    def __init__(self, spark: SparkSession, server: Server, root: Path) -> None:
        server.reset()
        self.house = Lakehouse(spark, root, now=START, settings={"gates": {"max_delete_share": 1}})
        self.nessie = NessieBuilder(server.uri, self.house.warehouse)
        drawn = [*SCENARIOS, *map(draw_scenario, range(RANDOM_SCENARIOS))]
        self.scenarios = [play(self.nessie, self.house.warehouse, number, scenario) for number, scenario in enumerate(drawn)]
        self.house.lakes = [self.nessie.config(retention={"default": "none", "refs": self.rules(AS_OF)})]
        self.header = self.house.plan()
        self.planned = self.house.keys("deletion_plan")

    def rules(self, as_of: datetime) -> list[dict[str, object]]:
        return [rule for played in self.scenarios for rule in played.rules(as_of)]

    def cutoff_of(self, ref: str) -> Any:
        """Return the cut-off of a ref for the rules of `oracle`."""
        cutoffs = {rule["match"].replace("\\", ""): rule.get("cutoff", rule.get("max_age")) for rule in self.rules(AS_OF)}
        return _plain(cutoffs.get(ref))


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
    kept = {scenario_run.house.key(path) for played in scenario_run.scenarios[: len(SCENARIOS)] for path in played.kept}
    files = {key for key in scenario_run.house.files() if int(key[1:3]) < len(SCENARIOS)}
    assert files == kept | (scenario_run.planned & files)
    assert not kept & scenario_run.planned


def test_candidates_and_reasons_equal_brute_force(scenario_run: ScenarioRun) -> None:
    """A file of a known table is garbage if the server shows no content for a ref since its cut-off that needs the file."""
    house, api = scenario_run.house, scenario_run.nessie.api
    committed = committed_contents(api)
    needed, referenced = files_of(apply_readable_rule(api, scenario_run.cutoff_of, AS_OF)), files_of(committed)
    locations = tuple(f"{place.rstrip('/')}/" for place in locations_of(committed))
    expected = {
        house.key(path): "expired" if str(path) in referenced else "unreferenced"
        for path in house.warehouse.rglob("*")
        if path.is_file() and str(path) not in needed and (str(path) in referenced or str(path).startswith(locations))
    }
    assert house.orphans() == expected
    assert set(expected.values()) == {"expired", "unreferenced"}


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
    needed = contents_since_cutoff(scenario_run.nessie.api, scenario_run.cutoff_of, AS_OF)
    for _, location, _ in needed:
        address = Path(location.removeprefix("file://"))
        assert address.exists(), location
        if '"view-uuid"' not in address.read_text():
            read(open_table(location))
    return len(needed)


def files_of(contents: set[Content]) -> set[str]:
    """Return the paths of all files that the metadata of contents names."""
    found = set[str]()
    for location in {location for _, location, _ in contents}:
        found.add(location)
        if (table := _open(location)) is None:
            continue
        for snapshot in table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        found |= {item.statistics_path for item in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    return {str(TableBuilder.path(address)) for address in found}


def locations_of(contents: set[Content]) -> set[str]:
    """Return the directories of tables: those of their metadata, and those of their data if they differ."""
    tables = [table for _, location, _ in contents if (table := _open(location)) is not None]
    places = {table.metadata.location for table in tables}
    places |= {table.metadata.properties[name] for table in tables for name in DATA_PATHS if name in table.metadata.properties}
    return {str(TableBuilder.path(place)) for place in places}


@cache
def _open(location: str) -> Table | None:
    """Open the metadata file of a table, or return None if it belongs to a view."""
    return None if '"view-uuid"' in TableBuilder.path(location).read_text() else open_table(location)


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
