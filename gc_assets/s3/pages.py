"""Lists a bucket page by page: ListObjectsV2 and ListObjectVersions, with keys byte for byte.

botocore signs, urllib3 fetches, lxml parses: a page costs a fifth of boto3's time, most of which
goes into making objects of XML. A page counts only when it is whole and goes on where the page
before it ended. A server, cache or proxy that repeats, cuts or shuffles pages stops the listing.

Sources: Amazon S3 API Reference, ListObjectsV2 and ListObjectVersions (order, tokens,
`encoding-type=url`).
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import urllib3
from botocore.exceptions import ClientError
from lxml import etree

from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.s3.client import Role, as_os_error, client_of, told

PAGE_KEYS: Final = 1000
_ATTEMPTS: Final = 8
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
_OK: Final = 200
_LONGEST_PAUSE: Final = 20.0
_SIGNED_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of one page, in order, as columns. `common` are the prefixes up to the delimiter.

    Keys are bytes. `modified` is text as the server wrote it (ISO 8601), `etags` are without
    quotes. In a listing of versions, `version_ids`, `latest` and `markers` have a value for each
    key. Delete markers have size 0 and no etag.
    """

    keys: list[bytes]
    sizes: list[int]
    modified: list[str]
    etags: list[str]
    classes: list[str | None]
    common: list[bytes]
    version_ids: list[str]
    latest: list[bool]
    markers: list[bool]

    @property
    def last(self) -> bytes | None:
        """The last key or prefix of the page."""
        return max([*self.keys[-1:], *self.common[-1:]], default=None)


def objects(settings: S3Config, bucket: str, prefix: str, after: bytes = b"", delimiter: str = "", role: Role = "read") -> Iterator[Page]:
    """Yields pages of the keys that begin with `prefix` and come after `after`, in the order of
    their bytes.

    Raises `OSError` for what the server refuses, and `StoreError` where its pages do not fit
    together.
    """
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", "MaxKeys": PAGE_KEYS}
    asked |= {"StartAfter": after.decode()} if after else {}
    asked |= {"Delimiter": delimiter} if delimiter else {}
    yield from _pages(settings, role, "list_objects_v2", asked, after, _next_objects)


def versions(
    settings: S3Config, bucket: str, prefix: str, after: bytes = b"", role: Role = "read", page_keys: int = PAGE_KEYS
) -> Iterator[Page]:
    """Yields pages of all versions and delete markers, the newest of each key first."""
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", "MaxKeys": page_keys}
    asked |= {"KeyMarker": after.decode()} if after else {}
    yield from _pages(settings, role, "list_object_versions", asked, after, _next_versions)


_Next = Callable[[Any, str], dict[str, Any]]


def _pages(settings: S3Config, role: Role, operation: str, asked: dict[str, Any], after: bytes, following: _Next) -> Iterator[Page]:
    allows_equal = operation == "list_object_versions"
    last = after
    while True:
        place = f"s3://{asked['Bucket']}/{asked['Prefix']}"
        root, name_space = _fetched(settings, role, operation, asked, place)
        page = _parsed(root, name_space)
        _in_order(page, last, place, allows_equal=allows_equal and last != after)
        yield page
        if root.findtext(f"{name_space}IsTruncated") != "true":
            return
        if page.last is None:
            raise StoreError(f"{place}: a page without a key says that the listing goes on; expected at least one key; try again")
        last = page.last
        asked = {name: value for name, value in asked.items() if name not in {"StartAfter", "KeyMarker", "VersionIdMarker"}}
        asked |= following(root, name_space)


def _next_objects(root: Any, name_space: str) -> dict[str, Any]:
    token = root.findtext(f"{name_space}NextContinuationToken")
    if not token:
        raise StoreError("a page says that the listing goes on and has no NextContinuationToken; this server does not list as S3 does")
    return {"ContinuationToken": token}


def _next_versions(root: Any, name_space: str) -> dict[str, Any]:
    key, version = (root.findtext(f"{name_space}{name}") for name in ("NextKeyMarker", "NextVersionIdMarker"))
    if not key:
        raise StoreError("a page says that the listing goes on and has no NextKeyMarker; this server does not list as S3 does")
    return {"KeyMarker": _decoded(key).decode(), **({"VersionIdMarker": version} if version else {})}


