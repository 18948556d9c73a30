"""RocksDB reads the tables of the test writer with checksums."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lakes.lakefs.tables import Entry, TableWriter, range_table

pytestmark = pytest.mark.spark


def read_by_rocksdb(spark: SparkSession, path: Path) -> list[tuple[bytes, bytes]]:
    """Read all pairs with the RocksDB of Spark. A shared block cache would mix up files, so `Options` is new."""
    rocksdb = spark._jvm.org.rocksdb
    rocksdb.RocksDB.loadLibrary()
    options = rocksdb.Options()
    reader = rocksdb.SstFileReader(options)
    reader.open(str(path))
    reader.verifyChecksum()
    found = []
    pairs = reader.newIterator(rocksdb.ReadOptions())
    pairs.seekToFirst()
    while pairs.isValid():
        found.append((bytes(pairs.key()), bytes(pairs.value())))
        pairs.next()
    pairs.status()
    pairs.close()
    reader.close()
    options.close()
    return found


@pytest.mark.parametrize("two_level", [False, True])
def test_rocksdb_reads_written_tables(spark: SparkSession, tmp_path: Path, two_level: bool) -> None:
    pairs = [(f"key/{number:04}".encode(), f"value {number}".encode()) for number in range(600)]
    path = tmp_path / "table"
    path.write_bytes(TableWriter(two_level=two_level).write(pairs))
    assert read_by_rocksdb(spark, path) == pairs


def test_rocksdb_reads_written_range_and_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    entries = [Entry(f"a/{number:03}", f"data/p/{number:020}") for number in range(100)]
    path = tmp_path / "range"
    path.write_bytes(range_table(entries))
    assert read_by_rocksdb(spark, path) == [entry.encode() for entry in entries]
    path = tmp_path / "empty"
    path.write_bytes(TableWriter().write([]))
    assert read_by_rocksdb(spark, path) == []
