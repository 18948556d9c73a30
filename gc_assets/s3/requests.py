"""What requests to a bucket have in common."""

from __future__ import annotations

import random
import time

from gc_assets.config.s3 import S3Config


def payer(settings: S3Config) -> dict[str, str]:
    """Returns the parameter by which the one who asks pays, if the settings say so."""
    return {"RequestPayer": "requester"} if settings.requester_pays else {}


def pause(attempt: int) -> None:
    """Waits before another attempt, the longer the more came before. `attempt` counts from 0."""
    time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1))  # noqa: S311  (spreads requests, no secret)
