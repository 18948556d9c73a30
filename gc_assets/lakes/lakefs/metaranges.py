"""Parse metaranges, which list the ranges of a commit or of one part of a refs dump.

Format: lakeFS `committed.proto`, RangeData.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lakefs.object_ids import is_object_id
from gc_assets.lakes.lakefs.records import METARANGES, read_records
from gc_assets.lakes.lakefs.wire import scan_messages

_MIN_KEY, _MAX_KEY, _COUNT = 1, 2, 4
_FIELDS: Final = {_MIN_KEY: "min_key:bytes", _MAX_KEY: "max_key:bytes", _COUNT: "count"}


@dataclass(frozen=True, slots=True)
class RangeRef:
    """A range in a metarange, with its number of records and inclusive bounds."""

    range_id: str
    min_key: bytes
    max_key: bytes
    records: int


def read_metarange(source: str, object_id: str, raw: bytes, entity: str | None = None) -> list[RangeRef]:
    """Read the ranges of a metarange, ordered by key.

    Raises:
        FormatError: If the metarange is damaged, or ranges overlap.
    """
    records = read_records(source, object_id, raw, METARANGES, entity)
    count, buffer = len(records), records.buffer
    fields = scan_messages(buffer, records.data_starts, records.data_sizes, _FIELDS)
    ids = buffer.strings(records.identity_starts, records.identity_sizes, "a range id").to_pylist()
    min_keys, max_keys = (buffer.texts(*fields[number].spans(count)).to_pylist() for number in (_MIN_KEY, _MAX_KEY))
    ranges = [RangeRef(*row) for row in zip(ids, min_keys, max_keys, fields[_COUNT].numbers(count).tolist(), strict=True)]
    previous_max = b""
    for position, (item, key) in enumerate(zip(ranges, records.keys.to_pylist(), strict=True)):
        if not is_object_id(item.range_id):
            raise FormatError(f"{source}: the range id {item.range_id!r} is invalid; expected 64 hexadecimal digits")
        if item.max_key != key or item.min_key > item.max_key or (position and item.min_key <= previous_max) or item.records < 1:
            raise FormatError(
                f"{source}: range {item.range_id} (keys {item.min_key!r} to {item.max_key!r}, {item.records:,} records, stored under "
                f"{key!r}) is damaged or out of order after key {previous_max!r}. Restore the object from a backup."
            )
        previous_max = item.max_key
    return ranges
