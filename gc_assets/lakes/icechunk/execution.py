"""Makes the edits of history that a plan holds and the policy still asks for: first parents, then
refs.

The order matters, because what the edits leave reachable decides whether a ref may go. A kill
between any two edits leaves a valid repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gc_assets.lakes.icechunk.current_state import Asked, Present, extend, label, parents_of, ref_of, standing
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.protocol import DELETE_REF, ExpiryAction, ExpiryOutcome

_SO_NOW = frozenset({"done", "absent"})


def execute(actions: Sequence[ExpiryAction], asked: Asked, present: Present, editor: Editor) -> Iterator[ExpiryOutcome]:
    """Yields one outcome for each of the approved `actions`. Only actions that are `asked` for and
    stand as planned are made.
    """
    parents = dict(present.parents)
    deletions: list[ExpiryAction] = []
    for action in actions:
        outcome = standing(action, present, asked)
        if outcome is not None:
            yield outcome
        elif action.action == DELETE_REF:
            deletions.append(action)
        else:
            expected, parent = parents_of(action)
            outcome = editor.set_parent(action, expected, parent)
            if outcome.verdict in _SO_NOW:
                parents[action.snapshot_id] = parent
            yield outcome
    yield from _delete(deletions, Present(parents, present.heads), editor)


def _delete(deletions: Sequence[ExpiryAction], present: Present, editor: Editor) -> Iterator[ExpiryOutcome]:
    """Deletes only refs whose snapshot goes too. An edit that was not made may have left the
    snapshot on another ref's history.
    """
    going = {ref_of(action) for action in deletions}
    reached: set[str] = set()
    for ref, head in present.heads.items():
        if ref not in going:
            extend(reached, head, present.parents)
    for action in deletions:
        if action.snapshot_id in reached:
            yield ExpiryOutcome(
                action, "changed", f"another ref still reaches snapshot {action.snapshot_id}, so {label(action)} stays; plan again"
            )
            continue
        outcome = editor.delete_ref(action)
        if outcome.verdict not in _SO_NOW:
            extend(reached, action.snapshot_id, present.parents)
        yield outcome
