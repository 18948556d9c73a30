"""One night over one storage full of traps: whatever any lake needs survives, whatever way it is spelled or shared."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


@dataclass
class Trapped:
    house: Lakehouse
    header: PlanHeader
    protected: dict[str, str]
    garbage: set[str]
    planned: set[str]
    live: set[str]


def add_spelled(table: TableBuilder, folder: Path, name: str, spell: Callable[[Path], str]) -> Path:
    """A data file that the table's manifest names by `spell`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "part": pa.array(["a"])}), path)
    with table.lake.at(days_ago(15)):
        table.table.add_files([spell(path)], check_duplicate_files=False)
    return path


@pytest.fixture(scope="module")
def trapped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Trapped:
    house = Lakehouse(spark, tmp_path_factory.mktemp("protection"))
    iceberg = LakeBuilder(house.root)
    protected: dict[str, str] = {}
    garbage: list[Path] = []

    table = iceberg.table("db.t", days_ago(40))
    table.append(days_ago(30))
    garbage += table.leftovers(days_ago(20), 2)
    home = house.warehouse / "db" / "t"

    # Sibling and nested locations.
    sibling = iceberg.table("db.t_2", days_ago(40))
    sibling.append(days_ago(30))
    nested = iceberg.table("db.inner", days_ago(40), location=f"file://{home}/nested")
    nested.append(days_ago(30))
    garbage += nested.leftovers(days_ago(20), 1)
    protected |= {house.key(path): "sibling" for path in (house.warehouse / "db" / "t_2").rglob("*.parquet")}
    protected |= {house.key(path): "nested" for path in (home / "nested" / "data").rglob("*.parquet") if path not in garbage}

    # gc.enabled=false keeps everything of a table, its crash leftovers too, also inside another table's location.
    kept = iceberg.table("db.kept", days_ago(40), location=f"file://{home}/kept", properties={"gc.enabled": "false"})
    kept.append(days_ago(30))
    kept.append(days_ago(20))
    protected |= {house.key(path): "gc.enabled=false" for path in kept.leftovers(days_ago(20), 2)}

    # A table whose location is the whole storage has its folders only, and not what else lies there.
    rooted = iceberg.table("db.rooted", days_ago(40), location=f"file://{house.warehouse}")
    rooted.append(days_ago(30))
    garbage += rooted.leftovers(days_ago(20), 1)

    # A checksum beside a file stays and goes with it.
    live_file = next(path for path in (house.warehouse / "data").glob("*.parquet") if path not in garbage)
    for path in (live_file, garbage[0]):
        checksum = path.with_name(f".{path.name}.crc")
        checksum.write_bytes(b"crc")
        os.utime(checksum, (days_ago(20).timestamp(),) * 2)
    protected[house.key(live_file.with_name(f".{live_file.name}.crc"))] = "checksum"
    garbage.append(garbage[0].with_name(f".{garbage[0].name}.crc"))

    # One live file, many spellings. pyiceberg reads what it is given, and so must we.
    spelled = iceberg.table("db.spelled", days_ago(40))
    spelled.append(days_ago(30))
    data = house.warehouse / "db" / "spelled" / "data"
    for name, spell in {
        "bare.parquet": str,
        "one slash.parquet": lambda path: f"file:{path}",
        "three slashes.parquet": lambda path: f"file://{path}",
        "percent%20sign.parquet": lambda path: f"file://{path}",
        "umlaut-\u00fc.parquet": lambda path: f"file://{path}",
        "doubled.parquet": lambda path: f"file://{path.parent}//{path.name}",
    }.items():
        protected[house.key(add_spelled(spelled, data, name, spell))] = f"spelled {name}"

    # A file of one lake's location that another lake refers to.
    borrowed = home / "data" / "borrowed.nc"
    borrowed.write_bytes(b"12345678" * 4)
    os.utime(borrowed, (days_ago(30).timestamp(),) * 2)
    protected[house.key(borrowed)] = "virtual reference"
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40), virtual_below=home / "data")

    def refer(group: object) -> None:
        array = group.create_array("virtual", shape=(4,), chunks=(1,), dtype="i8", compressors=None, fill_value=-1)  # type: ignore[attr-defined]
        for index in range(4):
            group.store.set_virtual_ref(f"{array.path}/c/{index}", f"file://{borrowed}", offset=8 * index, length=8)  # type: ignore[attr-defined]

    repository.commit("main", days_ago(25), refer)

    # The same table in a second catalog, at an older age: what that one still shows stays.
    other = LakeBuilder(house.root, catalog_name="other", catalog_file=str(home / "data" / "other.db"))
    twice = iceberg.table("db.twice", days_ago(40), properties={"history.expire.max-snapshot-age-ms": str(86_400_000)})
    twice.append(days_ago(30))
    other.catalog.create_namespace("db")
    other.catalog.register_table("db.twice", twice.metadata_location)
    old_files = {house.key(path) for path in (house.warehouse / "db" / "twice" / "data").rglob("*.parquet")}
    twice.overwrite(days_ago(20))
    twice.append(days_ago(10))
    protected |= dict.fromkeys(old_files, "registered in two catalogs")

    # What is no object is never a candidate.
    (home / "data" / "link.parquet").symlink_to(house.root / "catalog.db")
    (home / "data" / "folder-link").symlink_to(house.root)
    os.mkfifo(home / "data" / "pipe.parquet")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(home / "data")  # a socket's path is short
        server.bind("s.parquet")
        os.chdir(here)
    odd = os.fsencode(home / "data") + b"/not-utf8-\xff.parquet"
    with open(odd, "wb") as sink:  # noqa: PTH123  (a name that no Path should have to spell)
        sink.write(b"x")
    os.utime(odd, (days_ago(30).timestamp(),) * 2)

    # Outside every claim.
    stray = house.warehouse / "notes.txt"
    stray.write_text("mine")
    os.utime(stray, (days_ago(30).timestamp(),) * 2)
    protected["notes.txt"] = "unowned"

    # A catalog lies below the location of a table.
    protected[house.key(home / "data" / "other.db")] = "catalog"
    os.utime(home / "data" / "other.db", (days_ago(30).timestamp(),) * 2)

    house.lakes = [iceberg.config("sales"), other.config("archive"), house.weather()]
    header = house.plan()
    return Trapped(house, header, protected, {house.key(path) for path in garbage}, house.leftovers(), house.live())


