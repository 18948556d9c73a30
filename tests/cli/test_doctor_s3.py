"""`gc-assets doctor` for each problem of a bucket.

It reports the problem and the solution, exits with 1 and changes nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from tests.lakes.iceberg.builder import LakeBuilder
from tests.ports import free_port
from tests.s3.proxy import Rule, always, error_answer, run_proxy
from tests.s3.servers import S3Server

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class BucketSetup:
    """A configuration of one storage in a new bucket. Its lake is an empty catalog on a disk."""

    root: Path
    server: S3Server
    versioned: bool = False
    storage: dict[str, Any] = field(default_factory=dict)
    s3: dict[str, Any] = field(default_factory=dict)
    state: str = "./state"

    def __post_init__(self) -> None:
        self.bucket = self.server.bucket(self.versioned)
        self.s3 = self.server.settings.model_dump(mode="json", exclude_defaults=True)
        for name in ("a", "b"):
            self.server.client().put_object(Bucket=self.bucket, Key=f"lake/{name}/1", Body=b"x")

    def objects(self) -> list[tuple[str, str]]:
        found = self.server.client().list_object_versions(Bucket=self.bucket)
        return [(item["Key"], item["VersionId"]) for kind in ("Versions", "DeleteMarkers") for item in found.get(kind, [])]

    def lifecycle(self, below: str) -> None:
        rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": below}, "Expiration": {"Days": 3}}
        self.server.client().put_bucket_lifecycle_configuration(Bucket=self.bucket, LifecycleConfiguration={"Rules": [rule]})

    def add_tables(self, *names: str) -> None:
        """Add tables to the catalog whose metadata is in the bucket."""
        lake = LakeBuilder(self.root)
        for name in names:
            lake.table(name, NOW)
        with closing(sqlite3.connect(self.root / "catalog.db")) as database, database:
            database.execute(
                "UPDATE iceberg_tables SET metadata_location = ? || table_name || '/metadata/1.json'", [f"s3://{self.bucket}/lake/"]
            )

    def doctor(self) -> Result:
        lake = LakeBuilder(self.root)
        storage = {"name": "warehouse", "location": f"s3://{self.bucket}/lake/", "mode": "apply", **self.storage}
        document = {
            "state": self.state,
            "storages": [storage],
            "lakes": [{"name": "sales", "kind": "iceberg", "catalog": lake.properties}],
            "s3": self.s3,
        }
        path = self.root / "lakes.yaml"
        path.write_text(json.dumps(document))
        return CliRunner().invoke(cli, ["doctor", "--format", "json", "--config", str(path)])


def set_wrong_endpoint(at: BucketSetup) -> None:
    at.s3["endpoint"] = f"http://127.0.0.1:{free_port()}"


def remove_bucket(at: BucketSetup) -> None:
    at.storage["location"] = "s3://no-such-bucket/lake/"


def close_prefix(at: BucketSetup) -> None:
    own = {"Principal": "*", "Resource": [f"arn:aws:s3:::{at.bucket}", f"arn:aws:s3:::{at.bucket}/*"]}
    closed = {**own, "Effect": "Deny", "Action": "s3:ListBucket", "Condition": {"StringLike": {"s3:prefix": "lake/b/*"}}}
    statements = [{**own, "Effect": "Allow", "Action": "s3:*"}, closed]
    at.server.client().put_bucket_policy(Bucket=at.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    at.s3 = at.server.as_stranger().settings.model_dump(mode="json", exclude_defaults=True)


def suspend_versioning(at: BucketSetup) -> None:
    at.storage["quarantine"] = "versioned"
    at.server.client().put_bucket_versioning(Bucket=at.bucket, VersioningConfiguration={"Status": "Suspended"})


def add_lake_lifecycle(at: BucketSetup) -> None:
    at.lifecycle("lake/.gc-assets/")


def add_state_lifecycle(at: BucketSetup) -> None:
    at.state = f"s3://{at.bucket}/state/"
    at.lifecycle("state/")


def no_change(at: BucketSetup) -> None:
    """The bucket has the flaw from the beginning."""


FLAWS: dict[str, tuple[Callable[[BucketSetup], None], bool, str, str, str]] = {
    "wrong endpoint": (set_wrong_endpoint, False, "listable", "Could not connect to the endpoint", "check the network and `s3.endpoint`"),
    "no such bucket": (remove_bucket, False, "listable", "s3://no-such-bucket/lake/", "there is no such bucket; correct the location"),
    "a prefix without permission": (
        close_prefix,
        False,
        "listable",
        "lake/b/ cannot: AccessDenied",
        "docs/s3-reference.md lists the permissions of each role",
    ),
    "versioning was suspended": (suspend_versioning, True, "quarantine", "has versioning suspended", "Enable versioning"),
    "versioning was switched on": (no_change, True, "quarantine", "a copy in the trash frees nothing", "Use `quarantine: versioned`"),
    "a lifecycle rule in the lake": (add_lake_lifecycle, False, "lifecycle", "including quarantined objects", "beyond 7 days"),
    "a lifecycle rule in the state": (add_state_lifecycle, False, "lifecycle", "including the state", "Exclude state/ from the rule"),
}


def failed_findings(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 1, result.output
    return [finding for finding in json.loads(result.stdout) if finding["verdict"] == "fail"]


@pytest.mark.parametrize("flaw", FLAWS)
def test_bucket_problem_is_reported_with_exit_code_1(ceph: S3Server, tmp_path: Path, flaw: str) -> None:
    spoil, versioned, check, text, way_out = FLAWS[flaw]
    at = BucketSetup(tmp_path, ceph, versioned)
    spoil(at)
    before = at.objects()
    (found,) = failed_findings(at.doctor())
    assert (found["subject"], found["check"]) == ("state" if "state" in flaw else "warehouse", check)
    assert text in found["found"]
    assert way_out in f"{found['found']} {found['todo']}"
    assert [item for item in at.objects() if item in before] == before
    assert not [key for key, _ in at.objects() if "canary" in key], "what it tried is removed again"


@pytest.mark.parametrize("code, way_out", [("ExpiredToken", "log in again"), ("RequestTimeTooSkewed", "set this machine's clock")])
def test_refused_credentials_are_reported(ceph: S3Server, tmp_path: Path, code: str, way_out: str) -> None:
    at = BucketSetup(tmp_path, ceph)
    with run_proxy(ceph, Rule(always, lambda exchange: exchange.reply(error_answer(403, code)), times=99)) as proxy:
        at.s3["endpoint"] = proxy.server.endpoint
        (found,) = failed_findings(at.doctor())
    assert code in found["found"]
    assert way_out in f"{found['found']} {found['todo']}"


def test_wrong_secret_is_one_problem_for_tables_and_storage(versity: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = BucketSetup(tmp_path, versity)
    at.add_tables("db.a", "db.b", "db.c", "db.d")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", versity.access_key)
    at.s3.pop("profile", None)
    found = failed_findings(at.doctor())
    assert [(item["subject"], item["check"]) for item in found] == [("sales", "unreadable"), ("warehouse", "listable")]
    assert len({item["cause"] for item in found}) == 1
    assert "check AWS_SECRET_ACCESS_KEY" in found[0]["cause"]
    assert found[0]["found"].startswith("tables db.a, db.b, db.c and 1 more could not be read: SignatureDoesNotMatch")


def test_wrong_region_is_reported(versity: S3Server, tmp_path: Path) -> None:
    at = BucketSetup(tmp_path, versity)
    at.s3["region"] = "eu-west-1"
    (found,) = failed_findings(at.doctor())
    assert "set `s3.region`" in f"{found['found']} {found['todo']}"


def test_valid_bucket_exits_with_0(ceph: S3Server, tmp_path: Path) -> None:
    at = BucketSetup(tmp_path, ceph)
    at.state = f"s3://{at.bucket}/state/"
    result = at.doctor()
    assert result.exit_code == 0, result.output
    message = {(finding["subject"], finding["check"]): finding["verdict"] for finding in json.loads(result.stdout)}
    assert message["state", "lifecycle"] == message["warehouse", "lifecycle"] == "ok"
