"""Files that any lake needs are kept, however they are spelled or shared."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.cli.run_tables import print_run
from gc_assets.core.phases import PHASES
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.apply import phases_of
from gc_assets.stages.read.doctor_records import check_last_run
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


@dataclass
class ProtectedFiles:
    house: Lakehouse
    header: PlanHeader
    protected: dict[str, str]
    garbage: set[str]
    planned: set[str]
    live: set[str]


def add_data_file(table: TableBuilder, folder: Path, name: str, spelling: Callable[[Path], str]) -> Path:
    """Add a data file that the manifest references with `spelling`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "part": pa.array(["a"])}), path)
    with table.lake.at(days_ago(15)):
        table.table.add_files([spelling(path)], check_duplicate_files=False)
    return path


@dataclass
class Scene:
    """A storage in which protected files and garbage are added step by step."""

    house: Lakehouse
    iceberg: LakeBuilder
    protected: dict[str, str] = field(default_factory=dict)
    garbage: list[Path] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """The location of the table `db.t`."""
        return self.house.warehouse / "db" / "t"

    def add_table(self) -> None:
        table = self.iceberg.table("db.t", days_ago(40))
        table.append(days_ago(30))
        self.garbage += table.leftovers(days_ago(20), 2)

    def add_sibling_and_nested_tables(self) -> None:
        house = self.house
        sibling = self.iceberg.table("db.t_2", days_ago(40))
        sibling.append(days_ago(30))
        nested = self.iceberg.table("db.inner", days_ago(40), location=f"file://{self.home}/nested")
        nested.append(days_ago(30))
        self.garbage += nested.leftovers(days_ago(20), 1)
        self.protected |= {house.key(path): "sibling" for path in (house.warehouse / "db" / "t_2").rglob("*.parquet")}
        files = (self.home / "nested" / "data").rglob("*.parquet")
        self.protected |= {house.key(path): "nested" for path in files if path not in self.garbage}

    def add_table_without_gc(self) -> None:
        """Add a table with gc.enabled=false, which keeps all files, leftovers included, even in the location of another table."""
        kept = self.iceberg.table("db.kept", days_ago(40), location=f"file://{self.home}/kept", properties={"gc.enabled": "false"})
        kept.append(days_ago(30))
        kept.append(days_ago(20))
        self.protected |= {self.house.key(path): "gc.enabled=false" for path in kept.leftovers(days_ago(20), 2)}

    def add_table_of_whole_storage(self) -> None:
        """Add a table whose location is the whole storage. It claims only its own directories."""
        rooted = self.iceberg.table("db.rooted", days_ago(40), location=f"file://{self.house.warehouse}")
        rooted.append(days_ago(30))
        self.garbage += rooted.leftovers(days_ago(20), 1)

    def add_checksums(self) -> None:
        """Add checksum files, each of which is kept or deleted together with its file."""
        live_file = next(path for path in (self.house.warehouse / "data").glob("*.parquet") if path not in self.garbage)
        for path in (live_file, self.garbage[0]):
            checksum = path.with_name(f".{path.name}.crc")
            checksum.write_bytes(b"crc")
            os.utime(checksum, (days_ago(20).timestamp(),) * 2)
        self.protected[self.house.key(live_file.with_name(f".{live_file.name}.crc"))] = "checksum"
        self.garbage.append(self.garbage[0].with_name(f".{self.garbage[0].name}.crc"))

    def add_spellings(self) -> None:
        """Add files in spellings that pyiceberg can read, so they must all be live."""
        varied = self.iceberg.table("db.spelled", days_ago(40))
        varied.append(days_ago(30))
        data = self.house.warehouse / "db" / "spelled" / "data"
        for name, spelling in {
            "bare.parquet": str,
            "one slash.parquet": lambda path: f"file:{path}",
            "three slashes.parquet": lambda path: f"file://{path}",
            "percent%20sign.parquet": lambda path: f"file://{path}",
            "umlaut-\u00fc.parquet": lambda path: f"file://{path}",
            "doubled.parquet": lambda path: f"file://{path.parent}//{path.name}",
        }.items():
            self.protected[self.house.key(add_data_file(varied, data, name, spelling))] = f"spelled {name}"

    def add_file_of_other_lake(self) -> None:
        """Add a file in the location of one lake that another lake references."""
        referenced = self.home / "data" / "borrowed.nc"
        referenced.write_bytes(b"12345678" * 4)
        os.utime(referenced, (days_ago(30).timestamp(),) * 2)
        self.protected[self.house.key(referenced)] = "virtual reference"
        repository = RepositoryBuilder.create(self.house.warehouse / "weather", days_ago(40), virtual_below=self.home / "data")

        def write_virtual_refs(group: object) -> None:
            array = group.create_array("virtual", shape=(4,), chunks=(1,), dtype="i8", compressors=None, fill_value=-1)  # type: ignore[attr-defined]
            for index in range(4):
                group.store.set_virtual_ref(f"{array.path}/c/{index}", f"file://{referenced}", offset=8 * index, length=8)  # type: ignore[attr-defined]

        repository.commit("main", days_ago(25), write_virtual_refs)

    def add_second_catalog(self) -> LakeBuilder:
        """Add a catalog with older metadata of the same table, which protects its files.

        Its database is in the location of a table.
        """
        house = self.house
        other = LakeBuilder(house.root, catalog_name="other", catalog_file=str(self.home / "data" / "other.db"))
        registered = self.iceberg.table("db.twice", days_ago(40), properties={"history.expire.max-snapshot-age-ms": str(86_400_000)})
        registered.append(days_ago(30))
        other.catalog.create_namespace("db")
        other.catalog.register_table("db.twice", registered.metadata_location)
        old_files = {house.key(path) for path in (house.warehouse / "db" / "twice" / "data").rglob("*.parquet")}
        registered.overwrite(days_ago(20))
        registered.append(days_ago(10))
        self.protected |= dict.fromkeys(old_files, "registered in two catalogs")
        self.protected[house.key(self.home / "data" / "other.db")] = "catalog"
        os.utime(self.home / "data" / "other.db", (days_ago(30).timestamp(),) * 2)
        return other

    def add_matching_and_unowned_files(self) -> None:
        """Add garbage of a table that `protect` matches, and a file outside every claim."""
        landed = self.home / "data" / "landing" / "day=1" / "a.csv"
        unowned = self.house.warehouse / "notes.txt"
        for path, text, days, reason in ((landed, "csv", 20, "protect"), (unowned, "mine", 30, "unowned")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (days_ago(days).timestamp(),) * 2)
            self.protected[self.house.key(path)] = reason

    def add_special_files(self) -> None:
        """Add special files and links, which are never candidates."""
        data = self.home / "data"
        (data / "link.parquet").symlink_to(self.house.root / "catalog.db")
        (data / "folder-link").symlink_to(self.house.root)
        os.mkfifo(data / "pipe.parquet")
        with socket.socket(socket.AF_UNIX) as server:
            directory = Path.cwd()
            os.chdir(data)  # the path of a socket must be short
            server.bind("s.parquet")
            os.chdir(directory)
        undecodable = os.fsencode(data) + b"/not-utf8-\xff.parquet"
        with open(undecodable, "wb") as sink:  # noqa: PTH123  (a Path cannot contain this name)
            sink.write(b"x")
        os.utime(undecodable, (days_ago(30).timestamp(),) * 2)


