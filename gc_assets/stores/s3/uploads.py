"""Multipart uploads that were begun and neither completed nor aborted. Their parts bill, and no
listing of objects shows them. Counts them, finds the old ones, and aborts what a plan names.

An unfinished upload is no object. Nobody can read it, and no live file is lost with it: only its
writer can miss it. So it is as old as what its writer did last.

Sources: Amazon S3 API Reference, ListMultipartUploads, ListParts and AbortMultipartUpload.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import xxhash

from gc_assets.core.phases import ABSENT, CHANGED, DONE, FAILED
from gc_assets.s3.client import Role, pause_before_retry, translate_errors
from gc_assets.stores.protocol import RESERVED_PREFIX, OldUploads, PlannedAction, Result, Upload, UploadCounts
from gc_assets.stores.s3.bucket import Bucket, map_concurrently
from gc_assets.stores.s3.objects import identity, modified_us
from gc_assets.stores.s3.quarantine import ATTEMPTS, run_guarded

# Parts are asked for upload by upload, so only of so many, the oldest ones of each page.
MAX_SIZED_UPLOADS: Final = 1_000


def count_unfinished_uploads(bucket: Bucket, before: datetime) -> UploadCounts:
    """Returns what `Store.count_unfinished_uploads` says. Where the server or a policy refuses, it says why."""
    uploads = old = size_bytes = sized = 0
    try:
        for page in _pages(bucket, ""):
            found = sorted(page, key=lambda upload: upload["Initiated"])
            uploads += len(found)
            old += sum(upload["Initiated"] < before for upload in found)
            looked_at = found[: MAX_SIZED_UPLOADS - sized]
            size_bytes += sum(
                upload.size_bytes for upload in map_concurrently(looked_at, lambda item: _looked_at(bucket, item)) if upload is not None
            )
            sized += len(looked_at)
    except OSError as error:
        return UploadCounts(uploads, old, size_bytes, sized, error.strerror or str(error))
    return UploadCounts(uploads, old, size_bytes, sized)


def find_old_uploads(bucket: Bucket, before: datetime, wanted: Callable[[str], bool], at_most: int) -> OldUploads:
    """Returns what `Store.find_old_uploads` says."""
    met = 0

    def old() -> Iterator[dict[str, Any]]:
        nonlocal met
        for upload in (upload for page in _pages(bucket, "") for upload in page):
            key = _key(bucket, upload)
            if upload["Initiated"] < before and not _is_reserved(key) and wanted(key):
                met += 1
                yield upload

    oldest = heapq.nsmallest(at_most, old(), key=lambda upload: (upload["Initiated"], upload["Key"], upload["UploadId"]))
    looked_at = map_concurrently(oldest, lambda upload: _looked_at(bucket, upload))
    return OldUploads(tuple(item.upload for item in looked_at if item is not None and item.written_at < before), met - len(oldest))


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """An upload, and when its writer did something last."""

    upload: Upload
    written_at: datetime

    @property
    def size_bytes(self) -> int:
        return self.upload.size_bytes


@dataclass(frozen=True, slots=True)
class S3UploadAborter:
    """`UploadAborter` in a bucket.

    A writer may go on between our last look at the parts and the request. Completing then fails with
    NoSuchUpload, and the writer learns of it.
    """

    bucket: Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Acts as `UploadAborter.act` says."""
        asked = set(resumed)
        return map_concurrently(batch, lambda planned: run_guarded(planned, lambda: self._one(planned, planned in asked)))

    def _one(self, planned: PlannedAction, asked: bool) -> Result:
        """Aborts an upload and looks whether it is gone. `asked` says that somebody of ours may have
        asked for its end before.

        Parts that arrive at the same moment may survive an abort, so it is repeated where the
        upload is still there. A request whose answer was lost may never have arrived, so everything
        is compared anew after it.
        """
        acknowledged = False
        for attempt in range(ATTEMPTS):
            here = self._look(planned)
            if here is None:
                is_ours = acknowledged or (asked and not self._may_be_completed(planned))
                return Result(DONE) if is_ours else _absent(planned)
            if here.upload.etag != planned.etag and not acknowledged:
                return _changed(planned, here)
            try:
                self._abort(planned)
            except FileNotFoundError:
                continue  # somebody else ended it just now; the next look tells
            except OSError as error:
                if isinstance(error, PermissionError) or attempt + 1 == ATTEMPTS:
                    raise
                asked = True
                pause_before_retry(attempt)
            else:
                if acknowledged:
                    pause_before_retry(attempt)
                asked = acknowledged = True
        return Result(FAILED, f"abort of an upload to {planned.key!r}: the server lists it still, after {ATTEMPTS} requests; apply again")

    def _look(self, planned: PlannedAction) -> _LookedAt | None:
        full = f"{self.bucket.prefix}{planned.key}"
        for page in _pages(self.bucket, planned.key, "change"):
            for upload in page:
                if (upload["Key"], upload["UploadId"]) == (full, planned.version_id):
                    return _looked_at(self.bucket, upload, "change")
        return None

    def _may_be_completed(self, planned: PlannedAction) -> bool:
        """Says whether what stands at the key was written after the upload's last part."""
        here, last_us = self.bucket.head(planned.key), modified_us(planned.etag or "")
        return here is not None and here.answer["LastModified"].timestamp() * 1e6 >= (last_us or 0)

    def _abort(self, planned: PlannedAction) -> None:
        with translate_errors(self.bucket.address(planned.key)):
            self.bucket.get_single_attempt_client().abort_multipart_upload(**self.bucket.target(planned.key), UploadId=planned.version_id)


