"""The implementation of `ConditionalBucket` for Google Cloud Storage.

The token of an object is `<generation>.<metageneration>`. Every write to a key creates a new
generation (version number), so a condition on the generation never matches another object. Google
does not use delete markers. In a bucket with versions, deleted objects only become noncurrent and
are no longer listed.

Source: Cloud Storage documentation, "Request preconditions" and "Object Versioning".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from google.cloud.exceptions import NotFound

from gc_assets.buckets.identity import build_identity
from gc_assets.buckets.protocol import COPY_ENTRIES, Change, Deletion, ObjectInfo, Page, Role, Version, Versioning
from gc_assets.buckets.requests import map_concurrently
from gc_assets.buckets.storage import BucketStorage
from gc_assets.config.gcs import GcsConfig
from gc_assets.core.errors import StoreError
from gc_assets.gcs import pages
from gc_assets.gcs.client import ATTEMPTS, TIMEOUT, call, change, get_bucket, get_session

_CONTENT_TYPE: Final = "application/octet-stream"
# A copy with an additional metadata entry does not inherit these attributes from its source, so
# they are set explicitly.
_PRESERVED: Final = (
    "cache_control",
    "content_disposition",
    "content_encoding",
    "content_language",
    "content_type",
    "custom_time",
    "storage_class",
)
_BLOCK_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class GcsBucket(BucketStorage[GcsConfig]):
    """A bucket on Google Cloud Storage, or a prefix in it."""

    @property
    def compares_in_batches(self) -> bool:
        return True

    @property
    def unknown_token(self) -> str:
        return "1.1"

    @property
    def has_delete_markers(self) -> bool:
        return False

    @property
    def null_version(self) -> None:
        return None

    # Reads.

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> ObjectInfo | None:
        """Look up the live object at a key, or a particular generation."""
        blob = self._blob(key, role, version_id)
        try:
            call(self.address(key), lambda: blob.reload(retry=None))
        except FileNotFoundError:
            return None
        return _describe(blob)

    def read(self, key: str, role: Role = "change", version_id: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Read one generation of an object completely."""

        def request() -> tuple[bytes, ObjectInfo]:
            blob = self._blob(key, role, version_id)
            blob.reload(retry=None)
            self.require_readable(key, blob.size or 0)
            # The media link in the description may lead to another host, so a new blob is used.
            media = self._blob(key, role, str(blob.generation))
            try:
                return media.download_as_bytes(raw_download=True, retry=None), _describe(blob)
            except NotFound:
                if version_id is not None:
                    raise
                # The object existed a moment ago, so a writer has replaced it since.
                found = f"generation {blob.generation} was replaced while it was read; try again"
                raise OSError(errno.EAGAIN, found, self.address(key)) from None

        content, info = call(self.address(key), request)
        if len(content) != info.size_bytes:
            raise OSError(errno.EIO, f"the answer has {len(content):,} bytes, expected {info.size_bytes:,}", self.address(key))
        return content, info

    def list_pages(
        self, prefix: str = "", after: bytes = b"", *, delimiter: str = "", role: Role = "read", versions: bool = False
    ) -> Iterator[Page]:
        """List keys page by page. If `versions` is set, each row has its generation."""
        whole_after = self.prefix.encode() + after if after else b""
        for page in pages.list_objects(self.settings, self.name, self.prefix + prefix, after=whole_after, delimiter=delimiter, role=role):
            if versions:
                rows = len(page.keys)
                generations = [token.partition(".")[0] for token in page.etags]
                yield replace(page, version_ids=generations, latest=[True] * rows, markers=[False] * rows)
            else:
                yield page

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        """List the newest generations of a key."""
        found = pages.list_generations(self.settings, self.name, f"{self.prefix}{key}", role)
        return [Version(number, is_marker=False, modified=at) for number, at in found[::-1]][:at_most]

    def versioning(self, role: Role) -> Versioning:
        return Versioning("Enabled" if self.resource(role).versioning_enabled else None)

    def resource(self, role: Role) -> Any:
        """Read the settings of the bucket."""
        bucket = get_bucket(self.settings, role, self.name)
        call(f"gs://{self.name}", lambda: bucket.reload(retry=None))
        return bucket

    def read_blocks(self, key: str, role: Role = "read") -> Iterator[bytes]:
        """Read the current generation block by block."""
        found = self.head(key, role)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.address(key))
        for start in range(0, found.size_bytes, _BLOCK_BYTES):
            end = min(start + _BLOCK_BYTES, found.size_bytes) - 1
            blob = self._blob(key, role, found.version_id)
            yield call(
                self.address(key),
                lambda start=start, end=end, blob=blob: blob.download_as_bytes(
                    start=start, end=end, raw_download=True, checksum=None, retry=None
                ),
            )

    def reach(self, attempts: int) -> datetime | None:
        """Check that the storage can be listed, and return the time in the response."""
        session, base = get_session(self.settings, "read")
        project = {"userProject": self.settings.user_project} if self.settings.user_project is not None else {}
        params = {"prefix": self.prefix, "maxResults": 1, "fields": "items(name),nextPageToken", **project}

        def request() -> str | None:
            answer = session.get(f"{base}/storage/v1/b/{self.name}/o", params=params, timeout=TIMEOUT)
            pages.require_success(answer)
            return answer.headers.get("Date")

        date = call(self.location, request, attempts)
        return parsedate_to_datetime(date) if date else None

    def now(self) -> datetime:
        """Return the current time of the server, in whole seconds."""
        return self.require_time(self.reach(ATTEMPTS))

    # Changes.

    def put(self, key: str, content: bytes) -> Change:
        return self._upload(key, content, {}, is_repeatable=True)

    def put_if_absent(self, key: str, content: bytes) -> Change:
        return self._upload(key, content, {"if_generation_match": 0}, is_repeatable=True)

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        """Replace an object if it has the given token.

        If the response to a successful write is lost, the retry no longer meets the condition, and
        the verdict is `changed`.
        """
        found = self._upload(key, content, _conditions(token), is_repeatable=True)
        if found.verdict != "changed":
            return found
        try:
            current = self.head(key)
        except OSError:  # the condition was false anyway
            return found
        # The condition is also false if there is no object.
        missing = FileNotFoundError(errno.ENOENT, "the object does not exist", self.address(key))
        return found if current is not None else Change("absent", missing)

    def copy_if_match(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy an object to the trash. If the object must not be deleted, the verdict is `denied`."""
        refusal = self._refuse_kept(source, key)
        return refusal if refusal is not None else self._copy(source, key, to, entry, {})

    def copy_if_absent(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        return self._copy(source, key, to, entry, {"if_generation_match": 0})

    def delete_if_match(self, key: str, token: str | None) -> Change:
        conditions = _conditions(token) if token is not None else {}
        return change(self.address(key), lambda: self._blob(key, "change").delete(retry=None, **conditions), is_repeatable=False)

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        """Delete objects with one request for each. A batch would only save connections."""
        return map_concurrently(objects, self._delete_one)

    def _delete_one(self, item: Deletion) -> Change:
        if item.version_id is None:
            return self.delete_if_match(item.key, item.token)
        conditions = _conditions(item.token) if item.token is not None else {}

        def request() -> None:
            self._blob(item.key, "change", item.version_id).delete(retry=None, **conditions)

        return change(self.address(item.key), request, is_repeatable=True, is_final=True)

    def _upload(self, key: str, content: bytes, conditions: dict[str, int], *, is_repeatable: bool) -> Change:
        tokens = list[str]()

        def request() -> None:
            blob = self._blob(key, "change")
            blob.upload_from_string(content, content_type=_CONTENT_TYPE, retry=None, **conditions)
            tokens.append(f"{blob.generation}.{blob.metageneration}")

        found = change(self.address(key), request, is_repeatable=is_repeatable)
        return replace(found, token=tokens[-1]) if found.is_done else found

    def _copy(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str], conditions: dict[str, int]) -> Change:
        """Copy an object within the bucket.

        A large object is copied in several steps, each of which has all conditions.
        """
        original = source.answer
        is_current = original.time_deleted is None
        blob = self._blob(key, "change", None if is_current else source.version_id)
        copy = get_bucket(self.settings, "change", self.name).blob(f"{self.prefix}{to}", kms_key_name=_key_name(original))
        for attribute in _PRESERVED:
            if getattr(original, attribute) is not None:
                setattr(copy, attribute, getattr(original, attribute))
        kept = {name: value for name, value in (original.metadata or {}).items() if name.lower() not in COPY_ENTRIES}
        copy.metadata = {**kept, entry[0]: entry[1]}

        def request() -> None:
            token = None
            while True:
                token, _, _ = copy.rewrite(
                    blob,
                    token=token,
                    if_source_generation_match=original.generation,
                    if_source_metageneration_match=original.metageneration,
                    retry=None,
                    **conditions,
                )
                if token is None:
                    return

        return change(self.address(to), request, is_repeatable=True)

    def _refuse_kept(self, source: ObjectInfo, key: str) -> Change | None:
        """Deny a change if a hold or a retention period prevents the deletion of the object."""
        blob = source.answer
        until = max(filter(None, (blob.retention_expiration_time, blob.retention.retain_until_time)), default=None)
        if blob.temporary_hold or blob.event_based_hold:
            kind = "a temporary hold" if blob.temporary_hold else "an event-based hold"
            found = f"{kind} protects the object; release the hold, then run gc-assets retry"
        elif until is not None and until > datetime.now(UTC):
            found = f"a retention period protects the object until {until.isoformat()}; later plans leave it out"
        else:
            return None
        return Change("denied", PermissionError(errno.EACCES, found, self.address(key)))

    def _blob(self, key: str, role: Role, version_id: str | None = None) -> Any:
        generation = int(version_id) if version_id is not None else None
        return get_bucket(self.settings, role, self.name).blob(f"{self.prefix}{key}", generation=generation)


def _describe(blob: Any) -> ObjectInfo:
    token, size, updated = f"{blob.generation}.{blob.metageneration}", int(blob.size or 0), blob.updated
    if updated is None:
        raise StoreError(f"gs://{blob.bucket.name}/{blob.name}: the server did not send the time of the object")
    metadata = {name.lower(): str(value) for name, value in (blob.metadata or {}).items()}
    return ObjectInfo(build_identity(token, size, updated), size, updated, str(blob.generation), metadata, answer=blob)


def _conditions(token: str) -> dict[str, int]:
    generation, _, metageneration = token.partition(".")
    return {"if_generation_match": int(generation), "if_metageneration_match": int(metageneration)}


def _key_name(blob: Any) -> str | None:
    """Return the name of the customer's encryption key, without its version."""
    return blob.kms_key_name.partition("/cryptoKeyVersions/")[0] if blob.kms_key_name else None
