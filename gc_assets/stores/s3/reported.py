"""A bucket as reports speak of it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from gc_assets.config.s3 import Places
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.objects import identities


@dataclass(frozen=True, slots=True)
class ReportedBucket:
    """`Subject` of what lies at `location` (`s3://bucket/prefix/`)."""

    location: str
    places: Places

    @property
    def _bucket(self) -> Bucket:
        return Bucket.of(self.location, self.places.s3_of(self.location))

    @property
    def bucket(self) -> str:
        return self._bucket.name

    @property
    def prefix(self) -> str:
        return self._bucket.prefix

    def has_versions(self) -> bool:
        return self._bucket.versioning("read").has_versions

    def identities(self, etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
        return identities(etags, sizes, modified)

    def size_of(self, key: str) -> int | None:
        head = self._bucket.head(key, "read")
        return None if head is None else head.answer["ContentLength"]
