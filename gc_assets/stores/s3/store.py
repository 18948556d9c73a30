"""A bucket of S3, or a prefix in a bucket, as a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from gc_assets.config.models import StorageConfig
from gc_assets.config.s3 import S3Config
from gc_assets.core.findings import Finding
from gc_assets.s3.bucket import S3Bucket
from gc_assets.state.summaries import UnfinishedUploads
from gc_assets.stores.conditional.store import BucketStore
from gc_assets.stores.protocol import OldUploads, Quarantine, UploadAborter
from gc_assets.stores.s3 import uploads
from gc_assets.stores.s3.doctor_checks import examine, examine_state
from gc_assets.stores.s3.objects import S3Objects
from gc_assets.stores.s3.quarantine import MarkedDeferredQuarantine, VersionedQuarantine


@dataclass(frozen=True, slots=True)
class S3Store(BucketStore):
    """A store on S3. Its location is a URL such as `s3://bucket/prefix/`."""

    @property
    def bucket(self) -> S3Bucket:
        return S3Bucket.of(self.location, self.connections.settings_for(self.location, S3Config))

    @property
    def objects(self) -> S3Objects:
        return S3Objects(self.connections)

    def versioned_quarantine(self) -> Quarantine:
        return VersionedQuarantine(self.bucket)

    def deferred_quarantine(self) -> Quarantine:
        return MarkedDeferredQuarantine(self.bucket)

    def count_unfinished_uploads(self, before: datetime) -> UnfinishedUploads:
        return uploads.count_unfinished_uploads(self.bucket, before)

    def find_old_uploads(self, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
        return uploads.find_old_uploads(self.bucket, before, is_included, limit)

    def upload_aborter(self) -> UploadAborter:
        return uploads.S3UploadAborter(self.bucket)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(self.bucket, storage, now)

    def examine_state(self) -> Iterator[Finding]:
        return examine_state(self.bucket)
