"""Every scenario on the real server, judged by one night: the fate of every file, then the same by apply, purge and pyiceberg."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from gc_assets.core.clock import start_of_day
from tests.days import noon
from tests.lakes.nessie.builder import NessieBuilder, open_table
from tests.lakes.nessie.scenarios import SCENARIOS, Told, tell
from tests.lakes.nessie.server import Server
from tests.lakes.nessie.oracle import shown_from_the_cutoff_on
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = pytest.mark.spark

START = noon(days=2)
AS_OF = start_of_day(START.date())


class Judged:
    """All stories, and the night that judged them."""

    def __init__(self, spark: SparkSession, server: Server, root: Path) -> None:
        server.reset()
        self.house = Lakehouse(spark, root, now=START, settings={"gates": {"max_delete_share": 1}})
        self.nessie = NessieBuilder(server.uri, self.house.warehouse)
        self.told = [tell(self.nessie, self.house.warehouse, number, story) for number, story in enumerate(SCENARIOS)]
        self.house.lakes = [self.nessie.config(retention={"default": "none", "refs": self.rules(AS_OF)})]
        self.header = self.house.plan()
        self.planned = self.house.keys("deletion_plan")

    def rules(self, as_of: datetime) -> list[dict[str, object]]:
        return [rule for told in self.told for rule in told.rules(as_of)]


@pytest.fixture(scope="module")
def judged(spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(spark, nessie_server, tmp_path_factory.mktemp("scenarios"))


def test_run_passes_its_gates(judged: Judged) -> None:
    assert judged.header.failed_gates == []


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=[story.name for story in SCENARIOS])
def test_scenario_deletes_the_expected_files(judged: Judged, number: int) -> None:
    told: Told = judged.told[number]
    mine = {key for key in judged.planned if key.startswith(f"s{number:02}/")}
    assert mine == {judged.house.key(path) for path in told.gone}


def test_every_file_is_kept_or_planned(judged: Judged) -> None:
    kept = {judged.house.key(path) for told in judged.told for path in told.kept}
    assert set(judged.house.files()) == kept | judged.planned
    assert not kept & judged.planned


def test_all_contents_are_readable_after_the_purge(judged: Judged) -> None:
    house = judged.house
    house.carry_out(judged.header)
    house.now = START + timedelta(minutes=5)
    purge = house.plan()
    assert set(house.planned().values()) == {"purge"}
    assert outcomes(house.carry_out(purge)) == {"done"}
    assert not [key for key in judged.planned if (house.warehouse / key).exists()]
    assert read_everything(judged) > len(SCENARIOS)
    house.now = START + timedelta(minutes=10)
    house.plan()
    assert house.keys("deletion_plan") == set()


def read_everything(judged: Judged) -> int:
    """Reads every table at every ref and at every time from its cut-off on, as the server itself shows them; how many."""
    cutoffs = {rule["match"].replace("\\", ""): rule.get("cutoff", rule.get("max_age")) for rule in judged.rules(AS_OF)}
    needed = shown_from_the_cutoff_on(judged.nessie.api, lambda name: _plain(cutoffs.get(name)), AS_OF)
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
    if all(entry.data_file.content != DataFileContent.EQUALITY_DELETES for entry in entries):  # which pyiceberg cannot apply
        assert table.scan().to_arrow().num_rows > 0


def _plain(value: Any) -> Any:
    """A cut-off as the rules of `support` read it."""
    if value == "none":
        return None
    return datetime(2999, 1, 1, tzinfo=UTC) if isinstance(value, str) else value
