"""No secret is written, printed or sent by the command line.

Lakes of all four kinds in a bucket are planned, reported, approved and applied, with the state in
another bucket and a Dagster instance.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.state.files import Files
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.lakefs.fake_server import KEY_ID
from tests.lakes.lakefs.fake_server import SECRET as LAKEFS_SECRET
from tests.lakes.nessie.server import Server
from tests.s3.servers import OWNER, STRANGER, shared_server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import lakes_of_all_kinds
from tests.state.s3_location import unused_location
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

NESSIE_TOKEN = "a-token-that-nessie-does-not-ask-for"  # noqa: S105  (to be searched for)
SECRETS = {"S3_SECRET": OWNER[1], "LAKEFS_SECRET": LAKEFS_SECRET, "NESSIE_TOKEN": NESSIE_TOKEN, "OTHER": STRANGER[1]}


def settings_of(house: BucketLakehouse) -> dict[str, Any]:
    """Return the settings of `lakes.yaml`, with secrets as names of environment variables."""
    described: list[dict[str, Any]] = []
    for lake in house.lakes:
        plain = lake.model_dump(mode="json", exclude_unset=True)
        if lake.kind == "iceberg":
            known = {name: value.get_secret_value() for name, value in lake.catalog.items()}
            plain["catalog"] = known | {"s3.secret-access-key": "${S3_SECRET}"}
        plain |= {"access_key_id": KEY_ID, "secret_access_key": "${LAKEFS_SECRET}"} if lake.kind == "lakefs" else {}
        plain |= {"token": "${NESSIE_TOKEN}"} if lake.kind == "nessie" else {}
        described.append(plain)
    s3 = house.s3.model_dump(mode="json", exclude_none=True)
    where = {"name": "warehouse", "location": house.bench.store.location, "quarantine": "trash"}
    storage = {**where, "mode": "apply", "rehearsals": "allowed", "quarantine_days": 0}
    return {"state": house.state, "s3": s3, "storages": [storage], "lakes": described}


def collect_contents(house: BucketLakehouse, *folders: Path) -> Iterator[tuple[str, bytes]]:
    """Return every file of these directories and the state, and every object of the collector in
    the bucket.
    """
    for folder in folders:
        yield from ((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    state = Files(house.state or "", house.s3)
    yield from ((item.name, state.read(item.name)) for item in state.list("", recursive=True))
    own = (key for key in house.bench.everything() if key.startswith(".gc-assets/"))
    yield from ((key, house.bench.get(key) or b"") for key in own)


def find_secrets(things: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the names of contents with a secret, and the names of the secrets."""
    found = {name: [secret for secret, value in SECRETS.items() if value.encode() in content] for name, content in things.items()}
    return {name: secrets for name, secrets in found.items() if secrets}


def test_secrets_are_not_written_printed_or_sent(
    spark: SparkSession, nessie_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    now = next_noon(days=10)
    monkeypatch.setenv("GC_ASSETS_UNSAFE_NOW", now.isoformat())
    with open_s3_bench("ceph", prefix="lakes/") as bench, unused_location() as (state, _):
        house = BucketLakehouse(spark, tmp_path / "lakes", now=now, bench=bench, state=state, s3=shared_server("ceph").settings)
        house.root.mkdir()
        with lakes_of_all_kinds(house, nessie_server):
            lakes_yaml = tmp_path / "lakes.yaml"
            lakes_yaml.write_text(yaml.safe_dump(settings_of(house)))
            outputs = dict[str, bytes]()

            def run_command(*arguments: str) -> str:
                result = CliRunner().invoke(cli, [*arguments, "--config", str(lakes_yaml)])
                outputs[" ".join(arguments)] = (result.stdout + result.stderr + repr(result.exception)).encode()
                assert result.exit_code == 0, result.stderr
                return result.stdout

            (plan,) = json.loads(run_command("run", "--run-date", now.date().isoformat(), "--format", "json"))
            assert plan["files"] > 0
            run_command("report", "--run-date", now.date().isoformat(), "-o", str(home / "report.html"))
            run_command("approve", plan["plan_id"], "--by", "ada")
            run_command("apply", plan["plan_id"])
            run_context = house.run_context()
            store = run_context.store("warehouse")
            sent = [store, store.objects, store.quarantine("trash", plan["plan_id"]), *store.plan_listing(2)]
            sent += [run_context.lake(lake.name) for lake in house.lakes]
            files = dict(collect_contents(house, home))
            assert len(files) > 50
            assert any(name.endswith("report.html") for name in files)
            assert find_secrets(files) == {}
            assert find_secrets(outputs) == {}
            assert find_secrets({"log": caplog.text.encode()}) == {}
            assert find_secrets({str(value): pickle.dumps(value) for value in sent}) == {}
