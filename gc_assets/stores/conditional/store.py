"""The base class of stores in buckets with conditional requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from gc_assets.buckets.identity import modified_us
from gc_assets.buckets.protocol import QUARANTINED, ConditionalBucket
from gc_assets.config.connections import Connections
from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError, UsageError
from gc_assets.core.findings import Finding
from gc_assets.state.summaries import UnfinishedUploads
from gc_assets.stores.conditional import lease, listing
from gc_assets.stores.conditional.objects import BucketObjects
from gc_assets.stores.conditional.probe import probe
from gc_assets.stores.conditional.quarantine import (
    DeferredQuarantine,
    TrashQuarantine,
    find_trash_limits,
)
from gc_assets.stores.conditional.undo_rights import check_undo
from gc_assets.stores.key_limits import KeyLimits
from gc_assets.stores.listing import parse_modification_times
from gc_assets.stores.protocol import (
    LEASE_DURATION,
    Directory,
    Holder,
    Lease,
    ListingTask,
    OldUploads,
    Quarantine,
    QuarantineMode,
    Result,
    StoredObject,
    Traits,
    UploadAborter,
)
from gc_assets.stores.trash import require_plan_id, trash_key

# A wrong endpoint is detected within seconds, but a short outage of the server is tolerated.
_ACCESS_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class BucketStore(ABC):
    """A store in a bucket, or in a prefix of a bucket. Subclasses add code for single providers."""

    location: str
    connections: Connections

    @property
    @abstractmethod
    def bucket(self) -> ConditionalBucket: ...

    @property
    @abstractmethod
    def objects(self) -> BucketObjects: ...

    @abstractmethod
    def versioned_quarantine(self) -> Quarantine:
        """Return an object that executes actions in `versioned` mode."""

    @abstractmethod
    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]: ...

    @abstractmethod
    def examine_state(self) -> Iterator[Finding]:
        """Check the storage of gc-assets' state in this bucket (see `StoreKind.examine_state`)."""

    def deferred_quarantine(self) -> Quarantine:
        """Return an object that executes actions in `deferred` mode."""
        return DeferredQuarantine(self.bucket)

    def check_access(self) -> None:
        try:
            self.bucket.reach(_ACCESS_ATTEMPTS)
        except OSError as error:
            raise StoreError(f"storage {self.bucket.location} cannot be listed: {error.strerror or error}") from error

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Plan the listing. A bucket has no directories that could be skipped."""
        del unchanged, settled_before
        return listing.plan_listing(self.bucket, parallelism, split_keys)

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        del directories
        return frozenset()

    @property
    def has_aliases(self) -> bool:
        return False

    def identity(self, address: str) -> None:
        del address

    def find_object(self, key: str) -> StoredObject | None:
        found = self.bucket.head(key, "read")
        return None if found is None else StoredObject(found.identity, found.size_bytes, found.modified)

    def count_unfinished_uploads(self, before: datetime) -> UnfinishedUploads | None:
        del before
        return None

    def find_old_uploads(self, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
        del before, is_included, limit
        return OldUploads((), 0)

    def upload_aborter(self) -> UploadAborter:
        raise UsageError(f"storage {self.location}: this store has no multipart uploads that a plan could abort; create a new plan")

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        require_plan_id(plan_id)
        if mode == "versioned":
            return self.versioned_quarantine()
        return TrashQuarantine(self.bucket, plan_id) if mode == "trash" else self.deferred_quarantine()

    def trashed_etag(self, plan_id: str, key: str) -> str | None:
        """Return the original identity of an object in the trash, from the metadata of the copy."""
        copy = self.bucket.head(trash_key(plan_id, key))
        return None if copy is None else copy.metadata.get(QUARANTINED)

    def key_limits(self, mode: QuarantineMode) -> KeyLimits | None:
        return find_trash_limits(self.bucket) if mode == "trash" else None

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return lease.acquire(self.bucket, plan_id, owner, clock, duration, after)

    def holder(self) -> Holder | None:
        return lease.read_holder(self.bucket)

    def last_token(self) -> int:
        return lease.read_last_token(self.bucket)

    def now(self) -> datetime:
        """Return the current time of the server, in whole seconds."""
        return self.bucket.now()

    def modification_times(self, etags: pa.Array) -> pa.Array:
        return parse_modification_times(etags, modified_us)

    def check_undo(self, mode: QuarantineMode) -> Result | None:
        return check_undo(self.bucket, mode)

    def probe(self) -> Traits:
        return probe(self.bucket)
