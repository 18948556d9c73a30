"""A storage in a bucket, for the tests of stages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from gc_assets.config.models import Config, StorageConfig
from gc_assets.stores.protocol import RESERVED_PREFIX
from tests.stages.lakehouse import STORAGE, Lakehouse
from tests.stores.azure_bench import AzureBench
from tests.stores.gcs_bench import GcsBench
from tests.stores.s3_bench import S3Bench


@dataclass
class BucketLakehouse(Lakehouse):
    """A storage in a bucket. `state` may be in another bucket, which `s3` configures on S3.

    On other stores it may be in the same bucket.
    """

    bench: S3Bench | AzureBench | GcsBench = field(kw_only=True)

    @property
    def config(self) -> Config:
        own: dict[str, Any] = {settings.KEY: settings for settings in self.bench.connections.defaults}
        location = {"name": STORAGE, "location": self.bench.store.location, **own}
        storage = StorageConfig.model_validate(
            {**location, "mode": "apply", "rehearsals": "allowed", "quarantine_days": 0, **self.settings}
        )
        settings = {**own, "s3": self.s3}
        return Config(state=self.state or str(self.root / "state"), storages=(storage,), lakes=tuple(self.lakes), **settings)

    def contents(self) -> dict[str, str]:
        """Return the sha256 of every readable object by key, without the collector's own."""
        keys = [key for key in self.bench.everything() if not key.startswith(RESERVED_PREFIX)]
        return {key: hashlib.sha256(self.bench.get(key) or b"").hexdigest() for key in keys}
