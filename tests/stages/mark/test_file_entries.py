"""File entries that count are hashed when their container is decoded."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.hashing import xxhash64
from gc_assets.stages.mark.file_entries import IS_FILE_ENTRY, MAX_LENGTH, build_hashes, is_file_entry, possible_lengths
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import HASHES


def entries(*rows: Mapping[str, Any]) -> pa.RecordBatch:
    default = {"container": "m", "storage": "disk", "kind": "data", "is_container": False, "must_exist": True}
    complete = [{**default, "address": f"s3://b/{row.get('key', 'x')}", **row} for row in rows]
    return pa.RecordBatch.from_pylist(complete, schema=MANIFEST_ENTRIES.schema)


def hash_of(text: str) -> int:
    return int(xxhash64(pa.array([text]))[0])


def test_entry_row_contains_file_attributes() -> None:
    (row,) = build_hashes(entries({"key": "a/b", "kind": "statistics", "size_bytes": 7, "must_exist": False})).to_pylist()
    key_hash = hash_of("a/b")
    expected = {"container": "m", "storage": "disk", "kind": "statistics", "key_hash": key_hash, "loose_hash": None}
    assert row == {**expected, "size_bytes": 7}


@pytest.mark.parametrize(
    "key, loose",
    [
        ("a%20b", "a b"),
        ("a\\b", "a/b"),
        ("a//b", "a/b"),
        ("a/./b", "a/b"),
        ("e\u0301", "\u00e9"),
        ("%2561", "a"),
        ("Part=A", "part=a"),
        ("%41", "a"),
    ],
)
def test_irregular_key_also_has_normalized_hash(key: str, loose: str) -> None:
    (row, regular) = build_hashes(entries({"key": key}, {"key": loose})).to_pylist()
    assert (row["key_hash"], row["loose_hash"]) == (hash_of(key), hash_of(loose))
    assert (regular["key_hash"], regular["loose_hash"]) == (hash_of(loose), None)


def test_external_file_has_the_hash_of_its_address() -> None:
    (row,) = build_hashes(entries({"key": None, "storage": None, "address": "s3://other/a%20b"})).to_pylist()
    assert (row["storage"], row["key_hash"], row["loose_hash"]) == (None, hash_of("s3://other/a%20b"), None)


def test_containers_and_deleted_entries_have_no_file_hash() -> None:
    rows = [{"key": status or "none", "entry_status": status} for status in ("added", "existing", "deleted", None)]
    hashes = build_hashes(entries(*rows, {"key": "m2", "is_container": True}))
    assert hashes.column("key_hash").to_pylist() == [hash_of(key) for key in ("added", "existing", "none")]


def test_empty_entries_have_no_file_hashes() -> None:
    assert build_hashes(entries()).equals(pa.RecordBatch.from_pylist([], schema=HASHES))


@pytest.mark.spark
def test_file_hashes_and_hash_rule_match_spark(spark: SparkSession) -> None:
    rng = random.Random(31)
    alphabet = ["a", "/", "%", "\u00e9", "e\u0301", "\U0001f600", "25", "..", "\x1f"]
    rows = [
        {
            "key": "".join(rng.choices(alphabet, k=rng.randrange(0, 60))),
            "entry_status": rng.choice(["added", "existing", "deleted", None]),
            "is_container": rng.random() < 0.2,
        }
        for _ in range(500)
    ]
    batch = entries(*rows)
    plain = [(row["key"], row["entry_status"], row["is_container"]) for row in rows]
    frame = spark.createDataFrame(plain, "key string, entry_status string, is_container boolean").coalesce(1)
    expected = [tuple(row) for row in frame.filter(IS_FILE_ENTRY).selectExpr("key", "xxhash64(key)").collect()]
    keys = batch.filter(is_file_entry(batch)).column("key").to_pylist()
    assert sorted(zip(keys, build_hashes(batch).column("key_hash").to_pylist(), strict=True)) == sorted(expected)


def test_impossible_file_length_is_unknown() -> None:
    lengths = pa.array([0, MAX_LENGTH, MAX_LENGTH + 1, 2**63 - 1, -1, -(2**63), None], pa.int64())
    assert possible_lengths(lengths).to_pylist() == [0, MAX_LENGTH, None, None, None, None, None]
