"""Quarantine, purge and restore objects in a bucket without versions.

In mode *trash*, an object is copied to `.gc-assets/trash/<plan id>/<key>`. The copy is verified
before the original is deleted. In mode *deferred*, the object is not moved, and only the state
records that it is in quarantine. In both modes, the identity of an object is compared immediately
before every change, and the effect is checked afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import QUARANTINED, RESTORED, ConditionalBucket, Deletion, ObjectInfo
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.core.errors import is_permanent
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED
from gc_assets.stores.conditional.batches import ATTEMPTS, RowDeletion, Step, delete_prepared, run_guarded, to_failure, to_refusal
from gc_assets.stores.key_limits import KeyLimits
from gc_assets.stores.protocol import PlannedAction, Result
from gc_assets.stores.trash import PLAN_ID, lost_copy_result, trash_key

_MD5 = re.compile(r"[0-9a-f]{32}")


def find_trash_limits(bucket: ConditionalBucket) -> KeyLimits:
    """Return the limits for keys that can be moved to the trash."""
    added = f"{bucket.prefix}{trash_key('0' * 64, '')}"
    segments = None if bucket.max_key_segments is None else bucket.max_key_segments - added.count("/")
    return KeyLimits(bucket.max_key_bytes - len(added.encode()), segments)


@dataclass(frozen=True, slots=True)
class TrashQuarantine:
    """Quarantine that copies objects to the trash. `plan_id` is the plan being applied.

    If the server compares tokens in deletes, no other object can be deleted by mistake. On other
    servers there is a small risk. If a writer replaces the object between the last comparison and
    the delete, which is the next request, the new object is lost.
    """

    bucket: ConditionalBucket
    plan_id: str

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch (see `Quarantine.act`)."""
        try:
            versioning = self.bucket.versioning("change")
        except OSError as error:
            return [to_failure(planned, error) for planned in batch]
        null_version = self.bucket.null_version if versioning.has_versions else None

        def prepare(planned: PlannedAction, resumed: bool) -> Step:
            return self._prepare_row(planned, versioning.is_on, null_version, resumed)

        return delete_prepared(self.bucket, batch, resumed, prepare, lambda _, __: Result(DONE))

    def _prepare_row(self, planned: PlannedAction, keeps_versions: bool, null_version: str | None, resumed: bool) -> Step:
        in_trash_key = self._trash_key(planned)
        if in_trash_key is None:
            return Result(DENIED, f"cannot {planned.action} {planned.key!r}: the id of the plan that quarantined it is missing or invalid")
        limits = KeyLimits(self.bucket.max_key_bytes, self.bucket.max_key_segments)
        if limits.select_too_long(pa.array([f"{self.bucket.prefix}{in_trash_key}"]))[0].as_py():  # it was never moved there
            found = f"its name in the trash would have {limits.describe()}"
            text = f"{planned.action} {planned.key!r}: {found}; use `quarantine: versioned` or `deferred`, or delete the object manually"
            return Result(DENIED if planned.action == "quarantine" else ABSENT, text)
        if planned.action == "quarantine":
            current = self.bucket.head(planned.key)
            # The trash is checked after the original, because an abandoned attempt may still be
            # copying the object there.
            return self._quarantine(planned, in_trash_key, self.bucket.head(in_trash_key), current, keeps_versions)
        in_trash = self.bucket.head(in_trash_key)
        if planned.action == "purge":
            if in_trash is None:
                return Result(DONE) if resumed else absent_result(planned)
            if not _is_copy(in_trash, planned):
                return _no_copy_result(planned, in_trash_key, in_trash)
        else:
            refusal = self._restore(planned, in_trash_key, in_trash)
            if refusal is not None or in_trash is None:
                return refusal or Result(DONE)
        token = token_of(in_trash.identity) if self.bucket.compares_in_batches else None
        return RowDeletion(planned, (Deletion(in_trash_key, in_trash.version_id or null_version, token),))

    def _quarantine(
        self, planned: PlannedAction, to: str, in_trash: ObjectInfo | None, current: ObjectInfo | None, keeps_versions: bool
    ) -> Result:
        if in_trash is not None and _is_copy(in_trash, planned) and (current is None or current.identity != planned.etag):
            return Result(DONE)
        if current is None:
            return absent_result(planned)
        if is_other_object(current, planned, self.bucket.null_version):
            return changed_result(planned, current)
        if keeps_versions:
            found = f"bucket {self.bucket.name} keeps versions, so a copy frees nothing"
            return Result(DENIED, f"{planned.key!r}: {found}; use `quarantine: versioned` and create a new plan")
        if in_trash is None or not _is_copy(in_trash, planned):
            self.bucket.copy_if_match(current, planned.key, to, (QUARANTINED, current.identity)).require()
            copy = self.bucket.head(to)
            if copy is None or not _is_copy(copy, planned):
                return Result(FAILED, f"{planned.key!r}: the copy at {to!r} differs from the original; nothing was deleted, apply again")
        return remove_planned(self.bucket, planned)

    def _restore(self, planned: PlannedAction, trash_key: str, in_trash: ObjectInfo | None) -> Result | None:
        """Copy an object back to its key. The caller removes it from the trash afterwards.

        Returns:
            The result if the restore fails, or if there is nothing in the trash to be removed.
            Otherwise None.
        """
        current = self.bucket.head(planned.key)
        is_back = current is not None and (current.identity == planned.etag or is_restored_copy(current, planned))
        if in_trash is None:
            return Result(DONE) if is_back else absent_result(planned)
        if not _is_copy(in_trash, planned):
            return Result(DONE) if is_back else _no_copy_result(planned, trash_key, in_trash)
        if is_back:
            return None
        kept = f"the quarantined object stays at {trash_key!r}"
        if current is not None and not is_unfinished_restore(current, planned):
            return Result(CHANGED, f"{planned.key!r} is now another object, {current.identity}; the quarantined one stays at {trash_key!r}")
        refusal = copy_back(self.bucket, planned, in_trash, trash_key, kept)
        # The object itself may be current again, because it was only hidden by a delete marker.
        found = self.bucket.head(planned.key) if refusal is not None else None
        return None if found is not None and found.identity == planned.etag else refusal

    def _trash_key(self, planned: PlannedAction) -> str | None:
        plan_id = self.plan_id if planned.action == "quarantine" else planned.source_plan_id
        return trash_key(plan_id, planned.key) if plan_id is not None and PLAN_ID.fullmatch(plan_id) else None


