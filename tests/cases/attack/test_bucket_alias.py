"""Live files whose addresses begin with another name of the storage were planned.

The address of an S3 access point (`s3://NAME-s3alias/…`), of a web server or of another scheme resolved to no storage, so the file
was missing from the live set. Source: Amazon S3 User Guide, "Using an access point alias in Iceberg and other applications".
The same happened to files behind a bind mount that is absent on the collector's machine.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.read.doctor_lakes import check_addresses
from gc_assets.stores.local import mounts
from tests.depth import in_turn
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import catalog_of
from tests.stages.lakehouse import Lakehouse
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

ROWS = Schema(NestedField(1, "id", LongType()))
GATE = "unknown_addresses"
METRICS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@dataclass
class Writer:
    """A table `db.t` of the lake `sales` with one append."""

    house: Lakehouse
    properties: dict[str, str]
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        catalog = SqlCatalog("default", **self.properties)
        catalog.create_namespace("db")
        self.table = catalog.create_table("db.t", ROWS)
        self.table.append(pa.table({"id": [1]}))
        self.house.lakes = [IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": self.properties})]

    def write(self, name: str) -> tuple[str, int]:
        """Write a data file without a commit. Return its address and size."""
        content = io.BytesIO()
        pq.write_table(pa.table({"id": [7]}), content)
        address = f"{self.table.location()}/data/{name}"
        with self.table.io.new_output(address).create() as output:
            output.write(content.getvalue())
        return address, len(content.getvalue())

    def commit(self, address: str, size_bytes: int) -> None:
        """Append a data file under any address, which is not accessed."""
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=address,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=size_bytes,
            **{
                f"{name}s": {}
                for name in ("column_size", "value_count", "null_value_count", "nan_value_count", "lower_bound", "upper_bound")
            },
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=0,
        )
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    def plan(self, **settings: object) -> PlanHeader:
        """Plan ten days after the previous plan."""
        self.house.settings = settings
        self.house.now = max(self.house.now, datetime.now(self.house.now.tzinfo)) + timedelta(days=10)
        return self.house.plan()

    def data_files(self) -> set[str]:
        """Return the names of the planned data files."""
        return {key.rpartition("/")[2] for key in self.house.planned_actions() if "/data/" in key}


def test_live_file_addressed_by_access_point_refuses_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """An alias of the storage solves this. Web addresses of the server need no alias.

    `other.parquet` is also the name of another object, in another bucket of the server.
    """
    with open_s3_bench("ceph") as bench, open_s3_bench("ceph", own=True) as other:
        house = BucketLakehouse(spark, tmp_path, s3=bench.connections.default(S3Config), bench=bench)
        writer = Writer(house, catalog_of(house))
        location = bench.store.location
        web = f"{bench.server.endpoint}/{quote(location.removeprefix('s3://'))}"
        names = {"access-point.parquet": "s3://lake-x1y2z3-s3alias/w/", "web.parquet": web, "garbage.parquet": None, "other.parquet": None}
        for name, prefix in names.items():
            address, size_bytes = writer.write(name)
            if prefix is not None:
                writer.commit(address.replace(location, prefix), size_bytes)
        address, size_bytes = writer.write("size.parquet")
        writer.commit(address.replace(location, "s3://lake-x1y2z3-s3alias/w/"), size_bytes + 1)
        other.put("data/other.parquet", b"x" * size_bytes)
        writer.commit(f"{other.store.location}data/other.parquet", size_bytes)
        header = writer.plan()
        assert house.failed_gates(header) == {GATE}
        message = next(gate.message for gate in header.failed_gates)
        assert "1 planned file" in message, message
        assert "access-point.parquet and s3://lake-x1y2z3-s3alias/w/" in message
        assert "the storage's `aliases`" in message
        assert writer.data_files() == {"access-point.parquet", "garbage.parquet", "other.parquet", "size.parquet"}
        (finding,) = check_addresses(house.run_context(), "sales")
        assert "3 addresses had an unknown location" in finding.found
        assert "/w/iceberg/db/t/data/access-point.parquet (an S3 access point)" in finding.found

        header = writer.plan(aliases=["s3://lake-x1y2z3-s3alias/w/"])
        assert not header.failed_gates
        assert writer.data_files() == {"garbage.parquet", "other.parquet"}
        assert house.summary("live_files", "sales")["unknown_addresses"] == 1


def test_live_file_addressed_by_web_server_refuses_the_apply(spark: SparkSession, tmp_path: Path) -> None:
    """The file is committed after the plan was approved."""
    house = Lakehouse(spark, tmp_path)
    writer = Writer(house, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{house.warehouse}"})
    address, size_bytes = writer.write("late.parquet")
    writer.write("garbage.parquet")
    header = writer.plan()
    assert writer.data_files() == {"garbage.parquet", "late.parquet"}
    house.approve(header)
    writer.commit(address.replace(f"file://{house.warehouse}/", "https://files.example.org/export/"), size_bytes)
    with pytest.raises(GateRefused, match=f"{GATE}: 1 planned file .*late.parquet and https://files.example.org/export/db/t/data"):
        house.apply(header)
    header = writer.plan(aliases=["https://files.example.org/export/"])
    assert (header.failed_gates, writer.data_files()) == ([], {"garbage.parquet"})
    assert list(check_addresses(house.run_context(), "sales")) == []


def test_live_file_addressed_by_a_removed_alias_refuses_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Without an alias, an address on S3 does not belong to a storage on a disk."""
    house = Lakehouse(spark, tmp_path)
    writer = Writer(house, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{house.warehouse}"})
    alias = "s3://gateway/lake/"
    address, size_bytes = writer.write("named.parquet")
    writer.commit(address.replace(f"file://{house.warehouse}/", alias), size_bytes)
    writer.write("garbage.parquet")
    assert not writer.plan(aliases=[alias, "oss://id:password@lake/"]).failed_gates
    assert writer.data_files() == {"garbage.parquet"}
    for _ in range(2):  # a refused run does not forget the alias
        header = writer.plan()
        assert house.failed_gates(header) == {GATE}
        (message,) = (gate.message for gate in header.failed_gates)
        assert "an address under an entry of `aliases` that was removed since an earlier run" in message
        assert header.aliases == (alias,)
    assert not writer.plan(aliases=[alias]).failed_gates
    assert writer.data_files() == {"garbage.parquet"}


def test_live_file_under_an_absent_mount_refuses_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """The writer reaches the files through mounts: an empty directory here, and a directory with another name.

    `copied.parquet` exists here too, but it may be an old copy that a mount hides.
    """
    house = Lakehouse(spark, tmp_path)
    writer = Writer(house, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{house.warehouse}"})
    mounted = {"bound.parquet": "srv/db/t/data", "renamed.parquet": "mnt/events", "copied.parquet": "srv/db/t/data"}
    (tmp_path / "srv/db/t/data").mkdir(parents=True)
    for name, mount in mounted.items():
        address, size_bytes = writer.write(name)
        writer.commit(f"file://{tmp_path}/{mount}/{name}", size_bytes)
    copy = tmp_path / "srv/db/t/data/copied.parquet"
    copy.write_bytes(Path(address.removeprefix("file://")).read_bytes())
    header = writer.plan()
    assert writer.data_files() == set(mounted)
    assert house.failed_gates(header) == {GATE}
    message = next(gate.message for gate in header.failed_gates)
    assert "3 planned files" in message, message
    assert "/srv/db/t/data/copied.parquet (a file of a table with files that do not exist on this machine, so it may be an old" in message
    assert "/srv/db/t/data/bound.parquet (a file that does not exist on this machine)" in message
    assert "/mnt/events/renamed.parquet (a directory that does not exist on this machine)" in message


def test_old_copy_under_an_absent_mount_refuses_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """The missing file itself is too young for the plan."""
    house = Lakehouse(spark, tmp_path)
    writer = Writer(house, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{house.warehouse}"})
    mount = tmp_path / "srv/db/t/data"
    mount.mkdir(parents=True)
    for name in ("old.parquet", "young.parquet"):
        _, size_bytes = writer.write(name)
        writer.commit(f"file://{mount}/{name}", size_bytes)
    content = house.warehouse / "db/t/data"
    (mount / "old.parquet").write_bytes((content / "old.parquet").read_bytes())
    young = (max(house.now, datetime.now(house.now.tzinfo)) + timedelta(days=9, hours=12)).timestamp()
    os.utime(content / "young.parquet", (young, young))
    header = writer.plan()
    assert writer.data_files() == {"old.parquet"}
    assert house.failed_gates(header) == {GATE}
    (mount / "young.parquet").write_bytes((content / "young.parquet").read_bytes())
    assert not writer.plan().failed_gates  # a complete copy in another place


def test_live_file_in_a_mount_with_different_inodes_refuses_the_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshfs and other FUSE mounts number files on their own. A copy simulates that."""
    house = Lakehouse(spark, tmp_path)
    writer = Writer(house, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{house.warehouse}"})
    address, size_bytes = writer.write("mounted.parquet")
    mount = tmp_path / "mnt/db/t/data"
    mount.mkdir(parents=True)
    (mount / "mounted.parquet").write_bytes(Path(address.removeprefix("file://")).read_bytes())
    writer.commit(f"file://{mount}/mounted.parquet", size_bytes)
    monkeypatch.setattr(mounts, "has_same_inodes", lambda directory, _: not directory.startswith(f"{tmp_path}/mnt/"))
    header = writer.plan()
    assert house.failed_gates(header) == {GATE}
    message = next(gate.message for gate in header.failed_gates)
    assert "mnt/db/t/data/mounted.parquet (a network, FUSE or overlay mount" in message
    header = writer.plan(aliases=[f"{tmp_path}/mnt/"])
    assert (header.failed_gates, writer.data_files()) == ([], set())
