"""Listings of a real server, through a proxy with faults, and of scripted pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gc_assets.buckets.protocol import Page
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.s3 import pages
from tests.depth import in_turn
from tests.s3.proxy import (
    Answer,
    Exchange,
    Fault,
    Proxy,
    Rule,
    always,
    answer_error_in_200,
    answer_slow_down,
    cut_body,
    drop_answer,
    drop_request,
    nth,
    repeat_answer_to,
    rewrite,
    run_proxy,
)
from tests.s3.servers import REGION, S3Server
from tests.s3.test_servers import ODD_KEYS

pytestmark = in_turn

MANY = [f"many/{number:04d}" for number in range(1400, 2500)]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses between attempts of the test's own thread, without sleeping."""
    pauses, thread, sleep = list[float](), threading.get_ident(), time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() == thread:
            pauses.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr("gc_assets.s3.pages.time.sleep", pause)
    return pauses


@dataclass(frozen=True)
class Bucket:
    server: S3Server
    name: str

    def put(self, *keys: str) -> None:
        client = self.server.client()
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda key: client.put_object(Bucket=self.name, Key=key, Body=key.encode()), keys))

    def list_with_boto3(self) -> list[tuple[bytes, int, str]]:
        listed = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [(item["Key"].encode(), item["Size"], item["ETag"].strip('"')) for page in listed for item in page.get("Contents", [])]


@pytest.fixture(scope="module")
def bucket(ceph: S3Server) -> Bucket:
    """A bucket with 1,100 objects and the odd keys: two pages."""
    made = Bucket(ceph, ceph.bucket())
    made.put(*MANY, *ODD_KEYS)
    return made


def rows(listed: Iterator[Page]) -> list[tuple[bytes, int, str]]:
    return [row for page in listed for row in zip(page.keys, page.sizes, page.etags, strict=True)]


def keys(listed: Iterator[Page]) -> list[bytes]:
    return [key for page in listed for key in page.keys]


def in_bytes(*texts: str) -> list[bytes]:
    """Return the texts in byte order, which is the order of S3."""
    return sorted(text.encode() for text in texts)


# Against a real server


