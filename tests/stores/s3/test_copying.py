"""Multipart copies, as for objects above 5 GB, with a few bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.handlers import validate_ascii_metadata

from gc_assets.s3 import copying
from tests.s3.proxy import Request, Rule, call_before, error_answer
from tests.stores.builders import PLAN
from tests.stores.s3.bucket_actions import act, open_through_proxy, plan_rows
from tests.stores.s3_bench import S3Bench, open_s3_bench

CONTENT = bytes(range(256)) * 8
HELD = f".gc-assets/trash/{PLAN}/a"


@pytest.fixture
def bench() -> Iterator[S3Bench]:
    with open_s3_bench("ceph", prefix="lake/") as opened:
        yield opened


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MAX_SINGLE_COPY_BYTES", 1000)
    monkeypatch.setattr(copying, "PART_BYTES", 600)
    monkeypatch.setattr(copying, "MAX_PUT_BYTES", 1000)


def put(bench: S3Bench) -> None:
    attributes = {"ContentType": "x/y", "CacheControl": "no-store", "ContentEncoding": "zz", "Metadata": {"who": "Jörg ☃"}}
    more = {"ContentDisposition": 'attachment; filename="Jörg.parquet"', "Tagging": "k+1=v%26"}
    client = bench.server.client()
    client.meta.events.unregister("before-parameter-build.s3.PutObject", validate_ascii_metadata)
    client.put_object(Bucket=bench.bucket, Key=bench.prefix + "a", Body=CONTENT, **attributes, **more)


def put_with_header(bench: S3Bench, name: str, value: bytes) -> None:
    """Write an object with any header, which botocore would not send."""
    url = urlsplit(bench.client.generate_presigned_url("put_object", {"Bucket": bench.bucket, "Key": bench.prefix + "a"}))
    connection = HTTPConnection(url.netloc)
    connection.request("PUT", f"{url.path}?{url.query}", CONTENT, {name: value})
    assert connection.getresponse().status == 200
    connection.close()


def read_attributes(bench: S3Bench, key: str = "a") -> tuple[Any, ...]:
    target = {"Bucket": bench.bucket, "Key": bench.prefix + key}
    head, tags = bench.client.head_object(**target), bench.client.get_object_tagging(**target)["TagSet"]
    metadata = {name: value for name, value in head["Metadata"].items() if not name.startswith("gc-assets-")}
    headers = [head[name] for name in ("ContentType", "CacheControl", "ContentEncoding", "ContentDisposition")]
    return *headers, metadata, tags, bench.get(key)


def uploads(bench: S3Bench) -> list[Any]:
    return bench.client.list_multipart_uploads(Bucket=bench.bucket, Prefix=bench.prefix).get("Uploads", [])


def completes(request: Request) -> bool:
    return request.method == "POST" and "uploadId" in request.query


def copies_part(request: Request) -> bool:
    return request.method == "PUT" and request.query.get("partNumber") == "2"


def is_held(bench: S3Bench) -> bool:
    return bench.get(HELD) == CONTENT


@pytest.mark.parametrize("parts", [False, True])
def test_copies_keep_metadata_headers_and_tags(bench: S3Bench, parts: bool, request: pytest.FixtureRequest) -> None:
    if parts:
        request.getfixturevalue("in_parts")
    put(bench)
    before, rows = read_attributes(bench), plan_rows(bench, "a")
    assert act(bench.store, "trash", rows) == ["done"]
    assert read_attributes(bench, HELD) == before
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert read_attributes(bench) == before
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert not is_held(bench)


def test_expires_header_without_a_time_is_left_out(bench: S3Bench) -> None:
    put_with_header(bench, "Expires", b"never")
    rows = plan_rows(bench, "a")
    assert act(bench.store, "trash", rows) == ["done"]
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert "ExpiresString" not in bench.client.head_object(Bucket=bench.bucket, Key=bench.prefix + "a")


def test_object_with_an_attribute_that_cannot_be_copied_is_denied(bench: S3Bench) -> None:
    put_with_header(bench, "Content-Disposition", "Jörg".encode("latin-1"))
    (result,) = bench.store.quarantine("trash", PLAN).act(plan_rows(bench, "a"))
    assert (result.verdict, bench.get("a")) == ("denied", CONTENT)
    assert "quarantine 'a': its ContentDisposition is not UTF-8" in (result.error or "")


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("where", [copies_part, completes])
def test_failed_multipart_copy_aborts_the_upload(bench: S3Bench, where: Any) -> None:
    put(bench)
    rows = plan_rows(bench, "a")
    refused = Rule(where, lambda exchange: exchange.reply(error_answer(400, "InvalidRequest")))
    with open_through_proxy(bench, refused) as (store, _):
        assert act(store, "trash", rows) == ["denied"]
        assert (uploads(bench), bench.get("a")) == ([], CONTENT)
        assert act(store, "trash", rows) == ["done"]
    assert is_held(bench)


@pytest.mark.usefixtures("in_parts")
def test_key_invalid_in_xml_is_copied_in_parts(bench: S3Bench) -> None:
    bench.put("t/\x01", CONTENT)
    rows = plan_rows(bench, "t/\x01")
    assert act(bench.store, "trash", rows) == ["done"]
    assert act(bench.store, "trash", rows, "restore") == ["done"]
    assert (bench.get("t/\x01"), uploads(bench)) == (CONTENT, [])


@pytest.mark.usefixtures("in_parts")
def test_next_copy_aborts_the_upload_of_a_killed_run(bench: S3Bench) -> None:
    put(bench)
    rows = plan_rows(bench, "a")
    bench.client.create_multipart_upload(Bucket=bench.bucket, Key=bench.prefix + HELD)
    bench.client.create_multipart_upload(Bucket=bench.bucket, Key=bench.prefix + "a")  # of another writer
    assert act(bench.store, "trash", rows) == ["done"]
    assert [upload["Key"] for upload in uploads(bench)] == [bench.prefix + "a"]


@pytest.mark.usefixtures("in_parts")
def test_multipart_restore_does_not_overwrite_a_new_object(bench: S3Bench) -> None:
    put(bench)
    rows = plan_rows(bench, "a")
    assert act(bench.store, "trash", rows) == ["done"]
    with open_through_proxy(bench, Rule(copies_part, call_before(partial(bench.put, "a", b"new")))) as (store, _):
        assert act(store, "trash", rows, "restore") == ["changed"]
    assert (bench.get("a"), is_held(bench), uploads(bench)) == (b"new", True, [])


def test_restore_does_not_overwrite_a_new_object(bench: S3Bench) -> None:
    put(bench)
    rows = plan_rows(bench, "a")
    assert act(bench.store, "trash", rows) == ["done"]
    puts = Rule(lambda request: request.method == "PUT", call_before(partial(bench.put, "a", b"new")))
    with open_through_proxy(bench, puts) as (store, _):
        assert act(store, "trash", rows, "restore") == ["changed"]
    assert (bench.get("a"), is_held(bench)) == (b"new", True)


def test_object_replaced_before_the_copy_is_not_copied(bench: S3Bench) -> None:
    put(bench)
    rows = plan_rows(bench, "a")
    copy = Rule(lambda request: request.method == "PUT", call_before(partial(bench.put, "a", b"n" * len(CONTENT))))
    with open_through_proxy(bench, copy) as (store, _):
        assert act(store, "trash", rows) in (["changed"], ["failed"])
        assert act(store, "trash", rows) == ["changed"]
    assert bench.get("a") == b"n" * len(CONTENT)