def _pages(bucket: Bucket, key: str, role: Role = "read") -> Iterator[list[dict[str, Any]]]:
    """Yields the uploads below a prefix of the storage, as the server tells them."""
    with translate_errors(bucket.address(key)):
        asked = bucket.client(role).get_paginator("list_multipart_uploads")
        for page in asked.paginate(Bucket=bucket.name, Prefix=f"{bucket.prefix}{key}"):
            yield page.get("Uploads", [])


def _looked_at(bucket: Bucket, upload: dict[str, Any], role: Role = "read") -> _LookedAt | None:
    """Returns an upload with its parts, null where it ended meanwhile."""
    key, begun = _key(bucket, upload), upload["Initiated"]
    try:
        with translate_errors(bucket.address(key)):
            pages = bucket.client(role).get_paginator("list_parts").paginate(**bucket.target(key), UploadId=upload["UploadId"])
            parts = [part for page in pages for part in page.get("Parts", [])]
    except FileNotFoundError:
        return None
    size_bytes, last = sum(part["Size"] for part in parts), max([begun, *(part["LastModified"] for part in parts)])
    told_of = [(part["PartNumber"], part["ETag"], part["Size"], int(part["LastModified"].timestamp())) for part in parts]
    etag = xxhash.xxh64_hexdigest(repr((int(begun.timestamp()), sorted(told_of))).encode())
    return _LookedAt(Upload(key, upload["UploadId"], begun, size_bytes, identity(etag, size_bytes, last)), last)


def _key(bucket: Bucket, upload: dict[str, Any]) -> str:
    return upload["Key"].removeprefix(bucket.prefix)


def _is_reserved(key: str) -> bool:
    return f"{key}/".startswith(RESERVED_PREFIX)


def _absent(planned: PlannedAction) -> Result:
    return Result(ABSENT, f"abort: upload {planned.version_id} to {planned.key!r} was completed or aborted by somebody else")


def _changed(planned: PlannedAction, here: _LookedAt) -> Result:
    found = f"{here.size_bytes:,} bytes, last written to at {here.written_at.isoformat()}"
    return Result(CHANGED, f"abort: upload {planned.version_id} to {planned.key!r} is not as it was planned; it has {found}; left alone")