def test_listing_of_several_pages_equals_that_of_boto3(bucket: Bucket) -> None:
    listed = list(pages.list_objects(bucket.server.settings, bucket.name, ""))
    assert [len(page.keys) for page in listed] == [1000, 100 + len(ODD_KEYS)]
    assert rows(iter(listed)) == bucket.list_with_boto3()
    assert keys(iter(listed)) == in_bytes(*MANY, *ODD_KEYS)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_keys_with_special_characters_are_listed_at_any_page_boundary(bucket: Bucket, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceph does not encode its tokens: a control character is invalid XML, and `a+b` is read as `a
    b`.
    """
    monkeypatch.setattr(pages, "PAGE_KEYS", size)
    assert keys(pages.list_objects(bucket.server.settings, bucket.name, "k/")) == in_bytes(
        *(key for key in ODD_KEYS if key.startswith("k/"))
    )


def test_listing_can_start_after_any_key(bucket: Bucket) -> None:
    everything = in_bytes(*MANY, *ODD_KEYS)
    for after in [*in_bytes(*ODD_KEYS), b"many/1234", b"many/1234x"]:
        assert keys(pages.list_objects(bucket.server.settings, bucket.name, "", after=after)) == [key for key in everything if key > after]


def test_prefix_with_special_characters_is_taken_literally(ceph: S3Server) -> None:
    odd = Bucket(ceph, ceph.bucket())
    odd.put("a+b/1", "a b/1", "a%20b/1", "a%2Bb/1", "a/1", "a//1")
    for prefix in ("a+b/", "a b/", "a%20b/", "a%2Bb/", "a//"):
        assert keys(pages.list_objects(ceph.settings, odd.name, prefix)) == [f"{prefix}1".encode()]


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_delimiter_groups_keys_by_prefix(ceph: S3Server, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_KEYS", size)
    tree = Bucket(ceph, ceph.bucket())
    tree.put("a/1", "a/2", "a/b/3", "a b/4", "b", "c+/5", "c/6", "z")
    listed = list(pages.list_objects(ceph.settings, tree.name, "", delimiter="/"))
    assert keys(iter(listed)) == [b"b", b"z"]
    assert [prefix for page in listed for prefix in page.common] == [b"a b/", b"a/", b"c+/", b"c/"]


def test_empty_bucket_has_one_empty_page(ceph: S3Server) -> None:
    (page,) = pages.list_objects(ceph.settings, ceph.bucket(), "")
    assert page.keys == []
    assert page.last is None


@pytest.fixture(scope="module")
def versioned(ceph: S3Server) -> Bucket:
    """Objects from before versioning, several versions, and delete markers, with odd keys."""
    made = Bucket(ceph, ceph.bucket())
    client = ceph.client()
    made.put("old", "k/a+b")
    client.put_bucket_versioning(Bucket=made.name, VersioningConfiguration={"Status": "Enabled"})
    for _ in range(2):
        made.put(*ODD_KEYS, "many")
    for _ in range(5):
        made.put("many")
    for key in ("k/a+b", "k/a%2Fb", "old", "never"):
        client.delete_object(Bucket=made.name, Key=key)
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_versions_and_delete_markers_equal_those_of_boto3_for_any_page_size(versioned: Bucket, size: int) -> None:
    listed = list(pages.list_versions(versioned.server.settings, versioned.name, "", page_keys=size))
    found = [
        (key, version, latest, marker, size_bytes)
        for page in listed
        for key, version, latest, marker, size_bytes in zip(page.keys, page.version_ids, page.latest, page.markers, page.sizes, strict=True)
    ]
    answer = versioned.server.client().list_object_versions(Bucket=versioned.name)
    assert not answer["IsTruncated"]
    entries = [(item, False) for item in answer["Versions"]] + [(item, True) for item in answer["DeleteMarkers"]]
    expected = {(item["Key"].encode(), item["VersionId"], item["IsLatest"], marker, item.get("Size", 0)) for item, marker in entries}
    assert set(found) == expected
    assert len(found) == len(expected)
    assert [key for key, *_ in found] == sorted(key for key, *_ in found)
    newest_first = {key: latest for key, _, latest, *_ in reversed(found)}
    assert all(newest_first.values())


def test_unencoded_keys_from_versitygw_are_read_exactly(versity: S3Server) -> None:
    plain = Bucket(versity, versity.bucket())
    plain.put("a+b", "a%20b", "a b", "\u00e9&'")
    assert keys(pages.list_objects(versity.settings, plain.name, "")) == in_bytes("a+b", "a%20b", "a b", "\u00e9&'")


def test_unencoded_key_invalid_in_xml_raises_store_error(versity: S3Server) -> None:
    plain = Bucket(versity, versity.bucket())
    plain.put("control\x01")
    with pytest.raises(StoreError, match="has a character that XML does not allow"):
        list(pages.list_objects(versity.settings, plain.name, ""))


# Refusals


def test_error_for_missing_bucket_contains_the_next_step(ceph: S3Server) -> None:
    with pytest.raises(OSError, match=r"there is no such bucket; correct the location.*s3://not-there/p/"):
        list(pages.list_objects(ceph.settings, "not-there", "p/"))


def test_error_for_denied_bucket_contains_the_reason(bucket: Bucket, waits: list[float]) -> None:
    """A refusal is not retried."""
    as_stranger = bucket.server.as_stranger().settings
    with pytest.raises(PermissionError, match=rf"the policy does not allow this.*s3://{bucket.name}/"):
        list(pages.list_objects(as_stranger, bucket.name, ""))
    assert waits == []


def test_requester_pays_bucket_is_listed_if_configured(ceph: S3Server) -> None:
    paid, client = Bucket(ceph, ceph.bucket()), ceph.client()
    paid.put("k")
    client.put_bucket_request_payment(Bucket=paid.name, RequestPaymentConfiguration={"Payer": "Requester"})
    client.put_bucket_acl(Bucket=paid.name, ACL="authenticated-read")
    as_stranger = ceph.as_stranger().settings
    with pytest.raises(PermissionError):
        list(pages.list_objects(as_stranger, paid.name, ""))
    assert keys(pages.list_objects(as_stranger.model_copy(update={"requester_pays": True}), paid.name, "")) == [b"k"]


def test_public_bucket_is_listed_without_credentials(ceph: S3Server) -> None:
    public = Bucket(ceph, ceph.bucket())
    public.put("a+b")
    anonymous = S3Config(endpoint=ceph.endpoint, region=REGION, anonymous=True)
    with pytest.raises(PermissionError):
        list(pages.list_objects(anonymous, public.name, ""))
    ceph.client().put_bucket_acl(Bucket=public.name, ACL="public-read")
    assert keys(pages.list_objects(anonymous, public.name, "")) == [b"a+b"]


def test_listing_uses_the_proxy_of_the_environment(bucket: Bucket, waits: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch, run_proxy(bucket.server, Rule(always, answer_slow_down, times=99)) as proxy:
        patch.setenv("http_proxy", proxy.server.endpoint)
        patch.setenv("no_proxy", "")
        settings = bucket.server.settings.model_copy(update={"endpoint": "http://s3.example.test"})
        with pytest.raises(OSError, match="SlowDown"):
            list(pages.list_objects(settings, bucket.name, ""))
    assert proxy.requests[0].target.startswith(f"http://s3.example.test/{bucket.name}?")


# Through a proxy with faults


@pytest.fixture
def five_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use pages of five keys, so that the odd keys need three."""
    monkeypatch.setattr(pages, "PAGE_KEYS", 5)


ODD_THREE_PAGES = in_bytes(*(key for key in ODD_KEYS if key.startswith("k/")))


def listed_through(bucket: Bucket, *rules: Rule) -> tuple[list[bytes], Proxy]:
    with run_proxy(bucket.server, *rules) as proxy:
        return keys(pages.list_objects(proxy.server.settings, bucket.name, "k/")), proxy


@pytest.mark.parametrize("fault", [cut_body, answer_slow_down, answer_error_in_200, drop_request, drop_answer])
def test_lost_page_is_retried(bucket: Bucket, fault: Fault, five_keys: None, waits: list[float]) -> None:
    found, proxy = listed_through(bucket, *(Rule(nth(number), fault) for number in (1, 3, 5)))
    assert found == ODD_THREE_PAGES
    assert len(proxy.requests) == 6
    assert len(waits) == 3


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway", b"<html>bad gateway</html>"])
def test_transient_failure_without_s3_error_body_is_retried(bucket: Bucket, body: bytes, waits: list[float]) -> None:
    def failing(status: int) -> Fault:
        return lambda exchange: exchange.reply(Answer(status, (), body))

    found, proxy = listed_through(bucket, *(Rule(always, failing(status)) for status in (429, 500, 502, 503, 504)))
    assert found == ODD_THREE_PAGES
    assert len(proxy.requests) == 6


def test_denied_request_without_s3_error_body_is_not_retried(bucket: Bucket, waits: list[float]) -> None:
    def fault(exchange: Exchange) -> None:
        exchange.reply(Answer(403, (), b"<html>who are you?"))

    with pytest.raises(PermissionError, match="the policy does not allow this"):
        listed_through(bucket, Rule(always, fault, times=99))
    assert waits == []


@pytest.mark.parametrize(
    "status,body,message",
    [
        (301, b"<Error><Code>PermanentRedirect</Code></Error>", "PermanentRedirect; the bucket is in another region; set `s3.region`"),
        (301, b"", "the bucket is in another region; set `s3.region`"),
        (307, b"<Error><Code>TemporaryRedirect</Code></Error>", "TemporaryRedirect"),
    ],
)
def test_redirect_to_another_region_is_not_followed(bucket: Bucket, status: int, body: bytes, message: str, waits: list[float]) -> None:
    def fault(exchange: Exchange) -> None:
        exchange.reply(Answer(status, (("x-amz-bucket-region", "eu-central-1"),), body))

    with run_proxy(bucket.server, Rule(always, fault, times=99)) as proxy, pytest.raises(OSError, match=message):
        list(pages.list_objects(proxy.server.settings, bucket.name, ""))
    assert len(proxy.requests) == 1
    assert waits == []


@pytest.mark.parametrize(
    "fault,message",
    [
        (answer_slow_down, "SlowDown: by the proxy; the server asks for fewer requests; set `s3.max_requests_per_second`"),
        (answer_error_in_200, "InternalError: by the proxy"),
        (cut_body, "HTTP status 200 without valid XML .*; expected a page of keys"),
        (drop_request, "check the network and `s3.endpoint`"),
    ],
)
def test_listing_fails_after_eight_attempts_for_one_page(bucket: Bucket, fault: Fault, message: str, waits: list[float]) -> None:
    with run_proxy(bucket.server, Rule(always, fault, times=99)) as proxy:
        with pytest.raises(OSError, match=rf"{message}.*s3://{bucket.name}/k/"):
            list(pages.list_objects(proxy.server.settings, bucket.name, "k/"))
        assert len(proxy.requests) == 8
    assert len(waits) == 7
    assert all(0.05 * 2**number <= wait <= 0.1 * 2**number for number, wait in enumerate(waits))


@pytest.mark.parametrize("page", [2, 3])
def test_repeated_page_raises_store_error(bucket: Bucket, page: int, five_keys: None) -> None:
    for earlier in range(1, page):
        with pytest.raises(StoreError, match="may repeat answers; connect to the server directly"):
            listed_through(bucket, Rule(nth(page), repeat_answer_to(earlier)))


@pytest.mark.parametrize("page,earlier", [(2, 1), (3, 2), (4, 3), (4, 1)])
@pytest.mark.parametrize("size", [1, 2])
def test_repeated_page_of_versions_raises_store_error(ceph: S3Server, size: int, page: int, earlier: int) -> None:
    one = Bucket(ceph, ceph.bucket(versioned=True))
    for _ in range(8):
        one.put("k")
    with run_proxy(ceph, Rule(nth(page), repeat_answer_to(earlier))) as proxy, pytest.raises(StoreError, match="may repeat answers"):
        list(pages.list_versions(proxy.server.settings, one.name, "", page_keys=size))
    assert len(proxy.requests) == page


def test_answer_to_another_request_raises_store_error(bucket: Bucket) -> None:
    with run_proxy(bucket.server, Rule(nth(2), repeat_answer_to(1))) as proxy:
        list(pages.list_objects(proxy.server.settings, bucket.name, "many/24"))
        with pytest.raises(StoreError, match=r"a page contains b'many/2400', expected keys that begin with b'k/'"):
            list(pages.list_objects(proxy.server.settings, bucket.name, "k/"))


def test_page_without_is_truncated_raises_store_error(bucket: Bucket, five_keys: None) -> None:
    without = rewrite(lambda body: body.replace(b"<IsTruncated>true</IsTruncated>", b""))
    with pytest.raises(StoreError, match="IsTruncated is None after 5 keys"):
        listed_through(bucket, Rule(nth(1), without))


# Scripted pages


def list_scripted_pages(monkeypatch: pytest.MonkeyPatch, *bodies: str) -> Callable[[], list[bytes]]:
    """Return a listing of these pages."""
    remaining = iter(bodies)

    class Client:
        def list_objects_v2(self, **_: Any) -> dict[str, Any]:
            space = "http://s3.amazonaws.com/doc/2006-03-01/"
            return {"Status": 200, "Body": f'<ListBucketResult xmlns="{space}">{next(remaining)}</ListBucketResult>'.encode()}

    monkeypatch.setattr(pages, "get_client", lambda *_, **__: Client())
    return lambda: keys(pages.list_objects(S3Config(), "b", ""))


def entry(key: str) -> str:
    return f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"


LAST, TRUNCATED = "<IsTruncated>false</IsTruncated>", "<IsTruncated>true</IsTruncated>"


@pytest.mark.parametrize(
    "bodies,message",
    [
        ([LAST + entry("b") + entry("a")], "not in byte order"),
        ([LAST + entry("a") + entry("a")], "not in byte order"),
        ([LAST + entry("\U0001f9ca") + entry("\uff21")], "not in byte order"),
        ([TRUNCATED + entry("b"), LAST + entry("a")], "starts with b'a', but the previous page ended with b'b'"),
        ([TRUNCATED + entry("b"), LAST + entry("b")], "starts with b'b', but the previous page ended with b'b'"),
        ([TRUNCATED], "IsTruncated is 'true' after 0 keys"),
        (["<IsTruncated>maybe</IsTruncated>" + entry("a")], "IsTruncated is 'maybe' after 1 keys"),
        ([LAST + entry("a") + "<Contents><Size>1</Size></Contents>"], "cannot parse the entry after b'a'"),
        ([LAST + "<Contents><Key/><Size>1</Size></Contents>"], "cannot parse the first entry"),
        ([LAST + "<Contents><Key>a</Key><LastModified>t</LastModified></Contents>"], "'Size'"),
    ],
)
def test_inconsistent_pages_are_refused(bodies: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=message):
        list_scripted_pages(monkeypatch, *bodies)()


def test_key_is_decoded_only_with_encoding_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_scripted_pages(monkeypatch, LAST + entry("a%2Bb+c"))() == [b"a%2Bb+c"]
    assert list_scripted_pages(monkeypatch, "<EncodingType>url</EncodingType>" + LAST + entry("a%2Bb+c"))() == [b"a+b c"]


@pytest.mark.parametrize("token", ["&#1;", "&#x1F;", "\x01", "&#xFFFE;", "&#65535;", "\ufffe"])
def test_control_character_in_a_token_is_ignored(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = f"{TRUNCATED}<NextContinuationToken>{token}</NextContinuationToken>{entry('a')}"
    assert list_scripted_pages(monkeypatch, first, LAST + entry("b"))() == [b"a", b"b"]


def test_unknown_s3_error_is_raised_with_error_code(ceph: S3Server, waits: list[float]) -> None:
    def fault(exchange: Exchange) -> None:
        exchange.reply(replace(exchange.forward(), status=400, body=b"<Error><Code>Odd</Code></Error>"))

    with run_proxy(ceph, Rule(always, fault)) as proxy, pytest.raises(OSError, match="Odd"):
        list(pages.list_objects(proxy.server.settings, ceph.bucket(), ""))
    assert waits == []
