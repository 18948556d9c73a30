"""Test a server with canary objects, because servers with the same API behave differently."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Sequence
from typing import Final, Literal

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion
from gc_assets.buckets.requests import pause_before_retry
from gc_assets.stores.protocol import RESERVED_PREFIX, Traits

_MAX_VERSIONS: Final = 100
# Repetitions of a delete that matches no object.
_ATTEMPTS: Final = 4


def probe(bucket: ConditionalBucket) -> Traits:
    """Return the traits of the bucket, and remove all versions of the canaries."""
    canary = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    try:
        return Traits(
            create_if_absent=(created := _can_create_once(bucket, canary)),
            replace_if_match=created and _can_replace_if_match(bucket, canary),
            rename=False,
            versions=bucket.versioning("change").is_on,
            delete_if_match=_test_conditional_delete(bucket, canary),
        )
    finally:
        _remove_canary(bucket, canary)


def _can_create_once(bucket: ConditionalBucket, canary: str) -> bool:
    bucket.put_if_absent(canary, b"first").require()
    second = bucket.put_if_absent(canary, b"second")
    if second.verdict == "changed":
        return bucket.read(canary)[0] == b"first"
    if not second.is_done:
        second.require()
    return False


def _can_replace_if_match(bucket: ConditionalBucket, canary: str) -> bool:
    _, current = bucket.read(canary)
    right = bucket.put_if_match(canary, b"replaced", token_of(current.identity))
    if right.verdict not in {"done", "changed", "unsupported"}:
        right.require()
    if bucket.read(canary)[0] != b"replaced":
        return False
    wrong = bucket.put_if_match(canary, b"unexpected", bucket.unknown_token)
    _require_answer(wrong)
    return not wrong.is_done and bucket.read(canary)[0] == b"replaced"


def keeps_unknown_token(bucket: ConditionalBucket, canary: str) -> bool:
    """Return True if the server keeps a canary when a delete specifies another object's token.

    Raises:
        OSError: If the delete was denied or every attempt failed, so that the test has no result.
    """
    wrong = bucket.delete_if_match(canary, bucket.unknown_token)
    for attempt in range(_ATTEMPTS):
        if wrong.verdict != "unknown":
            break
        pause_before_retry(attempt)
        wrong = bucket.delete_if_match(canary, bucket.unknown_token)
    _require_answer(wrong)
    return wrong.verdict == "changed"


def _test_conditional_delete(bucket: ConditionalBucket, canary: str) -> Literal["none", "one", "batch"]:
    """Test whether the server compares the token of each key: in no delete, single ones, or batches.

    It must keep an object if the token differs, and delete it if the token matches.
    """
    _require_answer(bucket.delete_if_match(canary, bucket.unknown_token))
    current = bucket.head(canary)
    if current is None:
        return "none"
    refused = bucket.delete([Deletion(canary, token=bucket.unknown_token)])
    _require_lost_none(refused)
    if bucket.head(canary) is None or any(change.verdict == "unsupported" for change in refused):
        return "one"
    _require_lost_none(bucket.delete([Deletion(canary, token=token_of(current.identity))]))
    return "batch" if bucket.head(canary) is None else "one"


def _require_answer(change: Change) -> None:
    """Raise the error of a denied or lost request, because it shows nothing about the condition."""
    if change.verdict in {"denied", "failed", "unknown"}:
        change.require()


def _require_lost_none(changes: Sequence[Change]) -> None:
    """Raise the error of a lost request. Denied keys are allowed: the server may reject the token."""
    for change in changes:
        if change.verdict == "unknown":
            change.require()


def _remove_canary(bucket: ConditionalBucket, canary: str) -> None:
    versions = bucket.newest_versions(canary, _MAX_VERSIONS)
    for change in bucket.delete([Deletion(canary, version.version_id) for version in versions]):
        if not change.is_done:
            raise PermissionError(
                errno.EACCES, f"the canary cannot be removed, its DELETE was refused: {change.reason}", bucket.address(canary)
            )
