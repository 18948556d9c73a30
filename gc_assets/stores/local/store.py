"""A directory of a local disk, or of a mounted network file system, as a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.findings import Finding
from gc_assets.core.paths import FILE
from gc_assets.stores.listing import times_of
from gc_assets.stores.local import lease, listing
from gc_assets.stores.local.doctor_checks import examine
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.objects import LocalObjects, identity, modified_us
from gc_assets.stores.local.probe import probe
from gc_assets.stores.local.quarantine import open_quarantine
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
)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """`Store` of the directory at `location` (`file:///data/warehouse/`, or a bare path)."""

    location: str

    @property
    def scheme(self) -> str:
        return FILE

    @property
    def objects(self) -> LocalObjects:
        return LocalObjects()

    @property
    def editable(self) -> EditableLocalObjects:
        return EditableLocalObjects()

    def plan_listing(
        self,
        parallelism: int,
        carried: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        cuts: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Plans as the protocol says. Directories cut themselves."""
        del cuts
        return listing.plan_listing(self.location, parallelism, carried, settled_before)

    def unchanged(self, known: Iterable[Directory]) -> frozenset[str]:
        return listing.unchanged_directories(self.location, known)

    def carried_objects(self, objects: pa.RecordBatch, carried: pa.Array) -> pa.RecordBatch:
        return listing.carried_objects(objects, carried)

    @property
    def has_aliases(self) -> bool:
        return True

    def identity(self, address: str) -> str | None:
        return identity(address)

    def unfinished(self, before: datetime) -> None:
        """A file is written whole or not there."""
        del before

    def old_uploads(self, before: datetime, wanted: Callable[[str], bool], at_most: int) -> OldUploads:
        del before, wanted, at_most
        return OldUploads()

    def aborting(self) -> Aborting:
        raise UsageError(f"{self.location} is on a disk, where no upload in parts can be left unfinished")

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        return open_quarantine(mode, self.location, plan_id)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return lease.acquire(self.location, plan_id, owner, clock, duration, after)

    def holder(self) -> Holder | None:
        return lease.holder_of(self.location)

    def now(self) -> datetime:
        """Returns the host's time. A network file system dates objects by its server's clock, which
        only a write can tell.
        """
        return datetime.now(UTC)

    def modified(self, etags: pa.Array) -> pa.Array:
        return times_of(etags, modified_us)

    def probe(self) -> Traits:
        return probe(self.location)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(storage, now)