def test_all_gates_pass(trapped: Trapped) -> None:
    assert trapped.header.failed_gates == []


def test_exactly_the_crash_leftovers_are_planned(trapped: Trapped) -> None:
    assert trapped.planned == trapped.garbage


@pytest.mark.parametrize("why", ["sibling", "nested", "virtual reference", "registered in two catalogs"])
def test_what_another_needs_is_live(trapped: Trapped, why: str) -> None:
    keys = {key for key, reason in trapped.protected.items() if reason == why}
    assert keys
    assert keys <= trapped.live


def test_nothing_protected_is_an_orphan(trapped: Trapped) -> None:
    orphans = trapped.house.keys("orphan_files")
    assert {key: why for key, why in trapped.protected.items() if key in orphans} == {}


def test_a_location_that_is_a_whole_storage_is_told(trapped: Trapped) -> None:
    notes = trapped.house.summary("orphan_files")["notes"]
    assert next(note for note in notes if "is a whole storage, or contains a prefix" in note).startswith("lake sales: file:///")


def test_every_spelling_of_a_live_file_is_one_key(trapped: Trapped) -> None:
    spelled = {key for key, why in trapped.protected.items() if why.startswith("spelled")}
    assert len(spelled) == 6
    assert spelled <= trapped.live


def test_what_is_no_object_is_reported_and_no_candidate(trapped: Trapped) -> None:
    assert trapped.house.summary("storage_inventory")["problems"] == {"symlink": 2, "special": 2, "not_utf8": 1}
    inventory = trapped.house.keys("storage_inventory")
    assert not {key for key in inventory if "link" in key or "pipe" in key or "not-utf8" in key}


def test_unowned_files_are_counted_and_left_alone(trapped: Trapped) -> None:
    assert trapped.house.summary("orphan_files")["storage_breakdown"]["unowned"]["files"] >= 1


def test_after_apply_every_table_reads_in_full(trapped: Trapped) -> None:
    house = trapped.house
    house.approve_and_apply(trapped.header)
    iceberg = LakeBuilder(house.root)
    for name in ("db.t", "db.t_2", "db.inner", "db.kept", "db.spelled", "db.twice", "db.rooted"):
        assert iceberg.catalog.load_table(name).scan().to_arrow().num_rows > 0
    other = LakeBuilder(house.root, "other", str(house.warehouse / "db" / "t" / "data" / "other.db"))
    assert other.catalog.load_table("db.twice").scan().to_arrow().num_rows == 2
    assert (house.warehouse / "db" / "t" / "data" / "borrowed.nc").exists()
    shutil.rmtree(house.warehouse / ".gc-assets")
