"""The mark of rehearsals: runs, plans and records under the clock of `GC_ASSETS_UNSAFE_NOW`.

Their ages are not real, so tables, messages, pages and notifications show the mark.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

REHEARSAL: Final = "REHEARSAL"


def mark_rehearsal(text: str, is_rehearsal: bool) -> str:
    """Return the text, with the mark in front of it if it is about a rehearsal."""
    return f"{REHEARSAL} {text}" if is_rehearsal else text


def describe_rehearsal(now: datetime) -> str:
    """Return the message of a command that runs under such a clock."""
    return f"{REHEARSAL}: GC_ASSETS_UNSAFE_NOW sets the clock to {now:%Y-%m-%d %H:%M:%S}Z, so ages and dates are not real."
