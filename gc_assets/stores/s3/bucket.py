"""The place of a storage on S3: its bucket, the prefix below which its keys lie, and who asks.

Requests about single objects and their versions, as the quarantines and the lease make them. A
missing object is null here and no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self, TypeVar

from botocore.exceptions import ClientError

from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.core.paths import Location, bucket_and_key
from gc_assets.s3 import pages
from gc_assets.s3.client import DENIED, NOT_FOUND, Role, error_code, get_client, payer_params, translate_errors
from gc_assets.stores.s3.objects import identity_of

# Requests about single keys that a batch makes at the same time.
MAX_CONCURRENT: Final = 16
# Keys that one request deletes. A server takes 1,000, one after the other; several smaller requests
# at the same time are done sooner.
KEYS_PER_DELETE: Final = 125
# What the XML of a request to delete many keys cannot say, or a server's answer to it.
_ALONE: Final = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")
# What a server says that knows no versions at all.
_NO_VERSIONS: Final = frozenset({"NotImplemented", "VersioningNotConfigured"})
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Head:
    """What HEAD says of an object. `answer` is all of it."""

    identity: str
    version_id: str | None
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a key, or a delete marker."""

    version_id: str
    is_marker: bool
    modified: datetime


@dataclass(frozen=True, slots=True)
class Versioning:
    """Whether a bucket keeps versions. `status` is the server's word: `Enabled`, `Suspended`, or
    null where versioning never was enabled.
    """

    status: str | None

    @property
    def is_on(self) -> bool:
        """True where a delete keeps the version that it hides."""
        return self.status == "Enabled"

    @property
    def has_versions(self) -> bool:
        """True where objects may have versions from before versioning was suspended."""
        return bool(self.status)


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """What a server says about one deleted key. `marker` is the id of the delete marker that it
    made.
    """

    error: str | None
    marker: str | None = None

    @property
    def is_denied(self) -> bool:
        """True where trying again will not help."""
        return self.error is not None and self.error.partition(":")[0] in DENIED


