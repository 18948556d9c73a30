"""Compute Spark's `xxhash64` in Python, for rows that Spark does not read.

The function is XXH64 with seed 42. For several columns, the hash of one value is the seed for the
next, and a null value in a column leaves the hash unchanged. Values of equal length are hashed
together with NumPy, which takes a second for about eight million strings. A small number of rows is
hashed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

SPARK_SEED = 42
# Number of rows or strings to hash together, chosen so that their vectors fit in a core's cache.
_HASHES_AT_A_TIME = 16_384
# Below these numbers of rows or of strings with one length, and above this length, it is faster to
# hash each value separately.
_LEAST_ROWS = 1_000
_LEAST_EQUAL = 128
_MAX_LENGTH = 1_024

# Constants of XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_P1, _P2, _P3, _P4, _P5 = (np.uint64(prime) for prime in _PRIMES)
_MASK = 2**64 - 1

_Hashes = NDArray[np.uint64]
_Chain = Callable[[Any, int], int]


def xxhash64(values: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Compute Spark's `xxhash64(col)` for a string column. The hash of an SQL null is 42."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    hashes = [_chain_array(chunk, np.full(len(chunk), SPARK_SEED, np.uint64)) for chunk in chunks]
    return np.concatenate([np.empty(0, np.uint64), *hashes]).view(np.int64)


def _chain_array(values: pa.Array, seeds: _Hashes) -> _Hashes:
    """Update the rows' hashes of the previous columns, which are the seeds, with another column."""
    if values.null_count == len(values):
        return seeds
    if not values.null_count:
        return _chain_valid(values, seeds)
    rows = np.flatnonzero(values.is_valid())
    hashes = seeds.copy()
    hashes[rows] = _chain_valid(values.drop_null(), seeds[rows])
    return hashes


def _chain_valid(values: pa.Array, seeds: _Hashes) -> _Hashes:
    type_ = values.type
    if pt.is_string(type_) or pt.is_large_string(type_) or pt.is_binary(type_):
        return _hash_strings(values.cast(pa.binary()), seeds)
    if pt.is_struct(type_):
        for field in values.flatten():
            seeds = _chain_array(field, seeds)
        return seeds
    if pt.is_map(type_):
        lengths, entries = _sorted_entries(values)
        return _chain_lists(lengths, entries, seeds)
    if pt.is_list(type_):
        return _chain_lists(pc.list_value_length(values).to_numpy(), [values.flatten()], seeds)
    if pt.is_int64(type_) or pt.is_timestamp(type_):
        return _hash_longs(values.cast(pa.int64()).to_numpy().view(np.uint64), seeds)
    return _hash_ints(values.cast(pa.int32()).to_numpy().view(np.uint32), seeds)


def _sorted_entries(values: pa.MapArray) -> tuple[NDArray[np.int32], list[pa.Array]]:
    """Sort the entries of each map by key.

    Returns:
        The number of entries in each map, and the keys and values of all maps.
    """
    offsets = values.offsets.to_numpy()
    lengths = np.diff(offsets)
    entries = pa.table({"row": np.repeat(np.arange(len(values)), lengths), "key": values.keys[offsets[0] : offsets[-1]].cast(pa.binary())})
    order = pc.sort_indices(entries, [("row", "ascending"), ("key", "ascending")])
    return lengths, [column[offsets[0] : offsets[-1]].take(order) for column in (values.keys, values.items)]


def _chain_lists(lengths: NDArray[np.int32], columns: list[pa.Array], seeds: _Hashes) -> _Hashes:
    """Update hashes with list elements that consist of one value in each of the columns."""
    hashes, starts = seeds.copy(), np.cumsum(lengths) - lengths
    for position in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > position)
        for column in columns:
            hashes[rows] = _chain_array(column.take(pa.array(starts[rows] + position)), hashes[rows])
    return hashes


