"""Restore the history of a repository with spec version 2 from an expiry log.

The object `repo` is replaced by one with the old entries, parents and branches. Commits made since
the expiry are kept. A snapshot is only listed again if its file, its transaction logs and all of
its manifests exist. Chunks are not checked, because the next run counts missing ones anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gc_assets.core.errors import FormatError, StoreError
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.current_state import Refusal, check_parent_restore, check_ref_restore, parents_of, ref_of
from gc_assets.lakes.icechunk.entries import verify_id
from gc_assets.lakes.icechunk.repo_edits import RepoEdits, parse_entry, with_old_parent
from gc_assets.lakes.icechunk.repo_execution import heads_of
from gc_assets.lakes.icechunk.repo_file import Decision, RepoFile, StoredRepo, edit_repo, find_lock
from gc_assets.lakes.icechunk.repo_info import RepoInfo, SnapshotInfo
from gc_assets.lakes.icechunk.repo_updates import UpdateKind
from gc_assets.lakes.icechunk.snapshots import parse_snapshot
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_REF, EDIT_PARENT, REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome

_READERS = 16
_ORDER = {REMOVE_SNAPSHOT: 0, EDIT_PARENT: 1, DELETE_REF: 2, DELETE_IDLE_BRANCH: 2}


def restore_repo(actions: Sequence[ExpiryAction], file: RepoFile) -> Iterator[ExpiryOutcome]:
    """Undo executed actions in one replacement of `repo`. Yields one outcome per action."""
    missing = _MissingFiles(file)

    def decide(stored: StoredRepo) -> Decision:
        return decide_restore(actions, stored.info, missing.of(stored.info, actions))

    return edit_repo(actions, file, decide, lambda _: UpdateKind.EXPIRATION_RAN)


def decide_restore(actions: Sequence[ExpiryAction], info: RepoInfo, missing: Mapping[str, str]) -> Decision:
    """Decide which executed actions can be undone in the current content of `repo`.

    Args:
        actions: Executed actions.
        info: Current content of `repo`.
        missing: Reason for each snapshot that cannot be listed again.
    """
    restoration = _Restoration(info, missing, {item.snapshot_id: item for item in actions if item.action == REMOVE_SNAPSHOT})
    settled: list[ExpiryOutcome] = []
    accepted: list[ExpiryAction] = []
    for action in sorted(actions, key=lambda action: _ORDER.get(action.action, len(_ORDER))):
        try:
            refusal = restoration.undo(action)
        except (FormatError, ValueError) as error:
            refusal = "failed", str(error)
        if refusal is None:
            accepted.append(action)
        else:
            settled.append(ExpiryOutcome(action, *refusal))
    return Decision(settled, accepted, RepoEdits(restored=restoration.restored, created_branches=restoration.branches))


@dataclass
class _Restoration:
    """Snapshot entries and branches to restore in `repo`.

    Attributes:
        removed: Executed removal of each snapshot, keyed by snapshot id.
        restored: Snapshot entries to add or replace.
        branches: Branches to create.
    """

    info: RepoInfo
    missing: Mapping[str, str]
    removed: Mapping[str, ExpiryAction]
    restored: dict[str, SnapshotInfo] = field(default_factory=dict[str, SnapshotInfo])
    branches: dict[str, str] = field(default_factory=dict[str, str])

    def undo(self, action: ExpiryAction) -> Refusal:
        """Add the changes that undo an action, or return its outcome if that is impossible."""
        if action.action not in _ORDER:
            raise ValueError(f"Icechunk has no action {action.action!r}, so it cannot be undone")
        if action.details is None and action.action != DELETE_IDLE_BRANCH:
            raise ValueError(
                "the plan edited a repository of spec version 1, which was upgraded since, so its old history cannot be listed again; "
                "read it from a copy of the repository from before the upgrade"
            )
        if (lock := find_lock(self.info)) is not None:
            return "failed", lock
        if action.action == REMOVE_SNAPSHOT:
            return self._list_again(action)
        return self._restore_parent(action) if action.action == EDIT_PARENT else self._restore_branch(action)

    def _list_again(self, action: ExpiryAction) -> Refusal:
        if action.snapshot_id in self.info.snapshots:
            return "absent", f"snapshot {action.snapshot_id} is listed"
        self._require(action.snapshot_id)
        return None

    def _restore_parent(self, action: ExpiryAction) -> Refusal:
        old, _ = parents_of(action)
        entry = self.info.snapshots.get(action.snapshot_id)
        if entry is None:
            return "changed", f"snapshot {action.snapshot_id} is no longer in the history; left unchanged"
        if (refusal := check_parent_restore(action, entry.parent_id)) is not None:
            return refusal
        self._require(old, child=action.snapshot_id)
        self.restored[action.snapshot_id] = with_old_parent("the repository", entry, old, str(action.details))
        return None

    def _restore_branch(self, action: ExpiryAction) -> Refusal:
        if (refusal := check_ref_restore(action, heads_of(self.info))) is not None:
            return refusal
        self._require(action.snapshot_id)
        _, name = ref_of(action)
        self.branches[name] = action.snapshot_id
        return None

    def _require(self, snapshot_id: str, child: str | None = None) -> None:
        """Add a snapshot and its ancestors to the list again, or raise `FormatError`."""
        line: dict[str, SnapshotInfo] = {}
        at: str | None = snapshot_id
        while at is not None:
            if at == child or at in line:
                raise FormatError(f"the history of snapshot {snapshot_id} would have a cycle at {at}; nothing was changed")
            known = self.restored.get(at) or self.info.snapshots.get(at)
            if known is not None:
                at = known.parent_id if child is not None else None
                continue
            if at in self.missing:
                raise FormatError(self.missing[at])
            if at not in self.removed or self.removed[at].details is None:
                raise FormatError(
                    f"the history of snapshot {snapshot_id} lacks snapshot {at}, which the plan did not remove; left unchanged"
                )
            action = self.removed[at]
            line[at] = parse_entry(at, action.old_parent_id, str(action.details))
            at = action.old_parent_id
        self.restored |= line


class _MissingFiles:
    """Finds missing files of removed snapshots. Each snapshot is only inspected once."""

    def __init__(self, file: RepoFile) -> None:
        self._file = file
        self._inspected: dict[str, str | None] = {}

    def of(self, info: RepoInfo, actions: Sequence[ExpiryAction]) -> dict[str, str]:
        """Return the removed snapshots that cannot be listed again, each with the reason."""
        removed = {action.snapshot_id: action for action in actions if action.action == REMOVE_SNAPSHOT and action.details is not None}
        unknown = [action for name, action in removed.items() if name not in info.snapshots and name not in self._inspected]
        with ThreadPoolExecutor(_READERS) as readers:
            self._inspected |= dict(zip((action.snapshot_id for action in unknown), readers.map(self._inspect, unknown), strict=True))
        return {name: reason for name, reason in self._inspected.items() if reason is not None}

    def _inspect(self, action: ExpiryAction) -> str | None:
        """Describe the first file of a removed snapshot that is missing or wrong, or return None."""
        objects, repository, snapshot_id = self._file.objects, self._file.repository, action.snapshot_id
        address = f"{repository}/snapshots/{snapshot_id}"
        try:
            entry = parse_entry(snapshot_id, action.old_parent_id, str(action.details))
            snapshot = parse_snapshot(address, objects.read(address), envelope.SPEC_V1_AND_V2)
            verify_id(address, snapshot_id, snapshot.snapshot_id)
            for manifest in snapshot.manifest_files:
                address = f"{repository}/manifests/{manifest.manifest_id}"
                if (found := objects.size(address)) != manifest.size_bytes:
                    return f"{address}: snapshot {snapshot_id} records {manifest.size_bytes:,}, found {found:,} bytes"
            # If a repository was upgraded, its first snapshot has no log.
            for log in (*entry.pruned_logs, *([] if entry.parent_id is None else [snapshot_id])):
                address = f"{repository}/transactions/{log}"
                objects.size(address)
        except FileNotFoundError:
            return f"{address}, which snapshot {snapshot_id} needs, is missing; restore it, then undo again"
        except OSError as error:
            return f"{address} cannot be read: {error.strerror or error}; correct this and undo again"
        except (FormatError, StoreError) as error:
            return str(error)
        return None
