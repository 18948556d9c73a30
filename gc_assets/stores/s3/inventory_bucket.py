"""A bucket as reports speak of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from gc_assets.config.s3 import Connections
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.objects import identities


@dataclass(frozen=True, slots=True)
class S3SourceBucket:
    """`SourceBucket` of what lies in a bucket."""

    place: Bucket

    @classmethod
    def at(cls, location: str, places: Connections) -> Self:
        return cls(Bucket.of(location, places.settings_for(location)))

    @property
    def bucket(self) -> str:
        return self.place.name

    @property
    def prefix(self) -> str:
        return self.place.prefix

    def has_versions(self) -> bool:
        return self.place.versioning("read").has_versions

    def identities(self, etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
        return identities(etags, sizes, modified)

    def size_of(self, key: str) -> int | None:
        head = self.place.head(key, "read")
        return None if head is None else head.answer["ContentLength"]
