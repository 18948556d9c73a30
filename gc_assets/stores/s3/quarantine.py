"""The three quarantine modes of a bucket, and what purge and restore do in each.

*versioned* deletes, and the bucket keeps the version under a delete marker. *trash* copies an
object to `.gc-assets/trash/<plan id>/<key>`, verifies the copy and deletes the original. *deferred*
moves nothing: the record is the quarantine. All modes compare identities immediately before every
change and check the effect afterwards. The plan decides which objects are quarantined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar

from gc_assets.buckets.protocol import Version
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.core.errors import StoreError, UsageError, is_permanent
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED
from gc_assets.stores.protocol import RESERVED_PREFIX, PlannedAction, Quarantine, QuarantineMode, Result
from gc_assets.stores.s3.bucket import Bucket, DeleteResult, Head
from gc_assets.stores.s3.copying import CopyMetadata, copy_back, copy_to_trash
from gc_assets.stores.s3.objects import etag_of

_PLAN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")
_MD5 = re.compile(r"[0-9a-f]{32}")
# Versions of one key that are read: delete markers on top, and the versions under them.
_VERSIONS: Final = 100
# The limit of a key in UTF-8 (Amazon S3 User Guide, "Naming Amazon S3 objects").
MAX_KEY_BYTES: Final = 1024
# Attempts of a delete, each preceded by a comparison.
ATTEMPTS: Final = 8
# A run deletes an object within this time after its comparison, even if it is interrupted. A delete
# marker that is only this much newer than the object under it may be the run's own.
_LOOK_TO_DELETE: Final = timedelta(minutes=10)
_NULL: Final = "null"
_Step = TypeVar("_Step")
_Settle = Callable[[PlannedAction, DeleteResult], Result]


def trash_key(plan_id: str, key: str) -> str:
    return f"{RESERVED_PREFIX}trash/{plan_id}/{key}"


def max_key_bytes(mode: QuarantineMode, bucket: Bucket) -> int | None:
    """Return the length of the longest key that fits into the trash, or None without a trash."""
    return MAX_KEY_BYTES - len(f"{bucket.prefix}{trash_key('0' * 64, '')}".encode()) if mode == "trash" else None


def open_quarantine(mode: QuarantineMode, bucket: Bucket, plan_id: str) -> Quarantine:
    """Return the quarantine of a storage for one plan.

    Raises:
        UsageError: If the plan id cannot be part of a key.
    """
    if not _PLAN_ID.fullmatch(plan_id):
        raise UsageError(f"plan id {plan_id!r} cannot be part of a key; expected letters, digits, `_` and `-`")
    if mode == "versioned":
        return VersionedQuarantine(bucket)
    return TrashQuarantine(bucket, plan_id) if mode == "trash" else DeferredQuarantine(bucket)


@dataclass(frozen=True, slots=True)
class VersionedQuarantine:
    """Quarantine by delete markers. Bytes stay in the bucket until their version is purged.

    A writer may put a new object at a key between comparison and delete. The delete marker would
    hide it. So every marker is checked afterwards, and removed if it hides anything but the planned
    version. The bucket's versioning is checked after the last comparison of an object, immediately
    before the delete.
    """

    bucket: Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Act as `Quarantine.act` specifies."""
        return _delete_prepared(self.bucket, batch, resumed, self._prepare, self._verify, self._refuse_if_unversioned)

    def _prepare(self, planned: PlannedAction, resumed: bool) -> Result | Deletion:
        if planned.version_id is None:
            return Result(DENIED, f"{planned.key!r} was planned without a version, because the bucket had no versioning; create a new plan")
        if planned.action == "quarantine":
            return self._prepare_quarantine(planned, resumed)
        return self._prepare_restore(planned) if planned.action == "restore" else self._prepare_purge(planned, resumed)

    def _prepare_quarantine(self, planned: PlannedAction, resumed: bool) -> Result | Deletion:
        current = self.bucket.head(planned.key)
        if current is None:
            versions = self.bucket.newest_versions(planned.key, _VERSIONS)
            markers, newest = _split_markers(versions)
            if newest is not None and newest == planned.version_id:
                return Result(DONE)
            if resumed and _hides_newer_object(versions, planned):
                return self._remove_own_marker(planned, markers[0])
            return _absent_result(planned)
        if _is_other_object(current, planned):
            return _changed_result(planned, current)
        return Deletion(planned, ((planned.key, None),))

    def _refuse_if_unversioned(self, steps: Sequence[Result | Deletion]) -> Sequence[Result | Deletion]:
        """Refuse deletes if the bucket no longer keeps versions, because they would be permanent."""
        if not any(isinstance(step, Deletion) and step.planned.action == "quarantine" for step in steps):
            return steps
        try:
            if self.bucket.versioning("change").is_on:
                return steps
        except OSError as error:
            return [_to_failure(step.planned, error) if isinstance(step, Deletion) else step for step in steps]
        found = f"bucket {self.bucket.name} no longer keeps versions, so a delete could be permanent"
        way_out = "enable versioning, or use `quarantine: trash` and create a new plan"
        return [
            Result(DENIED, f"{step.planned.key!r}: {found}; {way_out}", replan=True)
            if isinstance(step, Deletion) and step.planned.action == "quarantine"
            else step
            for step in steps
        ]

    def _remove_own_marker(self, planned: PlannedAction, marker: str) -> Result:
        """Remove a delete marker of this run that hides another object than the planned one."""
        (removed,) = self.bucket.delete([(planned.key, marker)])
        found = f"quarantine {planned.key!r}: another object was written at the same time"
        if removed.error is not None:
            return Result(
                FAILED, f"{found} and is hidden by our delete marker {marker}: {removed.error}; remove that marker, or apply again"
            )
        return Result(CHANGED, f"{found}; our delete marker was removed again")

    def _prepare_restore(self, planned: PlannedAction) -> Result | Deletion:
        markers, newest = _split_markers(self.bucket.newest_versions(planned.key, _VERSIONS))
        if newest != planned.version_id:
            hidden = self.bucket.head(planned.key, version_id=planned.version_id)
            if hidden is None:
                return _absent_result(planned)
            found = f"version {newest} is now the newest" if newest is not None else "it is under other versions"
            return Result(CHANGED, f"restore {planned.key!r}: {found}; the quarantined version {planned.version_id} is kept")
        return Deletion(planned, tuple((planned.key, marker) for marker in markers)) if markers else Result(DONE)

    def _prepare_purge(self, planned: PlannedAction, resumed: bool) -> Result | Deletion:
        version = self.bucket.head(planned.key, version_id=planned.version_id)
        if version is None:
            return Result(DONE) if resumed else _absent_result(planned)
        if _is_other_object(version, planned):
            return _changed_result(planned, version)
        versions = self.bucket.newest_versions(planned.key, _VERSIONS)
        markers, newest = _split_markers(versions)
        if not markers and newest == planned.version_id:
            return Result(CHANGED, f"purge {planned.key!r}: its delete marker was removed, so it is no longer quarantined; left alone")
        older = [item.version_id for item in _older_versions(versions, planned.version_id)]
        return Deletion(planned, tuple((planned.key, version_id) for version_id in (planned.version_id, *older)))

    def _verify(self, planned: PlannedAction, deleted: DeleteResult) -> Result:
        """Check the effect of a delete."""
        versions = self.bucket.newest_versions(planned.key, _VERSIONS)
        markers, newest = _split_markers(versions)
        if planned.action == "purge":
            if markers and len(markers) == len(versions) < _VERSIONS:  # they hide no version any more
                self.bucket.delete([(planned.key, marker) for marker in markers])
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
class TrashQuarantine:
    """Quarantine by copying, in buckets without versions. `plan_id` is the plan that acts.

    Between the last comparison and the delete is one request. A server that compares etags in
    deletes closes this gap. On other servers, an object that is replaced within it is lost.
    """

    bucket: Bucket
    plan_id: str

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Act as `Quarantine.act` specifies."""
        try:
            versioning = self.bucket.versioning("change")
        except OSError as error:
            return [_to_failure(planned, error) for planned in batch]

        null_version = _NULL if versioning.has_versions else None

        def prepare(planned: PlannedAction, resumed: bool) -> Result | Deletion:
            step = self._prepare_row(planned, versioning.is_on, resumed)
            if isinstance(step, Result):
                return step
            return Deletion(planned, tuple((key, version_id or null_version) for key, version_id in step.objects))

        return _delete_prepared(self.bucket, batch, resumed, prepare, lambda _, __: Result(DONE))

    def _prepare_row(self, planned: PlannedAction, keeps_versions: bool, resumed: bool) -> Result | Deletion:
        in_trash_key = self._trash_key(planned)
        if in_trash_key is None:
            return Result(DENIED, f"cannot {planned.action} {planned.key!r}: the id of the plan that quarantined it is missing or invalid")
        if len(f"{self.bucket.prefix}{in_trash_key}".encode()) > MAX_KEY_BYTES:  # it was never moved there
            found = f"its name in the trash would have more than {MAX_KEY_BYTES:,} bytes"
            text = f"{planned.action} {planned.key!r}: {found}; use `quarantine: versioned` or `deferred`, or delete the object manually"
            return Result(DENIED if planned.action == "quarantine" else ABSENT, text)
        if planned.action == "quarantine":
            current = self.bucket.head(planned.key)
            # The trash is checked last: an attempt that was given up may still move the object to
            # it.
            return self._quarantine(planned, in_trash_key, self.bucket.head(in_trash_key), current, keeps_versions)
        in_trash = self.bucket.head(in_trash_key)
        if planned.action == "purge":
            if in_trash is None:
                return Result(DONE) if resumed else _absent_result(planned)
            return (
                Deletion(planned, ((in_trash_key, in_trash.version_id),))
                if _is_copy(in_trash, planned)
                else _no_copy_result(planned, in_trash_key)
            )
        return self._restore(planned, in_trash_key, in_trash, self.bucket.head(planned.key))

    def _quarantine(
        self, planned: PlannedAction, trash_key: str, in_trash: Head | None, current: Head | None, keeps_versions: bool
    ) -> Result:
        if in_trash is not None and _is_copy(in_trash, planned) and (current is None or current.identity != planned.etag):
            return Result(DONE)
        if current is None:
            return _absent_result(planned)
        if _is_other_object(current, planned):
            return _changed_result(planned, current)
        if keeps_versions:
            found = f"bucket {self.bucket.name} keeps versions, so a copy frees nothing"
            return Result(DENIED, f"{planned.key!r}: {found}; use `quarantine: versioned` and create a new plan")
        if in_trash is None or not _is_copy(in_trash, planned):
            copy_to_trash(self.bucket, planned.key, trash_key, current)
            copy = self.bucket.head(trash_key)
            if copy is None or not _is_copy(copy, planned):
                return Result(
                    FAILED, f"{planned.key!r}: the copy at {trash_key!r} differs from the original; nothing was deleted, apply again"
                )
        return _remove_planned(self.bucket, planned)

    def _restore(self, planned: PlannedAction, trash_key: str, in_trash: Head | None, current: Head | None) -> Result | Deletion:
        is_back = current is not None and (current.identity == planned.etag or _is_restored_copy(current, planned))
        if in_trash is None:
            return Result(DONE) if is_back else _absent_result(planned)
        if not _is_copy(in_trash, planned):
            return _no_copy_result(planned, trash_key)
        if not is_back:
            if current is not None:
                return Result(
                    CHANGED, f"{planned.key!r} is now another object, {current.identity}; the quarantined one stays at {trash_key!r}"
                )
            if not copy_back(self.bucket, in_trash, trash_key, planned.key):
                return Result(CHANGED, f"{planned.key!r} has just been written; the quarantined object stays at {trash_key!r}")
            restored = self.bucket.head(planned.key)
            if restored is None or not _is_restored_copy(restored, planned):
                found = f"the restored object is missing; the quarantined object stays at {trash_key!r}"
                return Result(FAILED, f"{planned.key!r}: {found}, apply again")
        return Deletion(planned, ((trash_key, in_trash.version_id),))

    def _trash_key(self, planned: PlannedAction) -> str | None:
        plan_id = self.plan_id if planned.action == "quarantine" else planned.source_plan_id
        return trash_key(plan_id, planned.key) if plan_id is not None and _PLAN_ID.fullmatch(plan_id) else None


@dataclass(frozen=True, slots=True)
class DeferredQuarantine:
    """Quarantine on record only: objects stay readable under their keys until they are purged."""

    bucket: Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Act as `Quarantine.act` specifies. A restore is done if the object is still at its key."""
        try:
            purges = any(planned.action == "purge" for planned in batch)
            null_version = _NULL if purges and self.bucket.versioning("change").has_versions else None
        except OSError as error:
            return [_to_failure(planned, error) for planned in batch]
        return map_concurrently(batch, lambda planned: run_guarded(planned, lambda: self._run(planned, planned in resumed, null_version)))

    def _run(self, planned: PlannedAction, resumed: bool, null_version: str | None) -> Result:
        current = self.bucket.head(planned.key, version_id=planned.version_id if planned.action == "purge" else None)
        if current is None:
            return Result(DONE) if resumed and planned.action == "purge" else _absent_result(planned)
        if _is_other_object(current, planned):
            return _changed_result(planned, current)
        if planned.action != "purge":
            return Result(DONE)
        version_id = current.version_id or null_version
        if version_id is None:
            return _remove_planned(self.bucket, planned)
        refusal = self._cover_with_marker(planned, version_id)
        if refusal is not None:
            return refusal
        (deleted,) = self.bucket.delete([(planned.key, version_id)])
        return Result(DONE) if deleted.error is None else _to_refusal(planned, deleted)

    def _cover_with_marker(self, planned: PlannedAction, version_id: str) -> Result | None:
        """Put a delete marker on the planned version if its purge would expose an older one.

        Returns the result if that fails, otherwise None.
        """
        versions = self.bucket.newest_versions(planned.key, 2)
        is_alone = [version.is_marker for version in versions[1:]] in ([], [True])
        if is_alone or versions[0].version_id != version_id:
            return None
        hidden = replace(planned, action="quarantine", version_id=version_id)
        (result,) = VersionedQuarantine(self.bucket).act([hidden])
        return None if result.verdict == DONE else result


