"""A live file is a link in a directory that the collector may not read, and has another name than the file in the storage.

Before, the gate `unknown_addresses` compared the names, so the file in the storage was quarantined.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.stores.local import objects
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("is_private", [True, False])
def test_file_of_the_same_size_refuses_the_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    house = Lakehouse(spark, tmp_path)
    lake = LakeBuilder(house.root)
    table = lake.table("db.a", days_ago(60))
    table.append(days_ago(50))
    live, garbage = [path for path in table.leftovers(days_ago(40), 2) if path.suffix == ".parquet"]
    garbage.write_bytes(b"garbage")
    os.utime(garbage, (days_ago(40).timestamp(), days_ago(40).timestamp()))
    link = tmp_path / "home/today.parquet"
    link.parent.mkdir()
    link.symlink_to(live)
    table.table.add_files([f"file://{link}"])
    lake.date_files(days_ago(30))
    house.lakes = [lake.config("sales")]
    identity = objects.identity

    def refuse(address: str) -> str | None:
        if str(link.parent) in address:
            raise StoreError("Permission denied")
        return identity(address)

    if is_private:  # the tests may run as root
        monkeypatch.setattr(objects, "identity", refuse)
    header = house.plan()

    # Spark's workers are not patched, so the gate `links` can examine the file.
    gate = next(gate for gate in header.gates if gate.name == "unknown_addresses")
    assert gate.passed != is_private
    if is_private:
        assert "1 planned file has the size or name" in gate.message
        assert "chmod o+x" in gate.message
        assert "aliases" not in gate.message
        assert f"{house.key(live)} and file://{link}" in gate.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_in_a_private_directory_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o000)
    assert objects.is_hidden(f"{tmp_path}/home/x")
    assert not objects.is_hidden(f"{tmp_path}/x")
