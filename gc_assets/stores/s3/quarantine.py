"""Quarantine, purge and restore objects in a bucket with versions, using delete markers.

When an object is deleted, the bucket keeps its version and hides it under a delete marker. The
identity of an object is compared immediately before every change, and the effect is checked
afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from gc_assets.buckets.protocol import Change, Deletion, Version
from gc_assets.core.phases import CHANGED, DONE, FAILED
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.conditional.batches import RowDeletion, Step, delete_prepared
from gc_assets.stores.conditional.quarantine import DeferredQuarantine, absent_result, changed_result, is_other_object
from gc_assets.stores.conditional.undo_rights import check_version_deletes
from gc_assets.stores.conditional.versioned_steps import refuse_if_unversioned, refuse_without_version
from gc_assets.stores.protocol import PlannedAction, Result

# At most this many versions of a key are read, including delete markers.
_VERSIONS: Final = 100
# An object is deleted within this time after its comparison, even by a run that was interrupted. If
# a delete marker is not much newer than the object under it, it may come from such a run.
_LOOK_TO_DELETE: Final = timedelta(minutes=10)
_NULL: Final = "null"


@dataclass(frozen=True, slots=True)
class VersionedQuarantine:
    """Quarantine with delete markers. The bytes of an object stay in the bucket until a purge.

    If a writer creates a new object between the comparison and the delete, the delete marker hides
    the new object. Every marker is therefore checked afterwards, and removed if it hides anything
    but the planned version.

    Immediately before the delete, after the last comparison, the bucket is checked again for
    versioning.
    """

    bucket: S3Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch (see `Quarantine.act`)."""
        return delete_prepared(self.bucket, batch, resumed, self._prepare, self._verify, partial(refuse_if_unversioned, self.bucket))

    def _prepare(self, planned: PlannedAction, resumed: bool) -> Step:
        if planned.version_id is None:
            return refuse_without_version(planned)
        if planned.action == "quarantine":
            return self._prepare_quarantine(planned, resumed)
        return self._prepare_restore(planned) if planned.action == "restore" else self._prepare_purge(planned, resumed)

    def _prepare_quarantine(self, planned: PlannedAction, resumed: bool) -> Step:
        current = self.bucket.head(planned.key)
        if current is None:
            versions = self.bucket.newest_versions(planned.key, _VERSIONS)
            markers, newest = _split_markers(versions)
            if newest is not None and newest == planned.version_id:
                return Result(DONE)
            if resumed and _hides_newer_object(versions, planned):
                return self._remove_own_marker(planned, markers[0])
            return absent_result(planned)
        if is_other_object(current, planned, _NULL):
            return changed_result(planned, current)
        return RowDeletion(planned, (Deletion(planned.key),))

    def _remove_own_marker(self, planned: PlannedAction, marker: str) -> Result:
        """Remove a delete marker of this apply that hides another object than the planned one."""
        (removed,) = self.bucket.delete([Deletion(planned.key, marker)])
        found = f"quarantine {planned.key!r}: another object was written at the same time"
        if not removed.is_done:
            return Result(
                FAILED, f"{found} and is hidden by our delete marker {marker}: {removed.reason}; remove that marker, or apply again"
            )
        return Result(CHANGED, f"{found}; our delete marker was removed again")

    def _prepare_restore(self, planned: PlannedAction) -> Step:
        markers, newest = _split_markers(self.bucket.newest_versions(planned.key, _VERSIONS))
        # Only the version `null` can be another object than the planned one.
        needs_head = newest != planned.version_id or planned.version_id == _NULL
        hidden = self.bucket.head(planned.key, version_id=planned.version_id) if needs_head else None
        if needs_head and hidden is None:
            return absent_result(planned)
        if newest != planned.version_id:
            found = f"version {newest} is now the newest" if newest is not None else "it is under other versions"
            return Result(CHANGED, f"restore {planned.key!r}: {found}; the quarantined version {planned.version_id} is kept")
        if hidden is not None and is_other_object(hidden, planned, _NULL):
            return changed_result(planned, hidden)
        return RowDeletion(planned, tuple(Deletion(planned.key, marker) for marker in markers)) if markers else Result(DONE)

    def _prepare_purge(self, planned: PlannedAction, resumed: bool) -> Step:
        version = self.bucket.head(planned.key, version_id=planned.version_id)
        if version is None:
            return Result(DONE) if resumed else absent_result(planned)
        if is_other_object(version, planned, _NULL):
            return changed_result(planned, version)
        versions = self.bucket.newest_versions(planned.key, _VERSIONS)
        markers, newest = _split_markers(versions)
        if not markers and newest == planned.version_id:
            return Result(CHANGED, f"purge {planned.key!r}: its delete marker was removed, so it is no longer quarantined; left alone")
        older = [item.version_id for item in _older_versions(versions, planned.version_id)]
        return RowDeletion(planned, tuple(Deletion(planned.key, version_id) for version_id in (planned.version_id, *older)))

    def _verify(self, planned: PlannedAction, deleted: Change) -> Result:
        """Check that a delete had the intended effect, and nothing else."""
        versions = self.bucket.newest_versions(planned.key, _VERSIONS)
        markers, newest = _split_markers(versions)
        if planned.action == "purge":
            if markers and len(markers) == len(versions) < _VERSIONS:  # the markers no longer hide a version
                for removed in self.bucket.delete([Deletion(planned.key, marker) for marker in markers]):
                    if removed.verdict == "unknown":
                        removed.require()
            return Result(DONE)
        if planned.action == "restore":
            is_restored = not markers and newest == planned.version_id
            return (
                Result(DONE)
                if is_restored
                else Result(FAILED, f"restore {planned.key!r}: it is not restored yet, or was replaced; apply again")
            )
        if deleted.marker is None:
            found = "the server deleted it without creating a delete marker"
            return Result(FAILED, f"{planned.key!r}: {found}; run gc-assets doctor before you apply another plan")
        positions = [number for number, version in enumerate(versions) if version.version_id == deleted.marker]
        _, hidden = _split_markers(versions[positions[0] :]) if positions else ([], None)
        if hidden == planned.version_id:
            return Result(DONE)
        if deleted.marker == _NULL:
            found = "versioning was suspended at the same time, and the delete may be permanent"
            return Result(FAILED, f"{planned.key!r}: {found}; enable versioning and check the key's versions")
        return self._remove_own_marker(planned, deleted.marker)


