"""Restore history in a repository with spec version 1: deleted branches, then old parents.

The executed actions come from an expiry log. A snapshot only becomes reachable again if its whole
history exists, including all chunk manifests, because otherwise the library's garbage collector
would always fail for this ref. Chunks are not checked, because the next run counts missing ones
anyway. History that is reachable now is assumed to be complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.current_state import (
    CurrentState,
    add_ancestors,
    check_parent_restore,
    check_ref_restore,
    label,
    parents_of,
    ref_of,
)
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.icechunk.ref_names import decoded_name
from gc_assets.lakes.icechunk.snapshots import parse_snapshot
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_REF, EDIT_PARENT, ExpiryAction, ExpiryOutcome


def restore(actions: Sequence[ExpiryAction], state: CurrentState, editor: Editor) -> Iterator[ExpiryOutcome]:
    """Undo executed actions. Yields one outcome per action.

    `done` means that the repository is back in the state before the action.
    """
    restoration = _Restoration(state, editor)
    for action in sorted(actions, key=lambda action: action.action != DELETE_REF):
        try:
            outcome = restoration.undo(action)
        except (FormatError, OSError, ValueError) as error:
            outcome = ExpiryOutcome(action, "failed", str(error))
        yield outcome


class _Restoration:
    """Parents of all snapshots, including restored ones, and snapshots with a complete history."""

    def __init__(self, state: CurrentState, editor: Editor) -> None:
        self._heads = state.heads
        self._parents = dict(state.parents)
        self._editor = editor
        self._complete: set[str] = set()
        self._manifests: set[str] = set()
        for head in state.heads.values():
            add_ancestors(self._complete, head, state.parents)

    def undo(self, action: ExpiryAction) -> ExpiryOutcome:
        if action.action == EDIT_PARENT:
            return self._restore_parent(action)
        if action.action in {DELETE_REF, DELETE_IDLE_BRANCH}:
            return self._restore_branch(action)
        raise ValueError(f"Icechunk has no action {action.action!r}, so it cannot be undone")

    def _restore_parent(self, action: ExpiryAction) -> ExpiryOutcome:
        if (refusal := check_parent_restore(action, self._parents.get(action.snapshot_id))) is not None:
            return ExpiryOutcome(action, *refusal)
        old, new = parents_of(action)
        self._require_history(old, child=action.snapshot_id)
        outcome = self._editor.set_parent(action, new, old)
        if outcome.verdict in {"done", "absent"}:
            self._parents[action.snapshot_id] = old
        return outcome

    def _restore_branch(self, action: ExpiryAction) -> ExpiryOutcome:
        if (refusal := check_ref_restore(action, self._heads)) is not None:
            return ExpiryOutcome(action, *refusal)
        _, name = ref_of(action)
        if (decoded := decoded_name(self._editor.repository, name)) != name:
            raise ValueError(
                f"{label(action)} has an encoded name: if release 0.3 deleted the branch, its name is {decoded!r}, because that "
                f"release did not decode names; create the branch with the right name at snapshot {action.snapshot_id} with "
                "icechunk"
            )
        self._require_history(action.snapshot_id, child=None)
        return self._editor.create_branch(action)

    def _require_history(self, head: str, child: str | None) -> None:
        """Raise `FormatError` or `OSError` if the history of `head` is incomplete or cyclic."""
        history: dict[str, None] = {}
        current: str | None = head
        while current is not None:
            if current == child or current in history:
                raise FormatError(f"the history of snapshot {head} would have a cycle at {current}; nothing was changed")
            if current not in self._parents:
                raise FormatError(f"the history of snapshot {head} lacks snapshot {current}; restore this snapshot, then undo again")
            history[current] = None
            current = self._parents[current]
        for snapshot in history:
            if snapshot not in self._complete:
                self._require_manifests(snapshot)
        self._complete.update(history)

    def _require_manifests(self, snapshot_id: str) -> None:
        objects, repository = self._editor.objects, self._editor.repository
        address = f"{repository}/snapshots/{snapshot_id}"
        for manifest in parse_snapshot(address, objects.read(address)).manifest_files:
            if manifest.manifest_id in self._manifests:
                continue
            where = f"{repository}/manifests/{manifest.manifest_id}"
            try:
                size_bytes = objects.size(where)
            except FileNotFoundError as error:
                raise FormatError(f"{where}, which snapshot {snapshot_id} needs, is missing; restore the file, then undo again") from error
            if size_bytes != manifest.size_bytes:
                raise FormatError(
                    f"{where} has {size_bytes:,} bytes, but snapshot {snapshot_id} records {manifest.size_bytes:,}; restore the file, "
                    "then undo again"
                )
            self._manifests.add(manifest.manifest_id)
