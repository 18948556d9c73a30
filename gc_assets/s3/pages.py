"""Lists a bucket page by page: ListObjectsV2 and ListObjectVersions, with keys byte for byte.

botocore signs and fetches, lxml parses: a page costs a fifth of boto3's time, most of which goes
into making objects of XML. A page counts only when it is whole and goes on where the page before it
ended. A server, cache or proxy that repeats, cuts or shuffles pages stops the listing.

The next page is asked for by the last key that was read, and not by the server's word for it: Ceph
RGW 16 writes that word without `encoding-type=url`, so that `a+b` would be taken for `a b`, and a
control character in it is no XML.

Sources: Amazon S3 API Reference, ListObjectsV2 and ListObjectVersions (order, markers,
`encoding-type=url`).
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (lxml has no types)

from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.s3.client import SLOW_STATUS, Role, count_request, get_client, get_rate_limiter, to_os_error, translate_errors

PAGE_KEYS: Final = 1000
_ATTEMPTS: Final = 8
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
_OK: Final = 200
_LONGEST_PAUSE: Final = 20.0
_SIGNED_SECONDS: Final = 600
# What XML cannot say, raw or by its number. Servers write it into words of their own, and into keys
# where they do not honour `encoding-type=url`. Read as U+FFFD it is one place in a page that cannot
# be read, instead of a page that cannot.
_NO_XML: Final = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]|&#(?:x0*(?:[0-8bcef]|1[0-9a-f]|fff[ef])|0*(?:[0-8]|1[124-9]|2\d|3[01]|6553[45]));",
    re.IGNORECASE,
)
_UNREADABLE: Final = "\ufffd"


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


def list_objects(
    settings: S3Config, bucket: str, prefix: str, after: bytes = b"", delimiter: str = "", role: Role = "read"
) -> Iterator[Page]:
    """Yields pages of the keys that begin with `prefix` and come after `after`, in the order of
    their bytes.

    Raises `OSError` for what the server refuses, and `StoreError` where its pages do not fit
    together.
    """
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", "MaxKeys": PAGE_KEYS}
    asked |= {"StartAfter": after.decode()} if after else {}
    asked |= {"Delimiter": delimiter} if delimiter else {}
    yield from _pages(settings, role, "list_objects_v2", asked, after, _by_token if delimiter else _by_key)


def list_versions(
    settings: S3Config, bucket: str, prefix: str, after: bytes = b"", role: Role = "read", page_keys: int = PAGE_KEYS
) -> Iterator[Page]:
    """Yields pages of all versions and delete markers, the newest of each key first."""
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", "MaxKeys": page_keys}
    asked |= {"KeyMarker": after.decode()} if after else {}
    yield from _pages(settings, role, "list_object_versions", asked, after, _by_version)


_Next = Callable[[Page, Any, str, str], dict[str, Any]]


def _pages(settings: S3Config, role: Role, operation: str, asked: dict[str, Any], after: bytes, following: _Next) -> Iterator[Page]:
    place, prefix = f"s3://{asked['Bucket']}/{asked['Prefix']}", asked["Prefix"].encode()
    # Ceph 16 begins with the versions of the key after which it was asked. No version has an empty id.
    last, met = after, frozenset({""} if following is _by_version else ())
    while True:
        root, name_space = _fetched(settings, role, operation, asked, place)
        page = _parsed(root, name_space, place)
        _in_order(page, last, met, place)
        _below(page, prefix, place)
        yield page
        goes_on = root.findtext(f"{name_space}IsTruncated")
        if goes_on == "false":
            return
        if goes_on != "true" or page.last is None:
            found = f"IsTruncated is {goes_on!r} after {len(page.keys)} keys"
            raise StoreError(f"{place}: {found}; expected false, or true and at least one key; this server does not list as S3 does")
        met = _versions_of_last(page) | (met if page.last == last else frozenset())
        last = page.last
        asked = {name: value for name, value in asked.items() if name not in {"StartAfter", "KeyMarker", "VersionIdMarker"}}
        asked |= following(page, root, name_space, place)


def _by_key(page: Page, root: Any, name_space: str, place: str) -> dict[str, Any]:
    del root, name_space, place
    return {"StartAfter": page.keys[-1].decode()}


def _by_version(page: Page, root: Any, name_space: str, place: str) -> dict[str, Any]:
    del root, name_space, place
    return {"KeyMarker": page.keys[-1].decode(), "VersionIdMarker": page.version_ids[-1]}


def _by_token(page: Page, root: Any, name_space: str, place: str) -> dict[str, Any]:
    """Asks by the server's word: a common prefix, as a key, comes before the keys it stands for."""
    token = root.findtext(f"{name_space}NextContinuationToken")
    if not token or _UNREADABLE in token:
        raise StoreError(f"{place}: after {page.last!r} the NextContinuationToken is {token!r}; this server does not list as S3 does")
    return {"ContinuationToken": token}


