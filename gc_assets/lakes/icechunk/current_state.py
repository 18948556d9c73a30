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
    """Return type and name of the ref that an action deletes. `ValueError` if the action has none."""
    if action.ref_type is None or action.ref_name is None:
        raise ValueError("the plan does not contain the ref to delete (an earlier release wrote it); plan again")
    return action.ref_type, action.ref_name


def parents_of(action: ExpiryAction) -> tuple[str, str]:
    """Return the old and new parent in an `edit_parent` action. `ValueError` if one is missing."""
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
    if action.action not in _CHECKS:
        found: Refusal = "denied", f"Icechunk has no action {action.action!r}: unreachable snapshots are removed as orphans; plan again"
    else:
        try:
            found = _CHECKS[action.action](action, state)
        except ValueError as error:
            found = "denied", str(error)
    if found is None and (refusal := requested.find_refusal(action)):
        found = "changed", refusal
    return None if found is None else ExpiryOutcome(action, *found)


def _check_edit(action: ExpiryAction, state: CurrentState) -> Refusal:
    snapshot = action.snapshot_id
    expected, new_parent = parents_of(action)
    if snapshot not in state.parents:
        return "changed", f"snapshot {snapshot} is no longer in snapshots/; plan again"
    parent = state.parents[snapshot]
    if parent == new_parent:
        return "absent", f"the parent of snapshot {snapshot} is already {parent}"
    if parent != expected:
        return "changed", f"snapshot {snapshot}: expected the parent {expected}, found {parent}; plan again"
    return None


def _check_deletion(action: ExpiryAction, state: CurrentState) -> Refusal:
    head = state.heads.get(ref_of(action))
    if head is None:
        return "absent", f"{label(action)} no longer exists"
    if head != action.snapshot_id:
        return "changed", f"{label(action)}: expected the head {action.snapshot_id}, found {head}; plan again"
    return None


_CHECKS = {EDIT_PARENT: _check_edit, DELETE_REF: _check_deletion}


def add_ancestors(reached: set[str], head: str, parents: Mapping[str, str | None]) -> None:
    """Add `head` and its ancestors to `reached`, up to a missing parent or one that is in it."""
    snapshot: str | None = head
    while snapshot is not None and snapshot not in reached:
        reached.add(snapshot)
        snapshot = parents.get(snapshot)
