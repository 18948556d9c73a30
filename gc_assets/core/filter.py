"""Blocked Bloom filter over row hashes, with false positives but no false negatives.

Each key maps to one block of 512 bits (a cache line) and to two bits in each of its eight 64-bit
words. A false positive keeps an orphan until a later run. The seed changes with the run date so
that the same file is not kept forever.
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

WORDS_PER_BLOCK: Final = 8
BITS_PER_WORD: Final = 2
BLOCK_BITS: Final = 64 * WORDS_PER_BLOCK
# A rate of 1e-6 needs 39.0 bits per key in this layout (Poisson sum over the block load). The rest
# is a safety margin.
BITS_PER_KEY: Final = 40
TARGET_FPR: Final = 1e-6
VERSION: Final = 1
# 32 hash bits select a block. Up to this number of blocks the selection is uniform to 1 in 16.
MAX_BLOCKS: Final = 2**28
# Hashes per pass, so that the working set fits into the CPU cache and memory use is constant.
_CHUNK: Final = 2**14
_MAGIC: Final = b"GCBLOOM\0"
_HEADER: Final = struct.Struct("<8sIIqQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_BITS_START: Final = _HEADER.size + _CHECKSUM.size
_MASK_BITS: Final = 12

_Hashes = NDArray[np.int64]
_BitArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """Filter parameters. Only filters with equal parameters can be merged.

    Attributes:
        keys: Expected number of keys.
        seed: Differs by run date.
        blocks: Number of 512-bit blocks.
    """

    keys: int
    seed: int
    blocks: int
    version: int = VERSION

    @classmethod
    def for_keys(cls, keys: int, seed: int) -> Self:
        """Return a spec with a false-positive rate of 1e-6 for `keys` distinct hashes.

        Raises:
            GcError: For more than 3.4e9 keys.
        """
        blocks = max(1, ceil(keys * BITS_PER_KEY / BLOCK_BITS))
        if blocks > MAX_BLOCKS:
            limit = MAX_BLOCKS * BLOCK_BITS // BITS_PER_KEY
            raise GcError(f"a live filter holds at most {limit:,} keys, found {keys:,}; divide the storage into several")
        return cls(keys, seed, blocks)

    @property
    def hashes(self) -> int:
        """Number of bits that each key sets."""
        return WORDS_PER_BLOCK * BITS_PER_WORD

    @property
    def size_bytes(self) -> int:
        return self.blocks * BLOCK_BITS // 8


class Filter:
    """Filter bits with their spec."""

    def __init__(self, spec: FilterSpec, bits: _BitArray) -> None:
        self.spec = spec
        self._bits = bits

    @classmethod
    def empty(cls, spec: FilterSpec) -> Self:
        return cls(spec, np.zeros(spec.blocks * WORDS_PER_BLOCK, np.uint64))

    def add(self, hashes: _Hashes) -> None:
        """Add hashes to the filter."""
        for chunk in _chunks(hashes):
            left = chunk
            while len(left):
                first, masks = _locate_bits(left, self.spec)
                for word, mask in enumerate(masks):
                    # If two keys share a word, only the last write takes effect. The check below
                    # finds the lost key and adds it again.
                    index = first + word
                    self._bits[index] |= mask
                left = left[~self._contains_masks(first, masks)]

    def contains(self, hashes: _Hashes) -> NDArray[np.bool_]:
        """Return False only for hashes that were never added."""
        found = np.empty(len(hashes), np.bool_)
        start = 0
        for chunk in _chunks(hashes):
            found[start : start + len(chunk)] = self._contains_masks(*_locate_bits(chunk, self.spec))
            start += len(chunk)
        return found

    def merge(self, other: Filter) -> None:
        """Add all hashes of another filter.

        Raises:
            StateError: If the specs differ.
        """
        if other.spec != self.spec:
            raise StateError(f"filters of different specs cannot be merged: {self.spec} and {other.spec}")
        self._bits |= other._bits

    def to_bytes(self) -> bytes:
        """Serialize the header, a checksum of all other bytes, and the bits (little-endian)."""
        spec = self.spec
        header = _HEADER.pack(_MAGIC, spec.version, spec.hashes, spec.seed, spec.keys, spec.blocks)
        bits = self._bits.astype("<u8", copy=False).tobytes()
        return header + _CHECKSUM.pack(_checksum(header, bits)) + bits

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse the output of `to_bytes`.

        Raises:
            StateError: If the bytes are truncated, modified or have a newer version.
        """
        if len(raw) < _BITS_START or raw[: len(_MAGIC)] != _MAGIC:
            raise StateError(f"not a live filter: expected {_MAGIC!r} and a header, found {raw[:_BITS_START]!r}; create it again")
        _, version, hashes, seed, keys, blocks = _HEADER.unpack_from(raw)
        spec = FilterSpec(keys, seed, blocks, version)
        if version != VERSION or hashes != spec.hashes:
            raise StateError(
                f"live filter of version {version} with {hashes} bits a key, this release reads version {VERSION} with {spec.hashes}; "
                "create it again, or use the release that wrote it"
            )
        bits = memoryview(raw)[_BITS_START:]
        if len(bits) != spec.size_bytes:
            raise StateError(
                f"live filter of {blocks:,} blocks: expected {spec.size_bytes:,} bytes of bits, found {len(bits):,}; create it again"
            )
        if _CHECKSUM.unpack_from(raw, _HEADER.size) != (_checksum(raw[: _HEADER.size], bits),):
            raise StateError(f"checksum mismatch in the live filter of {blocks:,} blocks; create it again")
        return cls(spec, np.frombuffer(bits, "<u8").astype(np.uint64))

    def measured_fpr(self, samples: int, rng: np.random.Generator) -> float:
        """Measure the false-positive rate with `samples` random hashes.

        The chance that a random hash is a true positive is negligible, 1 in 2^64 per key.
        """
        hits = 0
        for start in range(0, samples, _CHUNK):
            hashes = rng.integers(-(2**63), 2**63, min(_CHUNK, samples - start), np.int64)
            hits += int(np.count_nonzero(self.contains(hashes)))
        return hits / samples

    def _contains_masks(self, first: NDArray[np.int64], masks: list[_BitArray]) -> NDArray[np.bool_]:
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


