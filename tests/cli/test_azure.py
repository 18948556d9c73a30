"""The command line on Azurite: init, run, doctor, report, approve, apply and restore, with the state in a container.

No secret is written, printed, sent or recorded: neither a SAS token, nor an account key, nor a connection string.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from tests.azure.credentials import ACCOUNT, APPLY_KEY, KEY, READ_VARIABLE, connection_string
from tests.cli import cloud_commands
from tests.cli.cloud_commands import Traces, collect_garbage
from tests.dates import next_noon
from tests.depth import in_turn
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stores.azure_bench import location_of, open_azure_bench

pytestmark = [pytest.mark.spark, in_turn]

traces = cloud_commands.traces


def create_token() -> str:
    """Return a SAS token that reads and writes all containers of the account."""
    resources = ResourceTypes(service=True, container=True, object=True)
    permission = AccountSasPermissions(read=True, list=True, write=True, create=True, delete=True, tag=True)
    return generate_account_sas(ACCOUNT, KEY, resources, permission, expiry=datetime.now(UTC) + timedelta(hours=1))


def test_commands_collect_garbage_without_showing_secrets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, traces: Traces
) -> None:
    """Runs use a SAS token, changes an account key, and pyiceberg a connection string."""
    caplog.set_level(logging.INFO)
    now, token = next_noon(days=10), create_token()
    monkeypatch.setenv("GC_ASSETS_UNSAFE_NOW", now.isoformat())
    with open_azure_bench(prefix="lakes/") as bench:
        monkeypatch.setenv(READ_VARIABLE, token)
        monkeypatch.setenv("AZURE_CATALOG", f"{connection_string(KEY)};BlobEndpoint={bench.server.endpoint}")
        house = BucketLakehouse(spark, tmp_path, now=now, bench=bench)
        iceberg = Iceberg(house)
        bench.put("iceberg/db/orders/data/lost.parquet", b"lost")
        sales = iceberg.config.model_dump(mode="json", exclude_unset=True)
        sales["catalog"] = {name: value.get_secret_value() for name, value in iceberg.config.catalog.items()}
        sales["catalog"]["adls.connection-string"] = "${AZURE_CATALOG}"
        storage = {"name": "warehouse", "location": bench.store.location, "mode": "apply", "rehearsals": "allowed", "quarantine_days": 0}
        azure = bench.server.settings.model_dump(mode="json", exclude_none=True)
        document = {"state": location_of(bench.server.container(), "state/"), "azure": azure, "storages": [storage], "lakes": [sales]}
        house.state, house.lakes = document["state"], [iceberg.config]
        collect_garbage(house, traces, document, "iceberg/db/orders/data/lost.parquet", caplog)
        assert traces.find(KEY, APPLY_KEY, token, token.partition("sig=")[2].partition("&")[0]) == []


def test_init_finds_a_repository_in_an_azure_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_azure_bench(prefix="lakes/") as bench:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{connection_string(KEY)};BlobEndpoint={bench.server.endpoint}")
        for key in ("weather/snapshots/1CECHNKREP0F1RSTCMT0", "weather/refs/branch.main/ref.json"):
            bench.put(key, b"{}")
        location = f"{bench.store.location}weather/"
        target = tmp_path / "lakes.yaml"
        result = CliRunner().invoke(cli, ["init", location, "--config", str(target)])
        assert result.exit_code == 0, result.stderr
        document = yaml.safe_load(target.read_text())
        assert [(lake["kind"], lake["location"]) for lake in document["lakes"]] == [("icechunk", location)]
        assert [storage["location"] for storage in document["storages"]] == [location]
        assert KEY not in result.output + target.read_text()
