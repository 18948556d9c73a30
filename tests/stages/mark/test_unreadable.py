"""Metadata that cannot be read stops the night by its name; nothing is published after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
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


DAMAGES = {"truncated": truncate, "empty": empty, "gone": remove}


@dataclass
class Sound:
    """A lake of each kind below one root, which every test leaves as sound as it was."""

    house: Lakehouse
    sales: IcebergLakeConfig
    weather: IcechunkLakeConfig

    @contextmanager
    def damaged(self, *damages: tuple[Path, Callable[[Path], None]]) -> Iterator[None]:
        """A state without any night, and each file damaged in its place."""
        shutil.rmtree(self.house.root / "state", ignore_errors=True)
        backups = {path: (self.house.root / f"backup{number}") for number, (path, _) in enumerate(damages)}
        for path, damage in damages:
            shutil.copy2(path, backups[path])
            damage(path)
        try:
            yield
        finally:
            for path, backup in backups.items():
                shutil.copy2(backup, path)

    def containers(self, kind: str) -> dict[str, Path]:
        """A container for each damage, in a table of its own where it is one of a table: below a damaged one nothing is read."""
        if kind == "icechunk manifest":
            return dict(zip(DAMAGES, self.files("weather/manifests/*"), strict=True))
        pattern = {"manifest": "*-m0.avro", "manifest list": "snap-*.avro"}[kind]
        return {damage: self.files(f"db/t{number}/metadata/{pattern}")[0] for number, damage in enumerate(DAMAGES)}

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.house.warehouse.glob(pattern))


@pytest.fixture(scope="module")
def sound(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    house = Lakehouse(spark, tmp_path_factory.mktemp("sound"))
    iceberg = LakeBuilder(house.root)
    for number in range(len(DAMAGES)):
        table = iceberg.table(f"db.t{number}", days_ago(40))
        table.append(days_ago(30))
        table.append(days_ago(20))
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    repository.tag("v1", repository.head("main"))
    for name in ("b", "c"):
        repository.commit("main", days_ago(20), numbers(name, range(3)))
    return Sound(house, iceberg.config("sales"), house.weather())


@pytest.fixture(scope="module", params=["manifest", "manifest list", "icechunk manifest"])
def refused(request: pytest.FixtureRequest, sound: Sound) -> dict[str, tuple[Path, str]]:
    """By damage: the damaged container, and what the mark said that met all of them. Healed, they are read."""
    house, victims = sound.house, sound.containers(request.param)
    house.lakes = [sound.weather if request.param == "icechunk manifest" else sound.sales]
    with sound.damaged(*((path, DAMAGES[damage]) for damage, path in victims.items())):
        with pytest.raises(LakeUnreadable) as refusal:
            house.mark()
        assert house.tonight().state.current(house.lakes[0].name, "live_files", house.clock.today()) is None
    house.mark()
    assert house.live()
    return {damage: (path, str(refusal.value)) for damage, path in victims.items()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_container_of_a_retained_commit_stops_the_mark_by_name(refused: dict[str, tuple[Path, str]], damage: str) -> None:
    victim, said = refused[damage]
    assert victim.name in said


@pytest.mark.parametrize("pattern", ["weather/refs/tag.v1/ref.json", "weather/snapshots/*", "weather/refs/branch.main/ref.json"])
def test_an_unreadable_ref_or_snapshot_stops_the_mark_by_name(sound: Sound, pattern: str) -> None:
    """The official library takes a tag that it cannot read for deleted, and destroys its data (icechunk.md H1)."""
    victim = sound.files(pattern)[0]
    sound.house.lakes = [sound.weather]
    with sound.damaged((victim, truncate)), pytest.raises(GcError) as refusal:
        sound.house.mark()
    assert (victim.parent.name if victim.name == "ref.json" else victim.name).partition(".")[2] in str(refusal.value)


def test_a_container_that_was_read_once_and_then_cut_is_noticed(sound: Sound) -> None:
    """The cache knows its children, so nothing is lost. But the object is not what was decoded: its table waits."""
    house = sound.house
    house.lakes = [sound.sales]
    with sound.damaged():
        house.mark()
    victim = sound.files("db/t0/metadata/*-m0.avro")[0]
    whole = victim.read_bytes()
    try:
        truncate(victim)
        [unreadable] = house.plan().unreadable
        assert (unreadable.table_name, victim.name in unreadable.why) == ("db.t0", True)
    finally:
        victim.write_bytes(whole)
