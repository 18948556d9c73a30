"""Icechunk's object ids: 12 random bytes, written as 20 characters of Crockford's base32.

Format: Icechunk `spec.md`, "Object Ids". Arrays of ids contain unsigned bytes and have the shape
(n, 12).
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
# The 96 bits fill 19 characters and one bit of the last character. Its other bits are zero padding,
# so the last character is 0 or G.
_SPELLED = re.compile("[0-9A-HJKMNP-TV-Z]{19}[0G]")
# RFC 4648 splits the bits in the same way. Only its alphabet differs.
_RFC_4648 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_FROM_RFC_4648, _TO_RFC_4648 = bytes.maketrans(_RFC_4648, _ALPHABET), bytes.maketrans(_ALPHABET, _RFC_4648)
# Converting ten bits to two characters at a time takes ten lookups per id.
_PAIRS = np.frombuffer(b"".join(bytes((_ALPHABET[value >> 5], _ALPHABET[value & 31])) for value in range(1024)), "<u2")

Ids = NDArray[np.uint8]


def is_object_id(name: str) -> bool:
    """Return True if a name is an object id in its canonical base32 encoding."""
    return _SPELLED.fullmatch(name) is not None


def spell(ids: Ids) -> Ids:
    """Encode ids as base32 characters, in an array of ASCII codes of shape (n, 20)."""
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
    """Decode an object's base32 name to its id, or raise `ValueError` if the name is not an id."""
    if not is_object_id(name):
        raise ValueError(f"expected an object id of {ID_CHARS} characters, found {name!r}")
    return base64.b32decode(name.encode().translate(_TO_RFC_4648) + b"====")


def distinct(ids: Ids, values: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
    """Remove duplicate ids, and return the largest value of each id.

    Keeps the order of ids.
    """
    high, low = _halves(ids)
    ordered = np.sort(high)
    if not np.any(ordered[1:] == ordered[:-1]):
        return ids, values
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    starts = np.flatnonzero(np.concatenate(([True], (high[1:] != high[:-1]) | (low[1:] != low[:-1]))))
    # lexsort is stable, so among equal ids, the one that appeared first comes first.
    first, largest = order[starts], np.maximum.reduceat(values[order], starts)
    by_appearance = np.argsort(first)
    return ids[first[by_appearance]], largest[by_appearance]


def _halves(ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split each id into its first 8 and last 4 bytes, as big-endian numbers."""
    parts = np.ascontiguousarray(ids).view(">u4")
    high = (parts[:, 0].astype(np.uint64) << np.uint64(32)) | parts[:, 1].astype(np.uint64)
    return high, parts[:, 2].astype(np.uint64)
