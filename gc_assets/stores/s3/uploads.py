"""Count, find and abort unfinished multipart uploads.

The parts of such an upload incur costs, but do not appear in listings of objects. They cannot be
read, so aborting the upload never loses a live file. Since only the writer of the upload may still
need it, its age counts from the writer's last action.

Sources: Amazon S3 API Reference, ListMultipartUploads, ListParts and AbortMultipartUpload.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import xxhash

from gc_assets.buckets.identity import build_identity, modified_us
from gc_assets.buckets.protocol import Role
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.core.errors import is_permanent
from gc_assets.core.phases import ABSENT, CHANGED, DONE, FAILED
from gc_assets.s3.bucket import S3Bucket
from gc_assets.s3.client import translate_errors
from gc_assets.s3.uploads import list_uploads
from gc_assets.state.summaries import UnfinishedUploads
from gc_assets.stores.conditional.batches import ATTEMPTS, run_guarded
from gc_assets.stores.protocol import RESERVED_PREFIX, OldUploads, PlannedAction, Result, Upload

# Listing the parts of an upload needs a request of its own. It is sent for at most this many
# uploads, the oldest ones of each page first.
MAX_SIZED_UPLOADS: Final = 1_000


def count_unfinished_uploads(bucket: S3Bucket, before: datetime) -> UnfinishedUploads:
    """Count unfinished uploads (see `Store.count_unfinished_uploads`).

    If a request fails, the error is returned in `UnfinishedUploads.unknown`.
    """
    uploads = old = size_bytes = sized = 0
    try:
        for page in list_uploads(bucket, ""):
            found = sorted(page, key=lambda upload: upload["Initiated"])
            uploads += len(found)
            old += sum(upload["Initiated"] < before for upload in found)
            examined = found[: MAX_SIZED_UPLOADS - sized]
            size_bytes += sum(
                upload.size_bytes for upload in map_concurrently(examined, lambda item: _examine_upload(bucket, item)) if upload is not None
            )
            sized += len(examined)
    except OSError as error:
        return UnfinishedUploads(uploads=uploads, old=old, bytes=size_bytes, sized=sized, unknown=error.strerror or str(error))
    return UnfinishedUploads(uploads=uploads, old=old, bytes=size_bytes, sized=sized)


def find_old_uploads(bucket: S3Bucket, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
    """Find abandoned uploads (see `Store.find_old_uploads`)."""
    old_count = 0

    def old() -> Iterator[dict[str, Any]]:
        nonlocal old_count
        for upload in (upload for page in list_uploads(bucket, "") for upload in page):
            key = _key(bucket, upload)
            if upload["Initiated"] < before and not _is_reserved(key) and is_included(key):
                old_count += 1
                yield upload

    oldest = heapq.nsmallest(limit, old(), key=lambda upload: (upload["Initiated"], upload["Key"], upload["UploadId"]))
    examined = map_concurrently(oldest, lambda upload: _examine_upload(bucket, upload))
    return OldUploads(tuple(item.upload for item in examined if item is not None and item.written_at < before), old_count - len(oldest))


@dataclass(frozen=True, slots=True)
class _ExaminedUpload:
    """An upload, and when its writer last did something."""

    upload: Upload
    written_at: datetime

    @property
    def size_bytes(self) -> int:
        return self.upload.size_bytes


@dataclass(frozen=True, slots=True)
class S3UploadAborter:
    """Implements `UploadAborter` for S3.

    A writer may continue its upload after the parts were last checked. The writer will notice the
    abort, because completing the upload then fails with NoSuchUpload.
    """

    bucket: S3Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Abort a batch of uploads (see `UploadAborter.act`)."""
        requested = set(resumed)
        return map_concurrently(batch, lambda planned: run_guarded(planned, lambda: self._abort_one(planned, planned in requested)))

    def _abort_one(self, planned: PlannedAction, requested: bool) -> Result:
        """Abort an upload, and verify that it no longer exists.

        The abort is repeated as long as the upload exists, because parts that arrive at the same
        time can survive it. If a response is lost, the upload is compared again before the next
        attempt, because the request may not have arrived.

        Args:
            planned: The row.
            requested: Whether an earlier run may have requested the abort.
        """
        acknowledged = False
        for attempt in range(ATTEMPTS):
            current = self._find_upload(planned)
            if current is None:
                is_ours = acknowledged or (requested and not self._may_be_completed(planned))
                return Result(DONE) if is_ours else _absent_result(planned)
            if current.upload.etag != planned.etag and not acknowledged:
                return _changed_result(planned, current)
            try:
                self._request_abort(planned)
            except FileNotFoundError:
                continue  # another process has just ended the upload, so check again
            except OSError as error:
                if is_permanent(error) or attempt + 1 == ATTEMPTS:
                    raise
                requested = True
                pause_before_retry(attempt)
            else:
                if acknowledged:
                    pause_before_retry(attempt)
                requested = acknowledged = True
        return Result(FAILED, f"abort of an upload to {planned.key!r}: the server still lists it after {ATTEMPTS} requests; apply again")

    def _find_upload(self, planned: PlannedAction) -> _ExaminedUpload | None:
        full = f"{self.bucket.prefix}{planned.key}"
        for page in list_uploads(self.bucket, planned.key, "change"):
            for upload in page:
                if (upload["Key"], upload["UploadId"]) == (full, planned.version_id):
                    return _examine_upload(self.bucket, upload, "change")
        return None

    def _may_be_completed(self, planned: PlannedAction) -> bool:
        """Return True if an upload may have been completed, because the object at its key is newer."""
        current, last_us = self.bucket.head(planned.key), modified_us(planned.etag or "")
        return current is not None and current.modified.timestamp() * 1e6 >= (last_us or 0)

    def _request_abort(self, planned: PlannedAction) -> None:
        with translate_errors(self.bucket.address(planned.key)):
            self.bucket.get_single_attempt_client().abort_multipart_upload(**self.bucket.target(planned.key), UploadId=planned.version_id)


