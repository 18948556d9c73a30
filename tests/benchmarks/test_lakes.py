"""The benchmark lakes are valid: pyiceberg, fastavro and icechunk read them."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import icechunk
import pytest

from benchmarks import iceberg_lake, icechunk_lake, many_tables, one_table
from benchmarks.meter import Meter
from tests.depth import full_suite_only


@pytest.fixture
def tables(tmp_path: Path) -> iceberg_lake.IcebergLake:
    lake = iceberg_lake.IcebergLake(tmp_path / "lake")
    iceberg_lake.build(lake, iceberg_lake.Size(tables=2, commits=4, files_per_commit=10))
    return lake


@pytest.fixture
def repository(tmp_path: Path) -> icechunk_lake.IcechunkLake:
    lake = icechunk_lake.IcechunkLake(tmp_path / "lake")
    icechunk_lake.build(lake, icechunk_lake.SIZES["s"])
    return lake


def contents(root: Path) -> dict[str, bytes]:
    """Return the first bytes of each file, because data files are large and sparse."""

    def first_bytes(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read(4096)

    return {str(path): first_bytes(path) for path in root.rglob("*") if path.is_file()}


@full_suite_only
def test_rewrite_deletes_a_tenth_of_the_files_of_one_commit(tables: iceberg_lake.IcebergLake) -> None:
    table = tables.catalog().load_table("shop.orders_00")
    entries = [
        entry for manifest in table.current_snapshot().manifests(table.io) for entry in manifest.fetch_manifest_entry(table.io, False)
    ]
    deleted = [entry for entry in entries if entry.status == iceberg_lake.DELETED]
    assert len(entries) == 40
    assert len(deleted) == 1
    assert len(list(table.scan().plan_files())) == 39


@full_suite_only
def test_every_snapshot_lists_existing_files_with_their_size(tables: iceberg_lake.IcebergLake) -> None:
    table = tables.catalog().load_table("shop.orders_01")
    for snapshot in table.snapshots():
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
            assert Path(task.file.file_path.removeprefix("file://")).stat().st_size == task.file.file_size_in_bytes


@full_suite_only
def test_pyiceberg_appends_to_a_built_table(tables: iceberg_lake.IcebergLake) -> None:
    table = tables.catalog().load_table("shop.orders_00")
    before = len(table.snapshots())
    iceberg_lake.TableWriter(table).commit(iceberg_lake.NOW, 3, rewrite=False)
    assert len(tables.catalog().load_table("shop.orders_00").snapshots()) == before + 1


@full_suite_only
def test_copied_tables_have_the_files_of_the_original_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_tables, "MERGE_EVERY", 4)
    lake = iceberg_lake.IcebergLake(tmp_path / "lake")
    many_tables.build(lake, many_tables.Size(tables=3, commits=6))
    first, *others = [lake.catalog().load_table(name) for name in lake.table_names()]
    assert [len(snapshot.manifests(first.io)) for snapshot in first.snapshots()] == [1, 2, 3, 2, 3, 4]
    for table in others:
        home = table.location().removeprefix("file://")
        assert table.metadata.table_uuid != first.metadata.table_uuid
        for snapshot, same in zip(table.snapshots(), first.snapshots(), strict=True):
            tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            files = {Path(task.file.file_path.removeprefix("file://")) for task in tasks}
            assert len(files) == len(list(first.scan(snapshot_id=same.snapshot_id).plan_files()))
            assert all(path.is_relative_to(home) and path.exists() for path in files)


@full_suite_only
def test_manifests_of_one_table_reference_distinct_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_table, "FILES_PER_MANIFEST", 5)
    lake = iceberg_lake.IcebergLake(tmp_path / "lake")
    one_table.build(lake, 20)

    def files() -> list[str]:
        return [task.file.file_path for task in lake.catalog().load_table(one_table.NAME).scan().plan_files()]

    before = contents(lake.root)
    assert len(files()) == len(set(files())) == 20
    with one_table.add_one_percent(lake, 20) as later:
        assert later == iceberg_lake.NOW + timedelta(days=1)
        assert len(files()) == len(set(files())) == 25
    assert contents(lake.root) == before


@full_suite_only
def test_one_percent_change_is_undone_after_second_run(tables: iceberg_lake.IcebergLake) -> None:
    before = contents(tables.root)
    with iceberg_lake.add_one_percent(tables, iceberg_lake.Size(2, 4, 10)) as later:
        assert later == iceberg_lake.NOW + timedelta(days=1)
        assert len(contents(tables.root)) > len(before)
    assert contents(tables.root) == before


@full_suite_only
def test_icechunk_finds_only_leftovers_in_a_built_repository(repository: icechunk_lake.IcechunkLake) -> None:
    found = repository.open().garbage_collect(repository.now(), dry_run=True)
    assert found.chunks_deleted == icechunk_lake.SIZES["s"].leftovers
    assert found.snapshots_deleted == found.manifests_deleted == found.transaction_logs_deleted == 0


@full_suite_only
def test_policy_of_built_repository_retains_newest_snapshots(repository: icechunk_lake.IcechunkLake, tmp_path: Path) -> None:
    cutoff = repository.config(tmp_path)["lakes"][0]["retention"]["default"]["keep"]
    times = [snapshot.written_at.isoformat() for snapshot in repository.open().ancestry(branch="main")]
    assert sum(moment >= cutoff for moment in times) == icechunk_lake.KEPT_SNAPSHOTS


@full_suite_only
def test_icechunk_change_is_undone_after_second_run(repository: icechunk_lake.IcechunkLake) -> None:
    before = contents(repository.repository)
    with icechunk_lake.add_one_percent(repository, icechunk_lake.SIZES["s"]):
        assert len(contents(repository.repository)) > len(before)
    assert contents(repository.repository) == before
    assert isinstance(repository.open(), icechunk.Repository)


@full_suite_only
def test_lake_is_rebuilt_after_interrupted_change(tmp_path: Path) -> None:
    lake = icechunk_lake.ensure_lake(tmp_path, "s")
    built = lake.now()
    assert icechunk_lake.ensure_lake(tmp_path, "s").now() == built
    (lake.root / "changing").touch()
    assert icechunk_lake.ensure_lake(tmp_path, "s").now() > built


def test_meter_includes_waited_child_processes() -> None:
    """The meter watches a separate process, because other children of the test process can end
    unwaited.
    """
    waits = "import subprocess, sys\nfor program in sys.stdin: subprocess.run([sys.executable, '-c', program]), print(flush=True)"
    busy = "import time; exec('while time.process_time() < 0.5: pass')\n"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watched:
        assert watched.stdin is not None
        assert watched.stdout is not None
        with Meter(watched.pid).measure() as usage:
            print(busy, end="", file=watched.stdin, flush=True)
            watched.stdout.readline()
        watched.stdin.close()
    assert usage.cpu >= 0.45  # the kernel truncates to hundredths of a second
    assert usage.wall >= 0.5
    assert usage.peak_bytes >= usage.peak_driver_bytes > 0
