"""Find the positions of many strings in a list of distinct strings.

`pyarrow.compute.index_in` builds a hash table of the whole list in every call. `TextIndex` builds
its table only once.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import HashSet


class TextIndex:
    """An index of distinct strings by hash. Equal hashes are verified by comparing the strings."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts
        hashes = xxhash64(texts)
        self._order = np.argsort(hashes)
        self._hashes = HashSet(hashes)
        self._has_collision = len(self._hashes.hashes) < len(texts)

    def find(self, texts: pa.Array) -> NDArray[np.int64]:
        """Return the position of each string in the list, or -1 if the list does not contain it."""
        if self._has_collision:
            return pc.fill_null(pc.index_in(texts, self._texts), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        at, number = self._hashes.find(xxhash64(texts))
        found = self._order[number]
        is_equal = pc.fill_null(pc.equal(texts.take(pa.array(at)), self._texts.take(pa.array(found))), False).to_numpy(zero_copy_only=False)
        positions = np.full(len(texts), -1, np.int64)
        positions[at[is_equal]] = found[is_equal]
        return positions
