"""The rows of listings as Arrow's, for stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from gc_assets.state.schemas import STORAGE_INVENTORY

INVENTORY_SCHEMA: Final = STORAGE_INVENTORY.schema
_YEAR_10000_US: Final = 253_402_300_800_000_000


def times_of(etags: pa.Array, modified_us: Callable[[str], int | None]) -> pa.Array:
    """Returns what `Store.modified` does, where `modified_us` reads one identity. Times outside the
    years 1 to 9999 are none.
    """
    told = (None if etag is None else modified_us(etag) for etag in etags.to_pylist())
    usable = [None if time is None or abs(time) >= _YEAR_10000_US else time for time in told]
    return pa.array(usable, pa.timestamp("us", "UTC"))
