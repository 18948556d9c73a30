"""Check that a bucket answers and can be listed."""

from __future__ import annotations

from typing import Final

from gc_assets.core.errors import StoreError
from gc_assets.s3.client import get_client, payer_params, translate_errors
from gc_assets.stores.s3.bucket import Bucket

# A wrong endpoint is found in seconds, and a short pause of a server is survived.
_ATTEMPTS: Final = 4


def check_access(bucket: Bucket) -> None:
    """List one key of the storage.

    Raises:
        StoreError: If the bucket does not exist, or the server does not answer or refuses the listing.
    """
    try:
        with translate_errors(bucket.location):
            params = {"Bucket": bucket.name, "Prefix": bucket.prefix, "MaxKeys": 1, **payer_params(bucket.settings)}
            get_client(bucket.settings, "read", _ATTEMPTS).list_objects_v2(**params)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
