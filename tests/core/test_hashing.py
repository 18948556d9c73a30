"""The driver computes Spark's hashes, and a digest depends on the rows but not on their order."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from gc_assets.core.hashing import digest, row_hashes, xxhash64
from gc_assets.state.arrow_types import CONTENT_ROOT, STRINGS, TIMESTAMP

EVERY_TYPE = pa.schema(
    [
        ("text", pa.string()),
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("at", TIMESTAMP),
        ("texts", STRINGS),
        ("root", CONTENT_ROOT),
        ("roots", pa.list_(pa.field("element", CONTENT_ROOT))),
        ("summary", pa.map_(pa.string(), pa.string())),
    ]
)


def root(address: str, size: int | None) -> dict[str, Any]:
    return {
        "address": address,
        "kind": "manifest",
        "is_container": True,
        "size_bytes": size,
        "must_exist": False,
        "storage": None,
        "key": "k",
    }


ROWS: list[dict[str, Any]] = [
    dict.fromkeys(EVERY_TYPE.names),
    {
        "text": "",
        "long": -1,
        "int": -(2**31),
        "day": date(1969, 12, 31),
        "flag": False,
        "at": datetime(1969, 7, 20, 20, 17, 40, 123456, UTC),
        "texts": [],
        "root": root("", None),
        "roots": [],
        "summary": [],
    },
    {
        "text": "été/𝄞/%20",
        "long": 2**63 - 1,
        "int": 7,
        "day": date(2026, 1, 1),
        "flag": True,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "texts": ["main", None, "été"],
        "root": root("s3://b/k", 2**40),
        "roots": [root("a", 1), root("b", None)],
        "summary": [("operation", "append"), ("été", "z"), ("added", None), ("𝄞", "x"), ("\ufb01", "y")],
    },
    {**dict.fromkeys(EVERY_TYPE.names), "text": "x" * 33, "long": 0},
]


@pytest.mark.spark
def test_row_hashes_equal_spark(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812  (Spark's convention; only this test needs Spark)
    from pyspark.sql.pandas.types import from_arrow_schema

    table = pa.Table.from_pylist(ROWS, schema=EVERY_TYPE)
    rows = [tuple(dict(value) if name == "summary" and value is not None else value for name, value in row.items()) for row in ROWS]
    columns = [F.array_sort(F.map_entries(name)) if name == "summary" else F.col(name) for name in EVERY_TYPE.names]
    frame = spark.createDataFrame(rows, from_arrow_schema(EVERY_TYPE)).coalesce(1)
    found = frame.select(F.xxhash64(*columns), F.xxhash64("text")).collect()
    assert [row[0] for row in found] == row_hashes(table).tolist()
    assert [row[1] for row in found] == xxhash64(table.column("text")).tolist()


def test_known_spark_hashes_are_reproduced() -> None:
    # SQL: select xxhash64(''), xxhash64(cast(null as string))
    assert xxhash64(pa.array(["", None])).tolist() == [-7444071767201028348, 42]
    assert row_hashes(pa.table({"a": ["Spark"], "b": pa.array([None], pa.string())})).tolist() == xxhash64(pa.array(["Spark"])).tolist()


def test_strings_of_any_length_number_and_layout_have_spark_hashes() -> None:
    rng = random.Random(31)
    lengths = [0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 78, 1_024, 1_025]
    frequent = [rng.randbytes(length) for length in lengths for _ in range(600)]
    rare = [rng.randbytes(rng.randrange(200)) for _ in range(500)]
    values = [*frequent, *rare, *([None] * 700)]
    rng.shuffle(values)
    expected = [42 if value is None else xxh64_intdigest(value, 42) for value in values]
    column = pa.array(values, pa.binary())
    layouts = (column, column.slice(17, 9_000), pa.chunked_array([column.slice(5), column.slice(0, 5), column.slice(0, 0)]))
    orders = (expected, expected[17:9_017], [*expected[5:], *expected[:5]])
    for layout, order in zip(layouts, orders, strict=True):
        assert xxhash64(layout).view(np.uint64).tolist() == order


@pytest.mark.parametrize("values", [[], [""] * 600, [None] * 600, ["a"] * 600])
def test_empty_and_null_columns_are_hashed(values: list[str | None]) -> None:
    expected = [42 if value is None else xxh64_intdigest(value.encode(), 42) for value in values]
    assert xxhash64(pa.array(values, pa.string())).view(np.uint64).tolist() == expected
    assert xxhash64(pa.chunked_array([], pa.string())).tolist() == []


def random_row(rng: random.Random) -> dict[str, Any]:
    def text() -> str:
        return "".join(rng.choices("aé/", k=rng.choice([0, 3, 8, 40])))

    values: dict[str, Any] = {
        "text": text(),
        "long": rng.randrange(-(2**63), 2**63),
        "int": rng.randrange(-(2**31), 2**31),
        "day": date.fromordinal(rng.randrange(1, 3_000_000)),
        "flag": rng.random() < 0.5,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**15)),
        "texts": [rng.choice([text(), None]) for _ in range(rng.randrange(4))],
        "root": root(text(), rng.choice([None, rng.randrange(2**40)])),
        "roots": [rng.choice([None, root(text(), 1)]) for _ in range(rng.randrange(3))],
        "summary": [(key, rng.choice([text(), None])) for key in rng.sample(["b", "a", "é", "aa", ""], rng.randrange(5))],
    }
    return {name: None if rng.random() < 0.2 else value for name, value in values.items()}


def test_row_hashes_do_not_depend_on_batch_size() -> None:
    """Many rows are hashed together. Slices and chunks have other offsets."""
    rng = random.Random(31)
    table = pa.Table.from_pylist([random_row(rng) for _ in range(2_000)], schema=EVERY_TYPE)
    slices = [table.slice(start, 100) for start in range(0, 2_000, 100)]
    expected = np.concatenate([row_hashes(some) for some in slices])
    assert row_hashes(table).tolist() == expected.tolist()
    assert row_hashes(table.slice(37, 1_500)).tolist() == expected[37:1_537].tolist()
    assert row_hashes(pa.concat_tables([table.slice(500), table.slice(3, 400)])).tolist() == [*expected[500:], *expected[3:403]]
    for name in EVERY_TYPE.names:
        assert row_hashes(table.select([name])).tolist() == np.concatenate([row_hashes(some.select([name])) for some in slices]).tolist()


def test_digest_ignores_order_and_chunks() -> None:
    table = pa.Table.from_pylist(ROWS, schema=EVERY_TYPE)
    turned = pa.concat_tables([table.slice(2), table.slice(0, 2)])
    assert digest(turned) == digest(table)


def test_part_digests_sum_to_table_digest() -> None:
    table = pa.Table.from_pylist(ROWS, schema=EVERY_TYPE)
    assert (digest(table.slice(0, 3)) + digest(table.slice(3))) % 2**64 == digest(table)


def test_digest_changes_with_rows() -> None:
    table = pa.table({"key": ["a", "b"], "size_bytes": pa.array([1, 2], pa.int64())})
    others = [
        pa.table({"key": ["a", "b"], "size_bytes": pa.array([1, 3], pa.int64())}),
        table.slice(0, 1),
        pa.concat_tables([table, table.slice(0, 1)]),
    ]
    assert len({digest(table), *map(digest, others)}) == 4


@given(st.dictionaries(st.text(), st.text(), max_size=5), st.randoms())
def test_digest_ignores_order_of_map_entries(entries: dict[str, str], random: Any) -> None:
    shuffled = list(entries.items())
    random.shuffle(shuffled)
    column = pa.array([list(entries.items()), shuffled], pa.map_(pa.string(), pa.string()))
    first, second = row_hashes(pa.table({"summary": column}))
    assert first == second


def test_empty_table_has_zero_digest() -> None:
    assert digest(EVERY_TYPE.empty_table()) == 0
    assert row_hashes(EVERY_TYPE.empty_table()).dtype == np.int64


def test_unsupported_column_type_is_rejected() -> None:
    with pytest.raises(TypeError, match="double"):
        row_hashes(pa.table({"ratio": [0.5]}))
    with pytest.raises(TypeError, match=r"timestamp\[ms\]"):
        row_hashes(pa.table({"at": pa.array([0], pa.timestamp("ms"))}))