@dataclass(frozen=True, slots=True)
class DeferredQuarantine:
    """Quarantine that only exists in the state. Objects stay readable until they are purged."""

    bucket: ConditionalBucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch (see `Quarantine.act`).

        A quarantine or restore does not move the object. It is `done` if the object still exists
        unchanged.
        """
        try:
            purges = any(planned.action == "purge" for planned in batch)
            null_version = self.bucket.null_version if purges and self.bucket.versioning("change").has_versions else None
        except OSError as error:
            return [to_failure(planned, error) for planned in batch]
        return map_concurrently(batch, lambda planned: run_guarded(planned, lambda: self._run(planned, planned in resumed, null_version)))

    def _run(self, planned: PlannedAction, resumed: bool, null_version: str | None) -> Result:
        current = self.bucket.head(planned.key, version_id=planned.version_id if planned.action == "purge" else None)
        if current is None:
            return Result(DONE) if resumed and planned.action == "purge" else absent_result(planned)
        if is_other_object(current, planned, self.bucket.null_version):
            return changed_result(planned, current)
        if planned.action != "purge":
            return Result(DONE)
        version_id = current.version_id or null_version
        if version_id is None:
            return remove_planned(self.bucket, planned)
        token = token_of(current.identity) if self.bucket.compares_in_batches else None
        return self.cover(planned, version_id) or self._purge_version(planned, Deletion(planned.key, version_id, token))

    def cover(self, planned: PlannedAction, version_id: str) -> Result | None:
        """Make sure that the purge of a version does not make an older version current.

        Returns:
            The result of the action if this is not possible, otherwise None.
        """
        del planned, version_id
        return None

    def _purge_version(self, planned: PlannedAction, version: Deletion) -> Result:
        (deleted,) = self.bucket.delete([version])
        if deleted.verdict == "unknown":
            deleted.require()
        return Result(DONE) if deleted.is_done else to_refusal(planned, deleted)


def remove_planned(bucket: ConditionalBucket, planned: PlannedAction) -> Result:
    """Delete the planned object, unless another object has replaced it.

    The object is compared again before each attempt.
    """
    is_compared = True
    for attempt in range(ATTEMPTS):
        current = bucket.head(planned.key)
        if current is None:
            return Result(DONE)
        if is_other_object(current, planned, bucket.null_version):
            return changed_result(planned, current)
        change = bucket.delete_if_match(planned.key, token_of(current.identity) if is_compared else None)
        if change.is_done:
            return Result(DONE)
        if change.verdict == "unsupported" and is_compared:
            is_compared = False  # nothing was deleted, and the next attempt compares the object itself
        elif (change.error is not None and is_permanent(change.error)) or attempt + 1 == ATTEMPTS:
            change.require()
        else:
            pause_before_retry(attempt)
    return Result(FAILED, f"{planned.action} {planned.key!r}: it still exists after {ATTEMPTS} requests; apply again")


def copy_back(bucket: ConditionalBucket, planned: PlannedAction, source: ObjectInfo, source_key: str, kept: str) -> Result | None:
    """Copy a quarantined object back to its key.

    There must be no object at the key, except an unfinished copy of the quarantined one.

    Args:
        bucket: The storage.
        planned: The row.
        source: The quarantined object.
        source_key: The key of the quarantined object.
        kept: Location of the quarantined object, as a phrase for error messages.

    Returns:
        The result of the restore if the copy fails, otherwise None.
    """
    copied = bucket.copy_if_absent(source, source_key, planned.key, (RESTORED, planned.etag or ""))
    if copied.verdict != "changed":
        copied.require()
    restored = bucket.head(planned.key)
    if restored is not None and is_restored_copy(restored, planned):  # even if the response was lost
        return None
    if copied.verdict == "changed":
        return Result(CHANGED, f"{planned.key!r} has just been written; {kept}")
    return Result(FAILED, f"{planned.key!r}: the restored object is missing; {kept}, apply again")


def is_other_object(current: ObjectInfo, planned: PlannedAction, null_version: str | None) -> bool:
    """Return True if the current object at a key is not the planned one."""
    # For objects from before versioning, some servers such as Ceph 16 omit the version.
    return current.identity != planned.etag or (
        planned.version_id is not None and (current.version_id or null_version) != planned.version_id
    )


def _is_copy(in_trash: ObjectInfo, planned: PlannedAction) -> bool:
    """Return True if an object in the trash is a copy of the planned object.

    Servers may ignore the condition of a copy request. If the tokens of both objects are checksums
    of their bytes, they are therefore compared too.
    """
    return in_trash.metadata.get(QUARANTINED) == planned.etag and not _has_other_bytes(in_trash, planned)


def _has_other_bytes(in_trash: ObjectInfo, planned: PlannedAction) -> bool:
    tokens = {token_of(in_trash.identity), token_of(planned.etag or "")}
    same = len(tokens) == 1 or not all(map(_MD5.fullmatch, tokens)) or not in_trash.token_is_checksum
    return not same or in_trash.size_bytes != planned.size_bytes


def is_restored_copy(current: ObjectInfo, planned: PlannedAction) -> bool:
    return current.metadata.get(RESTORED) == planned.etag and current.size_bytes == planned.size_bytes


def is_unfinished_restore(current: ObjectInfo, planned: PlannedAction) -> bool:
    """Return True if the server is still copying the object for an earlier restore."""
    return planned.etag is not None and current.unfinished.get(RESTORED) == planned.etag


def absent_result(planned: PlannedAction) -> Result:
    return Result(ABSENT, f"{planned.action}: {planned.key!r} does not exist")


def _no_copy_result(planned: PlannedAction, trash_key: str, in_trash: ObjectInfo) -> Result:
    if _has_other_bytes(in_trash, planned) and not in_trash.unfinished:
        return lost_copy_result(planned, trash_key, f"{in_trash.identity}, expected a copy of {planned.etag}")
    way_out = (
        "If its content is right, copy it to the key manually. Then remove it from the trash: the next restore or purge ends its record"
    )
    return Result(CHANGED, f"{planned.action}: {trash_key!r} is not a copy of {planned.etag}; left alone. {way_out}")


def changed_result(planned: PlannedAction, current: ObjectInfo) -> Result:
    expected, found = f"{planned.etag}, version {planned.version_id}", f"{current.identity}, version {current.version_id}"
    return Result(CHANGED, f"{planned.action}: expected {expected} at {planned.key!r}, found {found}; left alone")
