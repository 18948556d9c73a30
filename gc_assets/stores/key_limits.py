"""The longest keys that a store accepts."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits for the keys of a store.

    Attributes:
        max_bytes: Length in UTF-8 bytes.
        max_segments: Number of path segments, or None if it is not limited.
    """

    max_bytes: int
    max_segments: int | None = None

    def select_too_long(self, keys: pa.Array) -> pa.Array:
        """Return a mask of the keys that exceed a limit."""
        is_too_long = pc.greater(pc.binary_length(keys), self.max_bytes)
        if self.max_segments is None:
            return is_too_long
        return pc.or_(is_too_long, pc.greater_equal(pc.count_substring(keys, "/"), self.max_segments))

    def describe(self) -> str:
        """Describe keys that exceed a limit, such as `more than 1,024 bytes`."""
        segments = "" if self.max_segments is None else f" or {self.max_segments:,} path segments"
        return f"more than {self.max_bytes:,} bytes{segments}"
