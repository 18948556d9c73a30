"""The two ways to quarantine on a local disk, and what purge and restore mean in each.

*trash* renames an object to `.gc-assets/trash/<plan id>/<key>` on the same storage. *deferred*
moves nothing: the record is the quarantine. Both compare identities immediately before they touch
anything. Which object, and why, is decided elsewhere.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gc_assets.core.errors import UsageError
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED, Verdict
from gc_assets.stores.local.kind import QUARANTINES
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.local.safe_paths import SYMBOLIC_LINK, Entry, OutOfBounds, Tree, ancestors
from gc_assets.stores.protocol import RESERVED_PREFIX, PlannedAction, Quarantine, QuarantineMode, Result

_PLAN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")
_WAY_OUT = {
    errno.EPERM: "the file is immutable or another user's, or the file system has no hard links, which a restore needs; move it by hand",
    errno.EXDEV: "it is on another file system than the trash; make that mount a storage of its own, or use `quarantine: deferred`",
    errno.ENOSPC: "the disk is full: free some space and apply the plan again",
    errno.EDQUOT: "the disk quota is used up: free some space and apply the plan again",
}


def open_quarantine(mode: QuarantineMode, location: str, plan_id: str) -> Quarantine:
    """Returns the quarantine of a storage for one plan. Raises `UsageError` for a mode the store
    does not have.
    """
    if not _PLAN_ID.fullmatch(plan_id):
        raise UsageError(f"plan id {plan_id!r} cannot name a directory; expected letters, digits, `_` and `-`")
    tree = Tree(local_path(location).rstrip("/") or "/")
    if mode not in QUARANTINES:
        raise UsageError(
            f"storage {location}: `quarantine: {mode}` needs object versions, which a local disk has not; use trash or deferred"
        )
    return TrashQuarantine(tree, plan_id) if mode == "trash" else DeferredQuarantine(tree)


def trash_key(plan_id: str, key: str) -> str:
    return f"{RESERVED_PREFIX}trash/{plan_id}/{key}"


@dataclass(frozen=True, slots=True)
class TrashQuarantine:
    """Quarantine by renaming aside. `plan_id` is the plan that acts."""

    tree: Tree
    plan_id: str

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Acts as `Quarantine.act` says."""
        results = [_answer(planned, self._one, planned in resumed) for planned in batch]
        self.tree.sync({directory for planned in _done(batch, results) for directory in self._touched(planned)})
        # A restored object's new name is on disk by now, so the old one can go.
        restored = {planned.key for planned in _done(batch, results) if planned.action == "restore"}
        results = [
            _answer(planned, self._let_go, False) if planned.key in restored else result
            for planned, result in zip(batch, results, strict=True)
        ]
        self.tree.sync({ancestors(self._held_key(planned))[-1] for planned in _done(batch, results) if planned.key in restored})
        return results

    def _touched(self, planned: PlannedAction) -> list[str]:
        held, source = ancestors(self._held_key(planned)), ancestors(planned.key)
        if planned.action == "quarantine":
            return [*held, source[-1]]
        return source if planned.action == "restore" else held[-1:]

    def _held_key(self, planned: PlannedAction) -> str:
        plan_id = self.plan_id if planned.action == "quarantine" else planned.source_plan_id
        if plan_id is None or not _PLAN_ID.fullmatch(plan_id):
            raise OutOfBounds(f"{planned.key!r}: {planned.action} needs the id of the plan that quarantined it, found {plan_id!r}")
        return trash_key(plan_id, planned.key)

    def _one(self, planned: PlannedAction, resumed: bool) -> Result:
        if planned.action == "quarantine":
            with self.tree.entry(planned.key) as source:
                return self._quarantine(planned, source)
        with self.tree.entry(self._held_key(planned)) as held:
            if planned.action == "purge":
                return _purge(planned, held, resumed)
            with self.tree.entry(planned.key) as source:
                return self._restore(planned, source, held)

    def _quarantine(self, planned: PlannedAction, source: Entry) -> Result:
        here = source.identity()
        # The trash is looked at last: an attempt that was given up may still move the object there.
        with self.tree.entry(self._held_key(planned)) as held:
            if held.identity() is not None:
                return self._settle(planned, source, held)
        if here is None:
            return _absent(planned, source)
        if here != planned.etag:
            return _changed(planned, source, here)
        with self.tree.entry(held.key, create=True, like=planned.key) as target:
            source.rename_to(target)
            return self._settle(planned, source, target)

    def _settle(self, planned: PlannedAction, source: Entry, held: Entry) -> Result:
        """Makes sure that the planned object lies in the trash. An object that replaced it just
        before the rename goes back to its place.
        """
        in_trash, here = held.identity(), source.identity()
        if in_trash == planned.etag:
            if here == planned.etag:
                return Result(FAILED, f"{planned.key!r} is in its place and in the trash: a restore was interrupted; restore it first")
            return Result(DONE)
        if here is None:
            try:
                held.link_to(source)
                source.sync_directory()
            except OSError as error:
                found = f"another object had taken the place of {planned.key!r} and was moved to {held.key!r}"
                return Result(FAILED, f"{found}; it could not be put back ({error.strerror}): apply again, or move it back by hand")
        elif here != in_trash:
            found = f"{here} is in its place, {in_trash} at {held.key!r}"
            return Result(FAILED, f"{planned.key!r} was replaced twice: {found}; decide by hand which one to keep")
        held.unlink()
        return _changed(planned, source, in_trash)

    def _restore(self, planned: PlannedAction, source: Entry, held: Entry) -> Result:
        in_trash, here = held.identity(), source.identity()
        if in_trash is None:
            return Result(DONE) if here == planned.etag else _absent(planned, held)
        if in_trash != planned.etag:
            return _changed(planned, held, in_trash)
        if here is None:
            with self.tree.entry(planned.key, create=True, like=held.key) as target:
                held.link_to(target)
        elif here != planned.etag:
            return Result(_replaced(here), f"{planned.key!r} is {here} by now, another object; the quarantined one stays at {held.key!r}")
        return Result(DONE)

    def _let_go(self, planned: PlannedAction, _: bool) -> Result:
        with self.tree.entry(self._held_key(planned)) as held:
            if held.identity() == planned.etag:
                held.unlink()
        return Result(DONE)


