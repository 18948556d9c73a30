"""Object ids of Icechunk: 12 random bytes, spelled as 20 characters of Crockford's base32.

Format: Icechunk `spec.md`, "Object Ids". The functions are pure. Arrays of ids consist of unsigned
bytes and have the shape (n, 12).
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

ID_BYTES = 12
ID_CHARS = 20
_ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# 96 bits fill 19 characters and one bit of the last one. Its four padding bits are zero, so it is 0
# or G.
_SPELLED = re.compile("[0-9A-HJKMNP-TV-Z]{19}[0G]")
# Both encodings split the bits in the same way and differ only in their alphabets.
_RFC_4648 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_FROM_RFC_4648, _TO_RFC_4648 = bytes.maketrans(_RFC_4648, _ALPHABET), bytes.maketrans(_ALPHABET, _RFC_4648)
# Two characters for each ten-bit value, so that an id takes ten lookups.
_PAIRS = np.frombuffer(b"".join(bytes((_ALPHABET[value >> 5], _ALPHABET[value & 31])) for value in range(1024)), "<u2")

Ids = NDArray[np.uint8]


def is_object_id(name: str) -> bool:
    """Return True if a name is the canonical spelling of an id."""
    return _SPELLED.fullmatch(name) is not None


def spell(ids: Ids) -> Ids:
    """Return the ids as ASCII characters, shape (n, 20)."""
    high, low = _halves(ids)
    pairs = np.empty((len(ids), ID_CHARS // 2), "<u2")
    for column in range(6):
        pairs[:, column] = _PAIRS[(high >> np.uint64(54 - 10 * column)) & np.uint64(1023)]
    pairs[:, 6] = _PAIRS[((high & np.uint64(15)) << np.uint64(6)) | (low >> np.uint64(26))]
    pairs[:, 7] = _PAIRS[(low >> np.uint64(16)) & np.uint64(1023)]
    pairs[:, 8] = _PAIRS[(low >> np.uint64(6)) & np.uint64(1023)]
    pairs[:, 9] = _PAIRS[(low & np.uint64(63)) << np.uint64(4)]
    return pairs.view("u1")


def spell_one(object_id: bytes) -> str:
    return base64.b32encode(object_id).rstrip(b"=").translate(_FROM_RFC_4648).decode()


def unspell_one(name: str) -> bytes:
    """Return the bytes of a spelled id. Raises `ValueError` for any other name."""
    if not is_object_id(name):
        raise ValueError(f"expected an object id of {ID_CHARS} characters, found {name!r}")
    return base64.b32decode(name.encode().translate(_TO_RFC_4648) + b"====")


def distinct(ids: Ids, values: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
    """Return the distinct ids in the order of first appearance, each with its largest value."""
    high, low = _halves(ids)
    ordered = np.sort(high)
    if not np.any(ordered[1:] == ordered[:-1]):
        return ids, values
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    starts = np.flatnonzero(np.concatenate(([True], (high[1:] != high[:-1]) | (low[1:] != low[:-1]))))
    # lexsort is stable, so the first of several equal ids is the one that appeared first.
    first, largest = order[starts], np.maximum.reduceat(values[order], starts)
    by_appearance = np.argsort(first)
    return ids[first[by_appearance]], largest[by_appearance]


def _halves(ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first 8 and the last 4 bytes of each id as big-endian numbers."""
    parts = np.ascontiguousarray(ids).view(">u4")
    high = (parts[:, 0].astype(np.uint64) << np.uint64(32)) | parts[:, 1].astype(np.uint64)
    return high, parts[:, 2].astype(np.uint64)