def _in_order(page: Page, last: bytes, place: str, *, allows_equal: bool) -> None:
    """Raises `StoreError` unless the page's keys grow, and are greater than the last one before.
    Versions of one key are many, and may go on from one page to the next.
    """
    for names in (page.keys, page.common):
        if not names:
            continue
        if names[0] < last or (names[0] == last and not allows_equal):
            raise StoreError(
                f"{place}: a page begins with {names[0]!r} and the one before it ended with {last!r}; keys must grow from page to page. "
                "Something between here and the server repeats answers; ask the server itself"
            )
        is_ordered = all(map(_before_or_same if page.version_ids else _before, names, names[1:]))
        if not is_ordered:
            raise StoreError(f"{place}: the keys of a page are not in the order of their bytes; this server does not list as S3 does")


def _before(one: bytes, other: bytes) -> bool:
    return one < other


def _before_or_same(one: bytes, other: bytes) -> bool:
    return one <= other


def _parsed(root: Any, name_space: str) -> Page:
    page = Page([], [], [], [], [], [], [], [], [])
    contents, version, marker, common = (f"{name_space}{name}" for name in ("Contents", "Version", "DeleteMarker", "CommonPrefixes"))
    columns = {f"{name_space}{name}": name for name in ("Key", "Size", "LastModified", "ETag", "StorageClass", "VersionId", "IsLatest")}
    for element in root:
        tag = element.tag
        if tag in {contents, version, marker}:
            values = {columns[child.tag]: child.text for child in element if child.tag in columns}
            page.keys.append(_decoded(values["Key"]))
            page.sizes.append(int(values.get("Size") or 0))
            page.modified.append(values["LastModified"])
            page.etags.append((values.get("ETag") or "").strip('"'))
            page.classes.append(values.get("StorageClass"))
            if tag != contents:
                page.version_ids.append(values["VersionId"])
                page.latest.append(values["IsLatest"] == "true")
                page.markers.append(tag == marker)
        elif tag == common:
            page.common.append(_decoded(element.findtext(f"{name_space}Prefix")))
    return page


def _decoded(text: str) -> bytes:
    """Decodes a key as `encoding-type=url` writes it: a plus is a space."""
    if "%" not in text and "+" not in text:
        return text.encode()
    return unquote_to_bytes(text.replace("+", " "))


def _fetched(settings: S3Config, role: Role, operation: str, asked: dict[str, Any], place: str) -> tuple[Any, str]:
    """Returns the root of a page's XML and the prefix of its tags. Asks again for what may pass."""
    if settings.requester_pays:
        asked = {**asked, "RequestPayer": "requester"}
    client = client_of(settings, role)
    for attempt in range(_ATTEMPTS):
        with told(place):
            url = client.generate_presigned_url(operation, Params=asked, ExpiresIn=_SIGNED_SECONDS)
        try:
            answer = _pool(os.getpid()).request("GET", url, redirect=False, retries=False)
        except urllib3.exceptions.HTTPError as error:
            failure: OSError = OSError(f"{place}: {error}; look at the network and at `s3.endpoint`")
        else:
            failure_or_root = _understood(answer, place)
            if not isinstance(failure_or_root, OSError):
                return failure_or_root
            failure = failure_or_root
            if answer.status not in _PASSING and answer.status != _OK:
                raise failure
        if attempt + 1 == _ATTEMPTS:
            raise failure
        time.sleep(min(_LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1))  # noqa: S311  (spreads requests, no secret)
    raise AssertionError("a loop of attempts ends by returning or raising")


def _understood(answer: urllib3.BaseHTTPResponse, place: str) -> tuple[Any, str] | OSError:
    """Returns a page's root, or the error that the answer is. An answer of status 200 may be an
    error too.
    """
    try:
        root = etree.fromstring(answer.data, etree.XMLParser(resolve_entities=False, huge_tree=True))
    except etree.XMLSyntaxError as error:
        return OSError(f"{place}: HTTP status {answer.status} and no XML ({error}); expected a page of keys")
    name = etree.QName(root)
    if answer.status == _OK and name.localname in {"ListBucketResult", "ListVersionsResult"}:
        return root, f"{{{name.namespace}}}" if name.namespace else ""
    code = root.findtext("{*}Code") or root.findtext("Code") or str(answer.status)
    message = root.findtext("{*}Message") or root.findtext("Message") or ""
    return as_os_error(ClientError({"Error": {"Code": code, "Message": message}}, "List"), place)


@functools.lru_cache(maxsize=4)
def _pool(process: int) -> urllib3.PoolManager:
    """The connections of this process. A forked process gets its own."""
    del process
    return urllib3.PoolManager(num_pools=8, maxsize=32, timeout=urllib3.Timeout(connect=10, read=60))
