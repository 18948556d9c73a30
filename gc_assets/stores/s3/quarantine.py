"""The three ways to quarantine in a bucket, and what purge and restore mean in each.

*versioned* deletes and lets the bucket keep the version below a delete marker. *trash* copies an
object to `.gc-assets/trash/<plan id>/<key>`, verifies the copy and deletes. *deferred* moves
nothing: the record is the quarantine. All compare identities immediately before they touch
anything, and look afterwards at what they have done. Which object, and why, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar

from gc_assets.core.errors import StoreError, UsageError
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED
from gc_assets.s3.client import pause_before_retry
from gc_assets.stores.protocol import RESERVED_PREFIX, PlannedAction, Quarantine, QuarantineMode, Result
from gc_assets.stores.s3.bucket import Bucket, DeleteResult, Head, Version, map_concurrently
from gc_assets.stores.s3.copying import CopyMetadata, copy_back, copy_to_trash
from gc_assets.stores.s3.objects import etag_of

_PLAN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")
_MD5 = re.compile(r"[0-9a-f]{32}")
# Versions of one key that are looked at: markers that were put one on the other, and what is below.
_VERSIONS: Final = 100
# Attempts at a delete, and another look before each.
ATTEMPTS: Final = 8
# Between a run's look at an object and its delete lies less than this, whatever happens to the run.
# A marker that was made so soon above another object may be the run's.
_LOOK_TO_DELETE: Final = timedelta(minutes=10)
_NULL: Final = "null"
_Step = TypeVar("_Step")
_Settle = Callable[[PlannedAction, DeleteResult], Result]


def open_quarantine(mode: QuarantineMode, bucket: Bucket, plan_id: str) -> Quarantine:
    """Returns the quarantine of a storage for one plan. Raises `UsageError` for a mode the store
    does not have, and for a plan id that cannot be part of a key.
    """
    if not _PLAN_ID.fullmatch(plan_id):
        raise UsageError(f"plan id {plan_id!r} cannot be part of a key; expected letters, digits, `_` and `-`")
    if mode == "versioned":
        return VersionedQuarantine(bucket)
    return TrashQuarantine(bucket, plan_id) if mode == "trash" else DeferredQuarantine(bucket)


@dataclass(frozen=True, slots=True)
class VersionedQuarantine:
    """Quarantine below delete markers. Bytes stay in the bucket until their version is purged.

    A writer may put a new object at a key between our look and our delete. Our marker would hide
    it, so every marker is looked at afterwards, and removed where it hides anything else than the
    planned version. Whether the bucket keeps versions is asked after the last look at its objects,
    immediately before the delete.
    """

    bucket: Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Acts as `Quarantine.act` says."""
        return _deleted_and_settled(self.bucket, batch, resumed, self._prepared, self._settled, self._allowed)

    def _prepared(self, planned: PlannedAction, resumed: bool) -> Result | Deletion:
        if planned.version_id is None:
            return Result(DENIED, f"{planned.key!r} was planned without a version; the bucket kept none then. Make a new plan")
        if planned.action == "quarantine":
            return self._to_hide(planned, resumed)
        return self._to_show(planned) if planned.action == "restore" else self._to_purge(planned, resumed)

    def _to_hide(self, planned: PlannedAction, resumed: bool) -> Result | Deletion:
        here = self.bucket.head(planned.key)
        if here is None:
            versions = self.bucket.newest_versions(planned.key, _VERSIONS)
            markers, below = _under_markers(versions)
            if below is not None and below == planned.version_id:
                return Result(DONE)
            if resumed and _hides_what_came_between(versions, planned):
                return self._shown_again(planned, markers[0])
            return _absent(planned)
        if _is_other(here, planned):
            return _changed(planned, here)
        return Deletion(planned, ((planned.key, None),))

    def _allowed(self, steps: Sequence[Result | Deletion]) -> Sequence[Result | Deletion]:
        """Refuses deletes that the bucket would make for good by now."""
        if not any(isinstance(step, Deletion) and step.planned.action == "quarantine" for step in steps):
            return steps
        try:
            if self.bucket.versioning("change").is_on:
                return steps
        except OSError as error:
            return [_failed(step.planned, error) if isinstance(step, Deletion) else step for step in steps]
        found = f"bucket {self.bucket.name} does not keep versions by now, so a delete could be for good"
        way_out = "enable versioning, or use `quarantine: trash` and make a new plan"
        return [
            Result(DENIED, f"{step.planned.key!r}: {found}; {way_out}")
            if isinstance(step, Deletion) and step.planned.action == "quarantine"
            else step
            for step in steps
        ]

    def _shown_again(self, planned: PlannedAction, marker: str) -> Result:
        """Removes a delete marker of ours that hides another object than the planned one."""
        (removed,) = self.bucket.delete([(planned.key, marker)])
        found = f"quarantine {planned.key!r}: another object was written just then"
        if removed.error is not None:
            return Result(FAILED, f"{found}, and our delete marker {marker} hides it: {removed.error}; remove that marker, or apply again")
        return Result(CHANGED, f"{found}; our delete marker was removed again")

    def _to_show(self, planned: PlannedAction) -> Result | Deletion:
        markers, below = _under_markers(self.bucket.newest_versions(planned.key, _VERSIONS))
        if below != planned.version_id:
            hidden = self.bucket.head(planned.key, version_id=planned.version_id)
            if hidden is None:
                return _absent(planned)
            found = f"version {below} stands there by now" if below is not None else "it lies below other versions"
            return Result(CHANGED, f"restore {planned.key!r}: {found}; the quarantined version {planned.version_id} stays where it is")
        return Deletion(planned, tuple((planned.key, marker) for marker in markers)) if markers else Result(DONE)

    def _to_purge(self, planned: PlannedAction, resumed: bool) -> Result | Deletion:
        version = self.bucket.head(planned.key, version_id=planned.version_id)
        if version is None:
            return Result(DONE) if resumed else _absent(planned)
        if _is_other(version, planned):
            return _changed(planned, version)
        versions = self.bucket.newest_versions(planned.key, _VERSIONS)
        markers, below = _under_markers(versions)
        if not markers and below == planned.version_id:
            return Result(CHANGED, f"purge {planned.key!r}: somebody removed its delete marker, so it is no longer quarantined; left alone")
        older = [item.version_id for item in _below(versions, planned.version_id)]
        return Deletion(planned, tuple((planned.key, version_id) for version_id in (planned.version_id, *older)))

    def _settled(self, planned: PlannedAction, deleted: DeleteResult) -> Result:
        """Looks at what a delete has done."""
        versions = self.bucket.newest_versions(planned.key, _VERSIONS)
        markers, below = _under_markers(versions)
        if planned.action == "purge":
            if markers and len(markers) == len(versions) < _VERSIONS:  # nothing is left for them to hide
                self.bucket.delete([(planned.key, marker) for marker in markers])
            return Result(DONE)
        if planned.action == "restore":
            shown = not markers and below == planned.version_id
            return Result(DONE) if shown else Result(FAILED, f"restore {planned.key!r}: it is not back yet, or was replaced; apply again")
        if deleted.marker is None:
            found = "the server deleted without making a delete marker"
            return Result(FAILED, f"{planned.key!r}: {found}; apply nothing more here before `gc-assets doctor` has looked at the bucket")
        ours = [number for number, version in enumerate(versions) if version.version_id == deleted.marker]
        _, hidden = _under_markers(versions[ours[0] :]) if ours else ([], None)
        if hidden == planned.version_id:
            return Result(DONE)
        if deleted.marker == _NULL:
            found = "versioning was suspended just then, and the delete may have been for good"
            return Result(FAILED, f"{planned.key!r}: {found}; enable versioning and look at the key's versions")
        return self._shown_again(planned, deleted.marker)


