"""The implementation of `ConditionalBucket` for S3 and compatible servers."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from gc_assets.buckets.identity import build_identity
from gc_assets.buckets.protocol import Change, ChangeVerdict, Deletion, ObjectInfo, Page, Role, Version, Versioning
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.buckets.storage import BucketStorage
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import is_permanent
from gc_assets.s3 import copying, pages
from gc_assets.s3.client import DENIED, INVALID_KEY, NOT_FOUND, PRECONDITION, error_code, get_client, payer_params, translate_errors
from gc_assets.s3.delete_markers import create_despite_markers

# DeleteObjects accepts 1,000 keys, but servers delete them one by one. Several smaller requests
# finish sooner, because they are sent concurrently.
KEYS_PER_DELETE: Final = 125
_BLOCK_BYTES: Final = 4 * 2**20
# How often a read is attempted if its response is truncated.
_READ_ATTEMPTS: Final = 5
# Characters that cannot be represented in the XML of DeleteObjects.
_UNSAFE_IN_XML: Final = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")
# Error codes for something that the server does not support. If it does not support etags in
# DeleteObjects, it rejects the document as malformed.
_UNSUPPORTED: Final = frozenset({"NotImplemented", "501"})
_MALFORMED: Final = frozenset({"MalformedXML"})
_NO_VERSIONS: Final = _UNSUPPORTED | {"VersioningNotConfigured"}
# No object has this token.
_UNKNOWN_ETAG: Final = "0" * 32


@dataclass(frozen=True, slots=True)
class S3Bucket(BucketStorage[S3Config]):
    """A bucket on S3."""

    @property
    def compares_in_batches(self) -> bool:
        """False, because some servers reject etags in DeleteObjects."""
        return False

    @property
    def has_delete_markers(self) -> bool:
        return True

    @property
    def null_version(self) -> str:
        """The version id of objects that are older than the bucket's versioning.

        Some servers, such as Ceph 16, omit this id in responses.
        """
        return "null"

    @property
    def unknown_token(self) -> str:
        return _UNKNOWN_ETAG

    def client(self, role: Role) -> Any:
        return get_client(self.settings, role)

    def get_single_attempt_client(self) -> Any:
        """Return a client that does not retry, for deletes of the current object or version `null`.

        If such a delete were retried after a pause, it could delete an object that was written in
        the meantime. The caller must check the object before each attempt.
        """
        return get_client(self.settings, "change", attempts=1)

    def target(self, key: str, version_id: str | None = None) -> dict[str, str]:
        """Build the parameters of a request for an object."""
        version = {"VersionId": version_id} if version_id is not None else {}
        return {"Bucket": self.name, "Key": f"{self.prefix}{key}", **version, **payer_params(self.settings)}

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> ObjectInfo | None:
        with translate_errors(self.address(key)):
            try:
                return describe(self.client(role).head_object(**self.target(key, version_id)))
            except ClientError as error:
                # Status 405 means that the version is a delete marker.
                if error_code(error) in NOT_FOUND or (version_id is not None and error_code(error) in {"405", "MethodNotAllowed"}):
                    return None
                raise

    def read(self, key: str, role: Role = "change", version_id: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Read an object completely. The request is retried if the response is truncated."""
        with translate_errors(self.address(key)):
            for attempt in range(_READ_ATTEMPTS):
                answer = self.client(role).get_object(**self.target(key, version_id))
                self.require_readable(key, answer["ContentLength"])
                try:
                    return answer["Body"].read(), describe(answer)
                except (HTTPClientError, IncompleteReadError):
                    if attempt + 1 == _READ_ATTEMPTS:
                        raise
                pause_before_retry(attempt)
        raise AssertionError("a loop of attempts ends by returning or raising")

    def read_blocks(self, key: str, role: Role = "read") -> Iterator[bytes]:
        with translate_errors(self.address(key)):
            yield from self.client(role).get_object(**self.target(key))["Body"].iter_chunks(_BLOCK_BYTES)

    def list_pages(
        self, prefix: str = "", after: bytes = b"", *, delimiter: str = "", role: Role = "read", versions: bool = False
    ) -> Iterator[Page]:
        full, start = f"{self.prefix}{prefix}", self.prefix.encode() + after if after else b""
        if versions:
            return pages.list_versions(self.settings, self.name, full, start, role)
        return pages.list_objects(self.settings, self.name, full, start, delimiter, role)

    def versioning(self, role: Role) -> Versioning:
        with translate_errors(f"s3://{self.name}"):
            try:
                return Versioning(self.client(role).get_bucket_versioning(Bucket=self.name).get("Status"))
            except ClientError as error:
                if error_code(error) in _NO_VERSIONS:
                    return Versioning(None)
                raise

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        full, versions = f"{self.prefix}{key}".encode(), list[Version]()
        for page in pages.list_versions(self.settings, self.name, full.decode(), role=role, page_keys=at_most):
            rows = zip(page.keys, page.version_ids, page.markers, page.modified, strict=True)
            versions += [Version(number, marker, datetime.fromisoformat(at)) for found, number, marker, at in rows if found == full]
            # Servers may return fewer versions than requested.
            if len(versions) >= at_most or page.last != full:
                break
        return versions[:at_most]

    def reach(self, attempts: int) -> datetime | None:
        with translate_errors(self.location):
            params = {"Bucket": self.name, "Prefix": self.prefix, "MaxKeys": 1, **payer_params(self.settings)}
            answer = get_client(self.settings, "read", attempts).list_objects_v2(**params)
        return _server_time(answer)

    def now(self) -> datetime:
        """Return the current time of the server, in whole seconds."""
        with translate_errors(f"s3://{self.name}"):
            answer = self.client("read").head_bucket(Bucket=self.name)
        return self.require_time(_server_time(answer))

    def put(self, key: str, content: bytes) -> Change:
        return self._change(key, lambda: self.client("change").put_object(**self.target(key), Body=content))

    def put_if_absent(self, key: str, content: bytes) -> Change:
        return self._change(key, lambda: self.client("change").put_object(**self.target(key), Body=content, IfNoneMatch="*"))

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        """Replace an object if it has the given token.

        Ceph 16 expects an etag without quotes in the condition, and other servers expect quotes.
        """
        client, target = self.client("change"), self.target(key)
        change = self._change(key, lambda: client.put_object(**target, Body=content, IfMatch=token))
        if change.verdict != "changed":
            return change
        try:
            current = self.head(key)
        except OSError as error:
            return Change("unknown", error)
        if current is None or etag_in(current) != token:
            return change
        return self._change(key, lambda: client.put_object(**target, Body=content, IfMatch=f'"{token}"'))

    def copy_if_match(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        def copy() -> dict[str, Any]:
            copying.copy_object(self, key, to, source, entry)
            return {}

        return self._change(key, copy)

    def copy_if_absent(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        def send() -> dict[str, Any]:
            copying.copy_to_absent(self, key, to, source, entry)
            return {}

        def copy() -> Change:
            try:
                return self._change(to, send)
            except FileExistsError as error:
                return Change("changed", error)

        return create_despite_markers(self, to, copy, hidden=entry[1])

    def delete_if_match(self, key: str, token: str | None) -> Change:
        condition = {"IfMatch": f'"{token}"'} if token is not None else {}
        return self._change(key, lambda: self.get_single_attempt_client().delete_object(**self.target(key), **condition))

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        changes = dict[Deletion, Change]()
        single, batched = list[Deletion](), list[Deletion]()
        for item in objects:
            (single if _UNSAFE_IN_XML.search(f"{self.prefix}{item.key}") else batched).append(item)
        requests = [batched[start : start + KEYS_PER_DELETE] for start in range(0, len(batched), KEYS_PER_DELETE)]
        for items, found in zip(requests, map_concurrently(requests, self._delete_many), strict=True):
            changes |= zip(items, found, strict=True)
        changes |= zip(single, map_concurrently(single, self._delete_one), strict=True)
        return [changes[item] for item in objects]

    def _delete_one(self, item: Deletion) -> Change:
        if item.version_id is None:
            return self.delete_if_match(item.key, item.token)
        return self._change(item.key, lambda: self._delete_client([item]).delete_object(**self.target(item.key, item.version_id)))

    def _delete_client(self, objects: Sequence[Deletion]) -> Any:
        """Return a client that only retries deletes of versions that are never replaced."""
        is_fixed = all(item.version_id not in {None, self.null_version} for item in objects)
        return self.client("change") if is_fixed else self.get_single_attempt_client()

    def _delete_many(self, objects: Sequence[Deletion]) -> list[Change]:
        items = [
            {"Key": f"{self.prefix}{item.key}"}
            | ({"VersionId": item.version_id} if item.version_id else {})
            | ({"ETag": item.token} if item.token is not None else {})
            for item in objects
        ]
        client = self._delete_client(objects)
        try:
            with translate_errors(self.location):
                answer = client.delete_objects(Bucket=self.name, Delete={"Objects": items}, **payer_params(self.settings))
        except OSError as error:
            return [_refused_request(error)] * len(items)
        # If a version was requested, its id is in the response. Otherwise the response may or may
        # not contain an id.
        deleted_items = {_key_and_version(item, field): item for item in answer.get("Deleted", []) for field in ("VersionId", None)}
        failed_items = {_key_and_version(item, field): item for item in answer.get("Errors", []) for field in ("VersionId", None)}
        changes: list[Change] = []
        for item in items:
            name = _key_and_version(item, "VersionId")
            error, deleted = failed_items.get(name), deleted_items.get(name)
            if error is not None:
                changes.append(_refused_key(str(error.get("Code", "")), str(error.get("Message", "")), item["Key"]))
            elif deleted is None:
                found = "the response of the server does not contain this key; apply again"
                changes.append(Change("failed", OSError(errno.EIO, found, item["Key"])))
            else:
                changes.append(Change("done", marker=deleted.get("DeleteMarkerVersionId") if deleted.get("DeleteMarker") else None))
        return changes

    def _change(self, key: str, send: Callable[[], dict[str, Any]]) -> Change:
        """Send a request and convert its response or error to a `Change`."""
        try:
            with translate_errors(self.address(key)):
                answer = send()
        except FileExistsError:
            raise
        except OSError as error:
            return Change(_verdict(error), error)
        version_id, etag = answer.get("VersionId"), answer.get("ETag")
        marker = version_id if answer.get("DeleteMarker") else None
        return Change("done", version_id=version_id, marker=marker, token=etag.strip('"') if etag else None)


def describe(answer: dict[str, Any]) -> ObjectInfo:
    """Convert the response to a GET or HEAD request."""
    identity = build_identity(answer["ETag"], answer["ContentLength"], answer["LastModified"])
    return ObjectInfo(
        identity,
        answer["ContentLength"],
        answer["LastModified"],
        answer.get("VersionId"),
        {name.lower(): value for name, value in answer.get("Metadata", {}).items()},
        # If an object is encrypted with KMS, its etag is not a checksum of the bytes.
        token_is_checksum="SSEKMSKeyId" not in answer,
        answer=answer,
    )


def etag_in(info: ObjectInfo) -> str:
    return info.answer["ETag"].strip('"')


def _server_time(answer: dict[str, Any]) -> datetime | None:
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(date) if date else None


def _verdict(error: OSError) -> ChangeVerdict:
    code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
    if code in PRECONDITION:
        return "changed"
    if isinstance(error, FileNotFoundError):
        return "absent"
    if code in _UNSUPPORTED:
        return "unsupported"
    return "denied" if is_permanent(error) else "unknown"


def _refused_request(error: OSError) -> Change:
    """Convert the error of a request for several keys to a result for each of them."""
    if isinstance(error, PermissionError):
        return Change("denied", PermissionError(errno.EACCES, f"AccessDenied: {error.strerror}", error.filename))
    code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
    if code in _UNSUPPORTED | _MALFORMED:
        return Change("unsupported", error)
    return Change("denied" if is_permanent(error) else "unknown", error)


def _refused_key(code: str, message: str, key: str) -> Change:
    """Convert the error for a single key in the response to an otherwise successful request."""
    text = f"{code}: {message}"
    if code in DENIED | INVALID_KEY:
        return Change("denied", PermissionError(errno.EACCES, text, key))
    verdict: ChangeVerdict = "changed" if code in PRECONDITION else "unsupported" if code in _UNSUPPORTED else "failed"
    return Change(verdict, OSError(errno.EIO, text, key))


def _key_and_version(item: Mapping[str, Any], version_field: str | None) -> tuple[str, str | None]:
    return item["Key"], (item.get(version_field) or None) if version_field is not None else None
