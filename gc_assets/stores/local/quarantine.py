"""Quarantine, purge and restore files on a local disk.

In mode *trash*, a file is renamed to `.gc-assets/trash/<plan id>/<key>` in the same storage. In
mode *deferred*, it is not moved, and only the state records that it is in quarantine. In both
modes, the identity of a file is compared immediately before every change.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gc_assets.core.errors import UsageError, is_permanent
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED, Verdict
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.local.safe_paths import SYMBOLIC_LINK, Entry, OutOfBounds, Tree, ancestors
from gc_assets.stores.protocol import RESERVED_PREFIX, PlannedAction, Quarantine, QuarantineMode, Result
from gc_assets.stores.trash import PLAN_ID, lost_copy_result, require_plan_id, trash_key

_WAY_OUT = {
    errno.EPERM: "the file is immutable or belongs to another user, or the file system lacks hard links for a restore; move it manually",
    errno.EROFS: "the file is on a read-only mount; mount it writable, then run `gc-assets retry` for the storage",
    errno.EXDEV: "it is on a different file system from the trash; configure that mount as its own storage, or use `quarantine: deferred`",
    errno.ENOSPC: "the disk is full; free some space and apply the plan again",
    errno.EDQUOT: "the disk quota is exceeded; free some space and apply the plan again",
}


def open_quarantine(mode: QuarantineMode, location: str, plan_id: str) -> Quarantine:
    """Return an object that executes the actions of a plan in a storage.

    Raises:
        UsageError: If a local disk does not support the mode, or if the plan id is not suitable as
            the name of a directory.
    """
    require_plan_id(plan_id)
    tree = Tree(local_path(location).rstrip("/") or "/")
    if mode == "trash":
        return TrashQuarantine(tree, plan_id)
    if mode == "deferred":
        return DeferredQuarantine(tree)
    raise UsageError(
        f"storage {location}: `quarantine: {mode}` needs object versions, which a local disk does not have; use trash or deferred"
    )


@dataclass(frozen=True, slots=True)
class TrashQuarantine:
    """Quarantine that renames files. `plan_id` is the plan being applied."""

    tree: Tree
    plan_id: str

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch (see `Quarantine.act`)."""
        results = [_run_guarded(planned, self._run, planned in resumed) for planned in batch]
        self.tree.sync({directory for planned in _select_done(batch, results) for directory in self._changed_directories(planned)})
        # At this point the restored names are durable, so the names in the trash can be removed.
        restored = {planned.key for planned in _select_done(batch, results) if planned.action == "restore"}
        results = [
            _run_guarded(planned, self._unlink_from_trash, False) if planned.key in restored else result
            for planned, result in zip(batch, results, strict=True)
        ]
        self.tree.sync({ancestors(self._trash_key(planned))[-1] for planned in _select_done(batch, results) if planned.key in restored})
        return results

    def _changed_directories(self, planned: PlannedAction) -> list[str]:
        in_trash, source = ancestors(self._trash_key(planned)), ancestors(planned.key)
        if planned.action == "quarantine":
            return [*in_trash, source[-1]]
        return source if planned.action == "restore" else in_trash[-1:]

    def _trash_key(self, planned: PlannedAction) -> str:
        plan_id = self.plan_id if planned.action == "quarantine" else planned.source_plan_id
        if plan_id is None or not PLAN_ID.fullmatch(plan_id):
            raise OutOfBounds(f"cannot {planned.action} {planned.key!r}: the id of the plan that quarantined it is {plan_id!r}")
        return trash_key(plan_id, planned.key)

    def _run(self, planned: PlannedAction, resumed: bool) -> Result:
        if planned.action == "quarantine":
            with self.tree.entry(planned.key) as source:
                return self._quarantine(planned, source)
        with self.tree.entry(self._trash_key(planned)) as trashed:
            if planned.action == "purge":
                found = trashed.identity()
                if found is not None and found != planned.etag:
                    return _other_copy_result(planned, trashed, found)
                return _purge(planned, trashed, resumed)
            with self.tree.entry(planned.key) as source:
                return self._restore(planned, source, trashed)

    def _quarantine(self, planned: PlannedAction, source: Entry) -> Result:
        current = source.identity()
        # The trash is checked after the source, because an abandoned attempt may still be moving
        # the object there.
        with self.tree.entry(self._trash_key(planned)) as trashed:
            if trashed.identity() is not None:
                return self._verify_move(planned, source, trashed)
        if current is None:
            return _absent_result(planned, source)
        if current != planned.etag:
            return _changed_result(planned, source, current)
        with self.tree.entry(trashed.key, create=True, like=planned.key) as target:
            source.rename_to(target)
            return self._verify_move(planned, source, target)

    def _verify_move(self, planned: PlannedAction, source: Entry, trashed: Entry) -> Result:
        """Check that the planned file, and no other one, has been moved to the trash.

        If a writer replaced the file just before the rename, the new file is moved back.
        """
        in_trash, current = trashed.identity(), source.identity()
        if in_trash == planned.etag:
            if current == planned.etag:
                return Result(
                    FAILED, f"{planned.key!r} is both in the storage and in the trash: a restore was interrupted; restore it first"
                )
            return Result(DONE)
        if current is None:
            try:
                trashed.link_to(source)
                source.sync_directory()
            except OSError as error:
                found = f"another object had replaced {planned.key!r} and was moved to {trashed.key!r}"
                return Result(FAILED, f"{found}; it could not be moved back ({error.strerror}): apply again, or move it back manually")
        elif current != in_trash:
            found = f"{current} is at the key, {in_trash} at {trashed.key!r}"
            return Result(FAILED, f"{planned.key!r} was replaced twice: {found}; decide which one to keep and remove the other")
        trashed.unlink()
        return _changed_result(planned, source, in_trash)

    def _restore(self, planned: PlannedAction, source: Entry, trashed: Entry) -> Result:
        in_trash, current = trashed.identity(), source.identity()
        if in_trash is None:
            return Result(DONE) if current == planned.etag else _absent_result(planned, trashed)
        if in_trash != planned.etag:
            return _other_copy_result(planned, trashed, in_trash)
        if current is None:
            with self.tree.entry(planned.key, create=True, like=trashed.key) as target:
                trashed.link_to(target)
        elif current != planned.etag:
            return Result(
                _changed_verdict(current), f"{planned.key!r} is now another object, {current}; the quarantined one stays at {trashed.key!r}"
            )
        return Result(DONE)

    def _unlink_from_trash(self, planned: PlannedAction, _: bool) -> Result:
        with self.tree.entry(self._trash_key(planned)) as trashed:
            if trashed.identity() == planned.etag:
                trashed.unlink()
        return Result(DONE)