@pytest.fixture(scope="module")
def protected_files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ProtectedFiles:
    patterns = ["db/t/data/landing/**", "db/t/data/lnading/**", "db/t_2/data"]  # the last one matches live files only
    house = Lakehouse(spark, tmp_path_factory.mktemp("protection"), settings={"protect": patterns})
    scene = Scene(house, LakeBuilder(house.root))
    scene.add_table()
    scene.add_sibling_and_nested_tables()
    scene.add_table_without_gc()
    scene.add_table_of_whole_storage()
    scene.add_checksums()
    scene.add_spellings()
    scene.add_file_of_other_lake()
    other = scene.add_second_catalog()
    scene.add_matching_and_unowned_files()
    scene.add_special_files()
    house.lakes = [scene.iceberg.config("sales"), other.config("archive"), house.weather()]
    header = house.plan()
    return ProtectedFiles(house, header, scene.protected, {house.key(path) for path in scene.garbage}, house.leftovers(), house.live())


def test_plan_with_protected_files_passes_all_gates(protected_files: ProtectedFiles) -> None:
    assert protected_files.header.failed_gates == []


def test_plan_contains_exactly_unprotected_garbage(protected_files: ProtectedFiles) -> None:
    assert protected_files.planned == protected_files.garbage


@pytest.mark.parametrize("protection", ["sibling", "nested", "virtual reference", "registered in two catalogs"])
def test_file_of_another_table_or_lake_is_live(protected_files: ProtectedFiles, protection: str) -> None:
    keys = {key for key, reason in protected_files.protected.items() if reason == protection}
    assert keys
    assert keys <= protected_files.live


