"""Files that a dropped table adopted outside of its own location wait with it.

Table `db.b` adopted the data files of two tables. `db.a` was dropped after this move, and its
waiting time has ended. `db.k` is listed, and its own history no longer references the files.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.plan import PlanHeader
from gc_assets.engine import stored_hashes
from gc_assets.stages.mark import live_set
from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.accepted_runs import find_baseline_tables
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.stages.records.set_aside import set_table_aside
from gc_assets.stages.sweep import adopted_files
from gc_assets.stages.sweep.table_memory import find_accepted_sweep
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.side_tables import ADOPTED_FILES, ADOPTED_SIDE
from tests.depth import in_turn
from tests.stages.lakehouse import NOW, outcomes
from tests.stages.sweep.test_dropped_tables import GATES, Shop, path_of

pytestmark = [pytest.mark.spark, in_turn]


class Adoption(Shop):
    """`db.b` is dropped on day 12.5, when the files that it adopted are needed by no other table.

    Attributes:
        moved: Keys of the data files of `db.a`.
        cloned: Keys of the data files of `db.k`.
        address: Newest metadata of `db.b`.
    """

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        super().__init__(spark, root, "abck", **settings)
        files = {name: self.tables[name].data_files() for name in "ak"}
        self.moved, self.cloned = ({self.house.key(path) for path in files[name]} for name in "ak")
        clone, b = self.tables["k"].table, self.tables["b"].table
        with self.lake.at(NOW + timedelta(hours=1)):
            b.add_files([f"file://{path}" for paths in files.values() for path in paths])
            clone.overwrite(clone.scan().to_arrow())
            old = [snapshot.snapshot_id for snapshot in clone.snapshots()][:-1]
            clone.maintenance.expire_snapshots().by_ids(old).commit()
        self.rows = b.scan().to_arrow().num_rows
        self.uuid, self.address = self.tables["b"].uuid, b.metadata_location
        self.run(0.5)
        self.drop("a")
        self.run(4)
        self.run(12)
        assert self.list_adopted_in_plan() == set()
        self.drop("b")

    @property
    def adopted(self) -> set[str]:
        return self.moved | self.cloned

    def list_adopted_in_plan(self) -> set[str]:
        return self.adopted & set(self.house.keys("deletion_plan"))

    def read_adopted(self) -> pa.Table:
        """Return the rows of the side table of the last run."""
        swept = self.house.find_table("orphan_files")
        return read_parts(self.house.run_context().state.files, swept.paths(ADOPTED_SIDE), ADOPTED_FILES)

    def approve_accepted(self) -> PlanHeader:
        """Accept `db.b` as dead, and approve the plan with the files that it adopted."""
        self.run(13)
        self.house.now += timedelta(hours=1)
        self.accept()
        header = self.run(14)
        assert self.list_adopted_in_plan() == self.adopted
        self.house.approve(header)
        return header

    def accept(self, *, withdraw: bool = False) -> None:
        """Accept `db.b` as dead, or withdraw that."""
        location = f"file://{self.house.warehouse}/db/b/"
        accept_dead_table(self.house.config, self.house.clock, self.uuid, location, "ada", withdraw=withdraw)


@pytest.mark.parametrize("is_large", [False, True])
def test_adopted_files_are_kept_as_long_as_dropped_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """Executors write many files, and look them up in a temporary file."""
    if is_large:
        monkeypatch.setattr(stored_hashes, "MAX_KEPT_HASHES", 0)
        monkeypatch.setattr(live_set, "MAX_IN_PROCESS_ENTRIES", 0)
    shop = Adoption(spark, tmp_path)
    planned = {day: (shop.run(day), shop.list_adopted_in_plan())[1] for day in (13, 19.5)}
    assert planned == {13: set(), 19.5: set()}
    for key in shop.adopted:
        (found,) = explain(shop.house.run_context(), key)
        assert (found.verdict, "table db.b of lake sales" in found.sentence) == ("dropped", True)
    shop.run(20.5)
    assert shop.list_adopted_in_plan() == shop.adopted


def test_dropped_table_with_adopted_files_can_be_registered_again(spark: SparkSession, tmp_path: Path) -> None:
    shop = Adoption(spark, tmp_path)
    header = shop.run(13)
    assert shop.house.failed_gates(header) == set()
    assert outcomes(shop.house.approve_and_apply(header)) == {"done"}
    shop.register("b", shop.address)
    assert shop.lake.catalog.load_table("db.b").scan().to_arrow().num_rows == shop.rows
    shop.run(14)
    assert shop.read_adopted().num_rows == 0
    shop.drop("b")
    for day in (15, 21):
        shop.run(day)
        assert shop.list_adopted_in_plan() == set()


def test_adopted_files_are_kept_if_acceptance_of_table_is_withdrawn(spark: SparkSession, tmp_path: Path) -> None:
    shop = Adoption(spark, tmp_path)
    refused = shop.approve_accepted()
    shop.accept(withdraw=True)
    assert "changed" in outcomes(shop.house.apply(refused))
    assert shop.adopted <= shop.house.files().keys()
    shop.accept()
    header = shop.run(15)
    assert shop.list_adopted_in_plan() == shop.adopted
    assert outcomes(shop.house.approve_and_apply(header)) == {"done"}
    purge = shop.run(15.5)
    assert shop.house.planned_actions().keys() >= shop.adopted
    shop.house.approve(purge)
    shop.accept(withdraw=True)
    assert "changed" in outcomes(shop.house.apply(purge))
    shop.house.restore(header.plan_id)
    shop.register("b", shop.address)
    assert shop.lake.catalog.load_table("db.b").scan().to_arrow().num_rows == shop.rows


def test_adopted_files_are_recorded_while_table_may_be_unreadable(spark: SparkSession, tmp_path: Path) -> None:
    """An unreadable table with the name of the dropped table may be that table, so it does not
    count as missing.
    """
    shop = Adoption(spark, tmp_path)
    shop.run(13)
    other = shop.lake.table("db.b", NOW + timedelta(days=13), location=f"file://{shop.house.warehouse}/other")
    path_of(other.metadata_location).write_text("{")
    shop.run(14)
    assert "db.b" not in shop.read_dropped()
    assert shop.list_adopted_in_plan() == set()
    for key in shop.cloned:
        assert [found.verdict for found in explain(shop.house.run_context(), key)] == ["waiting"]
    set_table_aside(shop.house.config, shop.house.clock, "db.b", "ada")
    shop.run(14.5)
    assert shop.list_adopted_in_plan() == set()
    assert shop.read_adopted().num_rows == len(shop.adopted)
    shop.lake.catalog.drop_table("db.b")
    shop.run(15)
    assert shop.read_dropped()["db.b"]["gone_since"] is not None
    assert shop.list_adopted_in_plan() == set()


def test_apply_keeps_adopted_files_if_table_is_listed_but_unreadable(spark: SparkSession, tmp_path: Path) -> None:
    shop = Adoption(spark, tmp_path)
    header = shop.approve_accepted()
    document = json.loads(path_of(shop.address).read_text())
    for snapshot in document["snapshots"]:
        snapshot["manifest-list"] += ".missing"
    other = path_of(shop.address).with_name("99999-restored.metadata.json")
    other.write_text(json.dumps(document))
    shop.register("b", f"file://{other}")
    shop.house.apply(header)
    assert shop.adopted <= shop.house.files().keys()


@pytest.fixture
def replaced(spark: SparkSession, tmp_path: Path) -> Adoption:
    """The first run that missed `db.b` was accepted, and a refused run of its date replaced its tables."""
    shop = Adoption(spark, tmp_path)
    assert shop.house.failed_gates(shop.run(13)) == set()
    shop.house.settings["gates"] = {**GATES, "max_live_drop": 0.0}
    assert shop.house.failed_gates(shop.run(13.1)) == {"live_drop"}
    shop.house.settings["gates"] = GATES
    return shop


def test_prune_keeps_dropped_table_records_of_last_accepted_run(replaced: Adoption) -> None:
    house = replaced.house
    removed = house.run_context().state.prune(
        1, Clock(NOW + timedelta(days=400)), (DELETION_PLAN.name,), find_baseline_tables(house.config)
    )
    assert removed
    replaced.run(14)
    assert replaced.list_adopted_in_plan() == set()
    assert replaced.read_adopted().num_rows == len(replaced.adopted)


def test_sweep_of_an_earlier_accepted_run_is_used_if_the_last_one_is_missing(replaced: Adoption) -> None:
    """An earlier release removed it."""
    replaced.house.run_context().state.prune(1, Clock(NOW + timedelta(days=400)), (DELETION_PLAN.name,))
    replaced.run(14)
    assert replaced.list_adopted_in_plan() == set()
    replaced.run(20.5)
    assert replaced.list_adopted_in_plan() == set(), "the run of day 14 is the first to miss it"
    replaced.run(21.5)
    assert replaced.list_adopted_in_plan() == replaced.adopted


def test_missing_live_set_of_last_accepted_run_adds_note(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Adoption(spark, tmp_path)

    def open_without_inputs(*of: Any) -> PublishedTable | None:
        swept = find_accepted_sweep(*of)
        return None if swept is None else replace(swept, receipt=swept.receipt.model_copy(update={"inputs": {}}))

    monkeypatch.setattr(adopted_files, "find_accepted_sweep", open_without_inputs)
    shop.run(13)
    notes = shop.house.summary("orphan_files")["notes"]
    assert any(note.startswith("lake sales: the files that its dropped tables need outside their own locations") for note in notes)
