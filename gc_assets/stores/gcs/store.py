"""A bucket of Google Cloud Storage, or a prefix in a bucket, as a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from gc_assets.config.gcs import GcsConfig
from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.findings import Finding
from gc_assets.gcs.bucket import GcsBucket
from gc_assets.stores.conditional.noncurrent import NoncurrentQuarantine
from gc_assets.stores.conditional.probe import require_no_obstacle
from gc_assets.stores.conditional.store import BucketStore
from gc_assets.stores.gcs.conditions import find_obstacle
from gc_assets.stores.gcs.doctor_checks import examine, examine_state
from gc_assets.stores.gcs.objects import GcsObjects
from gc_assets.stores.protocol import LEASE_DURATION, Lease, Quarantine


@dataclass(frozen=True, slots=True)
class GcsStore(BucketStore):
    """A store on Google Cloud Storage. Its location is a URL such as `gs://bucket/prefix/`.

    Unfinished resumable uploads cannot be listed, so they are neither counted nor aborted. They
    expire after a week.
    """

    @property
    def bucket(self) -> GcsBucket:
        return GcsBucket.of(self.location, self.connections.settings_for(self.location, GcsConfig))

    @property
    def objects(self) -> GcsObjects:
        return GcsObjects(self.connections)

    def versioned_quarantine(self) -> Quarantine:
        return NoncurrentQuarantine(self.bucket)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        """Acquire the lease, after checking that the server compares generations."""
        require_no_obstacle(self.location, lambda: find_obstacle(self.bucket))
        return BucketStore.acquire(self, plan_id, owner, clock, duration, after)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        return examine(self.bucket, storage, now)

    def examine_state(self) -> Iterator[Finding]:
        return examine_state(self.bucket)