def test_protected_file_is_not_orphan(protected_files: ProtectedFiles) -> None:
    orphans = protected_files.house.keys("orphan_files")
    assert {key: reason for key, reason in protected_files.protected.items() if key in orphans} == {}


def test_note_reports_table_location_that_is_whole_storage(protected_files: ProtectedFiles) -> None:
    notes = protected_files.house.summary("orphan_files")["notes"]
    assert next(note for note in notes if "is a whole storage, or contains a prefix" in note).startswith("lake sales: file:///")


def test_all_spellings_of_live_file_are_one_key(protected_files: ProtectedFiles) -> None:
    varied = {key for key, reason in protected_files.protected.items() if reason.startswith("spelled")}
    assert len(varied) == 6
    assert varied <= protected_files.live


def test_special_files_are_reported_but_not_candidates(protected_files: ProtectedFiles) -> None:
    assert protected_files.house.summary("storage_inventory")["problems"] == {"symlink": 2, "special": 2, "not_utf8": 1}
    inventory = protected_files.house.keys("storage_inventory")
    assert not {key for key in inventory if "link" in key or "pipe" in key or "not-utf8" in key}


def test_unowned_files_are_counted(protected_files: ProtectedFiles) -> None:
    assert protected_files.house.summary("orphan_files")["storage_breakdown"]["unowned"]["files"] >= 1


def test_protected_garbage_is_counted(protected_files: ProtectedFiles) -> None:
    assert protected_files.house.summary("orphan_files")["storage_breakdown"]["protected"] == {"files": 1, "bytes": 3}


def test_protect_pattern_without_files_adds_only_warning(protected_files: ProtectedFiles) -> None:
    assert protected_files.house.summary("orphan_files")["unused_patterns"] == ["db/t/data/lnading/**"]
    (warning,) = protected_files.header.warnings
    assert warning.startswith("`protect` in lakes.yaml: no listed file matches `db/t/data/lnading/**`, so nothing is protected by it.")


def test_run_and_doctor_report_pattern_and_protected_files(
    protected_files: ProtectedFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    context = protected_files.house.run_context()
    print_run(context, ["warehouse"])
    assert "Protected in storage warehouse: 1 file (3 B) not needed by any lake, but kept by" in capsys.readouterr().err
    found = [finding for finding in check_last_run(context, context.storage("warehouse"), {}) if finding.check == "protect"]
    assert [(finding.verdict, "'db/t/data/lnading/**'" in finding.found) for finding in found] == [("warn", True)]
    corrected = context.storage("warehouse").model_copy(update={"protect": ("db/t/data/landing/**",)})
    assert "protect" not in {finding.check for finding in check_last_run(context, corrected, {})}


def test_correcting_pattern_removes_warning(protected_files: ProtectedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected_files.house, "settings", {"protect": ["db/t/data/landing/**"]})
    again = protected_files.house.sweep()
    assert (again.plan_id, again.warnings) == (protected_files.header.plan_id, ())


def test_every_table_is_readable_after_apply(protected_files: ProtectedFiles, caplog: pytest.LogCaptureFixture) -> None:
    house = protected_files.house
    with caplog.at_level("INFO", "gc_assets"):
        house.approve_and_apply(protected_files.header)
    announced = [line.rpartition(": phase ")[2] for line in caplog.messages if ": phase " in line]
    phases = phases_of(protected_files.header, PHASES)
    assert announced == [f"{number} of {len(phases)}: {phase}" for number, phase in enumerate(phases, 1)]
    assert "recording the histories of edited lakes" in caplog.text
    iceberg = LakeBuilder(house.root)
    for name in ("db.t", "db.t_2", "db.inner", "db.kept", "db.spelled", "db.twice", "db.rooted"):
        assert iceberg.catalog.load_table(name).scan().to_arrow().num_rows > 0
    other = LakeBuilder(house.root, "other", str(house.warehouse / "db" / "t" / "data" / "other.db"))
    assert other.catalog.load_table("db.twice").scan().to_arrow().num_rows == 2
    assert (house.warehouse / "db" / "t" / "data" / "borrowed.nc").exists()
    shutil.rmtree(house.warehouse / ".gc-assets")
