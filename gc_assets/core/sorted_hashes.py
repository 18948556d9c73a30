"""Search for hashes in sorted arrays."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# The table of a `HashSet` has 16 slots for each hash, but takes at most 16 MB.
_MAX_SLOT_BITS: Final = 24


def is_in_sorted(hashes: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask that is true for hashes that occur in a sorted array."""
    if not len(wanted):
        return np.zeros(len(hashes), bool)
    return wanted[np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)] == hashes


def sort_distinct(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort hashes and remove duplicates, several times as fast as `np.unique`."""
    ordered = np.sort(hashes)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def group_sorted(hashes: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Group equal hashes.

    Returns:
        The positions of the hashes in sorted order, and where in this order each group begins.
        Use the latter with `np.ufunc.reduceat`.
    """
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_first = np.ones(len(order), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return order, np.flatnonzero(is_first)


class HashSet:
    """A set of hashes that can be found quickly among many others.

    A table indexed by the lowest bits rules out most other hashes, in a tenth of the time that a
    binary search takes.
    """

    def __init__(self, hashes: NDArray[np.int64]) -> None:
        """Build the set. The given hashes may contain duplicates."""
        self.hashes = sort_distinct(hashes)
        bits = min(_MAX_SLOT_BITS, (16 * len(self.hashes)).bit_length())
        self._mask = np.int64((1 << bits) - 1)
        self._slots = np.zeros(1 << bits, bool)
        self._slots[self.hashes & self._mask] = True

    def find(self, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find out which of the given hashes are in the set.

        Returns:
            The positions of these hashes in `hashes`, and their positions in the set.
        """
        maybe = np.flatnonzero(self._slots[hashes & self._mask])
        if not len(self.hashes):
            return maybe[:0], maybe[:0]
        at = np.minimum(np.searchsorted(self.hashes, hashes[maybe]), len(self.hashes) - 1)
        is_equal = self.hashes[at] == hashes[maybe]
        return maybe[is_equal], at[is_equal]


class SpelledHashes:
    """A set of keys, as hashes of the keys and of their normalized forms.

    `key_resolver.loosen_spelling` computes these forms, in which different encodings are equal.
    """

    def __init__(self, keys: NDArray[np.int64], loose: NDArray[np.int64]) -> None:
        """Build the set from hashes of keys (`keys`) and of their normalized forms (`loose`).

        Both arrays have the same order, and may contain duplicates.
        """
        self._loose = HashSet(loose)
        at = np.searchsorted(self._loose.hashes, loose)
        self._key = np.empty(len(self._loose.hashes), np.int64)
        self._key[at] = keys
        self._is_ambiguous = np.zeros(len(self._key), bool)
        self._is_ambiguous[at[self._key[at] != keys]] = True

    def find(self, keys: NDArray[np.int64], loose: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the given keys whose normalized form is that of a key in the set.

        Returns:
            The positions of these keys in `keys`, and a mask that is true for those that differ
            from at least one key in the set with the same normalized form.
        """
        at, found = self._loose.find(loose)
        return at, self._is_ambiguous[found] | (self._key[found] != keys[at])