@dataclass(frozen=True, slots=True)
class Deletion:
    """Keys and versions to delete for a row, together with those of other rows.

    A purge has the planned version first, and then the older versions, which are deleted if
    possible.
    """

    planned: PlannedAction
    objects: tuple[tuple[str, str | None], ...]


def _delete_prepared(
    bucket: Bucket,
    batch: Sequence[PlannedAction],
    resumed: Collection[PlannedAction],
    prepare: Callable[[PlannedAction, bool], Result | Deletion],
    settle: _Settle,
    refuse: Callable[[Sequence[Result | Deletion]], Sequence[Result | Deletion]] = lambda steps: steps,
) -> list[Result]:
    """Prepare each row, delete the resulting objects in few requests, and settle each row.

    If a request fails or its answer is lost, all its rows are prepared again.
    """
    steps, attempted, pending = dict[int, Result | Deletion](), set(resumed), list(range(len(batch)))

    def prepare_row(number: int) -> Result | Deletion:
        planned = batch[number]
        return run_guarded(planned, lambda: prepare(planned, planned in attempted))

    for attempt in range(ATTEMPTS):
        steps |= zip(pending, refuse(map_concurrently(pending, prepare_row)), strict=True)
        deletions = {number: step for number, step in steps.items() if isinstance(step, Deletion)}
        objects = [item for step in deletions.values() for item in step.objects]
        try:
            answers = dict(zip(objects, bucket.delete(objects), strict=True))
            break
        except OSError as error:
            if attempt + 1 == ATTEMPTS:
                return [step if isinstance(step, Result) else _to_failure(step.planned, error) for _, step in sorted(steps.items())]
        attempted |= {step.planned for step in deletions.values()}
        pending = list(deletions)
        pause_before_retry(attempt)
    else:
        raise AssertionError("a loop of attempts ends by returning or breaking")

    def settle_row(step: Result | Deletion) -> Result:
        if isinstance(step, Result):
            return step
        results = [answers[item] for item in step.objects]
        needed = results[:1] if step.planned.action == "purge" else results
        refusal = next((deleted for deleted in needed if deleted.error is not None), None)
        if refusal is not None:
            return _to_refusal(step.planned, refusal)
        result = run_guarded(step.planned, lambda: settle(step.planned, results[0]))
        return (
            replace(result, error=_describe_older_versions(step, results))
            if result.verdict == DONE and len(results) > len(needed)
            else result
        )

    return map_concurrently([step for _, step in sorted(steps.items())], settle_row)


