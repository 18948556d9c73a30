"""Detect versions of one key that this process and other writers created concurrently.

In buckets with versions, Ceph 20 evaluates conditions only if no other request is running, and Ceph
16 ignores them. But both keep all versions, so that concurrent writes can be detected afterwards.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket, Deletion

# More versions than concurrent writers of one object create.
MAX_VERSIONS: Final = 1000


def is_only_version(bucket: ConditionalBucket, key: str, content: bytes) -> bool:
    """Return True if no other process created the same object in a bucket with versions.

    If another process did, our versions are removed. Of two writers, at least the later one sees
    the other's version, so at most one of them gets True. A process may find several versions of
    its own if it retried after a lost response. Versions under a delete marker are ignored, because
    they were removed manually.
    """
    versions = takewhile(lambda version: not version.is_marker, bucket.newest_versions(key, MAX_VERSIONS))
    if all(read_content(bucket, key, version.version_id) == content for version in versions):
        return True
    withdraw(bucket, key, content)
    return False


def withdraw(bucket: ConditionalBucket, key: str, content: bytes) -> None:
    """Remove the versions of a key whose bytes equal `content`, because this process wrote them."""
    versions = [version.version_id for version in bucket.newest_versions(key, MAX_VERSIONS) if not version.is_marker]
    own = [Deletion(key, version_id) for version_id in versions if read_content(bucket, key, version_id) == content]
    for deleted in bucket.delete(own):
        if deleted.verdict == "unknown":
            deleted.require()


def read_content(bucket: ConditionalBucket, key: str, version_id: str | None = None) -> bytes | None:
    """Return the bytes of a version, or None if its writer has removed it."""
    try:
        return bucket.read(key, version_id=version_id)[0]
    except FileNotFoundError:
        return None
