"""Aliases of a storage count as its locations, if an address is compared with all storages.

Before, `s3://bucket/x` was outside all storages if the storage was a mounted bucket with the alias `gs://bucket/`, although Google's S3
interface serves its objects by this name. A live file with such an address was quarantined.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.mark.unknown_addresses import external_addresses

NOW = datetime(2026, 3, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    "alias, key, addresses",
    [
        ("gs://bucket/w/", "x", ["gs://bucket/w/x", "https://storage.googleapis.com/bucket/w/x"]),
        ("gs://bucket/w/", None, ["s3://bucket/w/x"]),
        ("s3://bucket/w/", "x", ["s3://bucket/w/x", "s3a://bucket/w/x"]),
        ("s3://bucket/w/", None, ["gs://bucket/w/x", "https://bucket.s3.amazonaws.com/w/x"]),
        ("abfss://lake@acct.dfs.core.windows.net/w/", "x", ["https://acct.blob.core.windows.net/lake/w/x", "az://lake/w/x"]),
        ("abfss://lake@acct.dfs.core.windows.net/w/", None, ["az://other/w/x"]),
        ("https://acct.blob.core.windows.net/lake/w/", "x", ["abfss://lake@acct.dfs.core.windows.net/w/x", "az://lake/w/x"]),
        ("https://acct.blob.core.windows.net/lake/w/", "x", ["https://acct.dfs.core.windows.net/lake/w/x"]),
        ("https://storage.googleapis.com/lake/a%20b/", "x", ["gs://lake/a b/x", "https://lake.storage.googleapis.com/a%20b/x"]),
        ("https://lake.storage.googleapis.com/w/", "x", ["gs://lake/w/x", "https://storage.googleapis.com/lake/w/x"]),
        ("https://storage.googleapis.com/lake/w/", None, ["s3://lake/w/x"]),
        ("https://lake.s3.amazonaws.com/w/", None, ["s3://lake/w/x"]),
        ("https://minio.example.org/lake/w/", None, ["s3://lake/w/x"]),
    ],
)
def test_equivalent_alias_addresses_are_in_storage_or_unknown(tmp_path: Path, alias: str, key: str | None, addresses: list[str]) -> None:
    storage = StorageConfig.model_validate({"name": "lake", "location": f"{tmp_path}/lake/", "aliases": [alias]})
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    lake = IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": catalog})
    context = RunContext.of(Config(state=f"{tmp_path}/state", storages=(storage,), lakes=(lake,)), Clock(NOW), NOW.date())

    assert context.resolver().locate(pa.array(addresses))[1].to_pylist() == [key] * len(addresses)
    if key is None:
        assert external_addresses(context).find_reasons(pa.array(addresses)).null_count == 0
