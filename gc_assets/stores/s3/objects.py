"""Access to objects on S3 by address."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import ObjectChanged
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3.delete_markers import create_despite_markers
from gc_assets.stores.conditional.objects import BucketObjects
from gc_assets.stores.conditional.own_versions import MAX_VERSIONS, is_only_version

if TYPE_CHECKING:
    from gc_assets.s3.bucket import S3Bucket


@dataclass(frozen=True, slots=True)
class S3Objects(BucketObjects):
    """Implements `EditableObjects` for S3.

    In a bucket with versions, Ceph 20 allows several concurrent writers to succeed. After a write,
    the versions are therefore examined to find out if the condition was really evaluated. If the
    version written by this process replaced an unexpected object, it is removed again, so that the
    other writer's version becomes current.
    """

    def open(self, address: str) -> tuple[S3Bucket, str]:
        from gc_assets.s3.bucket import S3Bucket  # imports botocore, which runs without S3 do not need

        bucket, key = bucket_and_key(address)
        return S3Bucket(bucket, "", self.connections.settings_for(address, S3Config)), key

    def put_new(self, bucket: ConditionalBucket, key: str, content: bytes) -> Change:
        return create_despite_markers(bucket, key, lambda: bucket.put_if_absent(key, content))

    def verify_created(self, bucket: ConditionalBucket, key: str, content: bytes, change: Change) -> None:
        if _is_versioned(change, bucket) and not is_only_version(bucket, key, content):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), bucket.address(key))

    def verify_replaced(self, bucket: ConditionalBucket, key: str, etag: str, change: Change) -> None:
        if not _is_versioned(change, bucket):
            return
        ids = [version.version_id for version in bucket.newest_versions(key, MAX_VERSIONS)]
        under = ids[ids.index(change.version_id) + 1 :][:1] if change.version_id in ids else []
        replaced = bucket.head(key, version_id=under[0]) if under else None
        if replaced is not None and replaced.identity == etag:
            return
        (removed,) = bucket.delete([Deletion(key, change.version_id)])
        removed.require()
        raise ObjectChanged(
            f"{bucket.address(key)!r}: expected {etag} as read before; it was replaced at the same time, and our version "
            f"{change.version_id} was removed again"
        )


def _is_versioned(change: Change, bucket: ConditionalBucket) -> bool:
    return change.version_id is not None and change.version_id != bucket.null_version
