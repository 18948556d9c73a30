"""Refuse to apply plans on servers that ignore the generation in delete requests.

Google Cloud Storage compares the generation (number of an object's write), but `fake-gcs-server`
and other emulators do not. They would delete an object that a writer has just replaced.
"""

from __future__ import annotations

import secrets

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.core.errors import StoreError
from gc_assets.stores.conditional.probe import keeps_unknown_token
from gc_assets.stores.protocol import RESERVED_PREFIX


def compares_generations(bucket: ConditionalBucket) -> bool:
    """Return True if a canary object survives a delete request with a wrong generation.

    Raises:
        OSError: If a request fails or is denied, so that the test has no result.
    """
    canary = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    bucket.put_if_absent(canary, b"canary").require()
    try:
        return keeps_unknown_token(bucket, canary)
    finally:
        current = bucket.head(canary)
        if current is not None:
            bucket.delete_if_match(canary, token_of(current.identity)).require()


def require_conditional_delete(bucket: ConditionalBucket) -> None:
    """Check that plans can be applied on this server.

    Raises:
        StoreError: If plans cannot be applied, or if this cannot be determined.
    """
    try:
        is_compared = compares_generations(bucket)
    except OSError as error:
        found = f"cannot test deletes with a canary object: {error.filename or bucket.location}: {error.strerror or error}"
        raise StoreError(f"storage {bucket.location}: {found}") from error
    if not is_compared:
        raise StoreError(
            f"storage {bucket.location}: the server ignores ifGenerationMatch and deletes an object although its generation has changed. "
            "An object that is replaced at the same time would be lost. Plans cannot be applied on this server; use it for plans only"
        )
