"""Execute planned history edits in a repository with spec version 1.

Only edits that the current policy still requires are made: parents are replaced first, then refs
are deleted. The order matters, because a ref may only be deleted if no other ref reaches its head
afterwards. If the process is killed between two edits, the repository stays valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gc_assets.lakes.icechunk.current_state import CurrentState, RequestedEdits, add_ancestors, check_action, label, parents_of, ref_of
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.protocol import DELETE_REF, ExpiryAction, ExpiryOutcome

_IN_EFFECT = frozenset({"done", "absent"})


def execute(actions: Sequence[ExpiryAction], requested: RequestedEdits, state: CurrentState, editor: Editor) -> Iterator[ExpiryOutcome]:
    """Execute the approved actions, and yield one outcome for each.

    Args:
        actions: Approved actions.
        requested: Edits that the current policy requires. Any other action is not executed.
        state: Current state of the repository. An action is only executed if the plan assumes this
            state.
        editor: Makes the changes.
    """
    parents = dict(state.parents)
    deletions: list[ExpiryAction] = []
    for action in actions:
        outcome = check_action(action, state, requested)
        if outcome is not None:
            yield outcome
        elif action.action == DELETE_REF:
            deletions.append(action)
        else:
            expected, parent = parents_of(action)
            outcome = editor.set_parent(action, expected, parent)
            if outcome.verdict in _IN_EFFECT:
                parents[action.snapshot_id] = parent
            yield outcome
    yield from _delete_refs(deletions, CurrentState(parents, state.heads), editor)


def _delete_refs(deletions: Sequence[ExpiryAction], state: CurrentState, editor: Editor) -> Iterator[ExpiryOutcome]:
    """Delete refs whose head no other ref reaches.

    Another ref may still reach such a head if one of the planned edits was not made.
    """
    deleted_refs = {ref_of(action) for action in deletions}
    reached: set[str] = set()
    for ref, head in state.heads.items():
        if ref not in deleted_refs:
            add_ancestors(reached, head, state.parents)
    for action in deletions:
        if action.snapshot_id in reached:
            yield ExpiryOutcome(
                action, "changed", f"another ref still reaches snapshot {action.snapshot_id}, so {label(action)} is kept; plan again"
            )
            continue
        outcome = editor.delete_ref(action)
        if outcome.verdict not in _IN_EFFECT:
            add_ancestors(reached, action.snapshot_id, state.parents)
        yield outcome