def _versions_of_last(page: Page) -> frozenset[str]:
    """Returns the versions of the page's last key, which may go on in the next page."""
    return frozenset(version for key, version in zip(page.keys, page.version_ids, strict=False) if key == page.keys[-1])


def _in_order(page: Page, last: bytes, met: frozenset[str], place: str) -> None:
    """Raises `StoreError` unless the page's keys grow, and are greater than the last one before.
    Versions of one key are many, and may go on from one page to the next. `met` are those of the
    last key so far.
    """
    for names in (page.keys, page.common):
        if not names:
            continue
        is_next = names[0] > last or (names[0] == last and bool(met) and page.version_ids[0] not in met)
        if not is_next:
            raise StoreError(
                f"{place}: a page begins with {names[0]!r} and the one before it ended with {last!r}; keys must grow from page to page. "
                "Something between here and the server repeats answers; ask the server itself"
            )
        is_ordered = all(map(_before_or_same if page.version_ids else _before, names, names[1:]))
        if not is_ordered:
            raise StoreError(f"{place}: the keys of a page are not in the order of their bytes; this server does not list as S3 does")


def _below(page: Page, prefix: bytes, place: str) -> None:
    """Raises `StoreError` where an ordered page holds keys that were not asked for."""
    for name in [*page.keys[:1], *page.keys[-1:], *page.common[:1], *page.common[-1:]]:
        if not name.startswith(prefix):
            raise StoreError(
                f"{place}: a page holds {name!r}, expected keys that begin with {prefix!r}. "
                "Something between here and the server confuses answers; ask the server itself"
            )


def _before(one: bytes, other: bytes) -> bool:
    return one < other


def _before_or_same(one: bytes, other: bytes) -> bool:
    return one <= other


def _parsed(root: Any, name_space: str, place: str) -> Page:
    page = Page([], [], [], [], [], [], [], [], [])
    contents, version, marker, common = (f"{name_space}{name}" for name in ("Contents", "Version", "DeleteMarker", "CommonPrefixes"))
    columns = {f"{name_space}{name}": name for name in ("Key", "Size", "LastModified", "ETag", "StorageClass", "VersionId", "IsLatest")}
    decoded = _decoded if root.findtext(f"{name_space}EncodingType") == "url" else _plain
    try:
        for element in root:
            tag = element.tag
            if tag in {contents, version, marker}:
                values = {columns[child.tag]: child.text for child in element if child.tag in columns}
                page.keys.append(decoded(values["Key"]))
                page.sizes.append(0 if tag == marker else int(values["Size"]))
                page.modified.append(values["LastModified"])
                page.etags.append((values.get("ETag") or "").strip('"'))
                page.classes.append(values.get("StorageClass"))
                if tag != contents:
                    page.version_ids.append(values["VersionId"])
                    page.latest.append(values["IsLatest"] == "true")
                    page.markers.append(tag == marker)
            elif tag == common:
                page.common.append(decoded(element.findtext(f"{name_space}Prefix")))
    except (KeyError, TypeError, ValueError) as error:
        after = f"after {page.keys[-1]!r}" if page.keys else "at its beginning"
        raise StoreError(f"{place}: an entry of a page cannot be read {after} ({error!r}); this server does not list as S3 does") from error
    return page


