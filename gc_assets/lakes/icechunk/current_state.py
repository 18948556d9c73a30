"""A repository as it is now, and what this leaves of a plan. Pure: decides, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gc_assets.lakes.protocol import DELETE_REF, EDIT_PARENT, Commit, ExpiryAction, ExpiryOutcome, ExpiryVerdict, FrozenRefs, RefType

# What an edit of history is, whatever led to it.
Essence = tuple[str | None, ...]
Finding = tuple[ExpiryVerdict, str] | None


@dataclass(frozen=True, slots=True)
class Present:
    """Each snapshot's parent and each ref's head, as just read."""

    parents: Mapping[str, str | None]
    heads: Mapping[tuple[RefType, str], str]

    @classmethod
    def of(cls, refs: FrozenRefs, commits: Iterable[Commit]) -> Present:
        return cls(
            parents={commit.commit_id: next(iter(commit.parents), None) for commit in commits},
            heads={(ref.ref_type, ref.ref_name): ref.head_commit_id for ref in refs.refs if ref.head_commit_id is not None},
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What the policy asks for now. The ref that led to an edit is an example and no part of the
    edit: another ref may lead to it the next time.
    """

    essences: frozenset[Essence]
    new_parents: Mapping[str, str | None]

    @classmethod
    def of(cls, actions: Sequence[ExpiryAction]) -> Asked:
        edits = {action.snapshot_id: action.new_parent_id for action in actions if action.action == EDIT_PARENT}
        return cls(frozenset(map(_essence, actions)), edits)

    def refusal(self, action: ExpiryAction) -> str | None:
        """Returns why an action that stands as planned is not asked for, or null where it is."""
        if _essence(action) in self.essences:
            return None
        why = "its refs, or the rules, changed"
        if action.action == EDIT_PARENT and action.snapshot_id in self.new_parents:
            why = f"it wants {self.new_parents[action.snapshot_id]} as parent, the plan {action.new_parent_id}"
        return f"the policy does not ask for this any more ({why}); plan again"


def _essence(action: ExpiryAction) -> Essence:
    """Returns a value that is equal for actions that do the same."""
    if action.action == EDIT_PARENT:
        return (action.action, action.snapshot_id, action.old_parent_id, action.new_parent_id)
    return (action.action, action.snapshot_id, action.ref_type, action.ref_name)


def ref_of(action: ExpiryAction) -> tuple[RefType, str]:
    """Returns the ref that a deletion names. Raises `ValueError` for a row that names none."""
    if action.ref_type is None or action.ref_name is None:
        raise ValueError("the plan does not say which ref is to be deleted (an earlier release wrote it); plan again")
    return action.ref_type, action.ref_name


def parents_of(action: ExpiryAction) -> tuple[str, str]:
    """Returns the parent before and after an edit. Raises `ValueError` for a row that lacks one."""
    if action.old_parent_id is None or action.new_parent_id is None:
        raise ValueError("the plan does not say which parent is to be replaced by which (an earlier release wrote it); plan again")
    return action.old_parent_id, action.new_parent_id


def label(action: ExpiryAction) -> str:
    return f"{action.ref_type} {action.ref_name!r}"


def standing(action: ExpiryAction, present: Present, asked: Asked) -> ExpiryOutcome | None:
    """Returns the outcome of an approved action that is not to be made, or null for one that stands
    as planned and is asked for.
    """
    if action.action not in _FINDINGS:
        found: Finding = "failed", f"Icechunk has no action {action.action!r}: a snapshot goes once nothing reaches it; plan again"
    else:
        try:
            found = _FINDINGS[action.action](action, present)
        except ValueError as error:
            found = "failed", str(error)
    if found is None and (refusal := asked.refusal(action)):
        found = "changed", refusal
    return None if found is None else ExpiryOutcome(action, *found)


def _edit(action: ExpiryAction, present: Present) -> Finding:
    snapshot = action.snapshot_id
    expected, wanted = parents_of(action)
    if snapshot not in present.parents:
        return "changed", f"snapshot {snapshot} is not in snapshots/ any more; plan again"
    parent = present.parents[snapshot]
    if parent == wanted:
        return "absent", f"the parent of snapshot {snapshot} is {parent} already"
    if parent != expected:
        return "changed", f"snapshot {snapshot}: expected the parent {expected}, found {parent}; plan again"
    return None


def _deletion(action: ExpiryAction, present: Present) -> Finding:
    head = present.heads.get(ref_of(action))
    if head is None:
        return "absent", f"there is no {label(action)} any more"
    if head != action.snapshot_id:
        return "changed", f"{label(action)}: expected the head {action.snapshot_id}, found {head}; plan again"
    return None


_FINDINGS = {EDIT_PARENT: _edit, DELETE_REF: _deletion}


def extend(reached: set[str], head: str, parents: Mapping[str, str | None]) -> None:
    """Adds the snapshots that a walk from `head` meets. The walk ends where a parent is missing, or
    was met before.
    """
    at: str | None = head
    while at is not None and at not in reached:
        reached.add(at)
        at = parents.get(at)
