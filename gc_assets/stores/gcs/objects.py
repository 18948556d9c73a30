"""Access to objects in Google Cloud Storage by address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gc_assets.config.gcs import GcsConfig
from gc_assets.core.errors import StoreError, UsageError
from gc_assets.core.paths import GCS, bucket_and_key
from gc_assets.stores.conditional.objects import BucketObjects

if TYPE_CHECKING:
    from gc_assets.gcs.bucket import GcsBucket


@dataclass(frozen=True, slots=True)
class GcsObjects(BucketObjects):
    """Implements `EditableObjects` for Google Cloud.

    Every change requires that the object still has the expected generation.
    """

    def open(self, address: str) -> tuple[GcsBucket, str]:
        # Imported lazily, because every process opens all kinds of stores, but the library is
        # optional.
        try:
            from gc_assets.gcs.bucket import GcsBucket
        except UsageError as error:
            raise StoreError(f"cannot read {address}: {error}") from error

        bucket, key = bucket_and_key(address, GCS)
        return GcsBucket(bucket, "", self.connections.settings_for(address, GcsConfig)), key
