"""`gc-assets doctor` before a bucket with one flaw: it ends with exit code 1, says what is wrong and what to do, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from tests.lakes.iceberg.builder import LakeBuilder
from tests.ports import free_port
from tests.s3.proxy import Rule, always, error_answer, proxied
from tests.s3.servers import S3Server


@dataclass
class Platform:
    """A configuration of one storage in a new bucket of a server; a table-less catalog on a disk is its lake."""

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


def wrong_endpoint(at: Platform) -> None:
    at.s3["endpoint"] = f"http://127.0.0.1:{free_port()}"


def no_such_bucket(at: Platform) -> None:
    at.storage["location"] = "s3://no-such-bucket/lake/"


def a_closed_prefix(at: Platform) -> None:
    own = {"Principal": "*", "Resource": [f"arn:aws:s3:::{at.bucket}", f"arn:aws:s3:::{at.bucket}/*"]}
    closed = {**own, "Effect": "Deny", "Action": "s3:ListBucket", "Condition": {"StringLike": {"s3:prefix": "lake/b/*"}}}
    statements = [{**own, "Effect": "Allow", "Action": "s3:*"}, closed]
    at.server.client().put_bucket_policy(Bucket=at.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    at.s3 = at.server.as_stranger().settings.model_dump(mode="json", exclude_defaults=True)


def suspended(at: Platform) -> None:
    at.storage["quarantine"] = "versioned"
    at.server.client().put_bucket_versioning(Bucket=at.bucket, VersioningConfiguration={"Status": "Suspended"})


def lifecycle_of_the_lake(at: Platform) -> None:
    at.lifecycle("lake/.gc-assets/")


def lifecycle_of_the_state(at: Platform) -> None:
    at.state = f"s3://{at.bucket}/state/"
    at.lifecycle("state/")


def nothing(at: Platform) -> None:
    """The flaw is the bucket's from the beginning."""


FLAWS: dict[str, tuple[Callable[[Platform], None], bool, str, str, str]] = {
    "wrong endpoint": (wrong_endpoint, False, "listable", "Could not connect to the endpoint", "check the network and `s3.endpoint`"),
    "no such bucket": (no_such_bucket, False, "listable", "s3://no-such-bucket/lake/", "there is no such bucket; correct the location"),
    "a prefix without permission": (
        a_closed_prefix,
        False,
        "listable",
        "lake/b/: AccessDenied",
        "docs/s3-reference.md lists the permissions of each role",
    ),
    "versioning was suspended": (suspended, True, "quarantine", "has its versioning suspended", "Enable versioning"),
    "versioning was switched on": (nothing, True, "quarantine", "a copy in the trash frees nothing", "Use `quarantine: versioned`"),
    "a lifecycle rule in the lake": (lifecycle_of_the_lake, False, "lifecycle", "quarantined objects too", "longer than 7 days"),
    "a lifecycle rule in the state": (lifecycle_of_the_state, False, "lifecycle", "the state too", "Leave state/ out of the rule"),
}


def failed(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 1, result.output
    return [finding for finding in json.loads(result.stdout) if finding["verdict"] == "fail"]


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_of_a_bucket_ends_the_doctor_with_words_and_exit_1(ceph: S3Server, tmp_path: Path, flaw: str) -> None:
    spoil, versioned, check, words, way_out = FLAWS[flaw]
    at = Platform(tmp_path, ceph, versioned)
    spoil(at)
    before = at.objects()
    (found,) = failed(at.doctor())
    assert (found["subject"], found["check"]) == ("state" if "state" in flaw else "warehouse", check)
    assert words in found["found"]
    assert way_out in f"{found['found']} {found['todo']}"
    assert [item for item in at.objects() if item in before] == before
    assert not [key for key, _ in at.objects() if "canary" in key], "what it tried is removed again"


@pytest.mark.parametrize("code, way_out", [("ExpiredToken", "log in again"), ("RequestTimeTooSkewed", "set this machine's clock")])
def test_a_signer_whom_the_server_refuses_is_told_what_to_mend(ceph: S3Server, tmp_path: Path, code: str, way_out: str) -> None:
    at = Platform(tmp_path, ceph)
    with proxied(ceph, Rule(always, lambda exchange: exchange.reply(error_answer(403, code)), times=99)) as proxy:
        at.s3["endpoint"] = proxy.server.endpoint
        (found,) = failed(at.doctor())
    assert code in found["found"]
    assert way_out in f"{found['found']} {found['todo']}"


def test_another_region_is_named(versity: S3Server, tmp_path: Path) -> None:
    at = Platform(tmp_path, versity)
    at.s3["region"] = "eu-west-1"
    (found,) = failed(at.doctor())
    assert "set `s3.region`" in f"{found['found']} {found['todo']}"


def test_a_sound_bucket_ends_with_exit_0(ceph: S3Server, tmp_path: Path) -> None:
    at = Platform(tmp_path, ceph)
    at.state = f"s3://{at.bucket}/state/"
    result = at.doctor()
    assert result.exit_code == 0, result.output
    said = {(finding["subject"], finding["check"]): finding["verdict"] for finding in json.loads(result.stdout)}
    assert said["state", "lifecycle"] == said["warehouse", "lifecycle"] == "ok"