def _describe_older_versions(step: Deletion, results: Sequence[DeleteResult]) -> str:
    """Return which older versions were deleted with a purged one, and which were not."""
    rows = list(zip((version_id for _, version_id in step.objects[1:]), results[1:], strict=True))
    gone = [f"version {version_id}" for version_id, deleted in rows if deleted.error is None]
    kept = [f"version {version_id} ({deleted.error})" for version_id, deleted in rows if deleted.error is not None]
    deleted_text = [f"older versions deleted with it: {', '.join(gone)}"] if gone else []
    kept_text = [f"older versions kept under a delete marker: {', '.join(kept)}"] if kept else []
    return "; ".join(deleted_text + kept_text)


def _older_versions(versions: Sequence[Version], version_id: str | None) -> list[Version]:
    """Return the versions under a version that are not newer. Empty if it was not read."""
    at = next((number for number, version in enumerate(versions) if version.version_id == version_id), len(versions))
    return [version for version in versions[at + 1 :] if version.modified <= versions[at].modified]


def _remove_planned(bucket: Bucket, planned: PlannedAction) -> Result:
    """Delete the planned object if it is still current, with a comparison before each attempt."""
    for attempt in range(ATTEMPTS):
        current = bucket.head(planned.key)
        if current is None:
            return Result(DONE)
        if _is_other_object(current, planned):
            return _changed_result(planned, current)
        try:
            bucket.remove(planned.key, etag_of(current.identity))
        except OSError as error:
            if is_permanent(error) or attempt + 1 == ATTEMPTS:
                raise
            pause_before_retry(attempt)
        else:
            return Result(DONE)
    raise AssertionError("a loop of attempts ends by returning or raising")


