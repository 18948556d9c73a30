"""Parse the key-value pairs in SSTable blocks.

Format: RocksDB wiki, "Rocksdb BlockBasedTable Format", section Block. Keys in a block are
prefix-compressed, except for a full key at each restart point. The intervals between restart points
do not depend on each other, so the n-th entries of all intervals are decoded together. The number
of steps to decode a range is therefore sixteen, independent of its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from gc_assets.core.untrusted_input import max_decompressed_bytes
from gc_assets.lakes.lakefs.wire import Buffer, Bytes, Positions

# An internal key consists of the user key, seven bytes for the sequence number and one byte for the
# kind (RocksDB `dbformat.h`).
_TRAILER_BYTES: Final = 8
_SET: Final = 1
# Number of intervals whose keys are decoded in one matrix.
_INTERVAL_BATCH: Final = 2048
# Of lakeFS's key-value stores, Badger has the highest limit for keys: 65,000 bytes.
LARGEST_KEY: Final = 2**16
# Maximum size of a matrix of keys. It is only exceeded if a single interval is longer.
_MATRIX_BYTES: Final = 2**25


@dataclass(frozen=True, slots=True)
class Entries:
    """Key-value pairs in the order of the SSTable. Values are given by positions in `buffer`."""

    buffer: Buffer
    keys: pa.BinaryArray
    value_starts: Positions
    value_sizes: Positions

    def __len__(self) -> int:
        return len(self.value_starts)

    def values(self) -> pa.BinaryArray:
        return self.buffer.texts(self.value_starts, self.value_sizes)


def read_blocks(source: str, blocks: list[bytes]) -> Entries:
    """Read all entries of decompressed data blocks, in order, without the trailers of their keys.

    Raises:
        FormatError: If a block is damaged, or an entry does something other than set a value.
    """
    buffer = Buffer.of(source, blocks)
    starts, ends = _intervals(buffer, blocks)
    longest = int((ends - starts).max(initial=1))  # A key cannot be longer than its interval.
    step = max(1, min(_INTERVAL_BATCH, _MATRIX_BYTES // max(1, longest)))
    parts = [_read_intervals(buffer, starts[first : first + step], ends[first : first + step]) for first in range(0, len(starts), step)]
    if not parts:
        return Entries(buffer, pa.array([], pa.binary()), np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Entries(
        buffer,
        pa.concat_arrays([part.keys for part in parts]),
        np.concatenate([part.value_starts for part in parts]),
        np.concatenate([part.value_sizes for part in parts]),
    )


def _intervals(buffer: Buffer, blocks: list[bytes]) -> tuple[Positions, Positions]:
    """Return the start and end of each interval between restart points in the joined buffer."""
    starts: list[Positions] = [np.zeros(0, np.int64)]
    ends: list[Positions] = [np.zeros(0, np.int64)]
    base = 0
    for block in blocks:
        if len(block) < 4:
            raise buffer.damage_error(f"a block of only {len(block)} bytes")
        count = int.from_bytes(block[-4:], "little")
        tail = len(block) - 4 - 4 * count
        if tail < 0 or count == 0:
            raise buffer.damage_error(f"a block of {len(block):,} bytes with an invalid number of restart points, {count:,}")
        restarts = np.frombuffer(block, "<u4", count, tail).astype(np.int64)
        until = np.append(restarts[1:], tail)
        if restarts[0] != 0 or np.any(until < restarts):
            raise buffer.damage_error("restart points that are out of order")
        starts.append(base + restarts)
        ends.append(base + until)
        base += len(block)
    return np.concatenate(starts), np.concatenate(ends)


def _read_intervals(buffer: Buffer, starts: Positions, ends: Positions) -> Entries:
    rows = np.flatnonzero(starts < ends)
    at, until = starts[rows], ends[rows]
    held, sizes = np.zeros((len(rows), 0), np.uint8), np.zeros(len(rows), np.int64)
    total, limit = 0, max_decompressed_bytes(len(buffer.data))
    found_rows: list[Positions] = []
    found_keys: list[pa.BinaryArray] = []
    found_starts: list[Positions] = []
    found_sizes: list[Positions] = []
    while len(rows):
        prefixes, at = buffer.uvarints(at)
        if np.any(prefixes > sizes.astype(np.uint64)):
            raise buffer.damage_error("a key that shares more bytes than the previous key has")
        shared = prefixes.astype(np.int64)
        fresh, at = buffer.lengths(at, until, "a key")
        value_sizes, at = buffer.lengths(at, until, "a value")
        value_starts = at + fresh
        after = value_starts + value_sizes
        buffer.check_bounds(after, until, "an entry")
        sizes = shared + fresh
        total += int(sizes.sum())
        # Keys share prefixes, so three bytes are enough to repeat a long key.
        if np.any(sizes > LARGEST_KEY) or total > limit:
            raise buffer.damage_error(f"a key of {int(sizes.max()):,} bytes, or keys of {total:,} bytes in total")
        held = _next_keys(buffer.data, held, shared, at, sizes)
        found_rows.append(rows)
        found_keys.append(_user_keys(buffer, held, sizes))
        found_starts.append(value_starts)
        found_sizes.append(value_sizes)
        left = after < until
        if not left.all():
            rows, after, until, held, sizes = rows[left], after[left], until[left], held[left], sizes[left]
        at = after
    if not found_rows:
        return Entries(buffer, pa.array([], pa.binary()), np.zeros(0, np.int64), np.zeros(0, np.int64))
    order = np.argsort(np.concatenate(found_rows), kind="stable")
    return Entries(
        buffer,
        pa.concat_arrays(found_keys).take(pa.array(order)),
        np.concatenate(found_starts)[order],
        np.concatenate(found_sizes)[order],
    )


def _next_keys(data: Bytes, held: Bytes, shared: Positions, at: Positions, sizes: Positions) -> Bytes:
    """Build the next key of each interval, as rows of bytes.

    A key consists of a prefix that it shares with the previous key, and of the bytes at `at`.
    """
    width = int(sizes.max())
    columns = np.arange(width)
    keys = np.zeros((len(sizes), width), np.uint8)
    common = min(width, held.shape[1])
    keys[:, :common] = held[:, :common]
    fresh = (columns >= shared[:, None]) & (columns < sizes[:, None])
    lengths = sizes - shared
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    keys[fresh] = data[np.arange(int(offsets[-1])) + np.repeat(at - offsets[:-1], lengths)]
    return keys


def _user_keys(buffer: Buffer, keys: Bytes, sizes: Positions) -> pa.BinaryArray:
    if np.any(sizes < _TRAILER_BYTES):
        raise buffer.damage_error("a key without its trailer")
    kinds = keys[np.arange(len(sizes)), sizes - _TRAILER_BYTES]
    if np.any(kinds != _SET):
        strange = int(kinds[kinds != _SET][0])
        raise buffer.damage_error(f"an entry of kind {strange}, expected {_SET} (set)")
    user_sizes = sizes - _TRAILER_BYTES
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(user_sizes))).astype(np.int32)
    text = keys[np.arange(keys.shape[1]) < user_sizes[:, None]]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
