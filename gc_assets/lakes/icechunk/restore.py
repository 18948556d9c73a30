"""Puts history back as it was before the edits of a log, as far as the format allows: deleted
branches, then old parents.

A snapshot is made reachable again only if it, its whole history and their chunk manifests are
there: the library's collector fails for good on a ref whose history lacks one. Chunks are not
looked at: the next mark counts what is missing of them. What a ref reaches now is taken to be
whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.current_state import Present, extend, label, parents_of, ref_of
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.icechunk.snapshots import parse_snapshot
from gc_assets.lakes.protocol import DELETE_REF, EDIT_PARENT, ExpiryAction, ExpiryOutcome


def restore(actions: Sequence[ExpiryAction], present: Present, editor: Editor) -> Iterator[ExpiryOutcome]:
    """Yields one outcome for each of `actions`, which were done once. `done` says that the
    repository is again as it was before.
    """
    restoration = _Restoration(present, editor)
    for action in sorted(actions, key=lambda action: action.action != DELETE_REF):
        try:
            outcome = restoration.undo(action)
        except (FormatError, OSError, ValueError) as error:
            outcome = ExpiryOutcome(action, "failed", str(error))
        yield outcome


class _Restoration:
    """What is known during the restoration: the parents as put back so far, and the snapshots that
    are whole, with all of their history.
    """

    def __init__(self, present: Present, editor: Editor) -> None:
        self._heads = present.heads
        self._parents = dict(present.parents)
        self._editor = editor
        self._whole: set[str] = set()
        self._manifests: set[str] = set()
        for head in present.heads.values():
            extend(self._whole, head, present.parents)

    def undo(self, action: ExpiryAction) -> ExpiryOutcome:
        if action.action == EDIT_PARENT:
            return self._put_parent_back(action)
        if action.action == DELETE_REF:
            return self._make_branch_again(action)
        raise ValueError(f"Icechunk has no action {action.action!r}, so there is none to undo")

    def _put_parent_back(self, action: ExpiryAction) -> ExpiryOutcome:
        old, new = parents_of(action)
        found = self._parents.get(action.snapshot_id)
        if found == old:
            return ExpiryOutcome(action, "absent", f"the parent of snapshot {action.snapshot_id} is {old} already")
        if found != new:
            return ExpiryOutcome(action, "changed", f"snapshot {action.snapshot_id}: expected the parent {new}, found {found}; left alone")
        self._require_history(old, below=action.snapshot_id)
        outcome = self._editor.set_parent(action, new, old)
        if outcome.verdict in {"done", "absent"}:
            self._parents[action.snapshot_id] = old
        return outcome

    def _make_branch_again(self, action: ExpiryAction) -> ExpiryOutcome:
        ref = ref_of(action)
        found = self._heads.get(ref)
        if found is not None:
            verdict = "absent" if found == action.snapshot_id else "changed"
            return ExpiryOutcome(action, verdict, f"{label(action)} points at snapshot {found}; left alone")
        if ref[0] == "tag":
            raise ValueError(
                f"{label(action)} was deleted, and Icechunk never gives the name of a deleted tag again; "
                f"make a tag of another name on snapshot {action.snapshot_id} with icechunk"
            )
        self._require_history(action.snapshot_id, below=None)
        return self._editor.create_branch(action)

    def _require_history(self, head: str, below: str | None) -> None:
        """Raises `FormatError` or `OSError` where something of the history from `head` on is
        missing, or where that history would run in a circle.
        """
        history: dict[str, None] = {}
        at: str | None = head
        while at is not None:
            if at == below or at in history:
                raise FormatError(f"the history of snapshot {head} would come back to {at}; nothing was changed")
            if at not in self._parents:
                raise FormatError(f"the history of snapshot {head} lacks snapshot {at}; restore it, then undo again")
            history[at] = None
            at = self._parents[at]
        for snapshot in history:
            if snapshot not in self._whole:
                self._require_manifests(snapshot)
        self._whole.update(history)

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
                raise FormatError(f"{where}, which snapshot {snapshot_id} needs, is gone; restore it, then undo again") from error
            if size_bytes != manifest.size_bytes:
                raise FormatError(f"{where}: snapshot {snapshot_id} says {manifest.size_bytes:,} bytes, found {size_bytes:,}; restore it")
            self._manifests.add(manifest.manifest_id)