@dataclass(frozen=True, slots=True)
class Bucket:
    """A storage on S3. Keys are relative to its prefix. Pickles, and holds no secret."""

    name: str
    prefix: str
    settings: S3Config

    @classmethod
    def of(cls, location: str, settings: S3Config) -> Self:
        """Returns the place that a location names. Its prefix is empty or ends in `/`."""
        return cls(*bucket_and_key(str(Location.parse(location))), settings)

    @property
    def location(self) -> str:
        return self.address("")

    def client(self, role: Role) -> Any:
        return get_client(self.settings, role)

    def get_single_attempt_client(self) -> Any:
        """Returns a client for deletes of what stands at a key, whatever that is.

        Made again after a pause, such a request would meet what was written in the pause. So it is
        made again only after another look.
        """
        return get_client(self.settings, "change", attempts=1)

    def address(self, key: str) -> str:
        return f"s3://{self.name}/{self.prefix}{key}"

    def target(self, key: str, version_id: str | None = None) -> dict[str, str]:
        """Returns the parameters that name an object in a request."""
        version = {"VersionId": version_id} if version_id is not None else {}
        return {"Bucket": self.name, "Key": f"{self.prefix}{key}", **version, **payer_params(self.settings)}

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> Head | None:
        """Returns what stands at a key, or null where nothing does or where a delete marker hides
        it.
        """
        with translate_errors(self.address(key)):
            try:
                answer = self.client(role).head_object(**self.target(key, version_id))
            except ClientError as error:
                # The version that is named may be a marker itself: 405.
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
        """Returns versions and markers of one key, the newest first."""
        full, versions = f"{self.prefix}{key}".encode(), list[Version]()
        for page in pages.list_versions(self.settings, self.name, full.decode(), role=role, page_keys=at_most):
            rows = zip(page.keys, page.version_ids, page.markers, page.modified, strict=True)
            versions += [Version(number, marker, datetime.fromisoformat(at)) for found, number, marker, at in rows if found == full]
            # A server may answer with fewer than it was asked for.
            if len(versions) >= at_most or page.last != full:
                break
        return versions[:at_most]

    def delete(self, objects: Sequence[tuple[str, str | None]]) -> list[DeleteResult]:
        """Deletes keys: with a version id that version for good, without one what stands there.

        Answers are in the order of the keys. Where a request as a whole is forbidden, that is the
        answer for each of its keys. Raises `OSError` where one fails otherwise: others may have
        been carried out.
        """
        answers = dict[tuple[str, str | None], DeleteResult]()
        alone, together = list[tuple[str, str | None]](), list[tuple[str, str | None]]()
        for item in objects:
            (alone if _ALONE.search(f"{self.prefix}{item[0]}") else together).append(item)
        requests = [together[start : start + KEYS_PER_DELETE] for start in range(0, len(together), KEYS_PER_DELETE)]
        for some, deleted in zip(requests, map_concurrently(requests, self._deleted), strict=True):
            answers |= zip(some, deleted, strict=True)
        answers |= zip(alone, map_concurrently(alone, self._deleted_alone), strict=True)
        return [answers[item] for item in objects]

    def _deleted_alone(self, item: tuple[str, str | None]) -> DeleteResult:
        key, version_id = item
        client = self.client("change") if version_id is not None else self.get_single_attempt_client()
        try:
            with translate_errors(self.address(key)):
                answer = client.delete_object(**self.target(key, version_id))
        except PermissionError as error:
            return _forbidden(error)
        return DeleteResult(None, answer.get("VersionId") if answer.get("DeleteMarker") else None)

    def _deleted(self, objects: Sequence[tuple[str, str | None]]) -> list[DeleteResult]:
        named = [{"Key": f"{self.prefix}{key}"} | ({"VersionId": version} if version else {}) for key, version in objects]
        # A version is deleted as often as one likes.
        client = self.client("change") if all(version is not None for _, version in objects) else self.get_single_attempt_client()
        try:
            with translate_errors(f"s3://{self.name}/{self.prefix}"):
                answer = client.delete_objects(Bucket=self.name, Delete={"Objects": named}, **payer_params(self.settings))
        except PermissionError as error:
            return [_forbidden(error)] * len(named)
        # A version's answer names the version; that of a key without one may or may not.
        gone = {_named(item, of): item for item in answer.get("Deleted", []) for of in ("VersionId", None)}
        wrong = {_named(item, of): item for item in answer.get("Errors", []) for of in ("VersionId", None)}
        answers: list[DeleteResult] = []
        for item in named:
            name = _named(item, "VersionId")
            error, deleted = wrong.get(name), gone.get(name)
            if error is not None:
                answers.append(DeleteResult(f"{error.get('Code', '')}: {error.get('Message', '')}"))
            elif deleted is None:
                answers.append(DeleteResult("the server's answer does not name this key; apply again"))
            else:
                answers.append(DeleteResult(None, deleted.get("DeleteMarkerVersionId") if deleted.get("DeleteMarker") else None))
        return answers

    def remove(self, key: str, etag: str | None = None) -> dict[str, Any]:
        """Deletes what stands at a key, on the condition of the server's own etag where the server
        compares it. It asks once. Returns the answer.
        """
        condition = {"IfMatch": f'"{etag}"'} if etag is not None else {}
        with translate_errors(self.address(key)):
            return self.get_single_attempt_client().delete_object(**self.target(key), **condition)

    def now(self) -> datetime:
        """Returns the server's time, in whole seconds. Raises `StoreError` where the server does
        not tell it.
        """
        with translate_errors(f"s3://{self.name}"):
            answer = self.client("read").head_bucket(Bucket=self.name)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if not date:
            raise StoreError(f"s3://{self.name}: the server's answers have no Date header; without its time no grace period can be kept")
        return parsedate_to_datetime(date)


def map_concurrently(values: Iterable[_T], ask: Callable[[_T], _R]) -> list[_R]:
    """Asks about all values, some at the same time. Answers are in the order of the values."""
    values = list(values)
    if len(values) <= 1:
        return [ask(value) for value in values]
    with ThreadPoolExecutor(min(MAX_CONCURRENT, len(values))) as pool:
        return list(pool.map(ask, values))


def _forbidden(error: PermissionError) -> DeleteResult:
    return DeleteResult(f"AccessDenied: {error.strerror}")


def _named(item: Mapping[str, Any], of: str | None) -> tuple[str, str | None]:
    return item["Key"], (item.get(of) or None) if of is not None else None
