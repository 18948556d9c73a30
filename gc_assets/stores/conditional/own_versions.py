"""Versions of one key that this process and other writers created at the same time.

Some servers evaluate conditions in a bucket with versions only if no other request is running
(Ceph 20), or ignore them (Ceph 16). But they keep all versions.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket, Deletion

# More versions than the writers of an object create at the same time.
MAX_VERSIONS: Final = 1000


def is_only_version(bucket: ConditionalBucket, key: str, content: bytes) -> bool:
    """Return True if no other process created the same object in a bucket with versions.

    If another one did, our version is withdrawn. Of two processes, at least the later writer sees the
    version of the other, so at most one sees only its own. A process may find several versions of
    its own if an answer was lost and it retried. Versions under a delete marker were removed
    manually.
    """
    versions = takewhile(lambda version: not version.is_marker, bucket.newest_versions(key, MAX_VERSIONS))
    if all(read_content(bucket, key, version.version_id) == content for version in versions):
        return True
    withdraw(bucket, key, content)
    return False


def withdraw(bucket: ConditionalBucket, key: str, content: bytes) -> None:
    """Remove our versions in a bucket with versions. In other buckets only we have written the key."""
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
