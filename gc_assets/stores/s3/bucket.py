"""A storage in a bucket: requests about single objects and versions, for quarantine and lease.

A missing object is returned as None and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

from botocore.exceptions import ClientError

from gc_assets.buckets.protocol import Role, Version, Versioning
from gc_assets.buckets.requests import map_concurrently
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.core.paths import Location, bucket_and_key
from gc_assets.s3 import pages
from gc_assets.s3.client import DENIED, INVALID_KEY, NOT_FOUND, error_code, get_client, payer_params, translate_errors
from gc_assets.stores.s3.objects import identity_of

# Keys per DeleteObjects request. A server accepts 1,000 and deletes them one by one, so several
# smaller concurrent requests finish sooner.
KEYS_PER_DELETE: Final = 125
# Characters that the XML of DeleteObjects or its answer cannot represent.
_UNSAFE_IN_XML: Final = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")
# Error codes of servers without versioning.
_NO_VERSIONS: Final = frozenset({"NotImplemented", "VersioningNotConfigured"})


@dataclass(frozen=True, slots=True)
class Head:
    """Answer to HEAD for an object. `answer` is the complete answer."""

    identity: str
    version_id: str | None
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Result for one deleted key. `marker` is the id of the created delete marker."""

    error: str | None
    marker: str | None = None

    @property
    def is_denied(self) -> bool:
        """Return True if a retry will not help."""
        return self.error is not None and self.error.partition(":")[0] in DENIED | INVALID_KEY


