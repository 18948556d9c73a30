"""The bucket that inventory reports describe."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from gc_assets.buckets.identity import build_identities
from gc_assets.buckets.protocol import ConditionalBucket


@dataclass(frozen=True, slots=True)
class InventoryBucket:
    """Implements `SourceBucket` for a storage in a bucket."""

    storage: ConditionalBucket

    @property
    def bucket(self) -> str:
        return self.storage.name

    @property
    def prefix(self) -> str:
        return self.storage.prefix

    def has_versions(self) -> bool:
        return self.storage.versioning("read").has_versions

    def identities(self, etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
        return build_identities(etags, sizes, modified)

    def size_of(self, key: str) -> int | None:
        found = self.storage.head(key, "read")
        return None if found is None else found.size_bytes
