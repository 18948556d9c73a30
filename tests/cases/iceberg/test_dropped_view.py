"""A view that its catalog no longer lists refuses no plan, and keeps its metadata.

After `drop view`, its metadata in the location of a table looked like that of an unconfigured
catalog, and the `foreign_metadata` gate refused all later plans of the storage.

Source: an attack. The view has the former name of a renamed table, as in apache/iceberg #7052.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.read.acceptances import describe_dead_table
from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import KNOWN_VIEWS, KNOWN_VIEWS_SIDE
from tests.cases.iceberg.test_one_unreadable_object import VIEW_UUID, register_view, write_view
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


@dataclass
class DroppedView:
    """A table, and the metadata of a view in its location that the first run read."""

    house: Lakehouse
    lake: LakeBuilder
    leftovers: set[str]
    view: Path

    @property
    def key(self) -> str:
        return self.house.key(self.view)

    def drop(self) -> None:
        with closing(sqlite3.connect(self.house.root / "catalog.db")) as database, database:
            database.execute("delete from iceberg_tables where iceberg_type = 'VIEW'")

    def run(self, days: float) -> PlanHeader:
        self.house.now = days_ago(-days)
        return self.house.plan()

    def plan(self, days: float) -> set[str]:
        """Return the planned keys of a run that passes all gates."""
        assert self.house.failed_gates(self.run(days)) == set()
        return set(self.house.planned_actions())

    def notes(self) -> list[str]:
        return [note for note in self.house.summary("orphan_files")["notes"] if "of views that the catalog no longer lists" in note]

    def list_views(self) -> dict[str, bool]:
        """Return which views the last run remembers, and whether a catalog lists them."""
        swept = self.house.find_table("orphan_files")
        rows = read_parts(self.house.run_context().state.files, swept.paths(KNOWN_VIEWS_SIDE), KNOWN_VIEWS).to_pylist()
        return {row["uuid"]: row["gone_since"] is None for row in rows}


@pytest.fixture
def dropped(spark: SparkSession, tmp_path: Path) -> DroppedView:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    leftovers = set(map(house.key, table.leftovers(days_ago(20), 1)))
    lake.catalog.rename_table("db.t", "db.t_base")
    view = write_view(house.warehouse / "db/t/metadata/00001-v.gz.metadata.json", 1)
    register_view(house.root / "catalog.db", view)
    house.lakes = [lake.config("sales")]
    found = DroppedView(house, lake, leftovers, view)
    assert found.plan(0) == leftovers
    found.drop()
    return found


def test_metadata_of_dropped_view_is_kept_without_refusing_plans(dropped: DroppedView) -> None:
    for days in (1, 2, 400, 800):
        assert dropped.plan(days) == dropped.leftovers
        assert len(dropped.notes()) == 1
        assert dropped.list_views() == {VIEW_UUID: False}
    (found,) = explain(dropped.house.run_context(), dropped.key)
    assert (found.verdict, "kept for now" in found.sentence) == ("waiting", True)


def test_accept_command_in_the_note_releases_view_metadata(dropped: DroppedView) -> None:
    dropped.plan(1)
    (note,) = dropped.notes()
    advice = re.search(r"gc-assets accept (.*?) --by WHO", note)
    assert advice is not None
    uuid, location = shlex.split(advice[1])
    storage, record = accept_dead_table(dropped.house.config, dropped.house.clock, uuid, location, "ada")
    effect = "The next run plans the metadata of the dropped view db.t under db/t/, unless a catalog lists it."
    assert describe_dead_table(dropped.house.config, storage, record) == effect
    assert dropped.plan(2) == dropped.leftovers | {dropped.key}
    assert dropped.notes() == []
    dropped.house.approve_and_apply(dropped.run(3))
    assert not dropped.view.exists()


def test_all_metadata_versions_of_a_dropped_view_are_kept(dropped: DroppedView) -> None:
    """This includes a version written between the last run and the drop."""
    write_view(dropped.view.with_name("00002-v.gz.metadata.json"), 2)
    write_view(dropped.view.with_name("00003-v.gz.metadata.json"), 41)
    assert dropped.plan(2) == dropped.leftovers
    assert "is kept (3 files)" in dropped.notes()[0]


def test_view_replaced_in_another_catalog_refuses_the_plan(dropped: DroppedView) -> None:
    assert dropped.plan(1) == dropped.leftovers
    write_view(dropped.view.with_name("00002-v.gz.metadata.json"), 42)
    header = dropped.run(3)
    assert dropped.house.failed_gates(header) == {"foreign_metadata"}
    assert f"view {VIEW_UUID}, which is not among the views" in header.failed_gates[0].message


def test_metadata_of_view_listed_again_is_live(dropped: DroppedView) -> None:
    dropped.plan(1)
    register_view(dropped.house.root / "catalog.db", dropped.view)
    assert dropped.plan(2) == dropped.leftovers
    assert (dropped.notes(), dropped.list_views()) == ([], {VIEW_UUID: True})
    assert dropped.key in dropped.house.live()


def test_view_metadata_refuses_the_plan_after_change_of_catalog(dropped: DroppedView) -> None:
    """The catalog that listed the view may still have it."""
    shutil.copy(dropped.house.root / "catalog.db", dropped.house.root / "next.db")
    dropped.house.lakes = [dropped.lake.config("sales", catalog={"type": "sql", "uri": f"sqlite:///{dropped.house.root}/next.db"})]
    assert dropped.house.failed_gates(dropped.run(1)) == {"foreign_metadata"}


def test_dropped_view_without_files_is_removed_from_the_record(dropped: DroppedView) -> None:
    dropped.view.unlink()
    dropped.plan(1)
    assert dropped.list_views() == {VIEW_UUID: False}
    dropped.plan(367)
    assert dropped.list_views() == {}
