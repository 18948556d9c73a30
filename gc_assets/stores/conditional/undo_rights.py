"""Test with a canary object whether the changing role may undo a quarantine.

The canary is not under the reserved prefix, because a policy may grant more rights there than for
other keys. It always has the same key, so that the next test removes a canary that a crash has left
behind.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion
from gc_assets.core.errors import is_permanent
from gc_assets.core.phases import DENIED, FAILED
from gc_assets.stores.conditional.probe import repeat_unknown
from gc_assets.stores.protocol import QuarantineMode, Result

CANARY: Final = ".gc-assets-canary"
CONTENT: Final = b"gc-assets tests with this object if it may undo a quarantine. You can delete it.\n"
_MAX_VERSIONS: Final = 10


def check_undo(bucket: ConditionalBucket, mode: QuarantineMode) -> Result | None:
    """Find out whether quarantined objects could be restored (see `Store.check_undo`)."""
    if mode == "deferred":
        return None
    if mode == "versioned" and bucket.has_delete_markers:
        return check_version_deletes(bucket)
    try:
        versioning = bucket.versioning("change")
        if mode == "trash" and versioning.is_on:
            return None  # such a quarantine is denied
        return _check_writes(bucket, has_versions=versioning.has_versions)
    except OSError as error:
        return _to_result(bucket, "read the storage", error, is_denied=is_permanent(error))


def check_version_deletes(bucket: ConditionalBucket) -> Result | None:
    """Find out whether delete markers could be removed, by deleting a version that does not exist.

    The key is new, because a key that is used may have a version with the id `null`.
    """
    (deleted,) = bucket.delete([Deletion(f"{CANARY}-{secrets.token_hex(8)}", bucket.null_version)])
    if deleted.verdict == "failed":  # some servers may have an error for a missing version
        return None
    return _find_refusal(bucket, "delete versions (s3:DeleteObjectVersion)", deleted)


def _check_writes(bucket: ConditionalBucket, *, has_versions: bool) -> Result | None:
    """Find out whether objects can be written and deleted, by writing and deleting the canary."""
    refusal = _find_refusal(bucket, "write objects", bucket.put_if_absent(CANARY, CONTENT))
    if refusal is not None:
        return refusal
    current = bucket.head(CANARY)
    if current is not None and current.size_bytes != len(CONTENT):  # another program's object
        return None
    deleted = repeat_unknown(lambda: bucket.delete_if_match(CANARY, None))
    if has_versions and deleted.is_done:
        with suppress(OSError):  # a retention policy may keep the version, which does not prevent a restore
            bucket.delete([Deletion(CANARY, version.version_id) for version in bucket.newest_versions(CANARY, _MAX_VERSIONS)])
    return _find_refusal(bucket, "delete objects", deleted)


def _find_refusal(bucket: ConditionalBucket, right: str, change: Change) -> Result | None:
    if change.error is None or change.verdict not in {"denied", "failed", "unknown"}:
        return None
    return _to_result(bucket, right, change.error, is_denied=change.verdict == "denied")


def _to_result(bucket: ConditionalBucket, right: str, error: OSError, *, is_denied: bool) -> Result:
    reason = error.strerror or error
    if is_denied:
        found = f"the changing role may not {right} in {bucket.location}, so it could not undo a quarantine: {reason}"
        return Result(DENIED, f"{found}. Grant it this right for the whole storage, then create a new plan", replan=True)
    return Result(FAILED, f"it is unknown if the changing role may {right} in {bucket.location}: {reason}; apply again")