def _examine_upload(bucket: S3Bucket, upload: dict[str, Any], role: Role = "read") -> _ExaminedUpload | None:
    """Find an upload's size and last write from its parts. Returns None if it has ended."""
    key, started = _key(bucket, upload), upload["Initiated"]
    try:
        with translate_errors(bucket.address(key)):
            pages = bucket.client(role).get_paginator("list_parts").paginate(**bucket.target(key), UploadId=upload["UploadId"])
            parts = [part for page in pages for part in page.get("Parts", [])]
    except FileNotFoundError:
        return None
    size_bytes, last = sum(part["Size"] for part in parts), max([started, *(part["LastModified"] for part in parts)])
    part_metadata = [(part["PartNumber"], part["ETag"], part["Size"], int(part["LastModified"].timestamp())) for part in parts]
    etag = xxhash.xxh64_hexdigest(repr((int(started.timestamp()), sorted(part_metadata))).encode())
    return _ExaminedUpload(Upload(key, upload["UploadId"], started, size_bytes, build_identity(etag, size_bytes, last)), last)


def _key(bucket: S3Bucket, upload: dict[str, Any]) -> str:
    return upload["Key"].removeprefix(bucket.prefix)


def _is_reserved(key: str) -> bool:
    return f"{key}/".startswith(RESERVED_PREFIX)


def _absent_result(planned: PlannedAction) -> Result:
    return Result(ABSENT, f"abort: upload {planned.version_id} to {planned.key!r} was completed or aborted by another process")


def _changed_result(planned: PlannedAction, current: _ExaminedUpload) -> Result:
    found = f"{current.size_bytes:,} bytes, last written to at {current.written_at.isoformat()}"
    return Result(CHANGED, f"abort: upload {planned.version_id} to {planned.key!r} differs from the plan: {found}; left alone")
