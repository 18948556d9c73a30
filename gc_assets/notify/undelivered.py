"""What every way of telling has in common: how long it may take, and how it fails."""

from __future__ import annotations

from typing import Final

# Whoever evaluates a sensor waits a minute, for all targets together. They are told at the same
# time, in at most two rounds.
TIMEOUT_SECONDS: Final = 15.0


class DeliveryError(Exception):
    """A target could not be told. The message says why, and holds no URL and no password."""
