"""List a bucket page by page, with ListObjectsV2 or ListObjectVersions.

botocore only signs and sends the requests. The pages are parsed with lxml, directly into columns.
This needs a fifth of the CPU time of boto3, which creates Python objects for every element of the
XML. Keys are returned byte for byte.

A page is accepted only if it is complete and continues after the previous page. If a server, cache
or proxy repeats, truncates or reorders pages, the listing stops with an error
(`docs/adr/0004-own-s3-listing.md`).

The request for the next page contains the last key, and not the continuation token of the server.
Ceph RGW 16 does not apply `encoding-type=url` to tokens, so that `a+b` would be read as `a b`, and
a control character would break the XML.

Sources: Amazon S3 API Reference, ListObjectsV2 and ListObjectVersions (order, markers,
`encoding-type=url`).
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from botocore.exceptions import ClientError, ConnectionError, HTTPClientError
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (lxml has no types)

from gc_assets.buckets.protocol import Page, Role
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.s3.client import get_client, payer_params, to_os_error, translate_errors
from gc_assets.s3.invalid_xml import REPLACEMENT, replace_invalid_characters

PAGE_KEYS: Final = 1000
_ATTEMPTS: Final = 8
# Responses with these status codes may be temporary. Even with 200, a response can contain an error
# or be truncated.
_RETRIED_STATUS: Final = frozenset({200, 429, 500, 502, 503, 504})
_OK: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 307})
_BAD_REQUEST: Final = 400
_LONGEST_PAUSE: Final = 20.0
# How botocore calls the two operations.
_OPERATIONS: Final = frozenset({"ListObjectsV2", "ListObjectVersions"})
# Keys that we add to botocore's responses.
_STATUS, _BODY = "Status", "Body"


def list_objects(
    settings: S3Config, bucket: str, prefix: str, after: bytes = b"", delimiter: str = "", role: Role = "read"
) -> Iterator[Page]:
    """List keys in byte order, page by page.

    Args:
        settings: How to connect to the server.
        bucket: The name of the bucket.
        prefix: List only keys that begin with this prefix.
        after: List only keys that come after this one.
        delimiter: Summarize keys that contain it after the prefix as common prefixes.
        role: The role whose credentials are used.

    Raises:
        OSError: If the server denies a request, or does not respond to any attempt.
        StoreError: If the pages are inconsistent.
    """
    params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", "MaxKeys": PAGE_KEYS}
    params |= {"StartAfter": after.decode()} if after else {}
    params |= {"Delimiter": delimiter} if delimiter else {}
    yield from _list_pages(settings, role, "list_objects_v2", params, after, _next_by_token if delimiter else _next_by_key)


def list_versions(
    settings: S3Config, bucket: str, prefix: str, after: bytes = b"", role: Role = "read", page_keys: int = PAGE_KEYS
) -> Iterator[Page]:
    """List all versions and delete markers, page by page. For each key, the newest comes first.

    Arguments and errors are the same as for `list_objects`. A page has at most `page_keys` rows.
    """
    params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", "MaxKeys": page_keys}
    params |= {"KeyMarker": after.decode()} if after else {}
    yield from _list_pages(settings, role, "list_object_versions", params, after, _next_by_version)


_NextParams = Callable[[Page, Any, str, str], dict[str, Any]]


def _list_pages(
    settings: S3Config, role: Role, operation: str, params: dict[str, Any], after: bytes, next_params: _NextParams
) -> Iterator[Page]:
    location, prefix = f"s3://{params['Bucket']}/{params['Prefix']}", params["Prefix"].encode()
    # Ceph 16 begins with the versions of the marker key itself. An empty id allows this, because no
    # version has it.
    last_name, known_versions = after, frozenset({""} if next_params is _next_by_version else ())
    while True:
        root, namespace = _fetch_page(settings, role, operation, params, location)
        page = parse_page(root, namespace, location)
        _require_order(page, last_name, known_versions, location)
        page.require_prefix(prefix, location)
        yield page
        is_truncated = root.findtext(f"{namespace}IsTruncated")
        if is_truncated == "false":
            return
        if is_truncated != "true" or page.last is None:
            found = f"IsTruncated is {is_truncated!r} after {len(page.keys)} keys"
            raise StoreError(f"{location}: {found}, expected false, or true with at least one key; this server does not follow the S3 API")
        known_versions = _versions_of_last(page) | (known_versions if page.last == last_name else frozenset())
        last_name = page.last
        params = {name: value for name, value in params.items() if name not in {"StartAfter", "KeyMarker", "VersionIdMarker"}}
        params |= next_params(page, root, namespace, location)


def _next_by_key(page: Page, root: Any, namespace: str, location: str) -> dict[str, Any]:
    del root, namespace, location
    return {"StartAfter": page.keys[-1].decode()}


def _next_by_version(page: Page, root: Any, namespace: str, location: str) -> dict[str, Any]:
    del root, namespace, location
    return {"KeyMarker": page.keys[-1].decode(), "VersionIdMarker": page.version_ids[-1]}


def _next_by_token(page: Page, root: Any, namespace: str, location: str) -> dict[str, Any]:
    """Continue with the token of the server.

    A page may end with a common prefix, which sorts before the keys that it summarizes.
    """
    token = root.findtext(f"{namespace}NextContinuationToken")
    if not token or REPLACEMENT in token:
        raise StoreError(f"{location}: the NextContinuationToken after {page.last!r} is {token!r}; this server does not follow the S3 API")
    return {"ContinuationToken": token}


def _versions_of_last(page: Page) -> frozenset[str]:
    """Return the version ids of a page's last key, as the next page may continue with its versions."""
    return frozenset(version for key, version in zip(page.keys, page.version_ids, strict=False) if key == page.keys[-1])