@dataclass(frozen=True, slots=True)
class DeferredQuarantine:
    """Quarantine that only exists in the state. Files stay readable until they are purged.

    There is a small risk. A disk cannot compare and delete a file in one step, so if a writer
    replaces the file in the microseconds between, its new file is lost. With `TrashQuarantine`,
    this cannot happen.
    """

    tree: Tree

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch (see `Quarantine.act`).

        A quarantine or restore does not move the file. It is `done` if the file still exists
        unchanged.
        """
        results = [_run_guarded(planned, self._run, planned in resumed) for planned in batch]
        self.tree.sync({ancestors(planned.key)[-1] for planned in _select_done(batch, results) if planned.action == "purge"})
        return results

    def _run(self, planned: PlannedAction, resumed: bool) -> Result:
        with self.tree.entry(planned.key) as source:
            if planned.action == "purge":
                return _purge(planned, source, resumed)
            current = source.identity()
            if current is None:
                return _absent_result(planned, source)
            return Result(DONE) if current == planned.etag else _changed_result(planned, source, current)


def _purge(planned: PlannedAction, entry: Entry, resumed: bool) -> Result:
    current = entry.identity()
    if current is None:
        return Result(DONE) if resumed else _absent_result(planned, entry)
    if current != planned.etag:
        return _changed_result(planned, entry, current)
    entry.unlink()
    return Result(DONE)


def _select_done(batch: Sequence[PlannedAction], results: Sequence[Result]) -> list[PlannedAction]:
    return [planned for planned, result in zip(batch, results, strict=True) if result.verdict == DONE]


def _run_guarded(planned: PlannedAction, act: Callable[[PlannedAction, bool], Result], resumed: bool) -> Result:
    """Run an action on one file, and convert errors to results.

    The result is `failed` if a retry may help, otherwise `denied`.
    """
    if planned.etag is None or planned.version_id is not None:
        return Result(
            DENIED, f"{planned.key!r}: expected an etag and no version on a local disk, found {planned.etag!r} and {planned.version_id!r}"
        )
    if f"{planned.key}/".startswith(RESERVED_PREFIX):
        return Result(DENIED, f"{planned.key!r} is under the reserved prefix {RESERVED_PREFIX!r}")
    try:
        return act(planned, resumed)
    except OutOfBounds as error:
        return Result(DENIED, str(error))
    except OSError as error:
        verdict = DENIED if is_permanent(error) else FAILED
        advice = _WAY_OUT.get(error.errno or 0)
        return Result(verdict, f"{planned.action} {planned.key!r}: {error.strerror or error}" + (f": {advice}" if advice else ""))


def _absent_result(planned: PlannedAction, entry: Entry) -> Result:
    return Result(ABSENT, f"{planned.action}: {entry.key!r} does not exist")


def _changed_result(planned: PlannedAction, entry: Entry, found: str | None) -> Result:
    return Result(_changed_verdict(found), f"{planned.action}: expected {planned.etag} at {entry.key!r}, found {found}; left alone")


def _other_copy_result(planned: PlannedAction, trashed: Entry, found: str) -> Result:
    size_bytes = found.partition("-")[0]
    if size_bytes.isdecimal() and int(size_bytes) != planned.size_bytes:
        return lost_copy_result(planned, trashed.key, f"it has {size_bytes} B, expected {planned.size_bytes} B")
    result = _changed_result(planned, trashed, found)
    way_out = "`gc-assets adopt` records it as it is now. If its content is wrong, remove it: the next restore or purge ends its record"
    return Result(result.verdict, f"{result.error}. {way_out}")


def _changed_verdict(found: str | None) -> Verdict:
    return DENIED if found == SYMBOLIC_LINK else CHANGED
