"""The command line on Azurite: init, run, approve, apply and restore, with the state in a container.

No secret is written, printed or sent.
"""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.state.files import Files
from tests.azure.credentials import APPLY_KEY, KEY, connection_string
from tests.dates import next_noon
from tests.stages.bucket_house import BucketHouse
from tests.stages.bucket_lakes import Iceberg
from tests.stores.azure_bench import AzureBench, location_of, open_azure_bench

pytestmark = pytest.mark.spark

SECRETS = (KEY, APPLY_KEY)


def find_secrets(things: dict[str, bytes]) -> list[str]:
    return [name for name, content in things.items() if any(secret.encode() in content for secret in SECRETS)]


def collect_contents(bench: AzureBench, state: str) -> dict[str, bytes]:
    """Return every file of the state, and every object of the collector in the container."""
    files = Files(state, bench.server.settings)
    found = {item.name: files.read(item.name) for item in files.list("", recursive=True)}
    return found | {key: bench.get(key) or b"" for key in bench.everything() if key.startswith(".gc-assets/")}


def test_commands_collect_garbage_and_show_no_secret(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = next_noon(days=10)
    with open_azure_bench(prefix="lakes/") as bench:
        monkeypatch.setenv("GC_ASSETS_UNSAFE_NOW", now.isoformat())
        monkeypatch.setenv("AZURE_CATALOG", f"{connection_string(KEY)};BlobEndpoint={bench.server.endpoint}")
        house = BucketHouse(spark, tmp_path, now=now, bench=bench)
        iceberg = Iceberg(house)
        bench.put("iceberg/db/orders/data/lost.parquet", b"lost")
        state = location_of(bench.server.container(), "state/")
        sales = iceberg.config.model_dump(mode="json", exclude_unset=True)
        sales["catalog"] = {name: value.get_secret_value() for name, value in iceberg.config.catalog.items()}
        sales["catalog"]["adls.connection-string"] = "${AZURE_CATALOG}"
        where = {"name": "warehouse", "location": bench.store.location, "mode": "apply", "rehearsals": "allowed", "quarantine_days": 0}
        azure = bench.server.settings.model_dump(mode="json", exclude_none=True)
        lakes_yaml = tmp_path / "lakes.yaml"
        lakes_yaml.write_text(yaml.safe_dump({"state": state, "azure": azure, "storages": [where], "lakes": [sales]}))
        outputs = dict[str, bytes]()

        def run_command(*arguments: str) -> Any:
            result = CliRunner().invoke(cli, [*arguments, "--config", str(lakes_yaml)])
            outputs[" ".join(arguments)] = (result.stdout + result.stderr + repr(result.exception)).encode()
            assert result.exit_code == 0, result.stderr
            return result.stdout

        (plan,) = json.loads(run_command("run", "--run-date", now.date().isoformat(), "--format", "json"))
        before = house.contents()
        run_command("approve", plan["plan_id"], "--by", "ada")
        run_command("apply", plan["plan_id"])
        gone = before.keys() - house.contents().keys()
        assert len(gone) == plan["files"]
        assert "iceberg/db/orders/data/lost.parquet" in gone
        run_command("restore", "--plan", plan["plan_id"])
        assert {key: house.contents()[key] for key in gone} == {key: before[key] for key in gone}
        sent = [bench.store, bench.store.objects, bench.store.quarantine("trash", plan["plan_id"]), *bench.store.plan_listing(2)]
        files = collect_contents(bench, state)
        assert len(files) > 30
        assert find_secrets(files) == []
        assert find_secrets(outputs) == []
        assert find_secrets({"log": caplog.text.encode()}) == []
        assert find_secrets({str(value): pickle.dumps(value) for value in sent}) == []


def test_init_finds_a_repository_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
