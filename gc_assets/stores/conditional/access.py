"""Check that a bucket answers and can be listed."""

from __future__ import annotations

from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.core.errors import StoreError

# Few enough to detect a wrong endpoint in seconds, and enough to tolerate a short server outage.
_ATTEMPTS: Final = 4


def check_access(bucket: ConditionalBucket) -> None:
    """List one key of the storage.

    Raises:
        StoreError: If the bucket does not exist, or the server does not answer or denies the
            listing.
    """
    try:
        bucket.reach(_ATTEMPTS)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
