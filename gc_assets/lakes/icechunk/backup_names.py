"""Names given by the library to the copies of `repo` in `overwritten/`. The functions are pure."""

from __future__ import annotations

import re
from typing import Final

BACKUP_FOLDER: Final = "overwritten"
# Year 3000 in milliseconds. A name starts with the time left until then, so that the newest copy
# comes first in a listing.
_END_MS: Final = 32_503_680_000_000
_NAME: Final = re.compile(r"repo\.([0-9]{14})\.[0-9A-Z]+")


def backup_name(now_us: int, random_id: str) -> str:
    """Return the name of a copy that was made at a time in microseconds since 1970."""
    return f"repo.{max(_END_MS - now_us // 1000, 0):014}.{random_id}"


def backup_time_us(name: str) -> int | None:
    """Return the time in the name of a copy in microseconds since 1970, or None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (_END_MS - int(match[1])) * 1000