def _decoded(text: str) -> bytes:
    """Decodes a key as `encoding-type=url` writes it: a plus is a space."""
    if "%" not in text and "+" not in text:
        return text.encode()
    return unquote_to_bytes(text.replace("+", " "))


def _plain(text: str) -> bytes:
    """Returns a key of a server that does not honour `encoding-type=url`, such as versitygw."""
    if _UNREADABLE in text:
        raise ValueError(f"the key {text!r} has a character that XML cannot say, and the server does not honour encoding-type=url")
    return text.encode()


def _fetched(settings: S3Config, role: Role, operation: str, asked: dict[str, Any], place: str) -> tuple[Any, str]:
    """Returns the root of a page's XML and the prefix of its tags. Asks again for what may pass."""
    headers: dict[str, str] = {}
    if settings.requester_pays:
        # The signature covers this header, so that it goes along.
        asked, headers = {**asked, "RequestPayer": "requester"}, {"x-amz-request-payer": "requester"}
    client, pace = get_client(settings, role), get_rate_limiter(settings)
    for attempt in range(_ATTEMPTS):
        with translate_errors(place):
            url = client.generate_presigned_url(operation, Params=asked, ExpiresIn=_SIGNED_SECONDS)
        pace.wait()
        count_request(settings, "LIST")
        try:
            with translate_errors(place):
                answer = _session(client).send(AWSRequest(method="GET", url=url, headers=headers).prepare())
        except OSError as error:
            failure = error
        else:
            if answer.status_code in SLOW_STATUS:
                pace.slow_down()
            failure_or_root = _understood(answer.status_code, answer.content, place)
            if not isinstance(failure_or_root, OSError):
                return failure_or_root
            failure = failure_or_root
            if answer.status_code not in _PASSING and answer.status_code != _OK:
                raise failure
        if attempt + 1 == _ATTEMPTS:
            raise failure
        time.sleep(min(_LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1))  # noqa: S311  (spreads requests, no secret)
    raise AssertionError("a loop of attempts ends by returning or raising")


def _session(client: Any) -> Any:
    """Returns the client's own connections, which know proxies, certificates and time limits.
    botocore has no public way to them.
    """
    return client._endpoint.http_session


def _understood(status: int, body: bytes, place: str) -> tuple[Any, str] | OSError:
    """Returns a page's root, or the error that the answer is. An answer of status 200 may be an
    error too.
    """
    try:
        root = _root(body)
    except etree.XMLSyntaxError as error:
        if status != _OK:
            return to_os_error(ClientError({"Error": {"Code": str(status), "Message": f"HTTP status {status} and no XML"}}, "List"), place)
        return OSError(errno.EIO, f"HTTP status {status} and no XML ({error}); expected a page of keys", place)
    name = etree.QName(root)
    if status == _OK and name.localname in {"ListBucketResult", "ListVersionsResult"}:
        return root, f"{{{name.namespace}}}" if name.namespace else ""
    code = root.findtext("{*}Code") or root.findtext("Code") or str(status)
    message = root.findtext("{*}Message") or root.findtext("Message") or ""
    return to_os_error(ClientError({"Error": {"Code": code, "Message": message}}, "List"), place)


def _root(body: bytes) -> Any:
    """Returns the root of whole XML. Raises where it is cut."""
    try:
        return etree.fromstring(body, _parser())
    except etree.XMLSyntaxError:
        return etree.fromstring(_NO_XML.sub(_UNREADABLE.encode(), body), _parser())


def _parser() -> Any:
    return etree.XMLParser(resolve_entities=False, huge_tree=True)
