"""A blocked Bloom filter over row hashes. It has false positives, but no false negatives.

Each key maps to one block of 512 bits, which is a cache line, and to two bits in each of its eight
64-bit words. After a false positive, an orphan is kept until a later run. The seed changes with the
run date, so that no file is kept forever because of false positives.
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
# In this layout, a false-positive rate of 1e-6 requires 39.0 bits per key, according to a Poisson
# sum over the load of blocks. The rest is a safety margin.
BITS_PER_KEY: Final = 40
TARGET_FPR: Final = 1e-6
VERSION: Final = 1
# A block is selected by 32 bits of the hash. With more blocks than this, the selection would not be
# sufficiently uniform: some blocks would get 1/16 more keys than others.
MAX_BLOCKS: Final = 2**28
# Number of hashes to process together, so that they fit into the CPU cache and memory is bounded.
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
    """The parameters of a filter. Only filters with equal parameters can be merged.

    Attributes:
        keys: Expected number of keys.
        seed: A number that differs between run dates.
        blocks: Number of 512-bit blocks.
    """

    keys: int
    seed: int
    blocks: int
    version: int = VERSION

    @classmethod
    def for_keys(cls, keys: int, seed: int) -> Self:
        """Choose the size of a filter so that its false-positive rate is 1e-6.

        Args:
            keys: Number of distinct hashes.

        Raises:
            GcError: If there are more than 3.4e9 keys.
        """
        blocks = max(1, ceil(keys * BITS_PER_KEY / BLOCK_BITS))
        if blocks > MAX_BLOCKS:
            limit = MAX_BLOCKS * BLOCK_BITS // BITS_PER_KEY
            raise GcError(f"a live filter holds at most {limit:,} keys, found {keys:,}; divide the storage into several")
        return cls(keys, seed, blocks)

    @property
    def hashes(self) -> int:
        """The number of bits that are set for each key."""
        return WORDS_PER_BLOCK * BITS_PER_WORD

    @property
    def size_bytes(self) -> int:
        return self.blocks * BLOCK_BITS // 8


class Filter:
    """A blocked Bloom filter in memory."""

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
                    # If two keys have the same word, only the last write takes effect. The check
                    # below detects the other key, and it is added again.
                    index = first + word
                    self._bits[index] |= mask
                left = left[~self._contains_masks(first, masks)]

    def contains(self, hashes: _Hashes) -> NDArray[np.bool_]:
        """Return a mask that is true for all hashes that were added, and for a few other hashes."""
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
        """Serialize the filter: a header, a checksum of all other bytes, and the bits."""
        spec = self.spec
        header = _HEADER.pack(_MAGIC, spec.version, spec.hashes, spec.seed, spec.keys, spec.blocks)
        bits = self._bits.astype("<u8", copy=False).tobytes()
        return header + _CHECKSUM.pack(_checksum(header, bits)) + bits

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse the output of `to_bytes`.

        Raises:
            StateError: If the bytes are truncated, were modified or have another version.
        """
        if len(raw) < _BITS_START or raw[: len(_MAGIC)] != _MAGIC:
            raise StateError(f"not a live filter: expected {_MAGIC!r} and a header, found {raw[:_BITS_START]!r}; create it again")
        _, version, hashes, seed, keys, blocks = _HEADER.unpack_from(raw)
        spec = FilterSpec(keys, seed, blocks, version)
        if version != VERSION or hashes != spec.hashes:
            raise StateError(
                f"live filter has version {version} and {hashes} bits per key, this release reads version {VERSION} with {spec.hashes}; "
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
        """Measure the false-positive rate with random hashes.

        Such a hash is a true positive only with a negligible probability of 1 in 2^64 for each key.
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
    """Apply the finaliser of MurmurHash3, so that each output bit depends on every input bit."""
    values = values ^ (values >> np.uint64(33))
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values


def _locate_bits(hashes: _Hashes, spec: FilterSpec) -> tuple[NDArray[np.int64], list[_BitArray]]:
    """Compute the block and the masks of each hash.

    Each mask uses different bits of well mixed words. If masks depended on each other, the
    false-positive rate would be a hundred times as high.

    Returns:
        The index of the first word of each block, and a mask for each word of a block.
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
    """Return masks with two distinct bits each. All pairs are about equally frequent."""
    index = np.arange(2**_MASK_BITS, dtype=np.uint64)
    one, step = index % np.uint64(64), index // np.uint64(64) % np.uint64(63) + np.uint64(1)
    return (np.uint64(1) << one) | (np.uint64(1) << ((one + step) % np.uint64(64)))


_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MASKS: Final = _pairs_of_bits()
