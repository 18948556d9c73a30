"""The test whether the changing role may undo a quarantine, with restricted users of real servers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gc_assets.buckets.protocol import Change
from gc_assets.config.connections import Connections
from gc_assets.config.models import StorageConfig
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.conditional.undo_rights import CANARY, CONTENT
from gc_assets.stores.protocol import QuarantineMode, Result, Store
from gc_assets.stores.store import open_store
from tests.azure.answers import change_answers, show_versions
from tests.azure.servers import shared_server as shared_azure
from tests.s3.proxy import Exchange, Request, Rule, error_answer, run_proxy
from tests.stores.azure_bench import open_azure_bench
from tests.stores.builders import CLOCK, PLAN
from tests.stores.gcs_bench import open_gcs_bench
from tests.stores.s3.bucket_actions import open_through_proxy, plan_rows, with_action
from tests.stores.s3_bench import S3Bench, open_s3_bench

LIST = ("s3:ListBucket", "s3:ListBucketVersions", "s3:GetBucketVersioning", "s3:ListBucketMultipartUploads")
CHANGE = ("s3:GetObject", "s3:GetObjectVersion", "s3:DeleteObject", "s3:AbortMultipartUpload")


def open_restricted(bench: S3Bench, *rights: str) -> Store:
    """Open the storage as a user who may write and delete versions only under `.gc-assets/`.

    `rights` are further actions on the whole storage.
    """
    bucket, who = f"arn:aws:s3:::{bench.bucket}", {"AWS": ["arn:aws:iam:::user/stranger"]}
    parts: Sequence[tuple[Sequence[str], str]] = [
        (LIST, bucket),
        ((*CHANGE, *rights), f"{bucket}/{bench.prefix}*"),
        (("s3:PutObject", "s3:DeleteObjectVersion"), f"{bucket}/{bench.prefix}.gc-assets/*"),
    ]
    statements = [{"Effect": "Allow", "Principal": who, "Action": list(actions), "Resource": [at]} for actions, at in parts]
    bench.client.put_bucket_policy(Bucket=bench.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    return open_store(bench.store.location, Connections.of(bench.server.as_stranger().settings))


def list_versions(bench: S3Bench) -> list[str]:
    """Return the keys of all versions and delete markers."""
    listed = bench.client.list_object_versions(Bucket=bench.bucket, Prefix=bench.prefix)
    return [item["Key"].removeprefix(bench.prefix) for kind in ("Versions", "DeleteMarkers") for item in listed.get(kind, [])]


def deletable(store: Store, mode: QuarantineMode) -> tuple[str, str]:
    """Return the verdict of `gc-assets doctor` and its finding."""
    storage = StorageConfig.model_validate({"name": "s", "location": store.location, "mode": "apply", "quarantine": mode})
    (found,) = [finding for finding in store.examine(storage, CLOCK.now()) if finding.check == "deletable"]
    return found.verdict, found.found


def require_refusal(result: Result | None) -> str:
    assert result is not None
    assert (result.verdict, result.replan) == ("denied", True)
    return result.error or ""


@pytest.mark.parametrize(
    "mode, right, missing",
    [
        ("versioned", "s3:DeleteObjectVersion", "may not delete versions (s3:DeleteObjectVersion) in s3://"),
        ("trash", "s3:PutObject", "may not write objects in s3://"),
    ],
)
def test_missing_right_to_undo_is_found_in_apply_and_doctor(mode: QuarantineMode, right: str, missing: str) -> None:
    with open_s3_bench("ceph", versioned=mode == "versioned", own=True, prefix="lake/") as bench:
        bench.put("t/a", b"x")
        restricted = open_restricted(bench)
        error = require_refusal(restricted.check_undo(mode))
        assert missing in error
        assert "AccessDenied" in error
        verdict, found = deletable(restricted, mode)
        assert (verdict, missing in found) == ("fail", True)
        assert restricted.check_undo("deferred") is None
        assert list_versions(bench) == ["t/a"]
        allowed = open_restricted(bench, right)
        assert allowed.check_undo(mode) is None
        assert deletable(allowed, mode)[0] == "ok"
        assert list_versions(bench) == ["t/a"]


def test_missing_right_to_delete_is_found() -> None:
    with open_s3_bench("ceph", own=True, prefix="lake/") as bench:
        store = open_restricted(bench, "s3:PutObject")
        policy = json.loads(bench.client.get_bucket_policy(Bucket=bench.bucket)["Policy"])
        policy["Statement"][1]["Action"].remove("s3:DeleteObject")
        bench.client.put_bucket_policy(Bucket=bench.bucket, Policy=json.dumps(policy))
        assert "may not delete objects in s3://" in require_refusal(store.check_undo("trash"))


def test_canary_of_a_crash_is_removed_by_the_next_test() -> None:
    with open_s3_bench("ceph") as bench:
        bench.put(CANARY, CONTENT)
        assert bench.store.check_undo("trash") is None
        assert bench.everything() == set()


def test_object_of_another_program_at_the_key_of_the_canary_is_kept() -> None:
    with open_s3_bench("ceph") as bench:
        bench.put(CANARY, b"not ours")
        assert bench.store.check_undo("trash") is None
        assert bench.get(CANARY) == b"not ours"


def test_suspended_bucket_contains_no_canary_afterwards() -> None:
    with open_s3_bench("ceph", versioned=True, own=True) as bench:
        bench.client.put_bucket_versioning(Bucket=bench.bucket, VersioningConfiguration={"Status": "Suspended"})
        assert bench.store.check_undo("trash") is None
        assert list_versions(bench) == []


def test_error_for_a_missing_version_is_no_missing_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_s3_bench("ceph", versioned=True) as bench:
        odd = Change("failed", OSError(5, "NoSuchVersion: no such version", CANARY))
        monkeypatch.setattr(S3Bucket, "delete", lambda *_: [odd])
        assert bench.store.check_undo("versioned") is None


@pytest.mark.parametrize("mode", ["trash", "versioned"])
def test_test_without_an_answer_fails_and_can_be_repeated(mode: QuarantineMode) -> None:
    def is_change(request: Request) -> bool:
        return CANARY in request.target or any(CANARY in key for key in request.keys)

    def refuse(exchange: Exchange) -> None:
        exchange.reply(error_answer(500, "InternalError"))

    rule = Rule(is_change, refuse, times=99)
    with open_s3_bench("ceph", versioned=mode == "versioned") as bench, open_through_proxy(bench, rule) as (store, _):
        result = store.check_undo(mode)
        assert result is not None
        assert (result.verdict, "apply again" in (result.error or "")) == ("failed", True)
        assert deletable(store, mode)[0] == "warn"
        rule.times = 0
        assert store.check_undo(mode) is None


@pytest.mark.parametrize("mode", ["trash", "versioned"])
def test_test_leaves_nothing_in_google_cloud(mode: QuarantineMode) -> None:
    with open_gcs_bench(versioned=mode == "versioned") as bench:
        assert bench.store.check_undo(mode) is None
        assert list(bench.client.list_blobs(bench.bucket, prefix=bench.prefix, versions=True)) == []
        assert deletable(bench.store, mode)[0] == "ok"


@pytest.mark.parametrize("mode", ["trash", "versioned"])
def test_test_leaves_nothing_in_azure(mode: QuarantineMode) -> None:
    rule = change_answers(show_versions({}, writes_versions=mode == "versioned"))
    with run_proxy(shared_azure(), rule) as proxy, open_azure_bench(server=proxy.server) as bench:
        assert bench.store.check_undo(mode) is None
        assert bench.everything() == set()


def test_missing_right_is_found_in_azure() -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.reply(error_answer(403, "AuthorizationPermissionMismatch"))

    rule = Rule(lambda request: request.method == "PUT" and request.target.split("?")[0].endswith(CANARY), refuse, times=9)
    with run_proxy(shared_azure(), rule) as proxy, open_azure_bench(server=proxy.server) as bench:
        assert "may not write objects in abfss://" in require_refusal(bench.store.check_undo("trash"))
        assert deletable(bench.store, "trash")[0] == "fail"


def test_deferred_purge_adds_no_delete_marker_that_it_may_not_remove() -> None:
    with open_s3_bench("ceph", versioned=True, own=True, prefix="lake/") as bench:
        for content in (b"old", b"new"):  # a purge of the newest version would expose the older one
            bench.put("t/a", content)
        (row,) = with_action("purge", plan_rows(bench, "t/a"))
        (result,) = open_restricted(bench).quarantine("deferred", PLAN).act([row])
        assert (result.verdict, "may not delete versions" in (result.error or "")) == ("denied", True)
        assert bench.get("t/a") == b"new"
        assert list_versions(bench) == ["t/a", "t/a"]