@dataclass(frozen=True, slots=True)
class Bucket:
    """A storage on S3. Keys are relative to its prefix. Pickles, and contains no secrets."""

    name: str
    prefix: str
    settings: S3Config

    @classmethod
    def of(cls, location: str, settings: S3Config) -> Self:
        """Return the storage at a location. Its prefix is empty or ends in `/`."""
        return cls(*bucket_and_key(str(Location.parse(location))), settings)

    @property
    def location(self) -> str:
        return self.address("")

    def client(self, role: Role) -> Any:
        return get_client(self.settings, role)

    def get_single_attempt_client(self) -> Any:
        """Return a client for deletes of the current object at a key.

        A retry after a pause could delete an object that was written in the meantime. So the caller
        checks the object before each attempt.
        """
        return get_client(self.settings, "change", attempts=1)

    def address(self, key: str) -> str:
        return f"s3://{self.name}/{self.prefix}{key}"

    def target(self, key: str, version_id: str | None = None) -> dict[str, str]:
        """Return the parameters that identify an object in a request."""
        version = {"VersionId": version_id} if version_id is not None else {}
        return {"Bucket": self.name, "Key": f"{self.prefix}{key}", **version, **payer_params(self.settings)}

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> Head | None:
        """Return the object at a key, or None if it is missing or hidden by a delete marker."""
        with translate_errors(self.address(key)):
            try:
                answer = self.client(role).head_object(**self.target(key, version_id))
            except ClientError as error:
                # A version id of a delete marker is answered with 405.
                if error_code(error) in NOT_FOUND or (version_id is not None and error_code(error) in {"405", "MethodNotAllowed"}):
                    return None
                raise
        return Head(identity_of(answer), answer.get("VersionId"), answer)

    def versioning(self, role: Role) -> Versioning:
        with translate_errors(f"s3://{self.name}"):
            try:
                return Versioning(self.client(role).get_bucket_versioning(Bucket=self.name).get("Status"))
            except ClientError as error:
                if error_code(error) in _NO_VERSIONS:
                    return Versioning(None)
                raise

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        """Return versions and delete markers of one key, the newest first."""
        full, versions = f"{self.prefix}{key}".encode(), list[Version]()
        for page in pages.list_versions(self.settings, self.name, full.decode(), role=role, page_keys=at_most):
            rows = zip(page.keys, page.version_ids, page.markers, page.modified, strict=True)
            versions += [Version(number, marker, datetime.fromisoformat(at)) for found, number, marker, at in rows if found == full]
            # A server may return fewer than requested.
            if len(versions) >= at_most or page.last != full:
                break
        return versions[:at_most]

    def delete(self, objects: Sequence[tuple[str, str | None]]) -> list[DeleteResult]:
        """Delete keys, permanently if a version id is given, otherwise the current object.

        Results are in the order of the keys. If a whole request is forbidden, each of its keys gets
        that result.

        Raises:
            OSError: If a request failed otherwise. Other requests may have been executed.
        """
        answers = dict[tuple[str, str | None], DeleteResult]()
        single, batched = list[tuple[str, str | None]](), list[tuple[str, str | None]]()
        for item in objects:
            (single if _UNSAFE_IN_XML.search(f"{self.prefix}{item[0]}") else batched).append(item)
        requests = [batched[start : start + KEYS_PER_DELETE] for start in range(0, len(batched), KEYS_PER_DELETE)]
        for keys, results in zip(requests, map_concurrently(requests, self._delete_many), strict=True):
            answers |= zip(keys, results, strict=True)
        answers |= zip(single, map_concurrently(single, self._delete_one), strict=True)
        return [answers[item] for item in objects]

    def _delete_one(self, item: tuple[str, str | None]) -> DeleteResult:
        key, version_id = item
        client = self.client("change") if version_id is not None else self.get_single_attempt_client()
        try:
            with translate_errors(self.address(key)):
                answer = client.delete_object(**self.target(key, version_id))
        except PermissionError as error:
            return _to_forbidden(error)
        return DeleteResult(None, answer.get("VersionId") if answer.get("DeleteMarker") else None)

    def _delete_many(self, objects: Sequence[tuple[str, str | None]]) -> list[DeleteResult]:
        items = [{"Key": f"{self.prefix}{key}"} | ({"VersionId": version} if version else {}) for key, version in objects]
        # Deleting a version can be repeated safely.
        client = self.client("change") if all(version is not None for _, version in objects) else self.get_single_attempt_client()
        try:
            with translate_errors(f"s3://{self.name}/{self.prefix}"):
                answer = client.delete_objects(Bucket=self.name, Delete={"Objects": items}, **payer_params(self.settings))
        except PermissionError as error:
            return [_to_forbidden(error)] * len(items)
        # The answer for a version contains its id. The answer for a key may or may not contain one.
        deleted_items = {
            _key_and_version(item, version_field): item for item in answer.get("Deleted", []) for version_field in ("VersionId", None)
        }
        failed_items = {
            _key_and_version(item, version_field): item for item in answer.get("Errors", []) for version_field in ("VersionId", None)
        }
        answers: list[DeleteResult] = []
        for item in items:
            name = _key_and_version(item, "VersionId")
            error, deleted = failed_items.get(name), deleted_items.get(name)
            if error is not None:
                answers.append(DeleteResult(f"{error.get('Code', '')}: {error.get('Message', '')}"))
            elif deleted is None:
                answers.append(DeleteResult("the answer of the server does not contain this key; apply again"))
            else:
                answers.append(DeleteResult(None, deleted.get("DeleteMarkerVersionId") if deleted.get("DeleteMarker") else None))
        return answers

    def remove(self, key: str, etag: str | None = None) -> dict[str, Any]:
        """Delete the current object in one attempt and return the answer.

        `etag` is the server's own etag. Servers that support it delete only an object with this
        etag.
        """
        condition = {"IfMatch": f'"{etag}"'} if etag is not None else {}
        with translate_errors(self.address(key)):
            return self.get_single_attempt_client().delete_object(**self.target(key), **condition)

    def now(self) -> datetime:
        """Return the server's time in whole seconds.

        Raises `StoreError` if the server does not send it.
        """
        with translate_errors(f"s3://{self.name}"):
            answer = self.client("read").head_bucket(Bucket=self.name)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if not date:
            raise StoreError(f"s3://{self.name}: the answers of the server have no Date header, which the grace period requires")
        return parsedate_to_datetime(date)


def _to_forbidden(error: PermissionError) -> DeleteResult:
    return DeleteResult(f"AccessDenied: {error.strerror}")


def _key_and_version(item: Mapping[str, Any], version_field: str | None) -> tuple[str, str | None]:
    return item["Key"], (item.get(version_field) or None) if version_field is not None else None
