"""The checks of `doctor` on real servers, for each flaw of a bucket. They change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from gc_assets.config.connections import Connections
from gc_assets.config.models import StorageConfig
from gc_assets.config.s3 import S3Config
from gc_assets.core.findings import Finding
from gc_assets.stores.s3.store import S3Store
from tests.ports import free_port
from tests.s3.proxy import Exchange, Rule, always, error_answer, run_proxy
from tests.s3.servers import REGION, S3Server, is_ceph_conditional
from tests.stores.s3.careless_store import CarelessStore

NOW = datetime(2026, 11, 22, 3, tzinfo=UTC)
KEY = "lake/a/1"


def create_filled_bucket(server: S3Server, versioned: bool = False) -> str:
    """Create a bucket with one object."""
    bucket = server.bucket(versioned)
    server.client().put_object(Bucket=bucket, Key=KEY, Body=b"x")
    return bucket


def find_problems(settings: S3Config, bucket: str, kind: type[S3Store] = S3Store, **keys: Any) -> dict[str, Finding]:
    """Return the findings about the storage `s3://bucket/lake/` that are not ok, by check."""
    location = f"s3://{bucket}/lake/"
    storage = StorageConfig.model_validate({"name": "s", "location": location, "quarantine": "trash", **keys})
    found = kind(location, Connections.of(settings)).examine(storage, NOW)
    return {finding.check: finding for finding in found if finding.verdict != "ok"}


def only_finding(findings: dict[str, Finding], check: str, verdict: str) -> str:
    """Return finding and action of the only finding."""
    assert [(name, finding.verdict) for name, finding in findings.items()] == [(check, verdict)], findings
    assert findings[check].todo
    return f"{findings[check].found} {findings[check].todo}"


def contents(server: S3Server, bucket: str) -> list[tuple[str, str]]:
    listed = server.client().list_object_versions(Bucket=bucket)
    return [(item["Key"], item["VersionId"]) for kind in ("Versions", "DeleteMarkers") for item in listed.get(kind, [])]


@pytest.fixture(scope="module")
def html_server() -> Iterator[str]:
    """The address of a web server without S3."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html><body>Welcome<br></body></html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_doctor_reports_no_problem_for_a_valid_bucket(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    before = contents(ceph, bucket)
    assert find_problems(ceph.settings, bucket, mode="apply") == {}
    assert contents(ceph, bucket) == before


def test_doctor_fails_for_an_unreachable_server(ceph: S3Server) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    text = only_finding(find_problems(ceph.settings.model_copy(update={"endpoint": endpoint}), "any"), "listable", "fail")
    assert f'Could not connect to the endpoint URL: "{endpoint}' in text
    assert "check the network and `s3.endpoint`" in text


def test_doctor_fails_for_a_server_without_s3(ceph: S3Server, html_server: str) -> None:
    text = only_finding(find_problems(ceph.settings.model_copy(update={"endpoint": html_server}), "any"), "listable", "fail")
    assert "s3://any/lake/ cannot be listed: the answer has HTTP status" in text
    assert "Check `s3.endpoint`" in text


def test_doctor_fails_for_a_server_without_tls(ceph: S3Server) -> None:
    endpoint = ceph.endpoint.replace("http:", "https:")
    text = only_finding(find_problems(ceph.settings.model_copy(update={"endpoint": endpoint}), "any"), "listable", "fail")
    assert "check `s3.endpoint` (http or https)" in text


def test_doctor_fails_for_a_wrong_region(versity: S3Server) -> None:
    text = only_finding(
        find_problems(versity.settings.model_copy(update={"region": "eu-west-1"}), create_filled_bucket(versity)), "listable", "fail"
    )
    assert "set `s3.region`" in text


def test_doctor_fails_for_a_missing_bucket(ceph: S3Server) -> None:
    text = only_finding(find_problems(ceph.settings, "no-such-bucket"), "listable", "fail")
    assert "s3://no-such-bucket/lake/" in text
    assert "there is no such bucket; correct the location or `s3.endpoint`" in text