@dataclass(frozen=True, slots=True)
class MarkedDeferredQuarantine(DeferredQuarantine):
    """`DeferredQuarantine` for buckets with versions.

    Purging the newest version would make an older version visible again. A delete marker prevents
    this.
    """

    bucket: S3Bucket

    def cover(self, planned: PlannedAction, version_id: str) -> Result | None:
        """Hide the planned version under a delete marker if its purge would expose an older one."""
        versions = self.bucket.newest_versions(planned.key, 2)
        is_alone = [version.is_marker for version in versions[1:]] in ([], [True])
        if is_alone or versions[0].version_id != version_id:
            return None
        refused = check_version_deletes(self.bucket)  # a marker over a newer object must be removed again
        if refused is not None:
            return refused
        hidden = replace(planned, action="quarantine", version_id=version_id)
        (result,) = VersionedQuarantine(self.bucket).act([hidden])
        return None if result.verdict == DONE else result


def _older_versions(versions: Sequence[Version], version_id: str | None) -> list[Version]:
    """Select the versions that are listed after `version_id` and are not newer than it.

    If `version_id` is not among the versions that were read, the result is empty.
    """
    at = next((number for number, version in enumerate(versions) if version.version_id == version_id), len(versions))
    return [version for version in versions[at + 1 :] if version.modified <= versions[at].modified]


def _hides_newer_object(versions: Sequence[Version], planned: PlannedAction) -> bool:
    """Return True if an interrupted apply may have hidden a newer object under its delete marker.

    That may have happened if the newest version is a delete marker, and the object under it could
    have been written between the apply's comparison and its delete.
    """
    if [version.is_marker for version in versions[:2]] != [True, False]:
        return False
    marker, hidden, *older = versions
    return marker.modified - hidden.modified <= _LOOK_TO_DELETE and planned.version_id in {version.version_id for version in older}


def _split_markers(versions: Sequence[Version]) -> tuple[list[str], str | None]:
    """Return the ids of the newest delete markers, and the id of the version that they hide."""
    markers: list[str] = []
    for version in versions:
        if not version.is_marker:
            return markers, version.version_id
        markers.append(version.version_id)
    return markers, None
