"""Pure Python `xxhash64` that is identical to Spark's, for use in driver, executors and files.

XXH64 with seed 42. Columns are chained, i.e. the hash of one value is the seed for the next, and a
null leaves the hash unchanged. The Python loop hashes about two million strings per second, so
large tables are hashed in Spark.
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
# Python values need ten times as much memory as Arrow values.
_ROWS_AT_A_TIME = 4_096

_Chain = Callable[[Any, int], int]


def xxhash64(values: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return Spark's `xxhash64(col)` of a string column. The hash of an SQL null is 42."""
    hashes = [SPARK_SEED if value is None else xxh64_intdigest(value, SPARK_SEED) for value in values.cast(pa.binary()).to_pylist()]
    return np.array(hashes, np.uint64).view(np.int64)


def row_hashes(table: pa.Table) -> NDArray[np.int64]:
    """Return Spark's `xxhash64` over all columns. A map `m` is hashed as
    `array_sort(map_entries(m))`.

    Raises:
        TypeError: For column types not used in published tables.
    """
    hashes = [SPARK_SEED] * table.num_rows
    for name in table.schema.names:
        column = table.column(name)
        plain, chain = _plain_type(column.type), _chain(column.type)
        hashes = [chain(value, seed) for value, seed in zip(column.cast(plain).to_pylist(), hashes, strict=True)]
    return np.array(hashes, np.uint64).view(np.int64)


def digest(table: pa.Table) -> int:
    """Return the sum of the row hashes modulo 2^64.

    The digest is independent of row order, and partial digests can be added.
    """
    slices = (table.slice(start, _ROWS_AT_A_TIME) for start in range(0, table.num_rows, _ROWS_AT_A_TIME))
    return sum(int(row_hashes(some).view(np.uint64).sum(dtype=np.uint64)) for some in slices) % 2**64


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type with Python values equal to the integers and bytes hashed by Spark."""
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
    """Return a function that updates the hash with a value of the given type.

    Source: `org.apache.spark.sql.catalyst.expressions.XxHash64`.
    """
    if pt.is_string(type_) or pt.is_large_string(type_):
        return _or_null(xxh64_intdigest)
    if pt.is_int64(type_) or type_ == pa.timestamp("us", type_.tz if pt.is_timestamp(type_) else None):
        return _or_null(lambda value, seed: xxh64_intdigest(value.to_bytes(8, "little", signed=True), seed))
    if pt.is_boolean(type_) or pt.is_int32(type_) or pt.is_date32(type_):
        return _or_null(lambda value, seed: xxh64_intdigest(int(value).to_bytes(4, "little", signed=True), seed))
    if pt.is_map(type_) and pt.is_string(type_.key_type):
        # Arrow returns entries as (key, value) pairs. Keys are unique, so their byte order is
        # Spark's order.
        entry = _sequence([_chain(type_.key_type), _chain(type_.item_type)])
        return _or_null(lambda entries, seed: _chain_values(entry, sorted(entries, key=lambda pair: pair[0]), seed))
    if pt.is_list(type_):
        element = _chain(type_.value_type)
        return _or_null(lambda elements, seed: _chain_values(element, elements, seed))
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


def _chain_values(chain: _Chain, values: Any, seed: int) -> int:
    for value in values:
        seed = chain(value, seed)
    return seed
