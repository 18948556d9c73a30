"""Label everything that belongs to a rehearsal (a test with an artificial time).

In a rehearsal, the environment variable `GC_ASSETS_UNSAFE_NOW` sets the clock, so ages are not
real. Tables, messages, pages and notifications therefore contain a mark.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

REHEARSAL: Final = "REHEARSAL"


def mark_rehearsal(text: str, is_rehearsal: bool) -> str:
    """Prefix a message with a mark if the message is about a rehearsal."""
    return f"{REHEARSAL} {text}" if is_rehearsal else text


def describe_rehearsal(now: datetime) -> str:
    """Return the message that a command prints in a rehearsal."""
    return f"{REHEARSAL}: GC_ASSETS_UNSAFE_NOW sets the clock to {now:%Y-%m-%d %H:%M:%S}Z, so ages and dates are not real."
