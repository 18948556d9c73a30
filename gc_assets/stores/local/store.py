"""A directory as a store, on a local disk or a mounted network file system."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.findings import Finding
from gc_assets.stores.listing import parse_modification_times
from gc_assets.stores.local import lease, listing
from gc_assets.stores.local.doctor_checks import examine
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.objects import find_object, identity, modified_us
from gc_assets.stores.local.probe import probe
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.protocol import (
    LEASE_DURATION,
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
)
from gc_assets.stores.trash import trash_address


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The store of a directory. `location` is a path or a URL such as `file:///data/warehouse/`."""

    location: str

    @property
    def objects(self) -> EditableLocalObjects:
        return EditableLocalObjects()

    def check_access(self) -> None:
        listing.plan_listing(self.location, 1)

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Plan the listing. Split keys are not needed, because the work is divided by directory."""
        del split_keys
        return listing.plan_listing(self.location, parallelism, unchanged, settled_before)

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        return listing.find_unchanged_directories(self.location, directories)

    @property
    def has_aliases(self) -> bool:
        return True

    def identity(self, address: str) -> str | None:
        return identity(address)

    def find_object(self, key: str) -> StoredObject | None:
        return find_object(f"{self.location.rstrip('/')}/{key}")

    def count_unfinished_uploads(self, before: datetime) -> None:
        """Return None, because a disk has no multipart uploads."""
        del before

    def find_old_uploads(self, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
        del before, is_included, limit
        return OldUploads()

    def upload_aborter(self) -> UploadAborter:
        raise UsageError(f"{self.location} is on a local disk, which has no multipart uploads")

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        return open_quarantine(mode, self.location, plan_id)

    def trashed_etag(self, plan_id: str, key: str) -> str | None:
        """Return the identity of a file in the trash, which is the same as before the rename."""
        return identity(trash_address(self.location, plan_id, key))

    def key_limits(self, mode: QuarantineMode) -> None:
        """Return None. Directories are opened one by one, so the length of a path is not limited."""
        del mode

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return lease.acquire(self.location, plan_id, owner, clock, duration, after)

    def holder(self) -> Holder | None:
        return lease.read_holder(self.location)

    def last_token(self) -> int:
        return lease.read_last_token(self.location)

    def now(self) -> datetime:
        """Return the current time of this host.

        On a network file system, modification times come from the clock of the server instead. That
        clock cannot be read without writing a file.
        """
        return datetime.now(UTC)

    def modification_times(self, etags: pa.Array) -> pa.Array:
        return parse_modification_times(etags, modified_us)

    def check_undo(self, mode: QuarantineMode) -> None:
        """Return None, because a rename needs the same rights in both directions."""
        del mode

    def probe(self) -> Traits:
        return probe(self.location)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(storage, now)
