"""Quarantine in buckets whose deleted objects become noncurrent versions.

Google Cloud Storage and Azure Blob Storage work in this way. Unlike S3, they do not use delete
markers. The server compares the token (etag or generation) of the object in the delete request, so
a delete cannot hide another object. A noncurrent version never becomes current by itself, so a
purge cannot expose an older version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion, ObjectInfo
from gc_assets.core.phases import CHANGED, DENIED, DONE, FAILED
from gc_assets.stores.conditional.batches import RowDeletion, Step, delete_prepared
from gc_assets.stores.conditional.quarantine import (
    absent_result,
    changed_result,
    copy_back,
    is_other_object,
    is_restored_copy,
    is_unfinished_restore,
)
from gc_assets.stores.conditional.versioned_steps import refuse_if_unversioned, refuse_without_version
from gc_assets.stores.protocol import PlannedAction, Result


def _find_none(found: ObjectInfo) -> None:
    del found


@dataclass(frozen=True, slots=True)
class NoncurrentQuarantine:
    """Quarantine by making objects noncurrent. Their bytes stay in the bucket until a purge.

    Immediately before the delete, after the last comparison, the bucket is checked again for
    versioning. To restore an object, its version is copied back to the key and then deleted. The
    copy fails if there is a current object at the key.

    Attributes:
        bucket: The storage.
        find_obstacle: Returns the reason why an object cannot be deleted or restored, or None.
    """

    bucket: ConditionalBucket
    find_obstacle: Callable[[ObjectInfo], str | None] = _find_none

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch (see `Quarantine.act`)."""
        return delete_prepared(self.bucket, batch, resumed, self._prepare, self._verify, partial(refuse_if_unversioned, self.bucket))

    def _prepare(self, planned: PlannedAction, resumed: bool) -> Step:
        if planned.version_id is None and not self._is_from_before_versions(planned):
            return refuse_without_version(planned)
        if planned.version_id is None or planned.version_id == self.bucket.null_version:
            # A delete would keep such an object under a new version id, which is unknown here.
            found = "the object was written before the bucket kept versions, so it has no version id"
            return Result(DENIED, f"{planned.key!r}: {found}; write it again, or use `quarantine: trash` without versioning")
        version = self.bucket.head(planned.key, version_id=planned.version_id)
        current = self.bucket.head(planned.key)
        if planned.action == "quarantine":
            return self._prepare_quarantine(planned, current, version)
        if planned.action == "restore":
            return self._restore(planned, current, version)
        if version is None:
            return Result(DONE) if resumed else absent_result(planned)
        if current is not None and current.version_id == planned.version_id:
            return Result(CHANGED, f"purge {planned.key!r}: it is the current version again, so it is no longer quarantined; left alone")
        if not planned.etag or version.size_bytes != planned.size_bytes:
            return changed_result(planned, version)
        return RowDeletion(planned, (Deletion(planned.key, planned.version_id),))

    def _is_from_before_versions(self, planned: PlannedAction) -> bool:
        """Return True if the object has no version id because it is older than versioning."""
        current = self.bucket.head(planned.key) if self.bucket.null_version is not None else None
        return current is not None and current.version_id is None

    def _prepare_quarantine(self, planned: PlannedAction, current: ObjectInfo | None, version: ObjectInfo | None) -> Step:
        if current is None:
            return Result(DONE) if version is not None else absent_result(planned)
        if is_other_object(current, planned, self.bucket.null_version):
            return changed_result(planned, current)
        obstacle = self.find_obstacle(current)
        if obstacle is not None:
            return Result(DENIED, f"{planned.key!r}: {obstacle}")
        return RowDeletion(planned, (Deletion(planned.key, token=token_of(current.identity)),))

    def _restore(self, planned: PlannedAction, current: ObjectInfo | None, version: ObjectInfo | None) -> Result:
        if current is not None and (current.version_id == planned.version_id or current.identity == planned.etag):
            return Result(DONE)
        kept = f"the quarantined version {planned.version_id} is kept"
        is_unfinished = current is not None and is_unfinished_restore(current, planned)
        if current is not None and not is_unfinished and not is_restored_copy(current, planned):
            return Result(CHANGED, f"{planned.key!r} is now another object, {current.identity}; {kept}")
        if current is None or is_unfinished:
            if version is None:
                return absent_result(planned)
            refusal = copy_back(self.bucket, planned, version, planned.key, kept)
            if refusal is not None:
                return refusal
        if version is not None:
            (removed,) = self.bucket.delete([Deletion(planned.key, planned.version_id)])
            # The object is restored at this point, even if a retention policy keeps the version.
            if removed.verdict in {"failed", "unknown"}:
                removed.require()
        return Result(DONE)

    def _verify(self, planned: PlannedAction, deleted: Change) -> Result:
        """Check that the version of a quarantined object still exists."""
        del deleted
        if planned.action == "quarantine" and self.bucket.head(planned.key, version_id=planned.version_id) is None:
            found = f"versioning was disabled at the same time, and the delete of version {planned.version_id} was permanent"
            return Result(FAILED, f"{planned.key!r}: {found}; restore it from soft-deleted objects, and enable versioning")
        return Result(DONE)
