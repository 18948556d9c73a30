"""The source bucket of inventory reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.objects import identities


@dataclass(frozen=True, slots=True)
class S3SourceBucket:
    """`SourceBucket` of a storage."""

    storage: Bucket

    @classmethod
    def at(cls, location: str, connections: Connections) -> Self:
        return cls(Bucket.of(location, connections.settings_for(location, S3Config)))

    @property
    def bucket(self) -> str:
        return self.storage.name

    @property
    def prefix(self) -> str:
        return self.storage.prefix

    def has_versions(self) -> bool:
        return self.storage.versioning("read").has_versions

    def identities(self, etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
        return identities(etags, sizes, modified)

    def size_of(self, key: str) -> int | None:
        head = self.storage.head(key, "read")
        return None if head is None else head.answer["ContentLength"]
