"""Spark's `xxhash64` outside Spark: one hash for executors, driver and published files.

XXH64 with seed 42, columns chained: the hash of one value is the seed of the next, and a null
leaves it as it is. Loops over values in Python: two million a second of one string column, and far
fewer rows of many columns, so large tables are hashed by Spark itself. Knows Arrow types, not
tables or stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

SPARK_SEED = 42
# Python values take ten times the room of Arrow's.
_ROWS_AT_A_TIME = 4_096

_Chain = Callable[[Any, int], int]


def xxhash64(values: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns Spark's `xxhash64(col)` of a string column, row by row. A null hashes to 42."""
    hashes = [SPARK_SEED if value is None else xxh64_intdigest(value, SPARK_SEED) for value in values.cast(pa.binary()).to_pylist()]
    return np.array(hashes, np.uint64).view(np.int64)


def row_hashes(table: pa.Table) -> NDArray[np.int64]:
    """Returns Spark's `xxhash64` of all columns in their order. A map `m` enters as
    `array_sort(map_entries(m))`.

    Raises `TypeError` for a column type that no published table has.
    """
    hashes = [SPARK_SEED] * table.num_rows
    for name in table.schema.names:
        column = table.column(name)
        plain, chain = _plain_type(column.type), _chain(column.type)
        hashes = [chain(value, seed) for value, seed in zip(column.cast(plain).to_pylist(), hashes, strict=True)]
    return np.array(hashes, np.uint64).view(np.int64)


def digest(table: pa.Table) -> int:
    """Returns the sum of the row hashes modulo 2^64. Equal content has an equal digest in any
    order, and digests of parts add up.
    """
    slices = (table.slice(start, _ROWS_AT_A_TIME) for start in range(0, table.num_rows, _ROWS_AT_A_TIME))
    return sum(int(row_hashes(some).view(np.uint64).sum(dtype=np.uint64)) for some in slices) % 2**64


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Returns the type whose Python values are the integers and bytes that Spark hashes."""
    if pt.is_string(type_) or pt.is_large_string(type_):
        return pa.large_binary()
    if type_ == pa.timestamp("us", type_.tz if pt.is_timestamp(type_) else None):
        return pa.int64()
    if pt.is_date32(type_):
        return pa.int32()
    if pt.is_map(type_):
        return pa.map_(_plain_type(type_.key_type), _plain_type(type_.item_type))
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(_plain_type(type_.value_type)))
    if pt.is_struct(type_):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in type_])
    return type_


def _chain(type_: pa.DataType) -> _Chain:
    """How one value of a type moves the hash on, as
    `org.apache.spark.sql.catalyst.expressions.XxHash64` does.
    """
    if pt.is_string(type_) or pt.is_large_string(type_):
        return _or_null(xxh64_intdigest)
    if pt.is_int64(type_) or type_ == pa.timestamp("us", type_.tz if pt.is_timestamp(type_) else None):
        return _or_null(lambda value, seed: xxh64_intdigest(value.to_bytes(8, "little", signed=True), seed))
    if pt.is_boolean(type_) or pt.is_int32(type_) or pt.is_date32(type_):
        return _or_null(lambda value, seed: xxh64_intdigest(int(value).to_bytes(4, "little", signed=True), seed))
    if pt.is_map(type_) and pt.is_string(type_.key_type):
        # Arrow gives entries as (key, value) pairs; keys are unique, so that the order of the keys'
        # bytes is Spark's.
        entry = _sequence([_chain(type_.key_type), _chain(type_.item_type)])
        return _or_null(lambda entries, seed: _fold(entry, sorted(entries, key=lambda pair: pair[0]), seed))
    if pt.is_list(type_):
        element = _chain(type_.value_type)
        return _or_null(lambda elements, seed: _fold(element, elements, seed))
    if pt.is_struct(type_):
        members = _sequence([_chain(field.type) for field in type_])
        return _or_null(lambda value, seed: members(value.values(), seed))
    raise TypeError(
        f"no hash for columns of type {type_}; published tables hold strings, int32, int64, booleans, dates, timestamps in "
        "microseconds, and lists, structs and maps from strings of these"
    )


def _or_null(chain: _Chain) -> _Chain:
    return lambda value, seed: seed if value is None else chain(value, seed)


def _sequence(chains: list[_Chain]) -> _Chain:
    def members(values: Any, seed: int) -> int:
        for chain, value in zip(chains, values, strict=True):
            seed = chain(value, seed)
        return seed

    return members


def _fold(chain: _Chain, values: Any, seed: int) -> int:
    for value in values:
        seed = chain(value, seed)
    return seed