@pytest.mark.parametrize(
    "code, way_out",
    [
        ("ExpiredToken", "has expired; log in again"),
        ("InvalidToken", "check AWS_SESSION_TOKEN"),
        ("RequestTimeTooSkewed", "set this machine's clock"),
        ("SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"),
        ("InvalidAccessKeyId", "check AWS_PROFILE"),
    ],
)
def test_doctor_fails_for_rejected_credentials(ceph: S3Server, code: str, way_out: str) -> None:
    with run_proxy(ceph, Rule(always, lambda exchange: exchange.reply(error_answer(403, code)), times=99)) as proxy:
        text = only_finding(find_problems(proxy.server.settings, "any"), "listable", "fail")
    assert code in text
    assert way_out in text


def test_doctor_fails_for_a_wrong_secret(versity: S3Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text(f"[typo]\naws_access_key_id = {versity.access_key}\naws_secret_access_key = wrong\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    text = only_finding(
        find_problems(S3Config(endpoint=versity.endpoint, region=REGION, profile="typo"), create_filled_bucket(versity)), "listable", "fail"
    )
    assert "the secret key does not belong to the access key" in text


@pytest.mark.parametrize("hours, whose", [(2, "ahead of"), (-2, "behind")])
def test_doctor_warns_of_clock_skew(ceph: S3Server, hours: int, whose: str) -> None:
    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        date = ("Date", format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True))
        exchange.reply(replace(answer, headers=(*(item for item in answer.headers if item[0].lower() != "date"), date)))

    bucket = create_filled_bucket(ceph)
    with run_proxy(ceph, Rule(always, fault, times=99)) as proxy:
        text = only_finding(find_problems(proxy.server.settings, bucket), "clock", "warn")
    assert f"({whose} this machine's), expected at most 5" in text
    assert "Set the clocks" in text


def policy(server: S3Server, bucket: str, *denied: dict[str, Any]) -> S3Config:
    """Return settings of a user who may do everything in the bucket except the denied actions."""
    own = {"Principal": "*", "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]}
    statements = [{**own, "Effect": "Allow", "Action": "s3:*"}, *({**own, "Effect": "Deny", **item} for item in denied)]
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})
    server.client().put_bucket_policy(Bucket=bucket, Policy=text)
    return server.as_stranger().settings


