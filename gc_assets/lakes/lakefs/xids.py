"""Parse upload times from names of lakeFS objects.

Source: lakeFS `pkg/upload/path_provider.go`, ResolvePathTime.

The last part of a name, up to a comma, is an xid. It consists of 12 bytes, written as 20 lower-case
characters of base32hex. Its first four bytes are the upload time in seconds since 1970
(github.com/rs/xid).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CHARS: Final = 20
_NAME: Final = f"(?:^|/)(?P<xid>[0-9a-v]{{{_CHARS}}})(?:,[^/]*)?$"
_DIGITS: Final = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdefghijklmnopqrstuv", np.uint8)] = np.arange(32)
# The 32 bits of the time fill six characters, and two bits of the seventh.
_TIME_CHARS: Final = 7
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def times_of_names(keys: pa.Array) -> pa.Array:
    """Return a column with the upload time in each name. The column is null if there is no time."""
    xids = pc.struct_field(pc.extract_regex(keys, _NAME), "xid")
    known = pc.is_valid(xids)
    texts = xids.filter(known).cast(pa.binary(_CHARS))
    digits = _DIGITS[np.frombuffer(b"".join(texts.to_pylist()), np.uint8).reshape(-1, _CHARS)[:, :_TIME_CHARS]].astype(np.int64)
    seconds = np.zeros(len(digits), np.int64)
    for column in range(_TIME_CHARS):
        seconds = (seconds << 5) | digits[:, column]
    times = pa.array((seconds >> 3) * 1_000_000, pa.int64()).cast(TIMESTAMP)
    return pc.replace_with_mask(pa.nulls(len(keys), TIMESTAMP), known, times)
