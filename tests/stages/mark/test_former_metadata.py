"""Files that a listed table needed by metadata that its catalog lost are kept for the waiting time of dropped tables.

The catalog is changed between two runs: it is restored from a backup, a name of a table is dropped, or a table is registered again with
older metadata. The first run is made on day 0, so its expiry leaves one snapshot of each table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.mark import former_metadata
from gc_assets.stages.read.explain import explain
from gc_assets.stages.sweep import metadata_lineage
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import POINTERS, POINTERS_SIDE
from gc_assets.state.summaries import LiveFilesSummary
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, outcomes
from tests.stages.sweep.test_dropped_tables import Shop, path_of, touch

pytestmark = [pytest.mark.spark, in_turn]
KEEP_ALL = {"max_snapshot_age": "3650d"}


class Registry(Shop):
    """A lake whose tables `db.a` and `db.b` keep all snapshots.

    Attributes:
        older: Metadata of `db.a` in the first run.
        newer: Its metadata in the second run, after three commits.
        lost: Keys of the files that only the newer metadata needs.
        rows: Number of rows of the newer metadata.
    """

    def __init__(self, spark: SparkSession, root: Path, **retention: Any) -> None:
        super().__init__(spark, root, "ab", retention={**KEEP_ALL, **retention})
        self.older = self.metadata["a"]
        before = set(self.house.files())
        for _ in range(3):
            self.tables["a"].append(NOW + timedelta(hours=1))
        self.newer = self.tables["a"].table.refresh().metadata_location
        self.lost = set(self.house.files()) - before
        self.rows = self.tables["a"].table.scan().to_arrow().num_rows
        self.run(1)

    def point_to(self, metadata: str, name: str = "a") -> None:
        """Point a name of the catalog to another metadata file, as a restored catalog does."""
        self.drop(name) if self.lake.catalog.table_exists(f"db.{name}") else None
        self.register(name, metadata)

    def commit(self, name: str, day: float) -> None:
        """Add a commit to a table, as writers do that go on after a restore."""
        table = self.lake.catalog.load_table(f"db.{name}")
        with self.lake.at(NOW + timedelta(days=day)):
            table.append(table.scan(limit=1).to_arrow())

    def rewrite_clone(self, day: float) -> None:
        """Overwrite all rows of `db.clone`, and expire its history."""
        clone = self.lake.catalog.load_table("db.clone")
        with self.lake.at(NOW + timedelta(days=day)):
            clone.overwrite(clone.scan(limit=1).to_arrow())
            clone.maintenance.expire_snapshots().by_ids([item.snapshot_id for item in clone.snapshots()][:-1]).commit()

    def add_lake(self, name: str) -> LakeBuilder:
        """Add a lake with a catalog of its own in the same storage."""
        builder = LakeBuilder(self.house.root, catalog_name=name, catalog_file=f"{name}.db")
        builder.catalog.create_namespace("db")
        self.house.lakes = [*self.house.lakes, builder.config(name, retention=KEEP_ALL)]
        return builder

    def list_planned_of(self, keys: set[str]) -> set[str]:
        return keys & set(self.house.keys("deletion_plan"))

    def read_former(self) -> list[str]:
        """Return the addresses of the former metadata in the last run."""
        live = self.house.find_table("live_files", "sales")
        rows = read_parts(self.house.run_context().state.files, live.paths(POINTERS_SIDE), POINTERS).to_pylist()
        return [row["address"] for row in rows if row["former_since"] is not None]

    def read_unreadable(self) -> list[str | None]:
        unreadable = self.house.run_context().table(LIVE_FILES, "sales").summary(LiveFilesSummary).unreadable
        return [item.table_name for item in unreadable]

    def read_notes(self) -> Sequence[str]:
        notes = self.house.run_context().table(LIVE_FILES, "sales").summary(LiveFilesSummary).notes
        return [note for note in notes if "is not in the history of its current metadata" in note]


@pytest.fixture
def registry(spark: SparkSession, tmp_path: Path) -> Registry:
    return Registry(spark, tmp_path)


def test_commits_lost_by_restored_catalog_are_kept_during_wait(registry: Registry) -> None:
    registry.point_to(registry.older)
    registry.commit("a", 2)
    planned = {day: (registry.run(day), registry.list_planned_of(registry.lost))[1] for day in (4, 10.9)}
    assert planned == {4: set(), 10.9: set()}
    assert registry.read_former() == [registry.newer]
    (note,) = registry.read_notes()
    assert registry.newer in note
    assert "are kept until 2026-12-01 03:00 UTC" in note
    for key in registry.lost:
        assert explain(registry.house.run_context(), key)[0].verdict == "live"
    registry.run(12.1)
    assert registry.read_former() == []
    assert registry.list_planned_of(registry.lost) == registry.lost


def test_former_metadata_of_unchanged_table_is_garbage_after_wait(registry: Registry) -> None:
    """The catalog listed the metadata in an earlier run, so no other catalog wrote it."""
    registry.point_to(registry.older)
    for day in (4, 12.1):
        assert registry.house.failed_gates(registry.run(day)) == set()
    assert registry.list_planned_of(registry.lost) == registry.lost


def test_metadata_listed_by_catalog_of_another_lake_refuses_plan(registry: Registry) -> None:
    """The table was moved to another catalog with older metadata."""
    other = registry.add_lake("other")
    registry.run(1.5)
    other.register("db.a", registry.older)
    registry.drop("a")
    registry.run(2)
    for day in (5, 12.1):
        assert registry.house.failed_gates(registry.run(day)) == {"foreign_metadata"}


def test_metadata_of_an_earlier_catalog_refuses_the_plan(registry: Registry) -> None:
    """Between the two runs, the lake read another catalog, which may still use the metadata."""
    first = registry.house.lakes
    other = LakeBuilder(registry.house.root, catalog_name="second", catalog_file="second.db")
    other.catalog.create_namespace("db")
    for name, metadata in (("a", registry.newer), ("b", registry.metadata["b"])):
        other.register(f"db.{name}", metadata)
    registry.house.lakes = [other.config("sales", retention=KEEP_ALL)]
    registry.run(2)
    registry.house.lakes = first
    registry.point_to(registry.older)
    registry.run(3)
    assert registry.house.failed_gates(registry.run(12.1)) == {"foreign_metadata"}


def test_metadata_listed_by_another_lake_until_recently_refuses_plan(registry: Registry) -> None:
    """Both catalogs had the newer metadata. The table was dropped from the second one by mistake."""
    other = registry.add_lake("other")
    other.register("db.a", registry.newer)
    other.register("db.b", registry.metadata["b"])
    registry.run(2)
    registry.point_to(registry.older)
    registry.run(3)
    other.catalog.drop_table("db.a")
    assert registry.house.failed_gates(registry.run(12.1)) == {"foreign_metadata"}
    assert registry.house.failed_gates(registry.run(20)) == set()


def test_former_metadata_that_was_written_to_again_refuses_plan(registry: Registry) -> None:
    """Some catalogs number the files, so another catalog can write a file of the same name."""
    registry.point_to(registry.older)
    registry.run(4)
    touch(path_of(registry.newer), NOW + timedelta(days=5), path_of(registry.newer).read_text())
    assert registry.house.failed_gates(registry.run(12.1)) == {"foreign_metadata"}


def test_wait_starts_with_first_run_that_misses_metadata(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content roots of the last run are not available any more, so nothing else keeps the lost commits."""
    monkeypatch.setattr(former_metadata, "open_last_known", lambda *_: None)
    registry.point_to(registry.older)
    assert registry.house.failed_gates(registry.run(12.1)) == {"foreign_metadata"}
    assert registry.house.failed_gates(registry.run(20)) == set()


