"""Uploads in parts that nobody finished, on a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gc_assets.stores.protocol import Unfinished
from tests.s3.proxy import Rule, error_answer
from tests.stores.s3.test_quarantine import through
from tests.stores.s3_bench import S3Bench, in_a_bucket

MINUTE = timedelta(minutes=1)


def begin(bench: S3Bench, key: str, *parts: bytes) -> dict[str, str]:
    named = {"Bucket": bench.bucket, "Key": bench.prefix + key}
    upload = {**named, "UploadId": bench.client.create_multipart_upload(**named)["UploadId"]}
    for number, part in enumerate(parts, 1):
        bench.client.upload_part(**upload, PartNumber=number, Body=part)
    return upload


def test_unfinished_uploads_are_counted_below_the_storage_only_and_with_the_bytes_of_their_parts() -> None:
    with in_a_bucket("ceph") as other, in_a_bucket("ceph") as bench:
        begin(other, "beside", b"x" * 100)
        begin(bench, "one", b"x" * 7, b"y" * 5)
        begin(bench, "one", b"z")
        begin(bench, "empty")
        now = datetime.now(UTC)
        assert bench.store.unfinished(now - MINUTE) == Unfinished(3, 0, 13, 3)
        assert bench.store.unfinished(now + MINUTE) == Unfinished(3, 3, 13, 3)


def test_an_upload_that_is_aborted_or_completed_is_none_any_more() -> None:
    with in_a_bucket("ceph") as bench:
        bench.client.abort_multipart_upload(**begin(bench, "one", b"x"))
        upload = begin(bench, "two", b"x")
        (part,) = bench.client.list_parts(**upload)["Parts"]
        whole = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        bench.client.complete_multipart_upload(**upload, MultipartUpload=whole)
        assert bench.store.unfinished(datetime.now(UTC)) == Unfinished(0, 0, 0, 0)


def test_a_policy_that_refuses_to_list_uploads_stops_nothing_and_is_told() -> None:
    with in_a_bucket("ceph") as bench:
        begin(bench, "one", b"x")
        denied = Rule(lambda request: "uploads" in request.query, lambda exchange: exchange.reply(error_answer(403, "AccessDenied")))
        with through(bench, denied) as (store, _):
            found = store.unfinished(datetime.now(UTC))
        assert found is not None
        assert (found.uploads, found.sized) == (0, 0)
        assert found.unknown is not None
        assert "AccessDenied" in found.unknown
