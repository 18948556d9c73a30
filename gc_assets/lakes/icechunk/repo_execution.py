"""Decide which planned edits to make in a repository with spec version 2.

An action is executed if the repository is in the state that the plan assumes and the policy still
requires the action. Even if only a part of a plan is executed, no snapshot is removed to which a
ref, a child or a new commit refers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gc_assets.lakes.icechunk.current_state import (
    CurrentState,
    Refusal,
    RequestedEdits,
    add_ancestors,
    check_parent_edit,
    check_ref_deletion,
    label,
    parents_of,
    ref_of,
)
from gc_assets.lakes.icechunk.repo_edits import RepoEdits, needed_snapshots
from gc_assets.lakes.icechunk.repo_file import Decision, RepoFile, StoredRepo, edit_repo, find_lock
from gc_assets.lakes.icechunk.repo_info import MAIN, RepoInfo
from gc_assets.lakes.icechunk.repo_updates import UpdateKind
from gc_assets.lakes.protocol import DELETE_REF, EDIT_PARENT, REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome, RefType, Retention


def execute_repo(actions: Sequence[ExpiryAction], policy: Callable[[RepoInfo], Retention], file: RepoFile) -> Iterator[ExpiryOutcome]:
    """Execute the approved actions in one replacement of `repo`. Yields one outcome per action.

    Args:
        actions: Approved actions.
        policy: Applies the current policy to the content of `repo`.
        file: The `repo` object.
    """

    def decide_again(stored: StoredRepo) -> Decision:
        rows = policy(stored.info).expiry.to_pylist()
        return decide(actions, stored.info, [ExpiryAction(**row) for row in rows])

    return edit_repo(actions, file, decide_again, _operation)


def _operation(edits: RepoEdits) -> UpdateKind:
    """Return the kind under which the Icechunk library would log the edits.

    The library's garbage collector only removes unreachable snapshots.
    """
    return UpdateKind.EXPIRATION_RAN if edits.parents or edits.deleted_refs else UpdateKind.GC_RAN


def decide(actions: Sequence[ExpiryAction], info: RepoInfo, required: Sequence[ExpiryAction]) -> Decision:
    """Compare the approved actions with the content of `repo` and the current policy.

    Args:
        actions: Approved actions.
        info: Current content of `repo`.
        required: Actions that the current policy requires.
    """
    requested = RequestedEdits.of(required)
    state = CurrentState({name: entry.parent_id for name, entry in info.snapshots.items()}, heads_of(info))
    settled: list[ExpiryOutcome] = []
    accepted: list[ExpiryAction] = []
    for action in actions:
        refusal = _check(action, state, info, requested)
        if refusal is None:
            accepted.append(action)
        else:
            settled.append(ExpiryOutcome(action, *refusal))
    made = set(state.parents.items()) | set(_to_edits(accepted).parents.items())
    unmade = any(action.action == EDIT_PARENT and (action.snapshot_id, action.new_parent_id) not in made for action in required)
    accepted = _refuse(accepted, settled, _reached_deletions(accepted, state) if unmade else {})
    edits = _to_edits(accepted)
    needed = needed_snapshots(info, edits)
    lost = {
        action: f"snapshot {action.snapshot_id} is still needed by a ref or another snapshot, because the history changed; plan again"
        for action in accepted
        if action.action == REMOVE_SNAPSHOT and action.snapshot_id in needed
    }
    accepted = _refuse(accepted, settled, lost)
    return Decision(settled, accepted, _to_edits(accepted))


def _refuse(actions: Sequence[ExpiryAction], settled: list[ExpiryOutcome], reasons: Mapping[ExpiryAction, str]) -> list[ExpiryAction]:
    settled += [ExpiryOutcome(action, "changed", reason) for action, reason in reasons.items()]
    return [action for action in actions if action not in reasons]


def _to_edits(actions: Sequence[ExpiryAction]) -> RepoEdits:
    return RepoEdits(
        parents={action.snapshot_id: parents_of(action)[1] for action in actions if action.action == EDIT_PARENT},
        removed=frozenset(action.snapshot_id for action in actions if action.action == REMOVE_SNAPSHOT),
        deleted_refs=frozenset(ref_of(action) for action in actions if action.action == DELETE_REF),
    )


def _reached_deletions(accepted: Sequence[ExpiryAction], state: CurrentState) -> dict[ExpiryAction, str]:
    """Find the accepted ref deletions whose head another ref reaches, with the reason for each."""
    edits = _to_edits(accepted)
    parents = {**state.parents, **edits.parents}
    reached: set[str] = set()
    for ref, head in state.heads.items():
        if ref not in edits.deleted_refs:
            add_ancestors(reached, head, parents)
    return {
        action: f"another ref still reaches snapshot {action.snapshot_id}, so {label(action)} is kept; plan again"
        for action in accepted
        if action.action == DELETE_REF and action.snapshot_id in reached
    }


def heads_of(info: RepoInfo) -> dict[tuple[RefType, str], str]:
    """Return the head snapshot of each ref, keyed by type and name of the ref."""
    heads: dict[tuple[RefType, str], str] = {("branch", name): head for name, head in info.branches.items()}
    for name, head in info.tags.items():
        heads["tag", name] = head
    return heads


def _check(action: ExpiryAction, state: CurrentState, info: RepoInfo, requested: RequestedEdits) -> Refusal:
    """Return the outcome of an action if it must not be executed, otherwise None."""
    if action.action not in {EDIT_PARENT, REMOVE_SNAPSHOT, DELETE_REF}:
        return "denied", f"Icechunk has no action {action.action!r}; plan again"
    if action.details is None:
        return "changed", "the plan was made for spec version 1, and the repository was upgraded since; plan again"
    try:
        if action.action == EDIT_PARENT:
            found = check_parent_edit(action, state.parents, "the history")
        else:
            found = _check_removal(action, info) if action.action == REMOVE_SNAPSHOT else _check_deletion(action, state, info)
    except ValueError as error:
        return "denied", str(error)
    if found is None and (lock := find_lock(info)) is not None:
        found = "changed", lock
    if found is None and (refusal := requested.find_refusal(action)):
        found = "changed", refusal
    return found


def _check_removal(action: ExpiryAction, info: RepoInfo) -> Refusal:
    entry = info.snapshots.get(action.snapshot_id)
    if entry is None:
        return "absent", f"snapshot {action.snapshot_id} is already removed"
    if entry.parent_id != action.old_parent_id:
        found = f"expected the parent {action.old_parent_id}, found {entry.parent_id}"
        return "changed", f"snapshot {action.snapshot_id}: {found}; plan again"
    return None


def _check_deletion(action: ExpiryAction, state: CurrentState, info: RepoInfo) -> Refusal:
    if (refusal := check_ref_deletion(action, state.heads)) is not None:
        return refusal
    ref = ref_of(action)
    if ref == ("branch", MAIN):
        return "denied", f"Icechunk does not allow the deletion of branch {MAIN!r}"
    if ref[0] == "tag" and "delete_tag" in info.disabled_features:
        feature = "the feature `delete_tag` of the repository is disabled"
        return "changed", f"{label(action)} is kept, because {feature}; enable it with icechunk and make a new plan"
    return None
