"""An override of the `foreign_metadata` gate took the files of the foreign table.

The documentation promised that it leaves them. But a plan that was approved with the override
quarantined the metadata and the data files of a table of an unconfigured catalog. The next run
found no metadata of it any more, so all gates passed, and its files were purged.

Source: an attack on the documented promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.dead_tables import accept_dead_table
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]

GATE = "foreign_metadata"


@dataclass
class SharedLocation:
    """A lake with garbage, and a table of an unconfigured catalog in the location of one of its tables.

    The table's data files are in the location of another table of the lake.
    """

    house: Lakehouse
    lake: LakeBuilder
    stranger: TableBuilder
    garbage: set[str]

    def files_of_stranger(self) -> set[str]:
        return {key for key in self.house.files() if key.startswith(("db/t/inside/", "db/u/theirs/"))}

    def scan(self) -> int:
        return self.stranger.table.scan().to_arrow().num_rows

    def run_with_override(self) -> PlanHeader:
        """Make a plan, approve it with the override and apply it."""
        header = self.house.plan()
        assert self.house.failed_gates(header) == {GATE}
        self.house.approve(header, GATE)
        assert outcomes(self.house.apply(header)) <= {"done"}
        return header


@pytest.fixture
def shared(spark: SparkSession, tmp_path: Path) -> SharedLocation:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
    lake = LakeBuilder(tmp_path)
    garbage = set[str]()
    for name in ("db.t", "db.u"):
        table = lake.table(name, days_ago(40))
        table.append(days_ago(30))
        garbage |= set(map(house.key, table.leftovers(days_ago(20), 2)))
    house.lakes = [lake.config("sales")]
    other = LakeBuilder(tmp_path, "other", "other.db")
    other.keep_times()
    home = f"file://{house.warehouse}/db"
    stranger = other.table("x.y", days_ago(40), location=f"{home}/t/inside", properties={"write.data.path": f"{home}/u/theirs"})
    stranger.append(days_ago(30))
    stranger.append(days_ago(25))
    return SharedLocation(house, lake, stranger, garbage)


def test_override_keeps_the_foreign_table_and_collects_other_garbage(shared: SharedLocation) -> None:
    house, theirs, rows = shared.house, shared.files_of_stranger(), shared.scan()
    assert {key.partition("/")[2].partition("/")[0] for key in theirs} == {"t", "u"}
    header = shared.run_with_override()
    assert set(house.planned_actions()) == shared.garbage
    assert "The plan leaves out all files in their locations" in next(gate.message for gate in header.gates if gate.name == GATE)
    assert house.trash(header) == shared.garbage
    assert (shared.scan(), shared.files_of_stranger()) == (rows, theirs)
    for key in theirs:
        (found,) = explain(house.run_context(), key)
        assert (found.verdict, GATE in found.sentence, "garbage" in found.sentence) == ("waiting", True, False)


def test_foreign_table_survives_the_purge_of_an_overridden_plan(shared: SharedLocation) -> None:
    house, theirs, rows = shared.house, shared.files_of_stranger(), shared.scan()
    shared.run_with_override()
    house.now += timedelta(days=1)
    shared.run_with_override()
    assert house.planned_actions() == dict.fromkeys(shared.garbage, "purge")
    house.now += timedelta(days=30)
    header = house.plan()
    assert (house.failed_gates(header), house.planned_actions()) == ({GATE}, {})
    assert (shared.scan(), shared.files_of_stranger()) == (rows, theirs)


def test_accepted_table_is_garbage_after_an_override(shared: SharedLocation) -> None:
    house, theirs = shared.house, shared.files_of_stranger()
    shared.run_with_override()
    accept_dead_table(house.config, house.clock, shared.stranger.uuid, f"file://{house.warehouse}/db/t/inside/", "ada")
    house.now += timedelta(days=1)
    header = house.plan()
    assert house.failed_gates(header) == set()
    assert house.planned_actions() == dict.fromkeys(theirs, "quarantine") | dict.fromkeys(shared.garbage, "purge")


def test_override_does_not_purge_files_quarantined_from_foreign_table_location(shared: SharedLocation) -> None:
    """The other catalog may have referenced the file before it was quarantined."""
    house = shared.house
    metadata = [house.warehouse / key for key in shared.files_of_stranger() if key.endswith(".metadata.json")]
    contents = [(path, path.read_bytes()) for path in metadata]
    for path in metadata:
        path.unlink()
    header = house.plan()
    assert house.failed_gates(header) == set()
    house.approve_and_apply(header)
    assert not {key for key in shared.files_of_stranger() if key.startswith("db/u/theirs/")}
    for path, content in contents:
        path.write_bytes(content)
    house.now += timedelta(days=1)
    later = shared.run_with_override()
    assert house.planned_actions() == dict.fromkeys(shared.garbage, "purge")
    (left_out,) = later.left_out
    assert GATE in left_out.reason
    house.restore(header.plan_id)
    assert shared.scan() > 0


def test_override_keeps_files_of_table_written_by_a_second_catalog(shared: SharedLocation) -> None:
    """The garbage of the known table waits too, because the second catalog may use it."""
    house, lake = shared.house, shared.lake
    accept_dead_table(house.config, house.clock, shared.stranger.uuid, f"file://{house.warehouse}/db/t/inside/", "ada")
    second = LakeBuilder(house.root, "second", "second.db")
    second.catalog.create_namespace("db")
    second.keep_times()
    theirs = second.register("db.t", TableBuilder(lake, "db.t").metadata_location)
    theirs.append(days_ago(20))
    theirs.append(days_ago(19))
    rows = theirs.table.scan().to_arrow().num_rows
    shared.run_with_override()
    assert {key for key in shared.garbage if key.startswith("db/u/")} <= set(house.planned_actions())
    assert not [key for key in house.planned_actions() if key.startswith("db/t/")]
    assert theirs.table.scan().to_arrow().num_rows == rows
