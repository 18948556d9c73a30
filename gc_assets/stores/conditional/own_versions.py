"""Detect concurrent writers on servers that do not evaluate conditions reliably.

In buckets with versions, Ceph 16 ignores conditions, and Ceph 20 evaluates them only if no other
request is running. Both keep all versions, however, so concurrent writes can be detected later.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket, Deletion

# Concurrent writers never create this many versions of an object.
MAX_VERSIONS: Final = 1000


def is_only_version(bucket: ConditionalBucket, key: str, content: bytes) -> bool:
    """Return True if no other process has created the same object, in a bucket with versions.

    If another process has created it, the versions of this process are removed. Of two competing
    writers, at least the later one sees the other's version, so at most one of them succeeds.

    Several versions may come from this process, because a request is repeated if its response is
    lost. Versions under a delete marker are ignored, because a user has removed them manually.
    """
    versions = takewhile(lambda version: not version.is_marker, bucket.newest_versions(key, MAX_VERSIONS))
    if all(read_content(bucket, key, version.version_id) == content for version in versions):
        return True
    withdraw(bucket, key, content)
    return False


def withdraw(bucket: ConditionalBucket, key: str, content: bytes) -> None:
    """Remove the versions written by this process, which are recognized by their content."""
    versions = [version.version_id for version in bucket.newest_versions(key, MAX_VERSIONS) if not version.is_marker]
    own = [Deletion(key, version_id) for version_id in versions if read_content(bucket, key, version_id) == content]
    for deleted in bucket.delete(own):
        if deleted.verdict == "unknown":
            deleted.require()


def read_content(bucket: ConditionalBucket, key: str, version_id: str | None = None) -> bytes | None:
    """Read a version of an object. Returns None if its writer has removed it in the meantime."""
    try:
        return bucket.read(key, version_id=version_id)[0]
    except FileNotFoundError:
        return None
