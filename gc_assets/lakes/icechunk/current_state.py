"""Compare planned history edits with the current state of an Icechunk repository.

This module does not change the repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gc_assets.lakes.protocol import DELETE_REF, EDIT_PARENT, Commit, ExpiryAction, ExpiryOutcome, ExpiryVerdict, FrozenRefs, RefType

# Identifies a history edit. The ref that requires the edit is not part of it.
EditKey = tuple[str | None, ...]
Refusal = tuple[ExpiryVerdict, str] | None


@dataclass(frozen=True, slots=True)
class CurrentState:
    """Current state of a repository: the parent of each snapshot, and the head of each ref."""

    parents: Mapping[str, str | None]
    heads: Mapping[tuple[RefType, str], str]

    @classmethod
    def of(cls, refs: FrozenRefs, commits: Iterable[Commit]) -> CurrentState:
        return cls(
            parents={commit.commit_id: next(iter(commit.parents), None) for commit in commits},
            heads={(ref.ref_type, ref.ref_name): ref.head_commit_id for ref in refs.refs if ref.head_commit_id is not None},
        )


@dataclass(frozen=True, slots=True)
class RequestedEdits:
    """History edits that the current policy requires.

    Several refs can require the same edit, so the key of an edit does not include the ref.
    """

    keys: frozenset[EditKey]
    new_parents: Mapping[str, str | None]

    @classmethod
    def of(cls, actions: Sequence[ExpiryAction]) -> RequestedEdits:
        edits = {action.snapshot_id: action.new_parent_id for action in actions if action.action == EDIT_PARENT}
        return cls(frozenset(map(_edit_key, actions)), edits)

    def find_refusal(self, action: ExpiryAction) -> str | None:
        """Return the reason why the current policy does not require a planned action, or None."""
        if _edit_key(action) in self.keys:
            return None
        reason = "the refs or the rules changed"
        if action.action == EDIT_PARENT and action.snapshot_id in self.new_parents:
            reason = f"it requires the parent {self.new_parents[action.snapshot_id]}, but the plan has {action.new_parent_id}"
        return f"the policy no longer requires this edit ({reason}); plan again"


def _edit_key(action: ExpiryAction) -> EditKey:
    """Return a key that is the same for all actions with the same effect."""
    if action.action == EDIT_PARENT:
        return (action.action, action.snapshot_id, action.old_parent_id, action.new_parent_id)
    return (action.action, action.snapshot_id, action.ref_type, action.ref_name)


def ref_of(action: ExpiryAction) -> tuple[RefType, str]:
    """Return the type and name of the ref that an action deletes, or raise `ValueError`."""
    if action.ref_type is None or action.ref_name is None:
        raise ValueError("the plan does not contain the ref to delete (an earlier release wrote it); plan again")
    return action.ref_type, action.ref_name


def parents_of(action: ExpiryAction) -> tuple[str, str]:
    """Return the old and new parent in an `edit_parent` action, or raise `ValueError`."""
    if action.old_parent_id is None or action.new_parent_id is None:
        raise ValueError("the plan does not contain the old and the new parent (an earlier release wrote it); plan again")
    return action.old_parent_id, action.new_parent_id


def label(action: ExpiryAction) -> str:
    return f"{action.ref_type} {action.ref_name!r}"


def check_action(action: ExpiryAction, state: CurrentState, requested: RequestedEdits) -> ExpiryOutcome | None:
    """Return the outcome of an approved action if it must not be executed, otherwise None.

    An action may only be executed if the repository is in the state that the plan assumes, and the
    policy still requires the action.
    """
    try:
        if action.action == EDIT_PARENT:
            found: Refusal = check_parent_edit(action, state.parents, "snapshots/")
        elif action.action == DELETE_REF:
            found = check_ref_deletion(action, state.heads)
        else:
            found = "denied", f"Icechunk has no action {action.action!r}: unreachable snapshots are removed as orphans; plan again"
    except ValueError as error:
        found = "denied", str(error)
    if found is None and (refusal := requested.find_refusal(action)):
        found = "changed", refusal
    return None if found is None else ExpiryOutcome(action, *found)


def check_parent_edit(action: ExpiryAction, parents: Mapping[str, str | None], place: str) -> Refusal:
    """Check that a snapshot still has the parent that an action replaces.

    `place` is the repository's list of snapshots, for messages.
    """
    snapshot = action.snapshot_id
    expected, new_parent = parents_of(action)
    if snapshot not in parents:
        return "changed", f"snapshot {snapshot} is no longer in {place}; plan again"
    parent = parents[snapshot]
    if parent == new_parent:
        return "absent", f"the parent of snapshot {snapshot} is already {parent}"
    if parent != expected:
        return "changed", f"snapshot {snapshot}: expected the parent {expected}, found {parent}; plan again"
    return None


def check_ref_deletion(action: ExpiryAction, heads: Mapping[tuple[RefType, str], str]) -> Refusal:
    """Check that a ref still has the head that the plan recorded."""
    head = heads.get(ref_of(action))
    if head is None:
        return "absent", f"{label(action)} no longer exists"
    if head != action.snapshot_id:
        return "changed", f"{label(action)}: expected the head {action.snapshot_id}, found {head}; plan again"
    return None


def check_parent_restore(action: ExpiryAction, found: str | None) -> Refusal:
    """Check that a snapshot, whose parent is now `found`, has the parent that an action set."""
    old, new = parents_of(action)
    if found == old:
        return "absent", f"the parent of snapshot {action.snapshot_id} is already {old}"
    if found != new:
        return "changed", f"snapshot {action.snapshot_id}: expected the parent {new}, found {found}; left unchanged"
    return None


def check_ref_restore(action: ExpiryAction, heads: Mapping[tuple[RefType, str], str]) -> Refusal:
    """Check that the name of a deleted branch is free. `ValueError` if the action deleted a tag."""
    found = heads.get(ref_of(action))
    if found is not None:
        verdict: ExpiryVerdict = "absent" if found == action.snapshot_id else "changed"
        return verdict, f"{label(action)} points to snapshot {found}; left unchanged"
    if action.ref_type == "tag":
        raise ValueError(
            f"{label(action)} was deleted, and Icechunk does not allow reuse of the name of a deleted tag; "
            f"create a tag with another name at snapshot {action.snapshot_id} with icechunk"
        )
    return None


def add_ancestors(reached: set[str], head: str, parents: Mapping[str, str | None]) -> None:
    """Add `head` and its ancestors to `reached`, up to a missing parent or one already in it."""
    snapshot: str | None = head
    while snapshot is not None and snapshot not in reached:
        reached.add(snapshot)
        snapshot = parents.get(snapshot)
