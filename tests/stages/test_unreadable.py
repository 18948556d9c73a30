"""Metadata that cannot be read stops the night by its name; nothing is published after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.config import IcechunkLakeConfig
from gc_assets.core.errors import GcError, LakeUnreadable
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of each kind below one root; each test damages its own copy."""
    root = tmp_path_factory.mktemp("sound")
    iceberg = LakeBuilder(root)
    table = iceberg.table("db.t", days_ago(40))
    table.append(days_ago(30))
    table.append(days_ago(20))
    repository = RepositoryBuilder.create(root / "warehouse" / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    repository.tag("v1", repository.head("main"))
    repository.commit("main", days_ago(20), numbers("b", range(3)))
    return root


def damaged(spark: SparkSession, sound: Path, pattern: str, damage: Callable[[Path], None], kind: str) -> tuple[Lakehouse, Path]:
    """The lake at its own place with one file damaged; addresses are absolute, so it is damaged in place and healed after."""
    victim = sorted((sound / "warehouse").glob(pattern))[0]
    house = Lakehouse(spark, sound)
    if kind == "iceberg":
        house.lakes = [LakeBuilder(sound).config("sales")]
    else:
        location = f"file://{sound}/warehouse/weather/"
        house.lakes = [IcechunkLakeConfig.model_validate({"name": "weather", "kind": "icechunk", "location": location})]
    damage(victim)
    return house, victim


@pytest.mark.parametrize("damage", [truncate, empty, remove])
@pytest.mark.parametrize(
    "pattern, kind",
    [
        ("db/t/metadata/*-m0.avro", "iceberg"),
        ("db/t/metadata/snap-*.avro", "iceberg"),
        ("weather/manifests/*", "icechunk"),
    ],
)
def test_a_damaged_container_of_a_retained_commit_stops_the_mark_by_name(
    spark: SparkSession, sound: Path, tmp_path: Path, pattern: str, kind: str, damage: Callable[[Path], None]
) -> None:
    victim = sorted((sound / "warehouse").glob(pattern))[0]
    shutil.copy2(victim, tmp_path / "backup")
    shutil.rmtree(sound / "state", ignore_errors=True)
    try:
        house, victim = damaged(spark, sound, pattern, damage, kind)
        with pytest.raises(LakeUnreadable) as refusal:
            house.mark()
        assert victim.name in str(refusal.value)
        assert house.tonight().state.current(house.lakes[0].name, "live_files", house.clock.today()) is None
    finally:
        shutil.copy2(tmp_path / "backup", victim)
    house.mark()
    assert house.live()


@pytest.mark.parametrize("pattern", ["weather/refs/tag.v1/ref.json", "weather/snapshots/*", "weather/refs/branch.main/ref.json"])
def test_an_unreadable_ref_or_snapshot_stops_the_mark_by_name(spark: SparkSession, sound: Path, tmp_path: Path, pattern: str) -> None:
    """The official library takes a tag that it cannot read for deleted, and destroys its data (icechunk.md H1)."""
    victim = sorted((sound / "warehouse").glob(pattern))[0]
    shutil.copy2(victim, tmp_path / "backup")
    shutil.rmtree(sound / "state", ignore_errors=True)
    try:
        house, victim = damaged(spark, sound, pattern, truncate, "icechunk")
        with pytest.raises(GcError) as refusal:
            house.mark()
        assert (victim.parent.name if victim.name == "ref.json" else victim.name).partition(".")[2] in str(refusal.value)
    finally:
        shutil.copy2(tmp_path / "backup", victim)


def test_a_container_that_was_read_once_and_then_cut_is_noticed(spark: SparkSession, sound: Path, tmp_path: Path) -> None:
    """The cache knows its children; the next night still refuses, because the object is not what was decoded."""
    shutil.rmtree(sound / "state", ignore_errors=True)
    house = Lakehouse(spark, sound, [LakeBuilder(sound).config("sales")])
    house.mark()
    victim = sorted((sound / "warehouse").glob("db/t/metadata/*-m0.avro"))[0]
    shutil.copy2(victim, tmp_path / "backup")
    try:
        truncate(victim)
        header = house.plan()
        assert "metadata_present" in house.failed_gates(header)
    finally:
        shutil.copy2(tmp_path / "backup", victim)
