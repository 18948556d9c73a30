"""`accept` of a dead uuid in the location of a live table does not release files of other programs there.

The `foreign_metadata` gate reports the location of the live table if a view that no run read left its
metadata there, or after a failed creation. The record of `accept` was applied to the whole location,
so files of other programs in it were quarantined.

Source: an attack. The view has the former name of a renamed table, as in apache/iceberg #7052.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.foreign import ForeignRules
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.records.accepted_prefixes import accept_prefix
from gc_assets.stages.records.dead_tables import accept_dead_table
from tests.cases.iceberg.test_one_unreadable_object import write_old, write_view
from tests.depth import in_turn
from tests.lakes.iceberg.builder import SCHEMA, LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

OTHERS = ("landing/invoices.csv", "landing/2026/more.csv", "_checkpoints/x.bin", "models/model.parquet")


@dataclass
class SharedLocation:
    """A table whose location contains files of other programs, and metadata of another uuid."""

    house: Lakehouse
    metadata: str
    leftovers: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def accept(self, header: PlanHeader) -> None:
        """Run the command that the gate prints."""
        (gate,) = header.failed_gates
        advice = re.search(r"`gc-assets accept (.*?) --by WHO`", gate.message)
        assert (gate.name, advice is not None) == ("foreign_metadata", True)
        uuid, location = shlex.split(advice[1] if advice else "")
        assert location == f"file://{self.house.warehouse}/db/t/"
        accept_dead_table(self.house.config, self.house.clock, uuid, location, "ada")


@pytest.fixture(params=["view", "failed creation"])
def shared(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> SharedLocation:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    leftovers = set(map(house.key, table.leftovers(days_ago(20), 1)))
    others = {house.key(write_old(house.warehouse / "db" / "t" / name, b"x")) for name in OTHERS}
    directory = house.warehouse / "db" / "t" / "metadata"
    before = set(directory.iterdir())
    if request.param == "view":
        write_view(directory / "00001-v.gz.metadata.json", 1)
    else:
        with lake.at(days_ago(10)):
            lake.catalog.create_table_if_not_exists("db.t", SCHEMA)
    (metadata,) = set(directory.iterdir()) - before
    house.lakes = [lake.config("sales")]
    return SharedLocation(house, house.key(metadata), leftovers, others)


def test_accepted_dead_uuid_releases_only_metadata_of_that_table(shared: SharedLocation) -> None:
    house = shared.house
    shared.accept(house.plan())
    house.now += timedelta(days=1)
    header = house.plan()
    assert house.failed_gates(header) == set()
    assert set(house.planned_actions()) == shared.leftovers | {shared.metadata}
    assert shared.others <= house.keys("orphan_files", reason="foreign")
    house.approve_and_apply(header)
    assert all((house.warehouse / key).exists() for key in shared.others)


def test_apply_of_plan_from_earlier_release_keeps_foreign_files(shared: SharedLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The apply checks each row of the plan again."""
    house = shared.house
    shared.accept(house.plan())
    house.now += timedelta(days=1)
    with monkeypatch.context() as patched:
        patched.setattr("gc_assets.stages.sweep.foreign_files.ForeignRules", lambda *args: replace(ForeignRules(*args), listed=frozenset()))
        header = house.plan()
    assert "db/t/landing/invoices.csv" in house.planned_actions()
    house.approve_and_apply(header)
    assert all((house.warehouse / key).exists() for key in shared.others)


def test_foreign_files_require_a_separate_acceptance(shared: SharedLocation) -> None:
    house = shared.house
    shared.accept(house.plan())
    accept_prefix(house.config, house.clock, f"file://{house.warehouse}/db/t/landing/", "ada")
    house.now += timedelta(days=1)
    house.plan()
    freed = {key for key in shared.others if key.startswith("db/t/landing/")}
    assert set(house.planned_actions()) == shared.leftovers | {shared.metadata} | freed