def _require_order(page: Page, last_name: bytes, known_versions: frozenset[str], location: str) -> None:
    """Check that the keys of a page are in order and follow the previous page.

    The versions of a key may continue on the next page. `known_versions` are the versions of the
    last key that have been read so far.

    Raises:
        StoreError: If the page repeats keys or is not in order.
    """
    for names in (page.keys, page.common):
        if not names:
            continue
        is_next = names[0] > last_name or (names[0] == last_name and bool(known_versions) and page.version_ids[0] not in known_versions)
        if not is_next:
            raise StoreError(
                f"{location}: a page starts with {names[0]!r}, but the previous page ended with {last_name!r}. "
                "A proxy or cache may repeat answers; connect to the server directly"
            )
        is_ordered = all(map(_is_before_or_equal if page.version_ids else _is_before, names, names[1:]))
        if not is_ordered:
            raise StoreError(f"{location}: the keys of a page are not in byte order; this server does not follow the S3 API")


def _is_before(one: bytes, other: bytes) -> bool:
    return one < other


def _is_before_or_equal(one: bytes, other: bytes) -> bool:
    return one <= other


def parse_page(root: Any, namespace: str, location: str) -> Page:
    """Convert the XML of a page to columns.

    Raises:
        StoreError: If an entry cannot be parsed.
    """
    page = Page([], [], [], [], [], [], [], [], [])
    contents, version, marker, common = (f"{namespace}{name}" for name in ("Contents", "Version", "DeleteMarker", "CommonPrefixes"))
    columns = {f"{namespace}{name}": name for name in ("Key", "Size", "LastModified", "ETag", "StorageClass", "VersionId", "IsLatest")}
    to_bytes = decode_key if root.findtext(f"{namespace}EncodingType") == "url" else _encode_key
    try:
        for element in root:
            tag = element.tag
            if tag in {contents, version, marker}:
                values = {columns[child.tag]: child.text for child in element if child.tag in columns}
                page.keys.append(to_bytes(values["Key"]))
                page.sizes.append(0 if tag == marker else int(values["Size"]))
                page.modified.append(values["LastModified"])
                page.etags.append((values.get("ETag") or "").strip('"'))
                page.classes.append(values.get("StorageClass"))
                if tag != contents:
                    page.version_ids.append(values["VersionId"])
                    page.latest.append(values["IsLatest"] == "true")
                    page.markers.append(tag == marker)
            elif tag == common:
                page.common.append(to_bytes(element.findtext(f"{namespace}Prefix")))
    except (KeyError, TypeError, ValueError) as error:
        after = f"the entry after {page.keys[-1]!r}" if page.keys else "the first entry"
        raise StoreError(f"{location}: cannot parse {after} of a page ({error!r}); this server does not follow the S3 API") from error
    return page


