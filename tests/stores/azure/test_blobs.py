"""Leases, snapshots, types of blobs, directory entries, markers and background copies on Azure."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from azure.storage.blob import BlobClient, ContainerClient, ContainerSasPermissions, ContentSettings, generate_container_sas

from gc_assets.azure import bucket as azure_bucket
from gc_assets.azure.bucket import AzureBucket
from gc_assets.azure.client import get_container
from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import QUARANTINED, Deletion, Versioning
from gc_assets.config.azure import AzureConfig
from gc_assets.config.connections import Connections
from gc_assets.core.errors import GateRefused, StoreError, UsageError
from gc_assets.core.requests import count_requests
from gc_assets.stores.azure import listing
from gc_assets.stores.azure.conditions import find_obstacle
from gc_assets.stores.azure.store import AzureStore
from gc_assets.stores.conditional import probe
from gc_assets.stores.protocol import ListingBatch
from gc_assets.stores.store import open_store
from tests.azure.credentials import ACCOUNT, APPLY_KEY, KEY, READ_VARIABLE, connection_string
from tests.azure.servers import shared_server
from tests.s3.proxy import Fault, Rule, answer_slow_down, drop_answer, drop_request, run_proxy
from tests.stores.azure_bench import AzureBench, location_of, open_azure_bench
from tests.stores.builders import CLOCK, PLAN
from tests.stores.contract import QuarantineBench, inventory


@pytest.fixture
def bench() -> Iterator[AzureBench]:
    with open_azure_bench() as opened:
        yield opened


def bucket_of(bench: AzureBench) -> AzureBucket:
    assert isinstance(bench.store, AzureStore)
    return bench.store.bucket


def blob(bench: AzureBench, key: str) -> BlobClient:
    return bench.client.get_blob_client(bench.prefix + key)


def result_of(bench: AzureBench, key: str) -> tuple[str, str]:
    act = QuarantineBench(bench, "trash")
    (result,) = bench.store.quarantine("trash", PLAN).act([act.plan_row(key)])
    return result.verdict, result.error or ""


# Blobs that cannot be deleted


def test_leased_blob_is_denied_and_not_copied(bench: AzureBench) -> None:
    bench.put("t/a", b"x")
    lease = blob(bench, "t/a").acquire_lease()
    verdict, error = result_of(bench, "t/a")
    assert (verdict, "has a lease on the blob; break it" in error) == ("denied", True)
    assert bench.everything() == {"t/a"}
    lease.release()
    assert result_of(bench, "t/a") == ("done", "")


def test_blob_with_a_snapshot_is_denied(bench: AzureBench) -> None:
    bench.put("t/a", b"x")
    blob(bench, "t/a").create_snapshot()
    verdict, error = result_of(bench, "t/a")
    assert (verdict, "the blob has snapshots; delete them" in error) == ("denied", True)
    assert bench.get("t/a") == b"x"


def test_blob_without_version_id_is_denied_in_versioned_mode(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its delete would keep a version with an id that is not in any record."""
    monkeypatch.setattr(AzureBucket, "versioning", lambda _, __: Versioning("Enabled"))
    bench.put("t/a", b"x")
    row = replace(QuarantineBench(bench, "versioned").plan_row("t/a"), version_id="null")
    (result,) = bench.store.quarantine("versioned", PLAN).act([row])
    assert (result.verdict, "has no version id" in (result.error or "")) == ("denied", True)
    assert bench.get("t/a") == b"x"


def test_deferred_purge_keeps_a_blob_written_after_the_comparison(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AzureBucket, "versioning", lambda _, __: Versioning("Enabled"))
    bench.put("t/a", b"old")
    row = replace(QuarantineBench(bench, "deferred").plan_row("t/a"), action="purge", source_plan_id=PLAN)
    delete = AzureBucket.delete

    def delete_late(self: AzureBucket, objects: Sequence[Deletion]) -> Any:
        bench.put("t/a", b"new")
        return delete(self, objects)

    monkeypatch.setattr(AzureBucket, "delete", delete_late)
    (result,) = bench.store.quarantine("deferred", PLAN).act([row])
    assert result.verdict != "done"
    assert bench.get("t/a") == b"new"