@dataclass(frozen=True, slots=True)
class TrashQuarantine:
    """Quarantine by copying aside, in buckets that keep no versions. `plan_id` is the plan that
    acts.

    Between the last look and the delete lies one request. A server that compares as it deletes
    closes that gap. On others an object that is replaced within it is lost.
    """

    bucket: Bucket
    plan_id: str

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Acts as `Quarantine.act` says."""
        try:
            versioning = self.bucket.versioning("change")
        except OSError as error:
            return [_failed(planned, error) for planned in batch]

        unnamed = _NULL if versioning.has_versions else None

        def prepared(planned: PlannedAction, resumed: bool) -> Result | Deletion:
            step = self._done(planned, versioning.is_on, resumed)
            if isinstance(step, Result):
                return step
            return Deletion(planned, tuple((key, version_id or unnamed) for key, version_id in step.objects))

        return _deleted_and_settled(self.bucket, batch, resumed, prepared, lambda _, __: Result(DONE))

    def _done(self, planned: PlannedAction, keeps: bool, resumed: bool) -> Result | Deletion:
        held = self._held_key(planned)
        if held is None:
            return Result(DENIED, f"{planned.key!r}: {planned.action} needs the id of the plan that quarantined it")
        if planned.action == "quarantine":
            here = self.bucket.head(planned.key)
            # The trash is looked at last: an attempt that was given up may still move the object
            # there.
            return self._quarantined(planned, held, self.bucket.head(held), here, keeps)
        in_trash = self.bucket.head(held)
        if planned.action == "purge":
            if in_trash is None:
                return Result(DONE) if resumed else _absent(planned)
            return Deletion(planned, ((held, in_trash.version_id),)) if _is_copy(in_trash, planned) else _another(planned, held)
        return self._restored(planned, held, in_trash, self.bucket.head(planned.key))

    def _quarantined(self, planned: PlannedAction, held: str, in_trash: Head | None, here: Head | None, keeps: bool) -> Result:
        if in_trash is not None and _is_copy(in_trash, planned) and (here is None or here.identity != planned.etag):
            return Result(DONE)
        if here is None:
            return _absent(planned)
        if _is_other(here, planned):
            return _changed(planned, here)
        if keeps:
            found = f"bucket {self.bucket.name} keeps versions, so a copy frees nothing"
            return Result(DENIED, f"{planned.key!r}: {found}; use `quarantine: versioned` and make a new plan")
        if in_trash is None or not _is_copy(in_trash, planned):
            copy_to_trash(self.bucket, planned.key, held, here)
            made = self.bucket.head(held)
            if made is None or not _is_copy(made, planned):
                return Result(FAILED, f"{planned.key!r}: its copy at {held!r} is not what was copied; nothing was deleted, apply again")
        return _removed(self.bucket, planned)

    def _restored(self, planned: PlannedAction, held: str, in_trash: Head | None, here: Head | None) -> Result | Deletion:
        is_back = here is not None and (here.identity == planned.etag or _is_put_back(here, planned))
        if in_trash is None:
            return Result(DONE) if is_back else _absent(planned)
        if not _is_copy(in_trash, planned):
            return _another(planned, held)
        if not is_back:
            if here is not None:
                return Result(CHANGED, f"{planned.key!r} is {here.identity} by now, another object; the quarantined one stays at {held!r}")
            if not copy_back(self.bucket, in_trash, held, planned.key):
                return Result(CHANGED, f"{planned.key!r} was written just now; the quarantined object stays at {held!r}")
            back = self.bucket.head(planned.key)
            if back is None or not _is_put_back(back, planned):
                found = f"what was put back is not there; the quarantined object stays at {held!r}"
                return Result(FAILED, f"{planned.key!r}: {found}, apply again")
        return Deletion(planned, ((held, in_trash.version_id),))

    def _held_key(self, planned: PlannedAction) -> str | None:
        plan_id = self.plan_id if planned.action == "quarantine" else planned.source_plan_id
        return f"{RESERVED_PREFIX}trash/{plan_id}/{planned.key}" if plan_id is not None and _PLAN_ID.fullmatch(plan_id) else None


@dataclass(frozen=True, slots=True)
class DeferredQuarantine:
    """Quarantine on record only: objects stay readable in their place until they are purged."""

    bucket: Bucket

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Acts as `Quarantine.act` says. A restore is done where the object still stands in its
        place.
        """
        try:
            purges = any(planned.action == "purge" for planned in batch)
            unnamed = _NULL if purges and self.bucket.versioning("change").has_versions else None
        except OSError as error:
            return [_failed(planned, error) for planned in batch]
        return map_concurrently(batch, lambda planned: run_guarded(planned, lambda: self._one(planned, planned in resumed, unnamed)))

    def _one(self, planned: PlannedAction, resumed: bool, unnamed: str | None) -> Result:
        here = self.bucket.head(planned.key, version_id=planned.version_id if planned.action == "purge" else None)
        if here is None:
            return Result(DONE) if resumed and planned.action == "purge" else _absent(planned)
        if _is_other(here, planned):
            return _changed(planned, here)
        if planned.action != "purge":
            return Result(DONE)
        version_id = here.version_id or unnamed
        if version_id is None:
            return _removed(self.bucket, planned)
        covered = self._covered(planned, version_id)
        if covered is not None:
            return covered
        (deleted,) = self.bucket.delete([(planned.key, version_id)])
        return Result(DONE) if deleted.error is None else _said(planned, deleted)

    def _covered(self, planned: PlannedAction, version_id: str) -> Result | None:
        """Puts a delete marker on the planned version where its purge would bring an older one back
        to light. Returns the refusal where that cannot be done, else null.
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
    """What is left to do for a row: delete these keys and versions, with those of other rows. A
    purge has the planned version first, and then those below it, which go if they can.
    """

    planned: PlannedAction
    objects: tuple[tuple[str, str | None], ...]


def _deleted_and_settled(
    bucket: Bucket,
    batch: Sequence[PlannedAction],
    resumed: Collection[PlannedAction],
    prepare: Callable[[PlannedAction, bool], Result | Deletion],
    settle: _Settle,
    allow: Callable[[Sequence[Result | Deletion]], Sequence[Result | Deletion]] = lambda steps: steps,
) -> list[Result]:
    """Prepares each row, deletes what that leaves to do in few requests, and settles each row.

    After a request that failed, or whose answer was lost, everything is looked at again first.
    """
    steps, asked, todo = dict[int, Result | Deletion](), set(resumed), list(range(len(batch)))

    def prepared(number: int) -> Result | Deletion:
        planned = batch[number]
        return run_guarded(planned, lambda: prepare(planned, planned in asked))

    for attempt in range(ATTEMPTS):
        steps |= zip(todo, allow(map_concurrently(todo, prepared)), strict=True)
        left = {number: step for number, step in steps.items() if isinstance(step, Deletion)}
        objects = [item for step in left.values() for item in step.objects]
        try:
            answers = dict(zip(objects, bucket.delete(objects), strict=True))
            break
        except OSError as error:
            if attempt + 1 == ATTEMPTS:
                return [step if isinstance(step, Result) else _failed(step.planned, error) for _, step in sorted(steps.items())]
        asked |= {step.planned for step in left.values()}
        todo = list(left)
        pause_before_retry(attempt)
    else:
        raise AssertionError("a loop of attempts ends by returning or breaking")

    def settled(step: Result | Deletion) -> Result:
        if isinstance(step, Result):
            return step
        said = [answers[item] for item in step.objects]
        needed = said[:1] if step.planned.action == "purge" else said
        refusal = next((deleted for deleted in needed if deleted.error is not None), None)
        if refusal is not None:
            return _said(step.planned, refusal)
        result = run_guarded(step.planned, lambda: settle(step.planned, said[0]))
        return replace(result, error=_what_lay_below(step, said)) if result.verdict == DONE and len(said) > len(needed) else result

    return map_concurrently([step for _, step in sorted(steps.items())], settled)


def _what_lay_below(step: Deletion, said: Sequence[DeleteResult]) -> str:
    """Returns what became of the versions below a purged one, by their names."""
    rows = list(zip((version_id for _, version_id in step.objects[1:]), said[1:], strict=True))
    gone = [f"version {version_id}" for version_id, deleted in rows if deleted.error is None]
    kept = [f"version {version_id} ({deleted.error})" for version_id, deleted in rows if deleted.error is not None]
    went = [f"with it went what lay below it: {', '.join(gone)}"] if gone else []
    stays = [f"what lay below it stays, under a delete marker: {', '.join(kept)}"] if kept else []
    return "; ".join(went + stays)


def _below(versions: Sequence[Version], version_id: str | None) -> list[Version]:
    """Returns what lies below a version, none of it newer. Nothing where the version is not among
    those that were looked at.
    """
    at = next((number for number, version in enumerate(versions) if version.version_id == version_id), len(versions))
    return [version for version in versions[at + 1 :] if version.modified <= versions[at].modified]


def _removed(bucket: Bucket, planned: PlannedAction) -> Result:
    """Deletes the planned object where it still stands there, and looks again before each attempt."""
    for attempt in range(ATTEMPTS):
        here = bucket.head(planned.key)
        if here is None:
            return Result(DONE)
        if _is_other(here, planned):
            return _changed(planned, here)
        try:
            bucket.remove(planned.key, etag_of(here.identity))
        except OSError as error:
            if isinstance(error, PermissionError) or attempt + 1 == ATTEMPTS:
                raise
            pause_before_retry(attempt)
        else:
            return Result(DONE)
    raise AssertionError("a loop of attempts ends by returning or raising")


def run_guarded(planned: PlannedAction, act: Callable[[], _Step]) -> _Step | Result:
    """Returns the act's answer, or its refusal in words: `denied` for what no repetition can mend,
    else `failed`.
    """
    if planned.etag is None:
        return Result(DENIED, f"{planned.key!r}: an object in a bucket needs an etag, found none")
    if f"{planned.key}/".startswith(RESERVED_PREFIX):
        return Result(DENIED, f"{planned.key!r} is under the reserved prefix {RESERVED_PREFIX!r}")
    try:
        return act()
    except (OSError, StoreError) as error:
        return _failed(planned, error)


def _failed(planned: PlannedAction, error: OSError | StoreError) -> Result:
    words = f"{planned.action} {planned.key!r}: {(error.strerror if isinstance(error, OSError) else None) or error}"
    return Result(DENIED if isinstance(error, PermissionError) else FAILED, words)


def _said(planned: PlannedAction, deleted: DeleteResult) -> Result:
    return Result(DENIED if deleted.is_denied else FAILED, f"{planned.action} {planned.key!r}: {deleted.error}")


def _is_other(here: Head, planned: PlannedAction) -> bool:
    """Says whether another object stands there than the planned one."""
    # Some servers do not name the version of an object from before versioning (Ceph 16).
    return here.identity != planned.etag or (planned.version_id is not None and (here.version_id or _NULL) != planned.version_id)


def _is_copy(in_trash: Head, planned: PlannedAction) -> bool:
    """Says whether a copy in the trash is one of the planned object. Where both etags are sums of
    the bytes they are compared too: a server may ignore that only one object was to be copied.
    """
    copy, etags = CopyMetadata.of(in_trash), {etag_of(in_trash.identity), etag_of(planned.etag or "")}
    same = len(etags) == 1 or not all(map(_MD5.fullmatch, etags)) or "SSEKMSKeyId" in in_trash.answer
    return same and copy.quarantined == planned.etag and copy.size_bytes == planned.size_bytes


def _is_put_back(here: Head, planned: PlannedAction) -> bool:
    copy = CopyMetadata.of(here)
    return copy.restored == planned.etag and copy.size_bytes == planned.size_bytes


def _hides_what_came_between(versions: Sequence[Version], planned: PlannedAction) -> bool:
    """Says whether the newest version is a delete marker that an interrupted run may have made, on
    an object that was written between its look at the planned one and its delete.
    """
    if [version.is_marker for version in versions[:2]] != [True, False]:
        return False
    marker, hidden, *older = versions
    return marker.modified - hidden.modified <= _LOOK_TO_DELETE and planned.version_id in {version.version_id for version in older}


def _under_markers(versions: Sequence[Version]) -> tuple[list[str], str | None]:
    """Returns the ids of the delete markers on top, and of the version below them."""
    markers: list[str] = []
    for version in versions:
        if not version.is_marker:
            return markers, version.version_id
        markers.append(version.version_id)
    return markers, None


def _absent(planned: PlannedAction) -> Result:
    return Result(ABSENT, f"{planned.action}: nothing is at {planned.key!r}")


def _another(planned: PlannedAction, held: str) -> Result:
    return Result(CHANGED, f"{planned.action}: {held!r} is no copy of {planned.etag}; left alone")


def _changed(planned: PlannedAction, here: Head) -> Result:
    expected, found = f"{planned.etag}, version {planned.version_id}", f"{here.identity}, version {here.version_id}"
    return Result(CHANGED, f"{planned.action}: expected {expected} at {planned.key!r}, found {found}; left alone")
