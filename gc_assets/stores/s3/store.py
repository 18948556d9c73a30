"""A bucket, or a prefix of one, as a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from gc_assets.config.connections import Connections
from gc_assets.config.models import StorageConfig
from gc_assets.config.s3 import S3Config
from gc_assets.core.clock import Clock
from gc_assets.core.findings import Finding
from gc_assets.core.paths import S3 as SCHEME
from gc_assets.stores.listing import parse_modification_times
from gc_assets.stores.protocol import (
    LEASE_DURATION,
    RESERVED_PREFIX,
    Directory,
    Holder,
    Lease,
    ListingTask,
    OldUploads,
    Quarantine,
    QuarantineMode,
    StoredObject,
    Traits,
    UploadAborter,
    UploadCounts,
)
from gc_assets.stores.s3 import lease, listing, uploads
from gc_assets.stores.s3.access import check_access
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.copying import CopyMetadata
from gc_assets.stores.s3.doctor_checks import examine
from gc_assets.stores.s3.objects import S3Objects, modified_us
from gc_assets.stores.s3.probe import probe
from gc_assets.stores.s3.quarantine import max_key_bytes, open_quarantine


@dataclass(frozen=True, slots=True)
class S3Store:
    """`Store` of the objects at `location` (`s3://bucket/prefix/`)."""

    location: str
    connections: Connections

    @property
    def bucket(self) -> Bucket:
        return Bucket.of(self.location, self.connections.settings_for(self.location, S3Config))

    @property
    def scheme(self) -> str:
        return SCHEME

    @property
    def objects(self) -> S3Objects:
        return S3Objects(self.connections)

    @property
    def editable(self) -> S3Objects:
        return S3Objects(self.connections)

    def check_access(self) -> None:
        check_access(self.bucket)

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Plan as the protocol specifies. A bucket has no directories, so none is skipped."""
        del unchanged, settled_before
        return listing.plan_listing(self.bucket, parallelism, split_keys)

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        del directories
        return frozenset()

    def select_unchanged_objects(self, objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
        del unchanged
        return objects.slice(0, 0)

    @property
    def has_aliases(self) -> bool:
        return False

    def identity(self, address: str) -> None:
        del address

    def find_object(self, key: str) -> StoredObject | None:
        head = self.bucket.head(key, "read")
        return None if head is None else StoredObject(head.identity, head.answer["ContentLength"])

    def count_unfinished_uploads(self, before: datetime) -> UploadCounts:
        return uploads.count_unfinished_uploads(self.bucket, before)

    def find_old_uploads(self, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
        return uploads.find_old_uploads(self.bucket, before, is_included, limit)

    def upload_aborter(self) -> UploadAborter:
        return uploads.S3UploadAborter(self.bucket)

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        return open_quarantine(mode, self.bucket, plan_id)

    def trashed_etag(self, plan_id: str, key: str) -> str | None:
        """Return the identity in the metadata of the copy."""
        copy = self.bucket.head(f"{RESERVED_PREFIX}trash/{plan_id}/{key}")
        return None if copy is None else CopyMetadata.of(copy).quarantined

    def max_key_bytes(self, mode: QuarantineMode) -> int | None:
        return max_key_bytes(mode, self.bucket)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return lease.acquire(self.bucket, plan_id, owner, clock, duration, after)

    def holder(self) -> Holder | None:
        return lease.read_holder(self.bucket)

    def now(self) -> datetime:
        """Return the server's time, in whole seconds."""
        return self.bucket.now()

    def modification_times(self, etags: pa.Array) -> pa.Array:
        return parse_modification_times(etags, modified_us)

    def probe(self) -> Traits:
        return probe(self.bucket)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(self.bucket, storage, now)