def decode_key(text: str) -> bytes:
    """Decode a URL-encoded key, in which a plus sign means a space."""
    # Ceph encodes every slash. Replacing the slashes is faster than decoding the whole key.
    text = text.replace("%2F", "/")
    if "%" not in text and "+" not in text:
        return text.encode()
    return unquote_to_bytes(text.replace("+", " "))


def _encode_key(text: str) -> bytes:
    """Convert a key that is not URL-encoded to bytes. versitygw, for example, sends such keys."""
    if REPLACEMENT in text:
        raise ValueError(f"the key {text!r} has a character that XML does not allow, and the server ignores encoding-type=url")
    return text.encode()


def _fetch_page(settings: S3Config, role: Role, operation: str, params: dict[str, Any], location: str) -> tuple[Any, str]:
    """Request a page, retrying transient failures.

    Returns:
        The root of the XML, and the prefix of its tags.
    """
    client = get_client(settings, role, attempts=1, before_parse=_take_body)
    params = params | payer_params(settings)
    for attempt in range(_ATTEMPTS):
        status = None
        try:
            with translate_errors(location):
                status, body = _request_page(client, operation, params)
            return parse_response(status, body, location)
        except OSError as error:
            if attempt + 1 == _ATTEMPTS or not _is_transient(error, status):
                raise
        time.sleep(min(_LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1))  # noqa: S311  (spreads requests, no secret)
    raise AssertionError("a loop of attempts ends by returning or raising")


def _request_page(client: Any, operation: str, params: dict[str, Any]) -> tuple[int, bytes]:
    """Send a request, and return the HTTP status and the body of the response."""
    try:
        response = getattr(client, operation)(**params)
    except ClientError as error:
        if _BODY not in error.response:  # the error of another request, for example for credentials
            raise
        response = error.response
    return response[_STATUS], response[_BODY]


def _take_body(operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Keep the status and body of a response, and hide them from botocore's parser.

    This is a handler of the `before-parse` event. It also hides redirects, because botocore would
    silently follow them to another region.
    """
    if operation_model.name not in _OPERATIONS:
        return
    status = response_dict["status_code"]
    customized_response_dict.update({_STATUS: status, _BODY: response_dict["body"]})
    response_dict["body"] = b""
    if status in _REDIRECTS:
        response_dict["status_code"] = _BAD_REQUEST


def _is_transient(error: OSError, status: int | None) -> bool:
    if status is not None:
        return status in _RETRIED_STATUS
    return error.__cause__ is None or isinstance(error.__cause__, (HTTPClientError, ConnectionError))


def parse_response(status: int, body: bytes, location: str) -> tuple[Any, str]:
    """Parse a response.

    Returns:
        The root of the XML, and the prefix of its tags.

    Raises:
        OSError: If the response is not valid XML, or if it is an error. An error may even have
            status 200.
    """
    try:
        root = _parse_xml(body)
    except etree.XMLSyntaxError as error:
        if status != _OK:
            raise _to_error(str(status), f"HTTP status {status} without valid XML", location) from None
        raise OSError(errno.EIO, f"HTTP status {status} without valid XML ({error}); expected a page of keys", location) from None
    name = etree.QName(root)
    if status == _OK and name.localname in {"ListBucketResult", "ListVersionsResult"}:
        return root, f"{{{name.namespace}}}" if name.namespace else ""
    code = root.findtext("{*}Code") or root.findtext("Code") or str(status)
    message = root.findtext("{*}Message") or root.findtext("Message") or ""
    raise _to_error(code, message, location)


def _to_error(code: str, message: str, location: str) -> OSError:
    return to_os_error(ClientError({"Error": {"Code": code, "Message": message}}, "List"), location)


def _parse_xml(body: bytes) -> Any:
    """Parse an XML document, replacing characters that are not allowed in XML if necessary.

    Raises:
        XMLSyntaxError: If the document is truncated.
    """
    try:
        return etree.fromstring(body, _parser())
    except etree.XMLSyntaxError:
        return etree.fromstring(replace_invalid_characters(body), _parser())


def _parser() -> Any:
    return etree.XMLParser(resolve_entities=False, huge_tree=True)