def test_archived_blob_is_denied(bench: AzureBench) -> None:
    bench.put("t/a", b"x")
    blob(bench, "t/a").set_standard_blob_tier("Archive")
    verdict, error = result_of(bench, "t/a")
    assert (verdict, "archive tier; move it to another tier" in error) == ("denied", True)
    assert bench.everything() == {"t/a"}


@pytest.mark.parametrize("kind", ["append", "page"])
def test_append_and_page_blobs_are_denied_in_every_mode(bench: AzureBench, kind: str) -> None:
    bench.put("t/block", b"x")
    if kind == "append":
        blob(bench, "t/a").create_append_blob()
    else:
        blob(bench, "t/a").create_page_blob(512)
    for mode in ("trash", "deferred"):
        act = QuarantineBench(bench, mode)
        for action in ("quarantine", "purge", "restore"):
            row = act.plan_row("t/a", action)
            (result,) = bench.store.quarantine(mode, PLAN).act([act.follow_up(row, action)])
            if result.verdict != "absent":  # nothing was quarantined
                assert (result.verdict, "only block blobs are changed" in (result.error or "")) == ("denied", True)
    assert bench.everything() == {"t/a", "t/block"}


def test_blob_whose_name_in_the_trash_has_too_many_path_segments_is_denied(bench: AzureBench) -> None:
    """Azure refuses blob names with more than 254 segments, in every attempt."""
    limits = bench.store.key_limits("trash")
    assert limits is not None
    assert limits.max_segments == 254 - bench.prefix.count("/") - len([".gc-assets", "trash", PLAN])
    fits, too_deep = ("/".join("k" * number) for number in (limits.max_segments, limits.max_segments + 1))
    assert limits.select_too_long(pa.array([fits, too_deep])).to_pylist() == [False, True]
    bench.put(too_deep, b"x")
    verdict, error = result_of(bench, too_deep)
    assert (verdict, "or 254 path segments" in error) == ("denied", True)
    assert bench.everything() == {too_deep}


def test_blob_name_with_dot_component_is_denied_without_a_request(bench: AzureBench) -> None:
    bucket = bucket_of(bench)
    bench.put("t/a", b"another blob")
    for key in ("t/./a", "t/x/../a", "t\\..\\a"):
        (change,) = bucket.delete([Deletion(key)])
        assert change.verdict == "denied"
        assert bucket.delete_if_match(key, None).verdict == "denied"
        with pytest.raises(OSError, match="URLs cannot contain"):
            bucket.head(key)
    assert bench.get("t/a") == b"another blob"