def run_guarded(planned: PlannedAction, act: Callable[[], _Step]) -> _Step | Result:
    """Return the result of an action, and convert its errors.

    The result is `denied` if a retry cannot help, otherwise `failed`.
    """
    if planned.etag is None:
        return Result(DENIED, f"{planned.key!r}: the row has no etag, which a bucket requires")
    if f"{planned.key}/".startswith(RESERVED_PREFIX):
        return Result(DENIED, f"{planned.key!r} is under the reserved prefix {RESERVED_PREFIX!r}")
    try:
        return act()
    except (OSError, StoreError) as error:
        return _to_failure(planned, error)


def _to_failure(planned: PlannedAction, error: OSError | StoreError) -> Result:
    text = f"{planned.action} {planned.key!r}: {(error.strerror if isinstance(error, OSError) else None) or error}"
    return Result(DENIED if is_permanent(error) else FAILED, text)


def _to_refusal(planned: PlannedAction, deleted: DeleteResult) -> Result:
    return Result(DENIED if deleted.is_denied else FAILED, f"{planned.action} {planned.key!r}: {deleted.error}")


def _is_other_object(current: Head, planned: PlannedAction) -> bool:
    """Return True if the object differs from the planned one."""
    # Some servers omit the version of objects from before versioning (Ceph 16).
    return current.identity != planned.etag or (planned.version_id is not None and (current.version_id or _NULL) != planned.version_id)


