"""Search in sorted arrays of hashes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def is_in_sorted(hashes: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which hashes are in a sorted array."""
    if not len(wanted):
        return np.zeros(len(hashes), bool)
    return wanted[np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)] == hashes
