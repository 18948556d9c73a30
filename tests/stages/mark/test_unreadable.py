"""Unreadable metadata makes its table unreadable, and the error contains the object.

Each run starts with an empty state, so no earlier run read the table.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import Unreadable
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


DAMAGES = {"truncated": truncate, "empty": empty, "missing": remove}


@dataclass
class Lakes:
    """A lake of each kind in one directory. Every test restores what it damages."""

    house: Lakehouse
    sales: IcebergLakeConfig
    weather: IcechunkLakeConfig

    @contextmanager
    def damage(self, *damages: tuple[Path, Callable[[Path], None]]) -> Generator[None]:
        """Start with an empty state and damage the files until the end of the context."""
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
        """Return one container per damage, of different tables: children of a damaged container are not read."""
        if kind == "icechunk manifest":
            return dict(zip(DAMAGES, self.files("weather/manifests/*"), strict=True))
        pattern = {"manifest": "*-m0.avro", "manifest list": "snap-*.avro"}[kind]
        return {damage: self.files(f"db/t{number}/metadata/{pattern}")[0] for number, damage in enumerate(DAMAGES)}

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.house.warehouse.glob(pattern))


@pytest.fixture(scope="module")
def lakes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    house = Lakehouse(spark, tmp_path_factory.mktemp("lakes"))
    iceberg = LakeBuilder(house.root)
    for number in range(len(DAMAGES)):
        table = iceberg.table(f"db.t{number}", days_ago(40), properties={"history.expire.max-snapshot-age-ms": str(10**12)})
        table.append(days_ago(30))
        table.append(days_ago(20))
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    repository.tag("v1", repository.head("main"))
    for name in ("b", "c"):
        repository.commit("main", days_ago(20), numbers(name, range(3)))
    return Lakes(house, iceberg.config("sales"), house.weather())


@pytest.fixture(scope="module", params=["manifest", "manifest list", "icechunk manifest"])
def reported(request: pytest.FixtureRequest, lakes: Lakes) -> list[tuple[Path, list[Unreadable]]]:
    """Return the damaged containers and the unreadable tables. Restored containers are read."""
    house, victims = lakes.house, lakes.containers(request.param)
    is_icechunk = request.param == "icechunk manifest"
    house.lakes = [lakes.weather if is_icechunk else lakes.sales]
    # The containers of a repository are damaged one by one, because only the first error is reported.
    groups = [{damage: path} for damage, path in victims.items()] if is_icechunk else [victims]
    found = []
    for group in groups:
        with lakes.damage(*((path, DAMAGES[damage]) for damage, path in group.items())):
            header = house.plan()
            assert not house.planned_actions()
            found += [(path, list(header.unreadable)) for path in group.values()]
    house.mark()
    assert house.summary("live_files", house.lakes[0].name)["unreadable"] == []
    return found


def test_damaged_container_makes_its_table_unreadable(reported: list[tuple[Path, list[Unreadable]]]) -> None:
    assert len(reported) == len(DAMAGES)
    for victim, unreadable in reported:
        assert [item.good_on for item in unreadable if victim.name in item.why] == [None]


@pytest.mark.parametrize("pattern", ["weather/refs/tag.v1/ref.json", "weather/snapshots/*", "weather/refs/branch.main/ref.json"])
def test_unreadable_ref_or_snapshot_makes_icechunk_lake_unreadable(lakes: Lakes, pattern: str) -> None:
    """The library treats an unreadable tag as deleted, and deletes its data."""
    victim = lakes.files(pattern)[0]
    lakes.house.lakes = [lakes.weather]
    with lakes.damage((victim, truncate)):
        [unreadable] = lakes.house.plan().unreadable
        assert not lakes.house.planned_actions()
    assert (victim.parent.name if victim.name == "ref.json" else victim.name).partition(".")[2] in unreadable.why


def test_container_truncated_after_decoding_makes_its_table_unreadable(lakes: Lakes) -> None:
    """The cache has its entries, so no file is lost, but the object is not the decoded one."""
    house = lakes.house
    house.lakes = [lakes.sales]
    with lakes.damage():
        house.mark()
    victim = lakes.files("db/t0/metadata/*-m0.avro")[0]
    content = victim.read_bytes()
    try:
        truncate(victim)
        [unreadable] = house.plan().unreadable
        assert (unreadable.table_name, victim.name in unreadable.why) == ("db.t0", True)
    finally:
        victim.write_bytes(content)
