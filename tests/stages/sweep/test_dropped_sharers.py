"""Files that a dropped table needs in a directory that it shares with a listed table wait with it.

The tables `db.a` and `db.b` have the same `write.data.path`. Table `db.a` adopted a data file of `db.b` and replaced its own content
later, so that only an expired commit of `db.a` references the file. Then `db.b` is dropped.
"""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.dead_tables import accept_dead_table
from tests.depth import in_turn
from tests.stages.lakehouse import NOW, days_ago, outcomes
from tests.stages.sweep.test_dropped_tables import Shop, touch

pytestmark = [pytest.mark.spark, in_turn]


class Sharing(Shop):
    """`db.b` is dropped after day 1.

    Attributes:
        garbage: Keys of the data files that only `db.a` wrote and referenced.
        adopted: Keys of the data files that both tables referenced.
        unnamed: Keys of data files that `db.b` may have written since the last run that read it.
        uuid: Uuid of `db.b`.
        address: Newest metadata of `db.b`.
        rows: Number of its rows.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root, "c")
        shared = {"write.data.path": f"file://{self.house.warehouse}/shared"}
        a, b = (self.lake.table(f"db.{name}", days_ago(40), properties=shared) for name in "ab")
        for table in (a, b):
            table.append(days_ago(30))
        self.garbage, self.adopted = (set(map(self.house.key, table.data_files())) for table in (a, b))
        with self.lake.at(days_ago(20)):
            a.table.add_files([f"file://{path}" for path in b.data_files()])
        a.overwrite(days_ago(10))
        self.run(1)
        assert self.garbage <= self.house.planned_actions().keys()
        self.unnamed = {"shared/00000-0-54dac18a-6746-44b9-97fd-64cd41078f8d.parquet"}
        for key in self.unnamed:
            touch(self.house.warehouse / key, NOW + timedelta(hours=25))
        self.uuid, self.address, self.rows = b.uuid, b.metadata_location, b.table.scan().to_arrow().num_rows
        self.lake.catalog.drop_table("db.b")

    def list_planned_of_b(self) -> set[str]:
        return (self.adopted | self.unnamed) & self.house.planned_actions().keys()

    def accept(self, *, withdraw: bool = False) -> None:
        """Accept `db.b` as dead, or withdraw that."""
        accept(self, self.uuid, "db/b", "shared", withdraw=withdraw)


def accept(shop: Shop, table_uuid: str, *prefixes: str, withdraw: bool = False) -> None:
    for location in (f"file://{shop.house.warehouse}/{prefix}/" for prefix in prefixes):
        accept_dead_table(shop.house.config, shop.house.clock, table_uuid, location, "ada", withdraw=withdraw)


def test_files_shared_with_expired_commit_wait_with_dropped_table(spark: SparkSession, tmp_path: Path) -> None:
    shop = Sharing(spark, tmp_path)
    planned = {day: (shop.run(day), shop.list_planned_of_b())[1] for day in (2, 8.5)}
    assert planned == {2: set(), 8.5: set()}
    assert shop.garbage <= shop.house.planned_actions().keys()
    for key in shop.adopted:
        assert [found.verdict for found in explain(shop.house.run_context(), key)] == ["dropped"]
    shop.run(9.5)
    assert shop.list_planned_of_b() == shop.adopted | shop.unnamed


def test_shared_files_are_not_purged_while_dropped_table_waits_again(spark: SparkSession, tmp_path: Path) -> None:
    shop = Sharing(spark, tmp_path)
    of_b = shop.adopted | shop.unnamed
    shop.run(2)
    shop.house.now += timedelta(hours=1)
    shop.accept()
    header = shop.run(5)
    assert outcomes(shop.house.approve_and_apply(header)) == {"done"}
    purge = shop.run(6)
    assert {shop.house.planned_actions()[key] for key in shop.garbage | of_b} == {"purge"}
    shop.house.approve(purge)
    shop.accept(withdraw=True)
    assert outcomes(shop.house.apply(purge)) == {"done", "changed"}
    assert (shop.garbage | of_b) & shop.house.trash(header) == of_b
    shop.run(7)
    assert shop.list_planned_of_b() == set()
    shop.run(9.5)
    assert shop.list_planned_of_b() == of_b
    shop.house.restore(header.plan_id)
    shop.register("b", shop.address)
    assert shop.lake.catalog.load_table("db.b").scan().to_arrow().num_rows == shop.rows


def test_adopted_files_of_later_table_wait_with_dropped_table(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "ab")
    files = shop.tables["a"].data_files()
    keys, uuid = set(map(shop.house.key, files)), shop.tables["a"].uuid
    shop.run(1)
    shop.drop("a")
    shop.run(2)
    new = shop.lake.table("db.a", NOW + timedelta(hours=49))
    with shop.lake.at(NOW + timedelta(hours=49)):
        new.table.add_files([f"file://{path}" for path in files])
    new.overwrite(NOW + timedelta(hours=50))
    planned = {day: keys & (shop.run(day), shop.house.keys("deletion_plan"))[1] for day in (3, 7.5)}
    assert planned == {3: set(), 7.5: set()}
    shop.house.now += timedelta(hours=1)
    accept(shop, uuid, "db/a")
    header = shop.run(8)
    assert keys <= shop.house.planned_actions().keys()
    shop.house.approve(header)
    accept(shop, uuid, "db/a", withdraw=True)
    assert "changed" in outcomes(shop.house.apply(header))
    assert keys <= shop.house.files().keys()
    shop.run(9.5)
    assert keys <= shop.house.planned_actions().keys()


def test_copied_files_wait_with_dropped_table_in_shared_location(spark: SparkSession, tmp_path: Path) -> None:
    """The storage was copied without the times of its files. The rest of the story is a full refresh."""
    shop = Shop(spark, tmp_path, "ab")
    keys = {key for key in shop.house.files() if key.startswith("db/a/")}
    shop.run(1)
    shop.drop("a")
    shop.lake.table("db.a", NOW + timedelta(hours=36)).append(NOW + timedelta(hours=36))
    shop.run(2)
    copied = (NOW + timedelta(days=2.1)).timestamp()
    for path in (path for path in shop.house.warehouse.rglob("*") if path.is_file()):
        os.utime(path, (copied, copied))
    planned = {day: keys & (shop.run(day), shop.house.keys("deletion_plan"))[1] for day in (5.5, 8.5)}
    assert planned == {5.5: set(), 8.5: set()}
    for key in keys:
        assert [found.verdict for found in explain(shop.house.run_context(), key)] == ["dropped"]
    shop.run(9.5)
    assert keys <= shop.house.keys("deletion_plan")


def test_older_adopted_files_wait_if_only_apply_read_dropped_table(spark: SparkSession, tmp_path: Path) -> None:
    """A slow writer committed a file between the last run and the apply. The file is older than the run."""
    shop = Shop(spark, tmp_path, "ab")
    shop.tables["a"].overwrite(days_ago(20))
    file = shop.house.warehouse / "db/a/data/00000-0-54dac18a-6746-44b9-97fd-64cd41078f8d.parquet"
    shutil.copy(next(iter(shop.tables["a"].data_files())), file)
    written = (NOW + timedelta(days=1.4)).timestamp()
    os.utime(file, (written, written))
    header = shop.run(1.5)
    with shop.lake.at(shop.house.now + timedelta(hours=1)):
        shop.tables["a"].table.refresh().add_files([f"file://{file}"])
    os.utime(file, (written, written))
    shop.house.now += timedelta(hours=20)
    assert "done" in outcomes(shop.house.approve_and_apply(header))
    shop.drop("a")
    committed = shop.house.now + timedelta(hours=1)
    new = shop.lake.table("db.a", committed)
    with shop.lake.at(committed):
        new.table.add_files([f"file://{file}"])
    new.overwrite(committed + timedelta(hours=1))
    os.utime(file, (written, written))
    for day in (4, 10):
        shop.run(day)
        assert shop.waits_for("a") is not None
        assert shop.house.key(file) not in shop.house.keys("deletion_plan")
    shop.run(11.5)
    assert shop.house.key(file) in shop.house.keys("deletion_plan")
