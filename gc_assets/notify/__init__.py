"""Deliver notifications to the targets that users configure under `notify`.

This package does not depend on the state, Spark or Dagster.
"""

from __future__ import annotations

from typing import Final

# A target is called at most twice in a sensor tick, which Dagster limits to one minute. Different
# targets are called in parallel.
TIMEOUT_SECONDS: Final = 15.0


class DeliveryError(Exception):
    """Raised if a delivery fails.

    The message gives the reason, but never contains a URL or password.
    """