def test_former_metadata_is_found_after_run_that_could_not_read_table(registry: Registry) -> None:
    registry.point_to(registry.older)
    registry.run(4)
    content = path_of(registry.older).read_text()
    touch(path_of(registry.older), NOW, "{")
    registry.run(5)
    assert registry.read_unreadable() == ["db.a"]
    touch(path_of(registry.older), NOW, content)
    assert registry.house.failed_gates(registry.run(12.1)) == set()


def test_former_metadata_of_many_tables_needs_no_acceptance(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the number of files of a single table is limited."""
    older = registry.metadata["b"]
    for _ in range(3):
        registry.commit("b", 1.2)
    registry.run(2)
    registry.point_to(older, "b")
    registry.point_to(registry.older)
    registry.run(4)
    monkeypatch.setattr(metadata_lineage, "MAX_REASONS", 4)
    assert registry.house.failed_gates(registry.run(12.1)) == set()
    assert registry.list_planned_of(registry.lost) == registry.lost


def test_override_keeps_former_metadata_if_the_catalog_may_be_a_copy(registry: Registry) -> None:
    """Another table has commits that no run found in the catalog."""
    registry.commit("b", 1.2)
    registry.point_to(registry.metadata["b"], "b")
    registry.point_to(registry.older)
    registry.run(4)
    header = registry.run(12.1)
    (gate,) = header.failed_gates
    assert (gate.name, registry.tables["a"].uuid in gate.message) == ("foreign_metadata", False)
    assert registry.list_planned_of(registry.lost) == set()


def test_newer_metadata_never_listed_by_catalog_refuses_plan(registry: Registry) -> None:
    registry.commit("a", 1.5)
    registry.point_to(registry.older)
    registry.run(4)
    assert registry.house.failed_gates(registry.run(12.1)) == {"foreign_metadata"}


def test_table_can_be_registered_again_with_its_former_metadata(registry: Registry) -> None:
    registry.point_to(registry.older)
    registry.commit("a", 2)
    header = registry.run(4)
    if header.rows:
        assert outcomes(registry.house.approve_and_apply(header)) == {"done"}
    registry.point_to(registry.newer)
    assert registry.lake.catalog.load_table("db.a").scan().to_arrow().num_rows == registry.rows
    registry.run(5)
    assert not [note for note in registry.read_notes() if registry.newer in note]


def test_metadata_of_dropped_name_is_kept_while_its_copy_is_listed(registry: Registry) -> None:
    """The other name, made by `register_table`, has its own history since then."""
    registry.register("clone", registry.older)
    registry.commit("clone", 1.5)
    registry.run(2)
    registry.drop("a")
    for day in (4, 10.9):
        registry.run(day)
        assert registry.list_planned_of(registry.lost) == set()
    assert registry.read_former() == [registry.newer]
    registry.run(12.1)
    assert registry.list_planned_of(registry.lost) == registry.lost


def test_metadata_of_dropped_name_is_kept_if_clone_is_listed(registry: Registry) -> None:
    """The log of the clone lists the metadata of the dropped name, but the clone has another policy."""
    registry.register("clone", registry.newer)
    registry.commit("clone", 1.5)
    registry.run(2)
    registry.drop("a")
    registry.rewrite_clone(2.5)
    for day in (4, 10.9):
        registry.run(day)
        assert registry.list_planned_of(registry.lost) == set()
    registry.point_to(registry.newer)
    assert registry.lake.catalog.load_table("db.a").scan().to_arrow().num_rows == registry.rows


def test_clone_of_former_metadata_does_not_end_wait(registry: Registry) -> None:
    registry.register("clone", registry.newer)
    registry.run(2)
    registry.drop("a")
    registry.run(3)
    assert (registry.read_former(), registry.read_notes()) == ([registry.newer], [])
    registry.rewrite_clone(3.5)
    registry.run(9.9)
    assert registry.list_planned_of(registry.lost) == set()
    assert len(registry.read_notes()) == 1
    registry.run(11.1)
    assert registry.list_planned_of(registry.lost) != set()


def test_damaged_former_metadata_protects_only_its_location(registry: Registry) -> None:
    """A user may have registered older metadata to recover from a damaged manifest."""
    before = set(registry.house.files())
    registry.commit("a", 1.5)
    (manifest,) = [registry.house.warehouse / key for key in set(registry.house.files()) - before if key.endswith("-m0.avro")]
    touch(manifest, NOW + timedelta(days=1.5), "x" * manifest.stat().st_size)
    registry.run(2)
    assert registry.read_unreadable() == ["db.a"]
    registry.point_to(registry.newer)
    orphan = registry.house.warehouse / "db/a/data/00000-0-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11.parquet"
    touch(orphan, NOW - timedelta(days=20))
    for day in (3, 9.9):
        header = registry.run(day)
        assert registry.house.failed_gates(header) == set()
        assert registry.read_unreadable() == []
        assert header.rows == 0
    registry.run(11.1)
    assert {registry.house.key(str(orphan)), registry.house.key(str(manifest))} <= set(registry.house.keys("deletion_plan"))


def test_renamed_table_has_no_former_metadata(registry: Registry) -> None:
    registry.lake.catalog.rename_table("db.a", "db.renamed")
    registry.commit("renamed", 1.5)
    registry.run(2)
    assert (registry.read_former(), registry.read_notes()) == ([], [])


def test_metadata_lost_by_drop_and_reregistration_is_kept_during_wait(registry: Registry) -> None:
    """A run between the two steps does not find the table."""
    registry.drop("a")
    registry.run(2)
    assert "db.a" in registry.read_dropped()
    registry.point_to(registry.older)
    registry.commit("a", 3)
    for day in (4, 10.9):
        registry.run(day)
        assert registry.list_planned_of(registry.lost) == set()
    registry.run(12.1)
    assert registry.list_planned_of(registry.lost) == registry.lost


def test_wait_starts_at_first_run_without_table(registry: Registry) -> None:
    """The lake is collected every 40 days."""
    registry.drop("a")
    registry.run(41)
    registry.point_to(registry.older)
    registry.commit("a", 42)
    registry.run(43)
    assert registry.list_planned_of(registry.lost) == set()
    assert registry.read_former() == [registry.newer]


def test_wait_applies_if_table_was_unreadable_at_catalog_restore(registry: Registry) -> None:
    newer = path_of(registry.newer)
    content = newer.read_text()
    touch(newer, NOW + timedelta(hours=1), "{")
    registry.run(2)
    touch(newer, NOW + timedelta(hours=1), content)
    registry.point_to(registry.older)
    registry.commit("a", 3)
    for day in (4, 10.9):
        registry.run(day)
        assert registry.list_planned_of(registry.lost) == set()
    registry.run(12.1)
    assert registry.list_planned_of(registry.lost) == registry.lost


def test_former_metadata_is_kept_if_dropped_tables_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    registry = Registry(spark, tmp_path, dropped="keep")
    registry.point_to(registry.older)
    registry.commit("a", 2)
    for day in (4, 100):
        registry.run(day)
        assert registry.list_planned_of(registry.lost) == set()
    assert "`retention.dropped` is keep" in registry.read_notes()[0]


def test_catalog_restored_between_plan_and_apply_keeps_the_lost_commits(registry: Registry) -> None:
    orphan = registry.house.warehouse / "db/a/data/00000-0-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11.parquet"
    touch(orphan, NOW - timedelta(days=20))
    header = registry.run(4)
    assert header.rows == 1
    registry.point_to(registry.older)
    registry.commit("a", 4)
    touch(orphan, NOW - timedelta(days=20))  # the writer of the tests dates all new files
    assert outcomes(registry.house.approve_and_apply(header)) == {"done"}
    registry.point_to(registry.newer)
    assert registry.lake.catalog.load_table("db.a").scan().to_arrow().num_rows == registry.rows


def test_partly_purged_former_metadata_does_not_stop_run(registry: Registry) -> None:
    """`DROP TABLE … PURGE` of one name deletes files, while the other name is listed."""
    registry.register("clone", registry.older)
    registry.run(2)
    registry.drop("a")
    for key in sorted(registry.lost):
        if key.endswith((".avro", ".parquet")):
            (registry.house.warehouse / key).unlink()
    header = registry.run(4)
    assert registry.house.failed_gates(header) == set()
    assert registry.read_unreadable() == []
