"""Live files with another address, through links and mounts into a storage."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.sweep.live_filter import live_keys
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.stages.sweep.sweep_checks import behind_links
from gc_assets.state.schemas import LIVE_FILES, STORAGE_INVENTORY
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark

OTHER = "other"


class TwoStorages(Lakehouse):
    """A second storage `<root>/other` without claims."""

    @property
    def other(self) -> Path:
        return self.root / OTHER

    @property
    def config(self) -> Config:
        config = super().config
        second = StorageConfig.model_validate({"name": OTHER, "location": f"file://{self.other}/"})
        return config.model_copy(update={"storages": (*config.storages, second)})

    def plan(self) -> PlanHeader:
        storage_inventory(self.spark, self.run_context(), OTHER)
        return super().plan()

    def other_links(self) -> list[str]:
        """Return live keys of the second storage that are behind its own links, after a plan of the
        first.
        """
        run_context = self.run_context()
        live = run_context.lake_tables(LIVE_FILES)
        return behind_links(
            self.spark, run_context, live_keys(self.spark, run_context, OTHER, live), run_context.table(STORAGE_INVENTORY, OTHER)
        )


@dataclass
class AliasedTables:
    """A table of the warehouse, and one that references files of the warehouse by other addresses."""

    house: TwoStorages
    borrower: TableBuilder
    garbage: Path

    def file(self, name: str) -> Path:
        path = self.garbage.parent / name
        pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "part": pa.array(["a"])}), path)
        os.utime(path, (days_ago(20).timestamp(),) * 2)
        return path

    def borrow(self, address: Path) -> None:
        with self.borrower.lake.at(days_ago(15)):
            self.borrower.table.add_files([f"file://{address}"], check_duplicate_files=False)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AliasedTables:
    house = TwoStorages(spark, tmp_path_factory.mktemp("aliases"))
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    borrower = lake.table("db.borrower", days_ago(40))
    borrower.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    house.other.mkdir()
    (house.root / "outside").mkdir()
    garbage = next(path for path in table.leftovers(days_ago(20), 1) if path.suffix == ".parquet")
    return AliasedTables(house, borrower, garbage)


def test_apply_keeps_file_that_new_commit_references_through_link(tables: AliasedTables) -> None:
    link = tables.house.root / "outside" / "since.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "part": pa.array(["a"])}), tables.garbage)
    os.utime(tables.garbage, (days_ago(20).timestamp(),) * 2)
    tables.house.now = days_ago(2)
    header = tables.house.plan()
    tables.house.approve(header)
    link.symlink_to(tables.garbage)
    tables.borrow(link)
    with pytest.raises(GateRefused, match=f"{tables.garbage.name}, which is file://{link}"):
        tables.house.apply(header)
    assert tables.garbage.exists()


def test_plan_is_refused_if_live_files_have_two_addresses(tables: AliasedTables) -> None:
    """The addresses were in no live set of the warehouse, so the files were planned there."""
    house, root = tables.house, tables.house.root
    data = tables.garbage.parent
    (house.other / "folder").symlink_to(data)
    (root / "outside" / "mount").mkdir()
    names = {
        "through-a-link-to-its-folder": house.other / "folder" / "1.parquet",
        "by-a-link-in-another-storage": house.other / "2.parquet",
        "by-a-link-outside": root / "outside" / "3.parquet",
        "by-a-bind-mount": root / "outside" / "mount" / "4.parquet",
    }
    files = {why: tables.file(address.name) for why, address in names.items()}
    names["by-a-link-in-another-storage"].symlink_to(files["by-a-link-in-another-storage"])
    names["by-a-link-outside"].symlink_to(files["by-a-link-outside"])
    bound = subprocess.run(["mount", "--bind", data, root / "outside" / "mount"], check=False, capture_output=True).returncode == 0
    if not bound:
        del names["by-a-bind-mount"]
    try:
        for address in names.values():
            tables.borrow(address)
        house.now = days_ago(1)
        header = house.plan()
    finally:
        if bound:
            subprocess.run(["umount", root / "outside" / "mount"], check=True)
    assert house.failed_gates(header) == {"links"}
    message = header.failed_gates[0].message
    assert f"{len(names) + 1} live files" in message
    assert {why for why, address in names.items() if f"{house.key(files[why])}, which is file://{address}" in message} == names.keys()
    assert house.other_links() == ["2.parquet", "folder/1.parquet"], "the other storage is stopped by its own links"
