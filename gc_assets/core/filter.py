"""A blocked bloom filter over row hashes. It says "surely not live" or "perhaps live", and is never
wrong about the first.

Every key owns one block of 512 bits (one cache line), and two bits in each of its eight 64-bit
words. A false positive keeps a garbage file until another night. The seed differs from night to
night, so that it is not the same file for ever. Pure numpy on int64 hashes: no keys, no storage, no
Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64

from gc_assets.core.errors import GcError, StateError

LOG_ENTRIES: Final = 8
BITS_PER_WORD: Final = 2
BLOCK_BITS: Final = 64 * LOG_ENTRIES
# 1e-6 false positives need 39.0 bits a key in this layout (Poisson sum over the load of a block);
# the rest is margin.
BITS_PER_KEY: Final = 40
TARGET_FPR: Final = 1e-6
VERSION: Final = 1
# A block is drawn from 32 bits of the hash; up to here each is drawn equally often within 1 part in
# 16.
MAX_BLOCKS: Final = 2**28
# Hashes handled at a time: the working set stays in the processor's cache, and memory does not grow
# with the input.
_CHUNK: Final = 2**14
_MAGIC: Final = b"GCBLOOM\0"
_HEADER: Final = struct.Struct("<8sIIqQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_BITS_START: Final = _HEADER.size + _CHECKSUM.size
_MASK_BITS: Final = 12

_Hashes = NDArray[np.int64]
_Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """What two filters must share to be merged. `keys` is the number of keys that the filter is
    made for. `seed` differs by run date.
    """

    keys: int
    seed: int
    blocks: int
    version: int = VERSION

    @classmethod
    def sized(cls, keys: int, seed: int) -> Self:
        """Returns a spec with a false-positive rate of 1e-6 once `keys` distinct hashes are in.
        Raises `GcError` beyond 3.4e9 keys.
        """
        blocks = max(1, ceil(keys * BITS_PER_KEY / BLOCK_BITS))
        if blocks > MAX_BLOCKS:
            limit = MAX_BLOCKS * BLOCK_BITS // BITS_PER_KEY
            raise GcError(f"a live filter holds at most {limit:,} keys, found {keys:,}; divide the storage into several")
        return cls(keys, seed, blocks)

    @property
    def hashes(self) -> int:
        """The number of bits that each key sets."""
        return LOG_ENTRIES * BITS_PER_WORD

    @property
    def size_bytes(self) -> int:
        return self.blocks * BLOCK_BITS // 8


class Filter:
    """The bits, and the spec that they follow."""

    def __init__(self, spec: FilterSpec, bits: _Words) -> None:
        self.spec = spec
        self._bits = bits

    @classmethod
    def empty(cls, spec: FilterSpec) -> Self:
        return cls(spec, np.zeros(spec.blocks * LOG_ENTRIES, np.uint64))

    def add(self, hashes: _Hashes) -> None:
        """Adds the hashes: afterwards every one of them is contained."""
        for chunk in _chunks(hashes):
            left = chunk
            while len(left):
                first, masks = _place(left, self.spec)
                for word, mask in enumerate(masks):
                    # Of two keys that share a word the last one's write wins; the other is found
                    # missing below and goes again.
                    index = first + word
                    self._bits[index] |= mask
                left = left[~self._holds(first, masks)]

    def contains(self, hashes: _Hashes) -> NDArray[np.bool_]:
        """Returns False only for a hash that was never added."""
        found = np.empty(len(hashes), np.bool_)
        start = 0
        for chunk in _chunks(hashes):
            found[start : start + len(chunk)] = self._holds(*_place(chunk, self.spec))
            start += len(chunk)
        return found

    def merge(self, other: Filter) -> None:
        """Adds everything in `other`. Raises `StateError` for a filter of another spec."""
        if other.spec != self.spec:
            raise StateError(f"filters of different specs cannot be merged: {self.spec} and {other.spec}")
        self._bits |= other._bits

    def to_bytes(self) -> bytes:
        """Returns header, checksum of all the rest, and bits; little-endian."""
        spec = self.spec
        header = _HEADER.pack(_MAGIC, spec.version, spec.hashes, spec.seed, spec.keys, spec.blocks)
        bits = self._bits.astype("<u8", copy=False).tobytes()
        return header + _CHECKSUM.pack(_checksum(header, bits)) + bits

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Reads what `to_bytes` wrote. Raises `StateError` for bytes that are truncated, altered,
        or of a newer version.
        """
        if len(raw) < _BITS_START or raw[: len(_MAGIC)] != _MAGIC:
            raise StateError(f"no live filter: expected {_MAGIC!r} and a header, found {raw[:_BITS_START]!r}; make it anew")
        _, version, hashes, seed, keys, blocks = _HEADER.unpack_from(raw)
        spec = FilterSpec(keys, seed, blocks, version)
        if version != VERSION or hashes != spec.hashes:
            raise StateError(
                f"live filter of version {version} with {hashes} bits a key, this program reads version {VERSION} with {spec.hashes}; "
                "make it anew, or use the program that made it"
            )
        bits = memoryview(raw)[_BITS_START:]
        if len(bits) != spec.size_bytes:
            raise StateError(
                f"live filter of {blocks:,} blocks: expected {spec.size_bytes:,} bytes of bits, found {len(bits):,}; make it anew"
            )
        if _CHECKSUM.unpack_from(raw, _HEADER.size) != (_checksum(raw[: _HEADER.size], bits),):
            raise StateError(
                f"live filter of {blocks:,} blocks: its bytes do not have the checksum that was written with them; make it anew"
            )
        return cls(spec, np.frombuffer(bits, "<u8").astype(np.uint64))

    def self_test(self, live: _Hashes) -> None:
        """Raises `StateError` unless every live hash is contained. A live hash that is not
        contained would be a live file offered as garbage.
        """
        missed = len(live) - int(np.count_nonzero(self.contains(live)))
        if missed:
            raise StateError(
                f"live filter: {missed:,} of {len(live):,} live keys are not in it, expected none; it is not used, make it anew"
            )

    def measured_fpr(self, samples: int, rng: np.random.Generator) -> float:
        """Returns the share of `samples` random hashes that the filter takes for live. (One in 2^64
        per key really is.)
        """
        hits = 0
        for start in range(0, samples, _CHUNK):
            hashes = rng.integers(-(2**63), 2**63, min(_CHUNK, samples - start), np.int64)
            hits += int(np.count_nonzero(self.contains(hashes)))
        return hits / samples

    def _holds(self, first: NDArray[np.int64], masks: list[_Words]) -> NDArray[np.bool_]:
        missing = np.zeros(len(first), np.uint64)
        for word, mask in enumerate(masks):
            missing |= mask & ~self._bits[first + word]
        return missing == 0