@dataclass(frozen=True, slots=True)
class DeferredQuarantine:
    """Quarantine on record only: objects stay readable in their place until they are purged.

    A disk cannot compare and unlink in one step. A file that is replaced in the microseconds
    between is lost. `TrashQuarantine` has no such gap.
    """

    tree: Tree

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Acts as `Quarantine.act` says. A restore is done where the object still stands in its
        place.
        """
        results = [_answer(planned, self._one, planned in resumed) for planned in batch]
        self.tree.sync({ancestors(planned.key)[-1] for planned in _done(batch, results) if planned.action == "purge"})
        return results

    def _one(self, planned: PlannedAction, resumed: bool) -> Result:
        with self.tree.entry(planned.key) as source:
            if planned.action == "purge":
                return _purge(planned, source, resumed)
            here = source.identity()
            if here is None:
                return _absent(planned, source)
            return Result(DONE) if here == planned.etag else _changed(planned, source, here)


def _purge(planned: PlannedAction, entry: Entry, resumed: bool) -> Result:
    here = entry.identity()
    if here is None:
        return Result(DONE) if resumed else _absent(planned, entry)
    if here != planned.etag:
        return _changed(planned, entry, here)
    entry.unlink()
    return Result(DONE)


def _done(batch: Sequence[PlannedAction], results: Sequence[Result]) -> list[PlannedAction]:
    return [planned for planned, result in zip(batch, results, strict=True) if result.verdict == DONE]


def _answer(planned: PlannedAction, act: Callable[[PlannedAction, bool], Result], resumed: bool) -> Result:
    """Returns the act's result, or its refusal in words: `denied` for what no repetition can mend,
    else `failed`.
    """
    if planned.etag is None or planned.version_id is not None:
        return Result(
            DENIED, f"{planned.key!r}: a local disk needs an etag and has no versions, found {planned.etag!r} and {planned.version_id!r}"
        )
    if f"{planned.key}/".startswith(RESERVED_PREFIX):
        return Result(DENIED, f"{planned.key!r} is under the reserved prefix {RESERVED_PREFIX!r}")
    try:
        return act(planned, resumed)
    except OutOfBounds as error:
        return Result(DENIED, str(error))
    except OSError as error:
        verdict = DENIED if error.errno in {errno.EACCES, errno.EPERM} else FAILED
        advice = _WAY_OUT.get(error.errno or 0)
        return Result(verdict, f"{planned.action} {planned.key!r}: {error.strerror or error}" + (f": {advice}" if advice else ""))


def _absent(planned: PlannedAction, entry: Entry) -> Result:
    return Result(ABSENT, f"{planned.action}: nothing is at {entry.key!r}")


def _changed(planned: PlannedAction, entry: Entry, found: str | None) -> Result:
    return Result(_replaced(found), f"{planned.action}: expected {planned.etag} at {entry.key!r}, found {found}; left alone")


def _replaced(found: str | None) -> Verdict:
    return DENIED if found == SYMBOLIC_LINK else CHANGED