def test_current_version_is_deleted_together_with_the_blob(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azurite has no versions, so the test simulates responses of an account with versions."""
    bench.put("t/a", b"x")
    bucket, deleted = bucket_of(bench), list[dict[str, Any]]()
    real_properties, real_delete = BlobClient.get_blob_properties, BlobClient.delete_blob

    def read_version(self: BlobClient, **options: Any) -> Any:
        found = real_properties(self)
        found.version_id = "2026-11-26T06:00:00Z"
        return found

    def delete(self: BlobClient, **options: Any) -> None:
        deleted.append(options)
        if "version_id" not in options:
            real_delete(self, **options)

    refusal = b"HTTP/1.1 403 Forbidden\r\nx-ms-error-code: OperationNotAllowedOnRootBlob\r\n\r\n"
    monkeypatch.setattr(BlobClient, "get_blob_properties", read_version)
    monkeypatch.setattr(BlobClient, "delete_blob", delete)
    monkeypatch.setattr(ContainerClient, "delete_blobs", answer_batch(batch_part(0, refusal)))
    (change,) = bucket.delete([Deletion("t/a", "2026-11-26T06:00:00Z")])
    assert change.verdict == "done"
    assert [sorted(options) for options in deleted] == [["etag", "match_condition"], ["version_id"]]
    assert bench.get("t/a") is None


# Batches


def batch_part(number: int | None, answer: bytes) -> bytes:
    name = b"" if number is None else b"Content-ID: %d\r\n" % number
    return b"--b\r\nContent-Type: application/http\r\n%s\r\n%s\r\n" % (name, answer)


def answer_batch(*parts: bytes) -> Any:
    """Return a `delete_blobs` whose answer has these parts, and which deletes nothing."""

    def delete_blobs(*_: Any, raw_response_hook: Any, **__: Any) -> None:
        body = b"".join(parts) + b"--b--\r\n"
        answer = SimpleNamespace(status_code=202, content_type="multipart/mixed; boundary=b", body=lambda: body)
        raw_response_hook(SimpleNamespace(http_response=answer))

    return delete_blobs


ACCEPTED, MISSING, BUSY = (
    b"HTTP/1.1 %s\r\nx-ms-error-code: %s\r\n\r\n" % pair
    for pair in ((b"202 Accepted", b""), (b"404 Not Found", b"BlobNotFound"), (b"503 Busy", b"ServerBusy"))
)


def test_batch_response_parts_are_matched_by_id(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (batch_part(2, BUSY), batch_part(0, ACCEPTED), batch_part(1, MISSING))
    monkeypatch.setattr(ContainerClient, "delete_blobs", answer_batch(*parts))
    changes = bucket_of(bench).delete([Deletion("a"), Deletion("t/../b"), Deletion("c"), Deletion("d")])
    assert [change.verdict for change in changes] == ["done", "denied", "absent", "failed"]


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (batch_part(None, ACCEPTED),),
        (batch_part(7, ACCEPTED),),
        (batch_part(0, ACCEPTED), batch_part(0, BUSY)),
        (batch_part(0, b"no answer"),),
    ],
    ids=["no part", "part without id", "part with unknown id", "two parts", "unreadable part"],
)
def test_blob_missing_from_the_batch_response_has_unknown_outcome(
    bench: AzureBench, parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContainerClient, "delete_blobs", answer_batch(*parts))
    (change,) = bucket_of(bench).delete([Deletion("a")])
    assert (change.verdict, "no part for this blob" in change.reason) == ("unknown", True)


# Copies


def test_copy_keeps_properties_metadata_and_tags(bench: AzureBench) -> None:
    settings = ContentSettings(content_type="text/x", content_encoding="gzip", cache_control="no-cache")
    blob(bench, "t/a").upload_blob(b"x", metadata={"Owner": "ada"}, content_settings=settings, tags={"team": "lake"})
    act = QuarantineBench(bench, "trash")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    assert act(act.follow_up(row, "restore")) == ["done"]
    found = blob(bench, "t/a").get_blob_properties()
    assert {name.lower(): value for name, value in found.metadata.items()} == {"owner": "ada", "gc_assets_restored": row.etag}
    assert (found.content_settings.content_type, found.content_settings.content_encoding) == ("text/x", "gzip")
    assert blob(bench, "t/a").get_blob_tags() == {"team": "lake"}


def test_content_encoding_does_not_change_the_bytes(bench: AzureBench) -> None:
    content = gzip.compress(b"{}")
    blob(bench, "t/a").upload_blob(content, content_settings=ContentSettings(content_encoding="gzip"))
    assert bench.store.objects.read(f"{bench.store.location}t/a") == content
    assert b"".join(bucket_of(bench).read_blocks("t/a")) == content


def test_copy_waits_until_the_server_has_finished(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("a", b"x")
    bucket, statuses = bucket_of(bench), iter(["pending", "pending", "success"])
    source = bucket.head("a")
    assert source is not None
    real_start, real_properties = BlobClient.start_copy_from_url, BlobClient.get_blob_properties

    def start(self: BlobClient, *arguments: Any, **options: Any) -> Any:
        return real_start(self, *arguments, **options) | {"copy_status": next(statuses)}

    def properties(self: BlobClient, **options: Any) -> Any:
        found = real_properties(self, **options)
        found.copy.status = next(statuses)
        return found

    monkeypatch.setattr(BlobClient, "start_copy_from_url", start)
    monkeypatch.setattr(BlobClient, "get_blob_properties", properties)
    assert bucket.copy_if_match(source, "a", "b", (QUARANTINED, source.identity)).verdict == "done"
    assert next(statuses, "all read") == "all read"


def test_unfinished_copy_in_the_trash_does_not_count_as_copy(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("t/a", b"")  # an empty blob has the size of an unfinished copy
    act = QuarantineBench(bench, "trash")
    row = act.plan_row("t/a")
    real = BlobClient.get_blob_properties

    def read_unfinished(self: BlobClient, **options: Any) -> Any:
        found = real(self, **options)
        if "/trash/" in found.name:
            found.copy.status = "pending"
        return found

    monkeypatch.setattr(BlobClient, "get_blob_properties", read_unfinished)
    (result,) = bench.store.quarantine("trash", PLAN).act([row])
    assert (result.verdict, bench.get("t/a")) == ("failed", b"")
    monkeypatch.undo()
    assert act(row) == ["done"]


def leave_unfinished_copy(
    bench: AzureBench, key: str, entries: dict[str, str], statuses: Sequence[str], finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show an empty blob as a copy that has these statuses, the last one from then on.

    Azurite completes each copy with its request. A copy that was given up is an empty blob with all
    its metadata (REST API reference, "Abort Copy Blob"). `finish` is called after the last status.
    """
    blob(bench, key).upload_blob(b"", metadata=entries)
    left, properties = list(statuses), BlobClient.get_blob_properties

    def read(self: BlobClient, **options: Any) -> Any:
        if self.blob_name == bench.prefix + key and not left and finish is not None:
            monkeypatch.setattr(BlobClient, "get_blob_properties", properties)
            finish()
        found = properties(self, **options)
        if self.blob_name == bench.prefix + key and found.size == 0:
            found.copy.status = left.pop(0) if len(left) > 1 or finish is not None else left[0]
        return found

    monkeypatch.setattr(BlobClient, "get_blob_properties", read)


@pytest.mark.parametrize("status", ["aborted", "failed"])
def test_restore_repeats_a_copy_aborted_by_the_server(bench: AzureBench, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("t/a", b"bytes")
    act = QuarantineBench(bench, "trash")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    leave_unfinished_copy(bench, "t/a", {"gc_assets_restored": row.etag or ""}, [status], None, monkeypatch)
    assert act(act.follow_up(row, "restore")) == ["done"]
    assert bench.everything() == {"t/a"}
    assert bench.get("t/a") == b"bytes"


def test_restore_waits_for_a_copy_started_by_an_earlier_attempt(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("t/a", b"bytes")
    act = QuarantineBench(bench, "trash")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    entries, source = {"gc_assets_restored": row.etag or ""}, blob(bench, f".gc-assets/trash/{PLAN}/t/a").url

    def finish() -> None:
        blob(bench, "t/a").start_copy_from_url(source, metadata=entries)

    leave_unfinished_copy(bench, "t/a", entries, ["pending"] * 4, finish, monkeypatch)
    assert act(act.follow_up(row, "restore")) == ["done"]
    assert bench.everything() == {"t/a"}
    assert bench.get("t/a") == b"bytes"


def test_quarantine_repeats_a_copy_aborted_by_the_server(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("t/a", b"bytes")
    act = QuarantineBench(bench, "trash")
    row = act.plan_row("t/a")
    leave_unfinished_copy(bench, f".gc-assets/trash/{PLAN}/t/a", {"gc_assets_quarantined": row.etag or ""}, ["aborted"], None, monkeypatch)
    assert act(row) == ["done"]
    assert act(act.follow_up(row, "restore")) == ["done"]
    assert bench.get("t/a") == b"bytes"


@pytest.mark.parametrize("entries", [{}, {"gc_assets_restored": "another-5-5"}])
def test_unfinished_copy_of_another_client_is_left_alone(
    bench: AzureBench, entries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("t/a", b"bytes")
    act = QuarantineBench(bench, "trash")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    leave_unfinished_copy(bench, "t/a", entries, ["aborted"], None, monkeypatch)
    assert act(act.follow_up(row, "restore")) == ["changed"]
    assert bench.get("t/a") == b""


# Listing


def list_all(bench: AzureBench, page_keys: int, parallelism: int = 2, budget: int = 5) -> tuple[list[str], list[ListingBatch]]:
    tasks: list[Any] = list(listing.plan_listing(bucket_of(bench), parallelism, None, page_keys))
    found, steps = list[str](), list[ListingBatch]()
    while tasks:
        for step in pickle.loads(pickle.dumps(tasks.pop())).run(budget):  # noqa: S301  (bytes made on this line)
            steps.append(step)
            found += step.objects.column("key").to_pylist()
            tasks += step.leftover
    return found, steps


def test_listing_with_two_blobs_per_page_lists_each_blob_once(bench: AzureBench) -> None:
    keys = {f"{folder}{number}" for folder in ("", "a/", "a/b/", "a//", "ä/", "b/c/d/") for number in range(5)}
    for key in sorted(keys):
        bench.put(key, b"x")
    bench.put(".gc-assets/trash/p/x", b"x")
    for parallelism in (1, 4):
        found, _ = list_all(bench, 2, parallelism)
        assert sorted(found) == sorted(keys)


def test_directory_marker_blobs_are_kept_and_reported(bench: AzureBench) -> None:
    blob(bench, "t").upload_blob(b"", metadata={"hdi_isfolder": "true"})
    bench.put("t/a", b"x")
    assert set(inventory_with_problems(bench)[0]) == {"t/a"}
    assert [(problem.kind, "1 directory entries" in problem.detail) for problem in inventory_with_problems(bench)[1]] == [("special", True)]
    assert [name for name, _, _ in bench.store.objects.list(bench.store.location)] == [f"{bench.store.location}t/a"]


def inventory_with_problems(bench: AzureBench) -> tuple[list[str], list[Any]]:
    found, steps = list_all(bench, 5000)
    return found, [problem for step in steps for problem in step.problems]


def test_endless_listing_is_stopped_with_an_error(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Repeating:
        """A listing whose pages all continue at the same marker."""

        continuation_token = "again"  # noqa: S105  (a marker)

        def list_blobs(self, **options: Any) -> Repeating:
            return self

        def by_page(self, continuation_token: str | None) -> Iterator[list[Any]]:
            return self

        def __next__(self) -> list[Any]:
            return []

    monkeypatch.setattr(AzureBucket, "container", lambda *_: Repeating())
    with pytest.raises(StoreError, match="the same marker"):
        list(bucket_of(bench).list_pages())


# The account


def test_account_with_hierarchical_namespace_is_refused(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, real = bucket_of(bench), AzureBucket.put_if_absent

    def put_with_directory(self: AzureBucket, key: str, content: bytes) -> Any:
        if key.startswith(".gc-assets/canary-") and "/" in key.removeprefix(".gc-assets/"):
            self.put(key.rpartition("/")[0], b"").require()
        return real(self, key, content)

    monkeypatch.setattr(AzureBucket, "put_if_absent", put_with_directory)
    assert "hierarchical namespace" in (find_obstacle(bucket) or "")
    for refused in (bench.store.probe, lambda: bench.store.acquire(PLAN, "ada", CLOCK)):
        with pytest.raises(StoreError, match="hierarchical namespace"):
            refused()
    assert bench.everything() == set()


def test_server_that_ignores_etags_is_refused(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = AzureBucket.delete_if_match
    monkeypatch.setattr(AzureBucket, "delete_if_match", lambda self, key, _token: real(self, key, None))
    with pytest.raises(StoreError, match="ignores If-Match"):
        bench.store.acquire(PLAN, "ada", CLOCK)
    assert bench.everything() == set()


@pytest.mark.parametrize("fault", [answer_slow_down, drop_request, drop_answer], ids=["503", "lost request", "lost response"])
def test_failed_account_probe_raises_an_error_without_a_verdict(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (probe, azure_bucket):
        monkeypatch.setattr(module, "pause_before_retry", lambda _: None)
    rule = Rule(lambda request: request.method == "DELETE", fault, times=8)
    with run_proxy(shared_server(), rule) as proxy, open_azure_bench(server=proxy.server) as bench:
        with pytest.raises(StoreError, match="cannot test the server with a canary object") as refused:
            bench.store.acquire(PLAN, "ada", CLOCK)
        assert "If-Match" not in str(refused.value)
        rule.times = 0
        bench.store.acquire(PLAN, "ada", CLOCK)


# Credentials


def test_read_only_sas_token_can_read_but_not_change(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("t/a", b"x")
    container = str(bench.client.container_name)
    permission = ContainerSasPermissions(read=True, list=True)
    token = generate_container_sas(ACCOUNT, container, KEY, permission=permission, expiry=datetime.now(UTC) + timedelta(hours=1))
    signature = token.partition("sig=")[2].partition("&")[0]
    monkeypatch.setenv("GC_ASSETS_TEST_SAS", token)
    settings = AzureConfig(endpoint=bench.server.endpoint, secret_variable="GC_ASSETS_TEST_SAS")  # noqa: S106  (a name)
    store = open_store(bench.store.location, Connections.of(settings))
    assert set(inventory(store)) == {"t/a"}
    assert signature.encode() not in pickle.dumps([store, *store.plan_listing(2)])
    with pytest.raises(StoreError) as refused:
        store.acquire(PLAN, "ada", CLOCK)
    assert "docs/azure.md" in str(refused.value)
    assert signature not in str(refused.value)
    assert bench.everything() == {"t/a"}


def test_copies_work_with_a_sas_token(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("t/a", b"x")
    permission = ContainerSasPermissions(read=True, list=True, write=True, create=True, delete=True, tag=True)
    expiry = datetime.now(UTC) + timedelta(hours=1)
    token = generate_container_sas(ACCOUNT, str(bench.client.container_name), KEY, permission=permission, expiry=expiry)
    monkeypatch.setenv("GC_ASSETS_TEST_SAS_ALL", token)
    settings = AzureConfig(endpoint=bench.server.endpoint, secret_variable="GC_ASSETS_TEST_SAS_ALL")  # noqa: S106  (a name)
    store = open_store(bench.store.location, Connections.of(settings))
    row = QuarantineBench(bench, "trash").plan_row("t/a")
    assert [result.verdict for result in store.quarantine("trash", PLAN).act([row])] == ["done"]
    copy = blob(bench, f".gc-assets/trash/{PLAN}/t/a").get_blob_properties()
    assert "sig=" not in str(copy.metadata)


def test_errors_do_not_contain_secrets_from_the_environment(bench: AzureBench, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "d3Jvbmcga2V5IG9mIHRoZSB0ZXN0cw=="
    monkeypatch.setenv("GC_ASSETS_TEST_WRONG", connection_string(wrong))
    monkeypatch.setenv("GC_ASSETS_TEST_JUNK", "AccountName;junk-with-a-secret")
    monkeypatch.setenv("GC_ASSETS_TEST_OTHER", connection_string(KEY).replace(ACCOUNT, "otheraccount"))
    for variable, expected in (
        ("GC_ASSETS_TEST_WRONG", "AuthorizationFailure"),
        ("GC_ASSETS_TEST_JUNK", "neither a connection string nor a SAS token"),
        ("GC_ASSETS_TEST_OTHER", f"is for the account otheraccount, but {ACCOUNT}.dfs.core.windows.net"),
        ("GC_ASSETS_TEST_UNSET", "GC_ASSETS_TEST_UNSET is not set"),
    ):
        settings = AzureConfig(endpoint=bench.server.endpoint, secret_variable=variable)
        store = open_store(bench.store.location, Connections.of(settings))
        with pytest.raises((StoreError, UsageError)) as refused:
            store.check_access()
        assert expected in str(refused.value)
        assert not [secret for secret in (wrong, KEY, APPLY_KEY, "junk-with") if secret in str(refused.value)]


def test_error_for_unreachable_server_does_not_contain_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GC_ASSETS_TEST_SAS_DEAD", "sv=2024-11-04&sig=secretsignature")
    settings = AzureConfig(endpoint=f"http://127.0.0.1:9/{ACCOUNT}", secret_variable="GC_ASSETS_TEST_SAS_DEAD")  # noqa: S106
    bucket = AzureBucket.of(location_of("c", "p/"), settings)
    with pytest.raises(OSError, match="check the network") as refused:
        bucket.reach(1)
    assert "secretsignature" not in f"{refused.value} {refused.value.strerror}"
    assert "sig=" not in str(refused.value)


def test_read_and_change_roles_use_separate_credentials(bench: AzureBench) -> None:
    read, change = (get_container(bucket_of(bench).settings, bucket_of(bench).name, role).credential for role in ("read", "change"))
    assert (read.named_key.key, change.named_key.key) == (KEY, APPLY_KEY) if hasattr(read, "named_key") else (read is not change)
    assert os.environ[READ_VARIABLE] not in repr(bucket_of(bench))


def test_changes_with_anonymous_access_are_refused(bench: AzureBench) -> None:
    settings = AzureConfig(endpoint=bench.server.endpoint, anonymous=True)
    with pytest.raises(UsageError, match="cannot change anything"):
        open_store(bench.store.location, Connections.of(settings)).acquire(PLAN, "ada", CLOCK)


def test_missing_extra_is_reported_and_other_stores_work() -> None:
    script = """
import sys
sys.modules["azure.storage"] = None
from gc_assets.core.errors import UsageError
from gc_assets.stores.store import open_objects, open_store, read_identity
from gc_assets.config.connections import DEFAULT_CONNECTIONS
place = "abfss://c@account.dfs.core.windows.net/"
open_objects().size(sys.executable)
assert read_identity(place + "x", place, DEFAULT_CONNECTIONS) is None
try:
    open_store(place)
except UsageError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'gc-assets[azure]'" in result.stdout, result.stderr


# Requests


def test_requests_are_counted_by_kind(bench: AzureBench) -> None:
    bucket = bucket_of(bench)
    for number in range(3):
        bench.put(f"t/{number}", b"x")
    with count_requests() as tally:
        list(bucket.list_pages())
        found = bucket.head("t/0")
        assert found is not None
        bucket.copy_if_match(found, "t/0", "u/0", (QUARANTINED, found.identity)).require()
        bucket.put("u/1", b"x").require()
        bucket.read("u/1")
        infos = [(key, bucket.head(key)) for key in ("t/1", "t/2")]
        deletions = [Deletion(key, token=token_of(info.identity)) for key, info in infos if info is not None]
        assert [change.verdict for change in bucket.delete(deletions)] == ["done"] * 2
    assert dict(tally.take().counts) == {"LIST": 1, "HEAD": 3, "COPY": 1, "PUT": 1, "GET": 1, "DELETE": 2}


def test_second_apply_is_refused_while_the_first_runs(bench: AzureBench) -> None:
    bench.store.acquire(PLAN, "ada", CLOCK)
    with pytest.raises(GateRefused, match="ada"):
        bench.store.acquire(PLAN, "grace", CLOCK)