def _mix(values: _BitArray) -> _BitArray:
    """Apply the MurmurHash3 finaliser, so that each output bit depends on every input bit."""
    values = values ^ (values >> np.uint64(33))
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values


def _locate_bits(hashes: _Hashes, spec: FilterSpec) -> tuple[NDArray[np.int64], list[_BitArray]]:
    """Return the first word index of each hash's block, and the mask for each word.

    Mask bits come from well mixed words and are used only once, because dependent masks raise the
    false-positive rate a hundredfold.
    """
    salt = _mix(np.array([spec.seed], np.int64).view(np.uint64) + _GOLDEN)
    mixed = _mix(hashes.view(np.uint64) ^ salt)
    block = ((mixed >> np.uint64(32)) * np.uint64(spec.blocks)) >> np.uint64(32)
    masks: list[_BitArray] = []
    per_word = 64 // _MASK_BITS
    for word in range(WORDS_PER_BLOCK):
        if word % per_word == 0:
            mixed = _mix(mixed + _GOLDEN)
        index = (mixed >> np.uint64(word % per_word * _MASK_BITS)) & np.uint64(2**_MASK_BITS - 1)
        masks.append(_MASKS[index.view(np.int64)])
    return (block * np.uint64(WORDS_PER_BLOCK)).view(np.int64), masks


def _pairs_of_bits() -> _BitArray:
    """Return masks with two distinct bits per word. All pairs are about equally likely."""
    index = np.arange(2**_MASK_BITS, dtype=np.uint64)
    one, step = index % np.uint64(64), index // np.uint64(64) % np.uint64(63) + np.uint64(1)
    return (np.uint64(1) << one) | (np.uint64(1) << ((one + step) % np.uint64(64)))


_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MASKS: Final = _pairs_of_bits()
