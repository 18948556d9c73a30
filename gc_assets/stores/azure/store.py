"""A container of Azure Blob Storage, or a prefix in a container, as a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gc_assets.azure.bucket import AzureBucket, find_obstacle
from gc_assets.azure.pages import PAGE_KEYS
from gc_assets.config.azure import AzureConfig
from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError
from gc_assets.core.findings import Finding
from gc_assets.stores.azure import conditions, listing
from gc_assets.stores.azure.doctor_checks import examine, examine_state
from gc_assets.stores.azure.objects import AzureObjects
from gc_assets.stores.conditional.noncurrent import NoncurrentQuarantine
from gc_assets.stores.conditional.probe import require_no_obstacle
from gc_assets.stores.conditional.store import BucketStore
from gc_assets.stores.protocol import LEASE_DURATION, Lease, ListingTask, Quarantine, Traits


@dataclass(frozen=True, slots=True)
class AzureStore(BucketStore):
    """A store on Azure.

    Its location is a URL such as `abfss://container@account.dfs.core.windows.net/prefix/`.

    Uncommitted blocks are not treated as unfinished uploads, because they do not belong to a listed
    blob, and Azure removes them after a week.
    """

    @property
    def bucket(self) -> AzureBucket:
        return AzureBucket.of(self.location, self.connections.settings_for(self.location, AzureConfig))

    @property
    def objects(self) -> AzureObjects:
        return AzureObjects(self.connections)

    def versioned_quarantine(self) -> Quarantine:
        return NoncurrentQuarantine(self.bucket, find_obstacle)

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Plan the listing. A container has no directories that could be skipped."""
        del unchanged, settled_before
        return listing.plan_listing(self.bucket, parallelism, split_keys, PAGE_KEYS)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        """Acquire the lease, after checking that plans can be applied in this account."""
        require_no_obstacle(self.location, lambda: conditions.find_obstacle(self.bucket))
        return BucketStore.acquire(self, plan_id, owner, clock, duration, after)

    def probe(self) -> Traits:
        """Find out which optional properties the account has (see `Store.probe`).

        Raises:
            StoreError: If plans cannot be applied in this account.
        """
        obstacle = conditions.find_obstacle(self.bucket)
        if obstacle is not None:
            raise StoreError(f"storage {self.location}: {obstacle}")
        return BucketStore.probe(self)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(self.bucket, storage, now)

    def examine_state(self) -> Iterator[Finding]:
        return examine_state(self.bucket)
