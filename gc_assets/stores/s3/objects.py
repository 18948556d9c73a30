"""Objects on S3 by address."""

from __future__ import annotations

from dataclasses import dataclass

from gc_assets.config.s3 import S3Config
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.conditional.objects import BucketObjects


@dataclass(frozen=True, slots=True)
class S3Objects(BucketObjects):
    """`EditableObjects` on S3."""

    def open(self, address: str) -> tuple[S3Bucket, str]:
        bucket, key = bucket_and_key(address)
        return S3Bucket(bucket, "", self.connections.settings_for(address, S3Config)), key
