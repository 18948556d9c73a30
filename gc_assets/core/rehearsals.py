"""Mark rehearsals, i.e. runs, plans and records made with the clock of `GC_ASSETS_UNSAFE_NOW`.

Their ages are not real, so tables, messages, pages and notifications show the mark.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

REHEARSAL: Final = "REHEARSAL"


def mark_rehearsal(text: str, is_rehearsal: bool) -> str:
    """Prefix the text with the mark if it is about a rehearsal."""
    return f"{REHEARSAL} {text}" if is_rehearsal else text


def describe_rehearsal(now: datetime) -> str:
    """Return the message for a command that runs with such a clock."""
    return f"{REHEARSAL}: GC_ASSETS_UNSAFE_NOW sets the clock to {now:%Y-%m-%d %H:%M:%S}Z, so ages and dates are not real."
