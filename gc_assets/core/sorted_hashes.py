"""Search in sorted arrays of hashes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# Slots in the table of a `HashSet`: 16 for each hash, but at most 16 MB in total.
_MAX_SLOT_BITS: Final = 24


def is_in_sorted(hashes: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the hashes that occur in a sorted array."""
    if not len(wanted):
        return np.zeros(len(hashes), bool)
    return wanted[np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)] == hashes


def sort_distinct(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sorted distinct hashes. `np.unique` takes several times as long."""
    ordered = np.sort(hashes)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


class HashSet:
    """Set of distinct hashes, for finding them among many other hashes.

    A table of the lowest bits excludes most other hashes, in a tenth of the time of a binary
    search.
    """

    def __init__(self, hashes: NDArray[np.int64]) -> None:
        """Index the hashes. Duplicates are allowed."""
        self.hashes = sort_distinct(hashes)
        bits = min(_MAX_SLOT_BITS, (16 * len(self.hashes)).bit_length())
        self._mask = np.int64((1 << bits) - 1)
        self._slots = np.zeros(1 << bits, bool)
        self._slots[self.hashes & self._mask] = True

    def find(self, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the hashes that are in the set.

        Returns:
            Their positions in `hashes`, and their positions in the set.
        """
        maybe = np.flatnonzero(self._slots[hashes & self._mask])
        if not len(self.hashes):
            return maybe[:0], maybe[:0]
        at = np.minimum(np.searchsorted(self.hashes, hashes[maybe]), len(self.hashes) - 1)
        is_equal = self.hashes[at] == hashes[maybe]
        return maybe[is_equal], at[is_equal]
