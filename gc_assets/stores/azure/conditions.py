"""Refuse to apply plans in Azure accounts that gc-assets cannot change safely.

In a hierarchical namespace, directories are objects, and a single rename can move many files.
gc-assets has not been tested with this, so it only creates plans for such accounts. The same is
true for servers that ignore conditions in delete requests. Both are detected with a canary object
(a test object that is removed again).
"""

from __future__ import annotations

import secrets

from gc_assets.azure.bucket import AzureBucket
from gc_assets.buckets.identity import token_of
from gc_assets.stores.conditional.probe import keeps_unknown_token
from gc_assets.stores.protocol import RESERVED_PREFIX

HIERARCHICAL = (
    "the account has a hierarchical namespace, so plans cannot be applied; "
    "only create plans (`mode: plan`), or move the lake to an account without it"
)
UNCONDITIONAL = (
    "the server ignores If-Match and deletes a blob although its etag has changed, so a blob that is replaced at the same time "
    "would be lost; use it for plans only"
)


def find_obstacle(bucket: AzureBucket) -> str | None:
    """Find out with a canary object whether plans can be applied in the account.

    Returns:
        The reason why plans cannot be applied, or None if they can.

    Raises:
        OSError: If a request fails or is denied, so that the test has no result.
    """
    directory = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    canary = f"{directory}/canary"
    bucket.put_if_absent(canary, b"canary").require()
    try:
        # In a hierarchical namespace, a write also creates the directories of its key.
        if bucket.head(directory) is not None:
            return HIERARCHICAL
        return None if keeps_unknown_token(bucket, canary) else UNCONDITIONAL
    finally:
        current = bucket.head(canary)
        if current is not None:
            bucket.delete_if_match(canary, token_of(current.identity)).require()
            if bucket.head(directory) is not None:
                bucket.delete_if_match(directory, None).require()