def _hash_strings(values: pa.BinaryArray, seeds: _Hashes) -> _Hashes:
    hashes = np.empty(len(values), np.uint64)
    content, offsets = _content(values)
    lengths = np.diff(offsets)
    rows = np.argsort(np.minimum(lengths, _MAX_LENGTH + 1).astype(np.uint16), kind="stable")  # a radix sort
    single: list[NDArray[np.intp]] = []
    for group in np.split(rows, np.flatnonzero(np.diff(lengths[rows])) + 1):
        if len(group) < _LEAST_EQUAL or lengths[group[0]] > _MAX_LENGTH:
            single.append(group)
            continue
        for start in range(0, len(group), _HASHES_AT_A_TIME):
            some = group[start : start + _HASHES_AT_A_TIME]
            hashes[some] = _hash_equal_lengths(content, offsets[some], int(lengths[group[0]]), seeds[some])
    if single:
        some = np.concatenate(single)
        values_of = values.take(pa.array(some)).to_pylist()
        hashes[some] = [xxh64_intdigest(value, seed) for value, seed in zip(values_of, seeds[some].tolist(), strict=True)]
    return hashes


def _hash_longs(values: _Hashes, seeds: _Hashes) -> _Hashes:
    hashes, scratch = seeds + (_P5 + np.uint64(8)), np.empty(len(seeds), np.uint64)
    hashes ^= _round(values * _P2, scratch)
    _step(hashes, 27, _P1, scratch)
    hashes += _P4
    return _finish(hashes)


def _hash_ints(values: NDArray[np.uint32], seeds: _Hashes) -> _Hashes:
    hashes, scratch = seeds + (_P5 + np.uint64(4)), np.empty(len(seeds), np.uint64)
    hashes ^= values.astype(np.uint64) * _P1
    _step(hashes, 23, _P2, scratch)
    hashes += _P3
    return _finish(hashes)


