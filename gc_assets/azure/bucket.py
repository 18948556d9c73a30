"""The implementation of `ConditionalBucket` for Azure Blob Storage.

The token of a blob is its etag. In the names of metadata entries that gc-assets adds, `-` is
replaced by `_`, because Azure does not allow hyphens.

Sources: Azure REST API reference, Blob service (conditional headers, Copy Blob, Delete Blob, Blob
Batch, List Blobs, error codes).
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError
from azure.storage.blob import BlobClient, BlobType, ContainerClient

from gc_assets.azure.batches import BatchPart, parse_parts
from gc_assets.azure.client import (
    ATTEMPTS,
    NOT_FOUND,
    PRECONDITION,
    SLOW_STATUS,
    UNSUPPORTED,
    check_for_slow_down,
    error_code,
    get_container,
    is_denied,
    to_os_error,
    translate_errors,
    was_sent,
)
from gc_assets.azure.pages import PAGE_KEYS, ListedPage, list_pages
from gc_assets.buckets.identity import build_identity, token_of
from gc_assets.buckets.protocol import COPY_ENTRIES, Change, Deletion, ObjectInfo, Page, Role, Version, Versioning
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.buckets.storage import BucketStorage
from gc_assets.config.azure import AzureConfig
from gc_assets.core.errors import is_permanent
from gc_assets.core.paths import AZURE
from gc_assets.core.urls import is_addressable

# A batch contains at most this many requests (REST API reference, Blob Batch).
_KEYS_PER_BATCH: Final = 256
# Largest number of path segments in a blob name (Naming and referencing containers and blobs).
_MAX_SEGMENTS: Final = 254
# A copy within an account is normally complete when its request ends. If it is not, this is the
# time to wait for it.
_COPY_SECONDS: Final = 900.0
_OK, _MISSING, _FALSE, _SERVER_ERROR = 300, 404, 412, 500
_NO_VERSION: Final = "null"
# Azure responds with this error code if a delete specifies the id of the current version.
CURRENT_VERSION: Final = "OperationNotAllowedOnRootBlob"
# Prefixes in the reserved directory, which listings of a storage omit
# (`stores.protocol.RESERVED_PREFIX`). Leases are written by `stores/conditional/lease.py`.
_CANARY: Final = ".gc-assets/canary-"
_LEASES: Final = ".gc-assets/lease/"
_SUCCESS: Final = (None, "success")


@dataclass(frozen=True, slots=True)
class AzureBucket(BucketStorage[AzureConfig]):
    """A container on Azure, or a prefix in it."""

    @property
    def compares_in_batches(self) -> bool:
        return True

    @property
    def max_key_segments(self) -> int:
        return _MAX_SEGMENTS

    @property
    def unknown_token(self) -> str:
        return "0x8D0000000000000"

    @property
    def has_delete_markers(self) -> bool:
        return False

    @property
    def null_version(self) -> str:
        return _NO_VERSION

    def container(self, role: Role, attempts: int = ATTEMPTS) -> ContainerClient:
        return get_container(self.settings, self.name, role, attempts)

    # Reads.

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> ObjectInfo | None:
        """Look up a blob. Returns None if it is missing.

        Raises:
            PermissionError: If the changing role is used and the blob is not a block blob. Only
                block blobs can be changed.
        """
        try:
            with translate_errors(self.address(key)):
                found = self._blob(key, role).get_blob_properties(**_version(version_id))
        except FileNotFoundError:
            return None
        if role == "change" and found.blob_type != BlobType.BLOCKBLOB:
            text = f"the key has a blob of type {_text(found.blob_type)}; only block blobs are changed"
            raise PermissionError(errno.EACCES, text, self.address(key))
        return _to_info(found)

    def read(self, key: str, role: Role = "change", version_id: str | None = None) -> tuple[bytes, ObjectInfo]:
        with translate_errors(self.address(key)):
            download = self._blob(key, role).download_blob(**_version(version_id), decompress=False)
            size = download.size
            self.require_readable(key, size)
            content = download.readall()
        if len(content) != size:
            raise OSError(errno.EIO, f"the answer ends after {len(content):,} of {size:,} bytes", self.address(key))
        return content, _to_info(download.properties)

    def read_blocks(self, key: str, role: Role = "read") -> Iterator[bytes]:
        with translate_errors(self.address(key)):
            yield from self._blob(key, role).download_blob(decompress=False).chunks()

    def list_pages(
        self, prefix: str = "", after: bytes = b"", *, delimiter: str = "", role: Role = "read", versions: bool = False
    ) -> Iterator[Page]:
        """List keys page by page.

        Since Azure only continues listings at its own markers, keys up to `after` are requested and
        then skipped. Parallel listings use `stores/azure/listing.py` instead.
        """
        start = self.prefix.encode() + after if after else b""
        for listed in self.list_from(prefix, delimiter=delimiter, role=role, versions=versions):
            yield listed.select_after(start)

    def list_from(
        self,
        prefix: str,
        *,
        delimiter: str = "",
        role: Role = "read",
        versions: bool = False,
        marker: str | None = None,
        page_keys: int = PAGE_KEYS,
    ) -> Iterator[ListedPage]:
        """List keys like `pages.list_pages`, but with a prefix that is relative to the storage."""
        location, full_prefix = f"{AZURE}://{self.name}/", f"{self.prefix}{prefix}"
        options: dict[str, Any] = {"delimiter": delimiter, "versions": versions, "marker": marker, "page_keys": page_keys}
        return list_pages(self.container(role), location, full_prefix, **options)

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        """List the newest versions of a key.

        Without versioning, the current blob has the id `null`.
        """
        full, found = f"{self.prefix}{key}", list[Version]()
        with translate_errors(self.address(key)):
            for blob in self.container(role).list_blobs(name_starts_with=full, include=["versions"], results_per_page=at_most):
                if blob.name != full:
                    break
                found.append(Version(blob.version_id or _NO_VERSION, False, blob.last_modified))
        return sorted(found, key=lambda version: (version.modified, version.version_id), reverse=True)[:at_most]

    def versioning(self, role: Role) -> Versioning:
        """Find out whether the account keeps versions. Only the management API has the setting.

        With the changing role, a canary blob is written, and the response shows whether it has a
        version. With the reading role, the result is derived from a sample of blobs, including
        gc-assets' leases. Since blobs may be older than the account's versioning, the newest blob
        decides. If it has no version but older blobs do, versioning has been disabled since.
        """
        if role == "change":
            return Versioning("Enabled" if self._writes_versions() else None)
        sample = [blob for prefix in ("", _LEASES) for blob in self._list_sample(prefix)]
        newest = max(sample, key=lambda blob: blob.last_modified, default=None)
        if newest is None or not any(blob.version_id for blob in sample):
            return Versioning(None)
        return Versioning("Enabled" if newest.version_id else "Suspended")

    def _list_sample(self, prefix: str) -> list[Any]:
        """List the first page of blobs under a prefix, with their versions."""
        with translate_errors(self.location):
            listed = self.container("read").list_blobs(name_starts_with=f"{self.prefix}{prefix}", include=["versions"])
            return list(next(listed.by_page(), ()))

    def _writes_versions(self) -> bool:
        """Return True if a canary blob gets a version when it is written.

        The canary is removed again.
        """
        key = f"{_CANARY}{secrets.token_hex(8)}"
        created = self.put_if_absent(key, b"")
        if created.verdict == "changed":  # the canary is ours, but a response was lost
            found = self.head(key)
            created = Change("done", version_id=found and found.version_id, token=found and token_of(found.identity))
        version_id = created.require().version_id
        for attempt in range(ATTEMPTS):
            removed = self.delete_if_match(key, created.token)
            if removed.verdict in {"done", "absent"}:
                break
            if removed.verdict != "unknown" or attempt + 1 == ATTEMPTS:
                removed.require()
            pause_before_retry(attempt)
        if version_id is not None:
            with suppress(AzureError):  # a locked version does no harm, because it is empty
                self._blob(key, "change").delete_blob(version_id=version_id)
        return version_id is not None

    def reach(self, attempts: int) -> datetime | None:
        """Check that the storage can be listed.

        Returns the server's time if the response contains it.
        """
        dates = list[str]()

        def remember(response: Any) -> None:
            check_for_slow_down(self.settings, response)
            dates.append(response.http_response.headers.get("date") or "")

        with translate_errors(self.location):
            pages = self.container("read", attempts).list_blobs(
                name_starts_with=self.prefix, results_per_page=1, raw_response_hook=remember
            )
            next(iter(pages), None)
        return parsedate_to_datetime(dates[-1]).astimezone(UTC) if dates and dates[-1] else None

    def now(self) -> datetime:
        return self.require_time(self.reach(ATTEMPTS))

    # Changes.

    def put(self, key: str, content: bytes) -> Change:
        return self._change(key, lambda blob: blob.upload_blob(content, overwrite=True, validate_content=True))

    def put_if_absent(self, key: str, content: bytes) -> Change:
        return self._change(key, lambda blob: blob.upload_blob(content, overwrite=False, validate_content=True))

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        return self._change(key, lambda blob: blob.upload_blob(content, overwrite=True, validate_content=True, **_if_match(token)))

    def copy_if_match(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy a blob to the trash.

        The copy is refused if the blob could not be deleted afterwards.
        """
        obstacle = find_obstacle(source)
        if obstacle is not None:
            return Change("denied", PermissionError(errno.EACCES, obstacle, self.address(key)))
        return self._copy(source, key, to, entry, {})

    def copy_if_absent(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        return self._copy(source, key, to, entry, {"match_condition": MatchConditions.IfMissing})

    def delete_if_match(self, key: str, token: str | None) -> Change:
        """Delete the current blob. A conditional delete is retried if it was not executed."""
        condition = _if_match(token) if token is not None else {}
        for attempt in range(ATTEMPTS):
            change = self._change(key, lambda blob: blob.delete_blob(**condition), attempts=1)
            if token is None or not _is_busy(change) or attempt + 1 == ATTEMPTS:
                return change
            pause_before_retry(attempt)
        raise AssertionError("a loop of attempts ends by returning")

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        """Delete blobs in batches. Conditional deletes are retried if they were not executed."""
        changes, pending = dict[int, Change](), list(range(len(objects)))

        def delete_part(numbers: Sequence[int]) -> list[Change]:
            return self._delete_many([objects[number] for number in numbers])

        for attempt in range(ATTEMPTS):
            requests = [pending[start : start + _KEYS_PER_BATCH] for start in range(0, len(pending), _KEYS_PER_BATCH)]
            for numbers, found in zip(requests, map_concurrently(requests, delete_part), strict=True):
                changes |= zip(numbers, found, strict=True)
            pending = [number for number in pending if _is_busy(changes[number]) and _is_conditional(objects[number])]
            if not pending or attempt + 1 == ATTEMPTS:
                break
            pause_before_retry(attempt)
        return [changes[number] for number in range(len(objects))]

    def _delete_many(self, objects: Sequence[Deletion]) -> list[Change]:
        """Delete up to 256 blobs with one request. Returns one result for each blob."""
        changes = dict[int, Change]()
        rows = list[tuple[int, dict[str, Any]]]()
        for number, item in enumerate(objects):
            try:
                self._require_addressable(item.key)
            except OSError as error:
                changes[number] = Change("denied", error)
            else:
                version = _version(None if item.version_id == _NO_VERSION else item.version_id)
                condition = _if_match(item.token) if item.token is not None else {}
                rows.append((number, {"name": f"{self.prefix}{item.key}", **version, **condition}))
        if rows:
            found = self._send_batch([row for _, row in rows], objects[rows[0][0]].key)
            for place, (number, _) in enumerate(rows):
                item, answer = objects[number], found if isinstance(found, Change) else found.get(place)
                if answer is None:
                    text = "the answer to a batch of deletes has no part for this blob; apply again"
                    changes[number] = Change("unknown", OSError(errno.EIO, text, self.address(item.key)))
                elif isinstance(answer, Change):
                    changes[number] = answer
                elif answer.headers.get("x-ms-error-code") == CURRENT_VERSION:
                    changes[number] = self._delete_current_version(item)
                else:
                    changes[number] = self._to_result(answer, item.key)
        return [changes[number] for number in range(len(objects))]

    def _send_batch(self, rows: Sequence[dict[str, Any]], key: str) -> dict[int, BatchPart] | Change:
        """Send a batch of deletes.

        Returns:
            The responses, keyed by position in the batch, or the error of the whole request.
        """
        answers = list[tuple[str, bytes]]()

        def remember(response: Any) -> None:
            check_for_slow_down(self.settings, response)
            answers.append((response.http_response.content_type or "", response.http_response.body()))

        try:
            # The library matches parts by position, so they are parsed here and matched by id.
            self.container("change", 1).delete_blobs(*rows, raise_on_any_failure=False, raw_response_hook=remember)
        except AzureError as error:
            return self._to_change(error, key, reads=False)
        except ValueError as error:
            return Change("unknown", OSError(errno.EIO, f"the answer to a batch of deletes cannot be read: {error}", self.address(key)))
        return parse_parts(*answers[-1])

    def _delete_current_version(self, item: Deletion) -> Change:
        """Delete the current version of a blob permanently.

        Azure does not allow this directly. First, the blob is deleted, unless its etag has changed.
        Then, the version that remains is deleted.
        """
        try:
            current = self.head(item.key)
        except OSError as error:
            return Change("denied" if is_permanent(error) else "failed", error)
        if current is not None and current.version_id == item.version_id:
            deleted = self.delete_if_match(item.key, token_of(current.identity))
            if not deleted.is_done:
                return deleted
        return self._change(item.key, lambda blob: blob.delete_blob(version_id=item.version_id), attempts=1)

    def _to_result(self, answer: BatchPart, key: str) -> Change:
        """Convert one response of a batch to the result of its delete."""
        if answer.status_code < _OK:
            return Change("done")
        error = HttpResponseError(message=answer.reason, response=answer)  # pyright: ignore[reportArgumentType]
        error.error_code = answer.headers.get("x-ms-error-code")  # pyright: ignore[reportAttributeAccessIssue]
        return self._to_change(error, key)

    def _change(self, key: str, request: Callable[[BlobClient], Any], attempts: int = ATTEMPTS) -> Change:
        try:
            answer = request(self._blob(key, "change", attempts))
        except AzureError as error:
            return self._to_change(error, key)
        except OSError as error:  # URLs cannot contain this key
            return Change("denied", error)
        written: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
        etag = written.get("etag")
        return Change("done", version_id=written.get("version_id"), token=None if etag is None else str(etag).strip('"'))

    def _to_change(self, error: AzureError, key: str, *, reads: bool = True) -> Change:
        """Convert the error of a request that changes a blob.

        If a request has an If-Match header, the server also responds with 412 if the blob does not
        exist. Unless `reads` is False, the blob is requested again to distinguish the two cases.
        """
        code, status = error_code(error), getattr(error, "status_code", None)
        found = to_os_error(error, self.address(key))
        if code in NOT_FOUND or code == str(_MISSING):
            return Change("absent", found)
        if code in PRECONDITION or code == str(_FALSE):
            if reads and self._is_absent(key):
                return Change("absent", FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.address(key)))
            return Change("changed", found)
        if is_denied(error):
            return Change("denied", found)
        if code in UNSUPPORTED or code == "501":
            return Change("unsupported", found)
        if status in SLOW_STATUS or not was_sent(error):
            return Change("failed", OSError(errno.EAGAIN, found.strerror, found.filename))
        if status is not None and status < _SERVER_ERROR:
            return Change("failed", found)
        return Change("unknown", found)

    def _is_absent(self, key: str) -> bool:
        try:
            return self.head(key) is None
        except OSError:
            return False

    def _copy(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str], condition: dict[str, Any]) -> Change:
        """Copy a blob with its properties, tags and tier, and wait until the copy is complete.

        This also handles a copy started by an earlier attempt.
        """
        metadata = {name: value for name, value in source.answer.metadata.items() if _to_entry(name) not in COPY_ENTRIES}
        options: dict[str, Any] = {"metadata": {**metadata, entry[0].replace("-", "_"): entry[1]}, **condition}
        options |= (
            {"standard_blob_tier": source.answer.blob_tier} if source.answer.blob_tier and not source.answer.blob_tier_inferred else {}
        )
        try:
            from_blob = self._blob(key, "change")
            if source.answer.tag_count:
                options["tags"] = from_blob.get_blob_tags(**_version(source.version_id))
            version = f"{'&' if '?' in from_blob.url else '?'}versionid={source.version_id}" if source.version_id else ""
            copied = self._start_and_await(source, f"{from_blob.url}{version}", to, options)
            earlier = self._finish_earlier_copy(to, entry) if copied.verdict in {"changed", "failed"} else None
            if earlier is not None and earlier.verdict == "absent":
                return self._start_and_await(source, f"{from_blob.url}{version}", to, options)
        except AzureError as error:
            return self._to_change(error, key, reads=False)
        except OSError as error:
            return Change("denied" if is_permanent(error) else "failed", error)
        return copied if earlier is None else earlier

    def _start_and_await(self, source: ObjectInfo, url: str, to: str, options: dict[str, Any]) -> Change:
        source_etag = f'"{token_of(source.identity)}"'
        conditions = {"source_etag": source_etag, "source_match_condition": MatchConditions.IfNotModified}
        try:
            answer = self._blob(to, "change").start_copy_from_url(url, **conditions, **options)
        except AzureError as error:
            return self._to_change(error, to, reads=False)
        version_id = answer.get("version_id")
        done = Change("done", version_id=None if version_id is None else str(version_id))
        if _text(answer.get("copy_status")) in _SUCCESS:
            return done
        return self._await_copy(to, answer.get("copy_id")) or done

    def _await_copy(self, to: str, copy_id: Any) -> Change | None:
        """Wait until the server has finished a copy.

        Returns:
            None if the copy is complete, otherwise the reason why it is not.
        """
        blob, deadline, pause = self._blob(to, "change"), time.monotonic() + _COPY_SECONDS, 0.1
        while True:
            copy = blob.get_blob_properties().copy
            status = _text(copy.status)
            if copy_id is not None and copy.id is not None and copy.id != copy_id:
                text = f"another copy to {to!r} was started at the same time; apply again"
                return Change("failed", OSError(errno.EIO, text, self.address(to)))
            if status in _SUCCESS:
                return None
            if status != "pending":
                text = f"the server did not finish a copy to {to!r}: {status} {copy.status_description or ''}"
                return Change("failed", OSError(errno.EIO, text, self.address(to)))
            if time.monotonic() > deadline:
                text = f"the server has not finished a copy to {to!r} after {_COPY_SECONDS:,.0f} s; apply again"
                return Change("unknown", OSError(errno.ETIMEDOUT, text, self.address(to)))
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _finish_earlier_copy(self, to: str, entry: tuple[str, str]) -> Change | None:
        """Wait for a copy started by an earlier attempt, or remove what it has left behind.

        An aborted copy leaves an empty blob behind, which is deleted.

        Returns:
            The result of the copy, or `absent` if the blob is gone. None if the blob at the key is
            not an earlier copy.
        """
        found = self.head(to)
        if found is not None and _is_unfinished(found, entry) and _text(found.answer.copy.status) == "pending":
            waited = self._await_copy(to, found.answer.copy.id)
            if waited is None or waited.verdict == "unknown":
                return waited or Change("done")
            found = self.head(to)
        if found is None:
            return Change("absent", FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.address(to)))
        if not _is_unfinished(found, entry) or found.size_bytes or _text(found.answer.copy.status) == "pending":
            return None
        removed = self.delete_if_match(to, token_of(found.identity))
        return Change("absent", OSError(errno.EIO, "the server aborted a copy", self.address(to))) if removed.is_done else removed

    def _blob(self, key: str, role: Role, attempts: int = ATTEMPTS) -> BlobClient:
        self._require_addressable(key)
        return self.container(role, attempts).get_blob_client(f"{self.prefix}{key}")

    def _require_addressable(self, key: str) -> None:
        """Check that a URL can contain the blob's name.

        Otherwise a request could affect another blob.

        Raises:
            OSError: If the name has a component `.` or `..`.
        """
        if not is_addressable(f"{self.prefix}{key}"):
            text = "the name has a component `.` or `..`, which URLs cannot contain; rename the blob with another tool"
            raise OSError(errno.EINVAL, text, self.address(key))