def _checksum(header: bytes, bits: bytes | memoryview) -> int:
    checksum = xxh64(header)
    checksum.update(bits)
    return checksum.intdigest()


def _chunks(hashes: _Hashes) -> Iterator[_Hashes]:
    for start in range(0, len(hashes), _CHUNK):
        yield hashes[start : start + _CHUNK]


def _mix(values: _Words) -> _Words:
    """The finaliser of MurmurHash3: each bit of the result depends on every bit of the value."""
    values = values ^ (values >> np.uint64(33))
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values


def _place(hashes: _Hashes, spec: FilterSpec) -> tuple[NDArray[np.int64], list[_Words]]:
    """Returns for each hash the index of its block's first word, and its mask in each of the
    block's words.

    Bits are cut from well mixed words and never used twice: masks that depend on each other cost a
    factor 100 in false positives.
    """
    salt = _mix(np.array([spec.seed], np.int64).view(np.uint64) + _GOLDEN)
    mixed = _mix(hashes.view(np.uint64) ^ salt)
    block = ((mixed >> np.uint64(32)) * np.uint64(spec.blocks)) >> np.uint64(32)
    masks: list[_Words] = []
    per_word = 64 // _MASK_BITS
    for word in range(LOG_ENTRIES):
        if word % per_word == 0:
            mixed = _mix(mixed + _GOLDEN)
        index = (mixed >> np.uint64(word % per_word * _MASK_BITS)) & np.uint64(2**_MASK_BITS - 1)
        masks.append(_MASKS[index.view(np.int64)])
    return (block * np.uint64(LOG_ENTRIES)).view(np.int64), masks


def _pairs_of_bits() -> _Words:
    """Returns masks with two different bits of a word. Every pair comes about equally often."""
    index = np.arange(2**_MASK_BITS, dtype=np.uint64)
    one, step = index % np.uint64(64), index // np.uint64(64) % np.uint64(63) + np.uint64(1)
    return (np.uint64(1) << one) | (np.uint64(1) << ((one + step) % np.uint64(64)))


_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MASKS: Final = _pairs_of_bits()
