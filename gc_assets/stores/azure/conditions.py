"""Refuse to apply plans in an account whose answers do not allow it.

In a hierarchical namespace, directories are objects of their own, and one rename moves many objects.
The collector was never proved on one, so it makes plans there and applies none.
"""

from __future__ import annotations

import secrets

from gc_assets.azure.bucket import AzureBucket
from gc_assets.buckets.identity import token_of
from gc_assets.core.errors import StoreError
from gc_assets.stores.conditional.probe import keeps_unknown_token
from gc_assets.stores.protocol import RESERVED_PREFIX

HIERARCHICAL = (
    "the account has a hierarchical namespace, on which plans cannot be applied; "
    "make plans only (`mode: plan`), or move the lake to an account without it"
)
UNCONDITIONAL = (
    "the server deletes a blob although its etag is another (it ignores If-Match), so a blob that is replaced at the same time "
    "would be lost; use it for plans only"
)


def find_obstacle(bucket: AzureBucket) -> str | None:
    """Return why plans cannot be applied here, as a canary object proves it, or None.

    Raises:
        OSError: If a request about the canary has no answer, or is refused. It proves nothing then.
    """
    directory = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    canary = f"{directory}/canary"
    bucket.put_if_absent(canary, b"canary").require()
    try:
        # A write creates the directories of its key, and only there.
        if bucket.head(directory) is not None:
            return HIERARCHICAL
        return None if keeps_unknown_token(bucket, canary) else UNCONDITIONAL
    finally:
        current = bucket.head(canary)
        if current is not None:
            bucket.delete_if_match(canary, token_of(current.identity)).require()
            if bucket.head(directory) is not None:
                bucket.delete_if_match(directory, None).require()


def require_supported(bucket: AzureBucket) -> None:
    """Raise `StoreError` if plans cannot be applied here."""
    try:
        obstacle = find_obstacle(bucket)
    except OSError as error:
        found = f"cannot test the account with a canary object: {error.filename or bucket.location}: {error.strerror or error}"
        raise StoreError(f"storage {bucket.location}: {found}") from error
    if obstacle is not None:
        raise StoreError(f"storage {bucket.location}: {obstacle}")