def _is_copy(in_trash: Head, planned: PlannedAction) -> bool:
    """Return True if an object in the trash is a copy of the planned object.

    Etags are compared too if both are checksums of the bytes, because a server may ignore the
    condition of a copy.
    """
    copy, etags = CopyMetadata.of(in_trash), {etag_of(in_trash.identity), etag_of(planned.etag or "")}
    same = len(etags) == 1 or not all(map(_MD5.fullmatch, etags)) or "SSEKMSKeyId" in in_trash.answer
    return same and copy.quarantined == planned.etag and copy.size_bytes == planned.size_bytes


def _is_restored_copy(current: Head, planned: PlannedAction) -> bool:
    copy = CopyMetadata.of(current)
    return copy.restored == planned.etag and copy.size_bytes == planned.size_bytes


def _hides_newer_object(versions: Sequence[Version], planned: PlannedAction) -> bool:
    """Return True if an interrupted run may have hidden a newer object.

    The newest version is a delete marker. The object under it was written between the run's
    comparison of the planned object and its delete.
    """
    if [version.is_marker for version in versions[:2]] != [True, False]:
        return False
    marker, hidden, *older = versions
    return marker.modified - hidden.modified <= _LOOK_TO_DELETE and planned.version_id in {version.version_id for version in older}


def _split_markers(versions: Sequence[Version]) -> tuple[list[str], str | None]:
    """Return the ids of the delete markers on top, and of the version under them."""
    markers: list[str] = []
    for version in versions:
        if not version.is_marker:
            return markers, version.version_id
        markers.append(version.version_id)
    return markers, None


def _absent_result(planned: PlannedAction) -> Result:
    return Result(ABSENT, f"{planned.action}: {planned.key!r} does not exist")


def _no_copy_result(planned: PlannedAction, trash_key: str) -> Result:
    return Result(CHANGED, f"{planned.action}: {trash_key!r} is not a copy of {planned.etag}; left alone")


def _changed_result(planned: PlannedAction, current: Head) -> Result:
    expected, found = f"{planned.etag}, version {planned.version_id}", f"{current.identity}, version {current.version_id}"
    return Result(CHANGED, f"{planned.action}: expected {expected} at {planned.key!r}, found {found}; left alone")
