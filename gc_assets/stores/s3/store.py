"""A bucket, or a prefix of one, as a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from gc_assets.config.models import StorageConfig
from gc_assets.config.s3 import Places
from gc_assets.core.clock import Clock
from gc_assets.core.findings import Finding
from gc_assets.core.paths import S3 as SCHEME
from gc_assets.stores.listing import times_of
from gc_assets.stores.protocol import (
    LEASE_DURATION,
    Aborting,
    Directory,
    Holder,
    Lease,
    ListingTask,
    OldUploads,
    Quarantine,
    QuarantineMode,
    Traits,
    Unfinished,
)
from gc_assets.stores.s3 import lease, listing, uploads
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.doctor_checks import examine
from gc_assets.stores.s3.objects import S3Objects, modified_us
from gc_assets.stores.s3.probe import probe
from gc_assets.stores.s3.quarantine import open_quarantine


@dataclass(frozen=True, slots=True)
class S3Store:
    """`Store` of what lies at `location` (`s3://bucket/prefix/`)."""

    location: str
    places: Places

    @property
    def _bucket(self) -> Bucket:
        return Bucket.of(self.location, self.places.s3_of(self.location))

    @property
    def scheme(self) -> str:
        return SCHEME

    @property
    def objects(self) -> S3Objects:
        return S3Objects(self.places)

    @property
    def editable(self) -> S3Objects:
        return S3Objects(self.places)

    def plan_listing(
        self,
        parallelism: int,
        carried: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        cuts: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Plans as the protocol says. A bucket has no directories, so nothing is carried."""
        del carried, settled_before
        return listing.plan_listing(self._bucket, parallelism, cuts)

    def unchanged(self, known: Iterable[Directory]) -> frozenset[str]:
        del known
        return frozenset()

    def carried_objects(self, objects: pa.RecordBatch, carried: pa.Array) -> pa.RecordBatch:
        del carried
        return objects.slice(0, 0)

    @property
    def has_aliases(self) -> bool:
        return False

    def identity(self, address: str) -> None:
        del address

    def unfinished(self, before: datetime) -> Unfinished:
        return uploads.unfinished(self._bucket, before)

    def old_uploads(self, before: datetime, wanted: Callable[[str], bool], at_most: int) -> OldUploads:
        return uploads.old_uploads(self._bucket, before, wanted, at_most)

    def aborting(self) -> Aborting:
        return uploads.S3Aborting(self._bucket)

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        return open_quarantine(mode, self._bucket, plan_id)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return lease.acquire(self._bucket, plan_id, owner, clock, duration, after)

    def holder(self) -> Holder | None:
        return lease.holder_of(self._bucket)

    def now(self) -> datetime:
        """Returns the server's time, in whole seconds."""
        return self._bucket.now()

    def modified(self, etags: pa.Array) -> pa.Array:
        return times_of(etags, modified_us)

    def probe(self) -> Traits:
        return probe(self._bucket)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(self._bucket, storage, now)
