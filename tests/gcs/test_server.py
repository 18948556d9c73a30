"""Our server of Google Cloud Storage answers as Google documents.

Each test cites the page under https://cloud.google.com/storage/. The requests are those of the JSON
API without a library, and in the last test those of `google-cloud-storage`. Nothing here was compared with Google itself.
"""

from __future__ import annotations

import base64
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from google.api_core.exceptions import Forbidden, PreconditionFailed

from tests.gcs.server import Cloud, start
from tests.gcs.servers import own_server

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Api:
    """Raw requests to one bucket of an own server."""

    def __init__(self, endpoint: str, **settings: Any) -> None:
        self.endpoint = endpoint
        self.send("POST", "/storage/v1/b?project=p", {"name": "b", **settings})

    def send(self, method: str, path: str, body: Any = None, content: bytes | None = None, **query: Any) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        data = content if content is not None else json.dumps(body).encode() if body is not None else None
        separator = "&" if "?" in path else "?"
        url = f"{self.endpoint}{path}{separator}{urlencode(query)}" if query else f"{self.endpoint}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310  (loopback)
        try:
            with OPENER.open(request, timeout=30) as answer:
                return answer.status, self._parse(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, self._parse(error.read())

    def _parse(self, answer: bytes) -> Any:
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            return answer

    def write(self, name: str, content: bytes = b"x", **query: Any) -> tuple[int, Any]:
        return self.send("POST", "/upload/storage/v1/b/b/o", content=content, uploadType="media", name=name, **query)

    def object(self, method: str, name: str, suffix: str = "", body: Any = None, **query: Any) -> tuple[int, Any]:
        return self.send(method, f"/storage/v1/b/b/o/{quote(name, safe='')}{suffix}", body, **query)

    def names(self, **query: Any) -> list[str]:
        return [item["name"] for item in self.send("GET", "/storage/v1/b/b/o", **query)[1].get("items", [])]


@pytest.fixture
def endpoint() -> Iterator[str]:
    server, _ = start(Cloud())
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


NO_SOFT_DELETE = {"softDeletePolicy": {"retentionDurationSeconds": "0"}}


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["errors"][0]["reason"]


def test_write_increases_generation_and_edit_increases_metageneration(endpoint: str) -> None:
    """docs/metadata#generation-number: a write gives a new generation, an edit a new metageneration."""
    api = Api(endpoint)
    _, first = api.write("a")
    _, edited = api.object("PATCH", "a", body={"metadata": {"k": "v"}})
    assert (edited["generation"], edited["metageneration"]) == (first["generation"], "2")
    assert edited["updated"] >= first["updated"] == first["timeCreated"]
    _, second = api.write("a")
    assert int(second["generation"]) > int(first["generation"])
    assert second["metageneration"] == "1"
    assert "metadata" not in second


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("name", ["ifGenerationMatch", "ifMetagenerationMatch"])
def test_failed_match_condition_returns_412(endpoint: str, name: str, is_stale: bool) -> None:
    """docs/request-preconditions: 412 if the number does not match, for writes, edits and deletes."""
    api = Api(endpoint)
    _, found = api.write("a")
    value = int(found["generation" if name == "ifGenerationMatch" else "metageneration"]) + is_stale
    expected = 412 if is_stale else 200
    assert api.object("GET", "a", **{name: value})[0] == expected
    assert api.object("POST", "a", "/rewriteTo/b/b/o/copy", **{name.replace("if", "ifSource"): value})[0] == expected
    assert api.write("a", b"new", **{name: value})[0] == expected
    _, found = api.object("GET", "a")
    value = int(found["generation" if name == "ifGenerationMatch" else "metageneration"]) + is_stale
    assert api.object("DELETE", "a", **{name: value})[0] == (412 if is_stale else 204)
    assert api.object("GET", "a")[0] == (200 if is_stale else 404)


def test_request_with_an_incomplete_body_is_not_executed(endpoint: str) -> None:
    """A client may be killed between the head and the body of a request, which most libraries send separately."""
    api = Api(endpoint)
    api.write("a")
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(b"POST /storage/v1/b/b/o/a/rewriteTo/b/b/o/copy HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert api.names() == ["a"]


def test_generation_zero_means_no_live_object(endpoint: str) -> None:
    """docs/request-preconditions#special-case: 0 succeeds only if there is no live version."""
    api = Api(endpoint, versioning={"enabled": True})
    assert api.write("a", ifGenerationMatch=0)[0] == 200
    assert reason(api.write("a", b"again", ifGenerationMatch=0)) == (412, "conditionNotMet")
    assert api.object("DELETE", "a")[0] == 204
    assert api.write("a", b"again", ifGenerationMatch=0)[0] == 200


def test_matching_not_match_condition_returns_304(endpoint: str) -> None:
    """docs/request-preconditions: 304 for a read if the number matches."""
    api = Api(endpoint)
    _, found = api.write("a")
    assert api.object("GET", "a", ifGenerationNotMatch=found["generation"])[0] == 304
    assert api.object("GET", "a", ifMetagenerationNotMatch=7)[0] == 200
    assert api.object("DELETE", "a", ifGenerationNotMatch=found["generation"])[0] == 412


def test_missing_object_and_bucket_are_404(endpoint: str) -> None:
    """docs/json_api/v1/status-codes#404-not-found."""
    api = Api(endpoint)
    for answer in (api.object("GET", "no"), api.object("DELETE", "no"), api.object("DELETE", "no", ifGenerationMatch=5)):
        assert reason(answer) == (404, "notFound")
    assert reason(api.object("POST", "no", "/moveTo/o/x")) == (404, "notFound")
    assert api.send("GET", "/storage/v1/b/nothing")[0] == 404


def test_delete_of_the_live_object_keeps_it_noncurrent(endpoint: str) -> None:
    """docs/object-versioning: a delete without generation keeps a noncurrent version, without a marker."""
    api = Api(endpoint, versioning={"enabled": True}, **NO_SOFT_DELETE)
    _, first = api.write("a", b"one")
    _, second = api.write("a", b"two")
    assert api.object("DELETE", "a", ifGenerationMatch=second["generation"])[0] == 204
    assert api.names() == []
    _, listed = api.send("GET", "/storage/v1/b/b/o", versions="true")
    assert [(item["generation"], "timeDeleted" in item) for item in listed["items"]] == [
        (first["generation"], True),
        (second["generation"], True),
    ]
    assert api.object("GET", "a", generation=first["generation"], alt="media")[1] == b"one"


def test_delete_of_a_generation_is_permanent(endpoint: str) -> None:
    """docs/deleting-objects#delete-noncurrent: a generation in the request deletes it permanently.

    No older version becomes live.
    """
    api = Api(endpoint, versioning={"enabled": True}, **NO_SOFT_DELETE)
    _, first = api.write("a", b"one")
    _, second = api.write("a", b"two")
    assert api.object("DELETE", "a", generation=second["generation"])[0] == 204
    assert api.object("GET", "a")[0] == 404
    assert api.object("GET", "a", generation=first["generation"])[0] == 200
    assert api.object("DELETE", "a", generation=second["generation"])[0] == 404


def test_rewrite_copies_metadata_unless_the_request_has_some(endpoint: str) -> None:
    """docs/json_api/v1/objects/rewrite: metadata of the request replaces all of the source's."""
    api = Api(endpoint)
    api.write("a")
    api.object("PATCH", "a", body={"metadata": {"k": "v"}, "cacheControl": "no-store"})
    _, plain = api.object("POST", "a", "/rewriteTo/b/b/o/plain")
    assert (plain["done"], plain["resource"]["metadata"], plain["resource"]["cacheControl"]) == (True, {"k": "v"}, "no-store")
    _, other = api.object("POST", "a", "/rewriteTo/b/b/o/other", {"metadata": {"own": "1"}})
    assert other["resource"]["metadata"] == {"own": "1"}
    assert "cacheControl" not in other["resource"]
    assert api.object("POST", "a", "/rewriteTo/b/b/o/plain", ifGenerationMatch=0)[0] == 412


def test_rewrite_reads_a_noncurrent_generation(endpoint: str) -> None:
    """docs/using-object-versioning#restore: sourceGeneration selects the version."""
    api = Api(endpoint, versioning={"enabled": True})
    _, first = api.write("a", b"one")
    api.object("DELETE", "a")
    assert api.object("POST", "a", "/rewriteTo/b/b/o/a")[0] == 404
    assert api.object("POST", "a", "/rewriteTo/b/b/o/a", sourceGeneration=first["generation"], ifGenerationMatch=0)[0] == 200
    assert api.object("GET", "a", alt="media")[1] == b"one"


def test_move_renames_atomically(endpoint: str) -> None:
    """docs/json_api/v1/objects/move: new generation, same metadata, soft delete not applied."""
    api = Api(endpoint)
    _, found = api.write("a", b"one")
    api.object("PATCH", "a", body={"metadata": {"k": "v"}})
    assert api.object("POST", "a", "/moveTo/o/b%2Fc", ifSourceGenerationMatch=1)[0] == 412
    _, moved = api.object("POST", "a", "/moveTo/o/b%2Fc", ifSourceGenerationMatch=found["generation"], ifGenerationMatch=0)
    assert (moved["name"], moved["metageneration"], moved["metadata"]) == ("b/c", "1", {"k": "v"})
    assert int(moved["generation"]) > int(found["generation"])
    assert api.names() == ["b/c"]
    assert api.names(softDeleted="true") == []
    api.write("a")
    assert api.object("POST", "a", "/moveTo/o/b%2Fc", ifGenerationMatch=0)[0] == 412


def test_soft_deleted_object_is_listed_and_restored_by_generation(endpoint: str) -> None:
    """docs/soft-delete: 7 days by default; listed and restored by generation only."""
    api = Api(endpoint)
    assert api.send("GET", "/storage/v1/b/b")[1]["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
    _, found = api.write("a", b"one")
    api.object("DELETE", "a")
    assert api.object("GET", "a", generation=found["generation"])[0] == 404
    _, listed = api.send("GET", "/storage/v1/b/b/o", softDeleted="true")
    assert "softDeleteTime" in listed["items"][0]
    _, restored = api.object("POST", "a", "/restore", {}, generation=found["generation"])
    assert restored["generation"] != found["generation"]
    assert api.object("GET", "a", alt="media")[1] == b"one"


def test_hold_refuses_deletes_and_replacements(endpoint: str) -> None:
    """docs/object-holds: neither deleted nor replaced; the metadata can be edited."""
    api = Api(endpoint)
    api.write("a")
    for hold in ("temporaryHold", "eventBasedHold"):
        api.object("PATCH", "a", body={hold: True})
        assert reason(api.object("DELETE", "a")) == (403, "objectUnderActiveHold")
        assert reason(api.write("a", b"new")) == (403, "objectUnderActiveHold")
        assert reason(api.object("POST", "a", "/moveTo/o/x")) == (403, "objectUnderActiveHold")
        assert api.object("PATCH", "a", body={hold: False})[0] == 200
    assert api.object("DELETE", "a")[0] == 204


def test_retention_policy_refuses_deletes(endpoint: str) -> None:
    """docs/bucket-lock: 403 retentionPolicyNotMet while the object is younger than the period."""
    api = Api(endpoint, retentionPolicy={"retentionPeriod": "3600"})
    _, found = api.write("a")
    assert "retentionExpirationTime" in api.object("GET", "a")[1]
    assert reason(api.object("DELETE", "a", generation=found["generation"])) == (403, "retentionPolicyNotMet")


def test_requester_pays_needs_a_project(endpoint: str) -> None:
    """docs/requester-pays: 400 without userProject."""
    api = Api(endpoint)
    api.write("a")
    api.send("PATCH", "/storage/v1/b/b", {"billing": {"requesterPays": True}})
    assert api.object("GET", "a")[0] == 400
    assert api.object("GET", "a", userProject="payer")[0] == 200


def test_listing_is_in_byte_order_and_continues_by_token(endpoint: str) -> None:
    """docs/json_api/v1/objects/list: lexicographic by name, startOffset inclusive, endOffset exclusive."""
    api = Api(endpoint)
    names = ["A", "a", "a/", "a/b", "a//b", "a0", "é", "\U0001f9ca", "z"]
    for name in names:
        api.write(name)
    ordered = sorted(names, key=str.encode)
    assert api.names() == ordered
    found, token = list[str](), ""
    while True:
        _, page = api.send("GET", "/storage/v1/b/b/o", maxResults=2, pageToken=token)
        found += [item["name"] for item in page["items"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert found == ordered
    assert api.names(startOffset="a/", endOffset="a0") == ["a/", "a//b", "a/b"]
    _, grouped = api.send("GET", "/storage/v1/b/b/o", delimiter="/")
    assert (grouped["prefixes"], [item["name"] for item in grouped["items"]]) == (["a/"], ["A", "a", "a0", "z", "é", "\U0001f9ca"])
    assert api.names(prefix="a/") == ["a/", "a//b", "a/b"]


@pytest.mark.parametrize("name", ["a\nb", "a\rb", ".", "..", "n" * 1025])
def test_invalid_name_is_refused(endpoint: str, name: str) -> None:
    """docs/objects#naming."""
    api = Api(endpoint)
    assert api.write(name)[0] == 400
    assert api.write("n" * 1024)[0] == 200


def test_checksums_of_an_upload_are_compared(endpoint: str) -> None:
    """docs/data-validation: a checksum in the request must match."""
    api = Api(endpoint)
    body = b'--x\r\nContent-Type: application/json\r\n\r\n{"name": "a", "crc32c": "%s"}\r\n--x\r\n\r\nhello\r\n--x--'
    for checksum, expected in ((base64.b64encode(b"1234"), 404), (b"mnG7TA==", 200)):
        url = f"{endpoint}/upload/storage/v1/b/b/o?uploadType=multipart"
        request = urllib.request.Request(url, body % checksum, {"Content-Type": "multipart/related; boundary=x"})  # noqa: S310
        with suppress(urllib.error.HTTPError):
            OPENER.open(request, timeout=30).close()
        assert api.object("GET", "a")[0] == expected
    assert api.object("GET", "a", alt="media")[1] == b"hello"


def test_google_client_library_works_with_the_server() -> None:
    """Uploads in one part, in several (resumable) and downloads of `google-cloud-storage`, with its checksums."""
    bucket = own_server().client().bucket(own_server().bucket())
    for size in (0, 10, 9 * 2**20):
        blob = bucket.blob(f"of/{size} ä", chunk_size=2**20)
        blob.upload_from_string(bytes(size), if_generation_match=0)
        assert bucket.get_blob(blob.name).download_as_bytes() == bytes(size)
        assert not size or bucket.blob(blob.name).download_as_bytes(start=0, end=3) == bytes(4)
    with pytest.raises(PreconditionFailed):
        bucket.blob("of/10 ä").upload_from_string(b"again", if_generation_match=0)
    moved = bucket.move_blob(bucket.get_blob("of/10 ä"), "moved", if_generation_match=0)
    held = bucket.get_blob(moved.name)
    held.temporary_hold = True
    held.patch()
    with pytest.raises(Forbidden, match="hold"):
        held.delete()
    assert sorted(blob.name for blob in bucket.list_blobs()) == ["moved", "of/0 ä", "of/9437184 ä"]
