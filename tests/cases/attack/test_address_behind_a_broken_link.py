"""An address behind a broken link makes its own table unreadable, and never ends the run of all lakes.

The link leads to itself, a part of the path is longer than file systems allow, or a directory is private. A table property, a row of the
catalog or the location of a repository may contain such an address. An entry of a manifest with such a name is a file that does not exist.
"""

from __future__ import annotations

import io
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.state.summaries import LiveFilesSummary
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark
DATA = "write.data.path"
LONG = "n" * 300


@dataclass
class Run:
    """The plan of a run, its unreadable tables, and the garbage of the readable table and of the one that was read before."""

    header: PlanHeader
    unreadable: dict[str | None, str]
    planned: set[str]
    garbage: set[str]
    earlier: set[str]


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    house = Lakehouse(spark, tmp_path_factory.mktemp("links"), settings={"gates": {"max_delete_share": 1.0}})
    loop, outside = house.root / "loop", house.root / "outside"
    lake = LakeBuilder(house.root)
    tables = {name: lake.table(f"db.{name}", days_ago(40)) for name in ("good", "named", "earlier", "looping", "long")}
    for table in tables.values():
        table.append(days_ago(30))
    garbage = {house.key(path) for path in tables["good"].leftovers(days_ago(20), 2)}
    earlier = {house.key(path) for path in tables["earlier"].leftovers(days_ago(20), 1)}
    name_live_file(tables["named"], f"file://{outside}/{LONG}.parquet")
    outside.mkdir()
    loop.mkdir()
    RepositoryBuilder.create(loop / "repo", days_ago(40)).commit("main", days_ago(30), numbers("a", range(3)))
    set_property(lake, "earlier", f"file://{loop}/x")
    house.lakes = [lake.config("sales"), house.weather(location=str(loop / "repo"))]
    house.mark()
    shutil.rmtree(loop)
    loop.symlink_to(loop)
    set_property(lake, "looping", f"file://{loop}/x")
    set_property(lake, "long", f"file://{outside}/{LONG}/x")
    add_row(lake.root, f"file://{loop}/x/1.metadata.json")
    header = house.plan()
    summaries = [house.find_table("live_files", name).summary(LiveFilesSummary) for name in ("sales", "weather")]
    unreadable = {item.table_name: item.why for summary in summaries for item in summary.unreadable}
    return Run(header, unreadable, set(house.planned_actions()), garbage, earlier)


def set_property(lake: LakeBuilder, name: str, address: str) -> None:
    TableBuilder(lake, f"db.{name}").set_properties(days_ago(9), {DATA: address})


def add_row(root: Path, address: str) -> None:
    """Add the table db.row to the catalog, with this metadata address."""
    columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
    with closing(sqlite3.connect(root / "catalog.db")) as database, database:
        database.execute(f"insert into iceberg_tables ({columns}) values ('default', 'db', 'row', ?, 'TABLE')", (address,))  # noqa: S608


def name_live_file(table: TableBuilder, address: str) -> None:
    """Replace the file in the newest manifest of a table."""
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    path = table.path(snapshot.manifests(table.table.io)[0].manifest_path)
    reader: Any = fastavro.reader(io.BytesIO(path.read_bytes()))
    records, metadata = list(reader), {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    records[0]["data_file"]["file_path"] = address
    with path.open("wb") as file:
        fastavro.writer(file, reader.writer_schema, records, codec="null", metadata=metadata)


def test_tables_addressed_through_broken_links_are_unreadable(run: Run) -> None:
    assert run.unreadable.keys() == {"db.earlier", "db.looping", "db.long", "db.row", None}


@pytest.mark.parametrize("name", ["earlier", "looping", "row"])
def test_reason_contains_table_and_link_error(run: Run, name: str) -> None:
    assert f"db.{name}" in run.unreadable[f"db.{name}"]
    assert "Too many levels of symbolic links" in run.unreadable[f"db.{name}"]


def test_garbage_of_readable_tables_is_planned(run: Run) -> None:
    assert run.garbage <= run.planned


def test_no_file_of_unreadable_tables_is_planned(run: Run) -> None:
    assert {key for key in run.planned if not key.startswith(("db/good/", "db/named/"))} == set()
    assert run.earlier
