"""Deliver events to the targets of `notify`. This package uses no state, Spark or Dagster."""

from __future__ import annotations

from typing import Final

# Dagster limits a sensor tick to one minute. All targets are called in parallel, at most twice.
TIMEOUT_SECONDS: Final = 15.0


class DeliveryError(Exception):
    """Raised if a delivery fails. The message contains the reason, but no URL and no password."""
