"""The command line on our own server of Google Cloud Storage, with the state in a bucket.

No secret is written, printed, sent or recorded: neither the key of the service account, nor its tokens.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cli import cloud_commands
from tests.cli.cloud_commands import Traces, collect_garbage
from tests.dates import next_noon
from tests.depth import full_suite_only
from tests.gcs.servers import own_process
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stores.gcs_bench import open_gcs_bench

pytestmark = [pytest.mark.spark, full_suite_only]

traces = cloud_commands.traces


def test_commands_collect_garbage_without_showing_secrets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, traces: Traces
) -> None:
    caplog.set_level(logging.INFO)
    now = next_noon(days=10)
    monkeypatch.setenv("GC_ASSETS_UNSAFE_NOW", now.isoformat())
    # Arrow's client waits for an answer without releasing Python, so the server needs a process of its own.
    with own_process(tmp_path) as server, open_gcs_bench(server, prefix="lakes/") as bench:
        account = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
        house = BucketLakehouse(spark, tmp_path, now=now, bench=bench)
        iceberg = Iceberg(house)
        bench.put("iceberg/db/orders/data/lost.parquet", b"lost")
        sales = iceberg.config.model_dump(mode="json", exclude_unset=True)
        sales["catalog"] = {name: value.get_secret_value() for name, value in iceberg.config.catalog.items()}
        storage = {"name": "warehouse", "location": bench.store.location, "mode": "apply", "rehearsals": "allowed", "quarantine_days": 0}
        gcs = bench.server.settings.model_dump(mode="json", exclude_none=True)
        document = {"state": f"gs://{bench.server.bucket()}/state", "gcs": gcs, "storages": [storage], "lakes": [sales]}
        house.state, house.lakes = document["state"], [iceberg.config]
        collect_garbage(house, traces, document, "iceberg/db/orders/data/lost.parquet", caplog)
        assert traces.find(account["private_key"].splitlines()[1], "token-of-", "BEGIN PRIVATE KEY") == []