def _content(values: pa.BinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return one array with the bytes of all strings, and the offset of each string in it."""
    _, offsets, content = values.buffers()
    starts = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return np.frombuffer(content if content is not None else b"", np.uint8), starts


def _hash_equal_lengths(content: NDArray[np.uint8], starts: NDArray[np.int64], length: int, seeds: _Hashes) -> _Hashes:
    """Hash many strings of equal length, by doing each step of XXH64 for all of them together."""
    at, scratch = starts.copy(), np.empty(len(starts), np.uint64)
    integers = np.ndarray((max(len(content) - 7, 0),), "<u8", content, strides=(1,))  # eight bytes at each position
    if length >= 32:
        first = (_PRIMES[0] + _PRIMES[1], _PRIMES[1], 0, -_PRIMES[0])
        lanes = [seeds + np.uint64(number & _MASK) for number in first]
        for _ in range(length // 32):
            for lane in lanes:
                lane += integers[at] * _P2
                _rotate(lane, 31, scratch)
                lane *= _P1
                at += 8
        hashes = _merge_lanes(lanes, scratch)
    else:
        hashes = seeds + _P5
    hashes += np.uint64(length)
    for _ in range(length % 32 // 8):
        hashes ^= _round(integers[at] * _P2, scratch)
        _step(hashes, 27, _P1, scratch)
        hashes += _P4
        at += 8
    if length % 8 >= 4:
        hashes ^= np.ndarray((len(content) - 3,), "<u4", content, strides=(1,))[at].astype(np.uint64) * _P1
        _step(hashes, 23, _P2, scratch)
        hashes += _P3
        at += 4
    for _ in range(length % 4):
        hashes ^= content[at].astype(np.uint64) * _P5
        _step(hashes, 11, _P1, scratch)
        at += 1
    return _finish(hashes)


def _finish(hashes: _Hashes) -> _Hashes:
    for shift, prime in ((33, _P2), (29, _P3)):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= prime
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _merge_lanes(lanes: list[_Hashes], scratch: _Hashes) -> _Hashes:
    hashes = np.zeros(len(scratch), np.uint64)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        rotated = lane.copy()
        _rotate(rotated, bits, scratch)
        hashes += rotated
    for lane in lanes:
        lane *= _P2
        hashes ^= _round(lane, scratch)
        hashes *= _P1
        hashes += _P4
    return hashes


def _round(products: _Hashes, scratch: _Hashes) -> _Hashes:
    _step(products, 31, _P1, scratch)
    return products


def _step(values: _Hashes, bits: int, prime: np.uint64, scratch: _Hashes) -> None:
    _rotate(values, bits, scratch)
    values *= prime


def _rotate(values: _Hashes, bits: int, scratch: _Hashes) -> None:
    """Rotate bits to the left, in place."""
    np.left_shift(values, np.uint64(bits), out=scratch)
    np.right_shift(values, np.uint64(64 - bits), out=values)
    np.bitwise_or(values, scratch, out=values)


def row_hashes(table: pa.Table) -> NDArray[np.int64]:
    """Compute Spark's `xxhash64` over all columns of each row.

    For a map `m`, this is the hash of `array_sort(map_entries(m))`.

    Raises:
        TypeError: If a column has a type that published tables do not use.
    """
    chains = [_chain(field.type) for field in table.schema]
    if table.num_rows >= _LEAST_ROWS:
        return _hash_together(table)
    hashes = [SPARK_SEED] * table.num_rows
    for column, chain in zip(table.columns, chains, strict=True):
        plain = _plain_type(column.type)
        hashes = [chain(value, seed) for value, seed in zip(column.cast(plain).to_pylist(), hashes, strict=True)]
    return np.array(hashes, np.uint64).view(np.int64)


def _hash_together(table: pa.Table) -> NDArray[np.int64]:
    hashes = np.full(table.num_rows, SPARK_SEED, np.uint64)
    for column in table.columns:
        hashes = _chain_array(column.combine_chunks(), hashes)
    return hashes.view(np.int64)


def digest(table: pa.Table) -> int:
    """Compute a digest of a table, which is the sum of its row hashes modulo 2^64.

    It does not depend on the order of rows, and the digests of parts of a table can be added up.
    """
    slices = (table.slice(start, _HASHES_AT_A_TIME) for start in range(0, table.num_rows, _HASHES_AT_A_TIME))
    return sum(int(row_hashes(some).view(np.uint64).sum(dtype=np.uint64)) for some in slices) % 2**64


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type to cast to, so that Python values are the integers and bytes Spark hashes."""
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
    """Return a function that updates a hash with a value of the given type.

    The rules are those of `org.apache.spark.sql.catalyst.expressions.XxHash64`.
    """
    if pt.is_string(type_) or pt.is_large_string(type_):
        return _or_null(xxh64_intdigest)
    if pt.is_int64(type_) or type_ == pa.timestamp("us", type_.tz if pt.is_timestamp(type_) else None):
        return _or_null(lambda value, seed: xxh64_intdigest(value.to_bytes(8, "little", signed=True), seed))
    if pt.is_boolean(type_) or pt.is_int32(type_) or pt.is_date32(type_):
        return _or_null(lambda value, seed: xxh64_intdigest(int(value).to_bytes(4, "little", signed=True), seed))
    if pt.is_map(type_) and pt.is_string(type_.key_type):
        # Arrow returns entries as pairs of key and value. Keys are unique, so sorting them by bytes
        # gives the same order as Spark.
        entry = _sequence([_chain(type_.key_type), _chain(type_.item_type)])
        return _or_null(lambda entries, seed: _chain_values(entry, sorted(entries, key=lambda pair: pair[0]), seed))
    if pt.is_list(type_):
        element = _chain(type_.value_type)
        return _or_null(lambda elements, seed: _chain_values(element, elements, seed))
    if pt.is_struct(type_):
        members = _sequence([_chain(field.type) for field in type_])
        return _or_null(lambda value, seed: members(value.values(), seed))
    raise TypeError(
        f"cannot hash columns of type {type_}; published tables contain strings, int32, int64, booleans, dates, timestamps in "
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
