"""A virtual chunk in a file such as `sst 2020.nc` refused every plan of its storage.

icechunk stores the location `sst%202020.nc` and reads `sst 2020.nc`. Both names are protected, because older libraries read the
location unchanged. Both had to exist, so the `live_listed` gate refused each plan, until someone overrode it and with it real losses.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.sweep.live_filter import live_count
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.stores.local import objects
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark

NAMES = ("plain.nc", "sst 2020.nc", "température.nc", "a+b.nc", "50%.nc", "day=1%3A00.nc")


class VirtualFiles:
    """A repository whose array `v` reads one chunk from each file, at `files`."""

    def __init__(self, house: Lakehouse, files: Path) -> None:
        self.house, self.files = house, files
        files.mkdir(parents=True)
        for number, name in enumerate(NAMES):
            self.put(name, number)
        builder = RepositoryBuilder.create(house.warehouse / "weather", days_ago(60), virtual_below=files)

        def write(group: zarr.Group) -> None:
            group.create_array("v", shape=(len(NAMES),), chunks=(1,), dtype="i8", compressors=None, filters=None, fill_value=-1)
            for number, name in enumerate(NAMES):
                group.store.set_virtual_ref(f"v/c/{number}", f"file://{files}/{name.replace('%3A', '%253A')}", offset=0, length=8)

        builder.commit("main", days_ago(49), write)
        assert zarr.open_group(builder.repo.readonly_session("main").store, mode="r")["v"][:].tolist() == list(range(len(NAMES)))
        self.garbage = {house.key(path) for path in builder.abandon_writer("main", days_ago(30), numbers("z", range(2)))}
        house.lakes.append(house.weather())

    def put(self, name: str, number: int = 0) -> None:
        (self.files / name).write_bytes(np.array([number], "i8").tobytes())
        os.utime(self.files / name, (days_ago(50).timestamp(),) * 2)

    def run(self, days: int) -> PlanHeader:
        self.house.now += timedelta(days=days)
        return self.house.plan()

    def live_count(self) -> int:
        return live_count([self.house.find_table(LIVE_FILES.name, "weather")], self.house.storage).files


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    house.warehouse.mkdir()
    return house


def test_virtual_file_may_exist_under_encoded_or_decoded_name(house: Lakehouse) -> None:
    virtual = VirtualFiles(house, house.warehouse / "netcdf")
    header = virtual.run(0)
    assert not header.failed_gates
    assert set(house.planned_actions()) == virtual.garbage
    files = virtual.live_count()
    assert {f"netcdf/{name}" for name in NAMES} <= house.live()
    assert files == len(house.files()) - len(virtual.garbage) + 1, "each file once, and the log that the first snapshot lacks"

    (virtual.files / "sst 2020.nc").unlink()
    header = virtual.run(1)
    assert house.failed_gates(header) == {"live_listed"}
    assert "At most 1 of 13 live files are not in the inventory" in header.failed_gates[0].message
    assert "netcdf/sst 2020.nc" in header.failed_gates[0].message

    virtual.put("sst%202020.nc")
    header = virtual.run(1)
    assert not header.failed_gates
    assert set(house.planned_actions()) == virtual.garbage, "the other name is protected too"
    assert virtual.live_count() == files


def test_missing_name_variants_of_existing_external_file_are_not_unknown(house: Lakehouse) -> None:
    """Otherwise, existing files of the repository would be suspected of being old copies."""
    virtual = VirtualFiles(house, house.root / "netcdf")
    assert not virtual.run(0).failed_gates
    assert house.summary("live_files", "weather")["unknown_addresses"] == 0

    (virtual.files / "sst 2020.nc").unlink()
    virtual.run(1)
    samples = house.summary("live_files", "weather")["unknown_address_samples"]
    assert any("sst 2020.nc" in sample for sample in samples)
    assert any("sst%202020.nc" in sample for sample in samples)


def test_virtual_files_that_cannot_be_read_are_compared_by_name(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual chunks have no size. Without one, each planned file was taken for the target of a link, so every plan was refused."""
    virtual = VirtualFiles(house, house.root / "netcdf")
    identity = objects.identity

    def refuse(address: str) -> str | None:
        if str(virtual.files) in address:  # the tests may run as root
            raise StoreError("Permission denied")
        return identity(address)

    monkeypatch.setattr(objects, "identity", refuse)
    header = virtual.run(0)
    assert house.summary("live_files", "weather")["unknown_addresses"] > 0
    assert not header.failed_gates
    assert set(house.planned_actions()) == virtual.garbage
