"""Access to objects in Azure Blob Storage by address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gc_assets.config.azure import AzureConfig
from gc_assets.core.paths import AZURE, bucket_and_key
from gc_assets.stores.conditional.objects import BucketObjects

if TYPE_CHECKING:
    from gc_assets.azure.bucket import AzureBucket


@dataclass(frozen=True, slots=True)
class AzureObjects(BucketObjects):
    """Implements `EditableObjects` for Azure. Changes are conditional on the etag.

    The client is only imported when it is needed. Every process opens all kinds of stores, but the
    library for Azure may not be installed.
    """

    def open(self, address: str) -> tuple[AzureBucket, str]:
        from gc_assets.azure.bucket import AzureBucket

        container, key = bucket_and_key(address, AZURE)
        return AzureBucket(container, "", self.connections.settings_for(address, AzureConfig)), key