def test_doctor_fails_if_the_bucket_cannot_be_listed(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    text = only_finding(find_problems(ceph.as_stranger().settings, bucket), "listable", "fail")
    assert f"s3://{bucket}/lake/ cannot be listed: AccessDenied" in text
    assert "docs/s3-reference.md lists the permissions of each role" in text


def test_doctor_fails_if_one_prefix_cannot_be_listed(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    ceph.client().put_object(Bucket=bucket, Key="lake/b/1", Body=b"x")
    denied = {"Action": "s3:ListBucket", "Condition": {"StringLike": {"s3:prefix": "lake/b/*"}}}
    text = only_finding(find_problems(policy(ceph, bucket, denied), bucket), "listable", "fail")
    assert f"but s3://{bucket}/lake/b/ cannot: AccessDenied" in text


def test_doctor_fails_if_objects_cannot_be_read(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    text = only_finding(find_problems(policy(ceph, bucket, {"Action": "s3:GetObject"}), bucket), "readable", "fail")
    assert f"s3://{bucket}/{KEY} cannot be read: 403" in text


def test_doctor_fails_if_canaries_cannot_be_written(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    denied = {"Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{bucket}/lake/.gc-assets/*"}
    text = only_finding(find_problems(policy(ceph, bucket, denied), bucket, mode="apply"), "traits", "fail")
    assert f"cannot write and remove canaries under s3://{bucket}/lake/.gc-assets/" in text
    assert "AccessDenied" in text


def test_doctor_fails_if_objects_cannot_be_deleted(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    denied = {"Action": "s3:DeleteObject", "Resource": f"arn:aws:s3:::{bucket}/lake/a/*"}
    settings = policy(ceph, bucket, denied, {"Action": "s3:DeleteObject", "Resource": f"arn:aws:s3:::{bucket}/lake/*gc-assets-canary*"})
    for mode, problem in (("trash", "may not delete objects in"), ("deferred", "cannot delete under")):
        text = only_finding(find_problems(settings, bucket, mode="apply", quarantine=mode), "deletable", "fail")
        assert f"{problem} s3://{bucket}/lake/" in text
        assert "s3.apply_role_arn" in text


@pytest.mark.parametrize("action, mode", [("ListBucketMultipartUploads", "plan"), ("AbortMultipartUpload", "apply")])
def test_doctor_warns_if_uploads_cannot_be_aborted(ceph: S3Server, action: str, mode: str) -> None:
    bucket = create_filled_bucket(ceph)
    settings = policy(ceph, bucket, {"Action": f"s3:{action}"})
    text = only_finding(find_problems(settings, bucket, mode=mode), "uploads", "warn")
    assert "unfinished uploads cannot be aborted: AccessDenied" in text
    assert "abort_uploads: false" in text
    assert find_problems(settings, bucket, mode=mode, abort_uploads=False) == {}


def test_denied_delete_does_not_count_as_conditional_delete_support(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    findings = find_problems(policy(ceph, bucket, {"Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"]}), bucket, mode="apply")
    assert {check: finding.verdict for check, finding in findings.items()} == {"traits": "fail", "deletable": "fail"}
    assert "cannot write and remove canaries" in findings["traits"].found


@pytest.mark.parametrize("mode, verdict", [("plan", "warn"), ("apply", "fail")])
def test_doctor_reports_an_unsuitable_quarantine_mode(ceph: S3Server, mode: str, verdict: str) -> None:
    plain = find_problems(ceph.settings, create_filled_bucket(ceph), quarantine="versioned", mode=mode)["quarantine"]
    assert plain.verdict == verdict
    assert "keeps no versions" in plain.found
    assert "trash" in plain.todo
    versioned = find_problems(ceph.settings, create_filled_bucket(ceph, versioned=True), quarantine="trash", mode=mode)["quarantine"]
    assert versioned.verdict == verdict
    assert "frees nothing" in versioned.found
    assert "versioned" in versioned.todo


def test_doctor_reports_suspended_versioning(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph, versioned=True)
    ceph.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    assert "versioning suspended" in only_finding(find_problems(ceph.settings, bucket, quarantine="versioned"), "quarantine", "warn")
    assert "older versions still incur costs" in only_finding(
        find_problems(ceph.settings, bucket, quarantine="trash"), "quarantine", "warn"
    )


@pytest.mark.skipif(not is_ceph_conditional(), reason="Ceph 16 ignores the condition that a marker violates")
def test_doctor_fails_if_a_delete_marker_prevents_new_objects(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph, versioned=True)
    ceph.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    before = contents(ceph, bucket)
    found = find_problems(ceph.settings, bucket, mode="apply")["traits"]
    assert (found.verdict, "a delete marker prevents" in found.found, "Enable versioning" in found.todo) == ("fail", True, True)
    assert contents(ceph, bucket) == before


def test_doctor_warns_of_object_lock(ceph: S3Server) -> None:
    bucket = "locked-by-doctors-test"
    client = ceph.client()
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    retention = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}}
    client.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=retention)
    text = only_finding(find_problems(ceph.settings, bucket, quarantine="versioned"), "lock", "warn")
    assert f"bucket {bucket} has Object Lock: new objects are kept for 3 days (GOVERNANCE)" in text


def test_doctor_reports_only_lifecycle_rules_of_the_storage(ceph: S3Server) -> None:
    bucket = create_filled_bucket(ceph)
    rules = [
        {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "lake/.gc-assets/"}, "Expiration": {"Days": 3}},
        {"ID": "other", "Status": "Enabled", "Filter": {"Prefix": "other/"}, "Expiration": {"Days": 3}},
        {"ID": "off", "Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}},
        {"ID": "parts", "Status": "Enabled", "Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3}},
    ]
    ceph.client().put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    text = only_finding(find_problems(ceph.settings, bucket, quarantine_days=7), "lifecycle", "warn")
    assert f"rule 'tidy' of bucket {bucket} deletes objects under 'lake/.gc-assets/' by Expiration after 3 days" in text
    assert "beyond 7 days" in text


def test_doctor_warns_if_the_server_ignores_conditions(ceph: S3Server) -> None:
    """Ceph 16 ignores them in a bucket with versions."""
    bucket = create_filled_bucket(ceph, versioned=True)
    text = only_finding(find_problems(ceph.settings, bucket, CarelessStore, quarantine="versioned", mode="apply"), "traits", "warn")
    assert "ignores If-None-Match in bucket" in text
    assert "cannot be edited" in text
