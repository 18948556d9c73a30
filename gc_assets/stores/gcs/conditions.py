"""Refuse to apply plans on servers that ignore the generation in delete requests.

Google Cloud Storage compares the generation (number of an object's write), but `fake-gcs-server`
and other emulators do not. They would delete an object that a writer has just replaced.
"""

from __future__ import annotations

import secrets

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.stores.conditional.probe import keeps_unknown_token
from gc_assets.stores.protocol import RESERVED_PREFIX

UNCONDITIONAL = (
    "the server ignores ifGenerationMatch and deletes an object although its generation has changed. An object that is replaced at the "
    "same time would be lost. Plans cannot be applied on this server; use it for plans only"
)


def find_obstacle(bucket: ConditionalBucket) -> str | None:
    """Find out with a canary object whether plans can be applied on this server.

    Returns:
        The reason why plans cannot be applied, or None if they can.

    Raises:
        OSError: If a request fails or is denied, so that the test has no result.
    """
    canary = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    bucket.put_if_absent(canary, b"canary").require()
    try:
        return None if keeps_unknown_token(bucket, canary) else UNCONDITIONAL
    finally:
        current = bucket.head(canary)
        if current is not None:
            bucket.delete_if_match(canary, token_of(current.identity)).require()