def _is_busy(change: Change) -> bool:
    """Return True if the server was too busy to execute a change, so that a retry may help."""
    return change.verdict == "failed" and change.error is not None and change.error.errno == errno.EAGAIN


def _is_conditional(item: Deletion) -> bool:
    """Return True if a delete can be retried, because it cannot affect a blob written since then."""
    return item.token is not None or (item.version_id is not None and item.version_id != _NO_VERSION)


def _version(version_id: str | None) -> dict[str, Any]:
    return {"version_id": version_id} if version_id is not None and version_id != _NO_VERSION else {}


def _if_match(token: str) -> dict[str, Any]:
    return {"etag": f'"{token}"', "match_condition": MatchConditions.IfNotModified}


def _text(value: Any) -> Any:
    return getattr(value, "value", value)


def _to_entry(name: str) -> str:
    """Convert a metadata entry's name on Azure to the name used by other stores."""
    entry = name.lower().replace("_", "-")
    return entry if entry in COPY_ENTRIES else name.lower()


def _to_info(found: Any) -> ObjectInfo:
    """Convert the properties of a blob.

    If the blob is an incomplete copy, the metadata entries that gc-assets has added become
    `unfinished`.
    """
    is_complete = _text(found.copy.status) in _SUCCESS
    entries = {_to_entry(name): value for name, value in (found.metadata or {}).items()}
    own = {} if is_complete else {name: value for name, value in entries.items() if name in COPY_ENTRIES}
    metadata = {name: value for name, value in entries.items() if name not in own}
    identity = build_identity(found.etag, found.size, found.last_modified)
    return ObjectInfo(identity, found.size, found.last_modified, found.version_id, metadata, own, answer=found)


def _is_unfinished(found: ObjectInfo, entry: tuple[str, str]) -> bool:
    return found.unfinished.get(entry[0]) == entry[1]


def find_obstacle(info: ObjectInfo) -> str | None:
    """Find a reason why a blob cannot be deleted now, or could not be copied back."""
    found = info.answer
    if _text(found.lease.state) in {"leased", "breaking"}:
        return "another client has a lease on the blob; break it, or plan again when it has ended"
    if found.has_legal_hold:
        return "a legal hold protects the blob; plan again when it is removed"
    until = getattr(found.immutability_policy, "expiry_time", None)
    if until is not None and until > datetime.now(UTC):
        return f"an immutability policy protects the blob until {until.isoformat()}; plan again then"
    if _text(found.blob_tier) == "Archive":
        return "the blob is in the archive tier; move it to another tier, or use `quarantine: deferred`"
    return None
