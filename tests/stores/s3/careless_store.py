"""A store on a server that ignores If-None-Match, as Ceph 16 does in a bucket with versions."""

from __future__ import annotations

from dataclasses import dataclass

from gc_assets.buckets.protocol import Change
from gc_assets.config.s3 import S3Config
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.s3.store import S3Store


@dataclass(frozen=True, slots=True)
class CarelessBucket(S3Bucket):
    def put_if_absent(self, key: str, content: bytes) -> Change:
        return self.put(key, content)


@dataclass(frozen=True, slots=True)
class CarelessStore(S3Store):
    @property
    def bucket(self) -> CarelessBucket:
        return CarelessBucket.of(self.location, self.connections.settings_for(self.location, S3Config))
