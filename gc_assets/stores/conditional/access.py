"""A quick check that a bucket exists and can be listed."""

from __future__ import annotations

from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.core.errors import StoreError

# A wrong endpoint is detected within seconds, but a short outage of the server is tolerated.
_ATTEMPTS: Final = 4


def check_access(bucket: ConditionalBucket) -> None:
    """Check that a storage can be listed, by listing a single key.

    Raises:
        StoreError: If the bucket does not exist, the server does not answer, or it denies the
            request.
    """
    try:
        bucket.reach(_ATTEMPTS)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
