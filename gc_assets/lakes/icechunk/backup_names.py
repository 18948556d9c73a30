"""Names of the backup copies of `repo` that the Icechunk library makes in `overwritten/`."""

from __future__ import annotations

import re
from typing import Final

BACKUP_FOLDER: Final = "overwritten"
# The year 3000 in milliseconds. A name starts with the time left until then, so a listing returns
# the newest copy first.
_END_MS: Final = 32_503_680_000_000
_NAME: Final = re.compile(r"repo\.([0-9]{14})\.[0-9A-Z]+")


def backup_name(now_us: int, random_id: str) -> str:
    """Return the name of a backup copy made at the given time, in microseconds since 1970."""
    return f"repo.{max(_END_MS - now_us // 1000, 0):014}.{random_id}"


def backup_time_us(name: str) -> int | None:
    """Read the time from a backup copy's name, in microseconds since 1970.

    Returns None if the name has another form.
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (_END_MS - int(match[1])) * 1000
