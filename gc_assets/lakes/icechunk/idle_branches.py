"""Protect some branches of an Icechunk repository, and delete idle ones.

In spec version 1, each branch is stored as an object, which is removed if it still has the planned
head. In spec version 2, a single replacement of the object `repo` deletes all branches of a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gc_assets.lakes.icechunk.current_state import Refusal, check_ref_deletion, label, ref_of
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.icechunk.ref_names import DECODED_NAME
from gc_assets.lakes.icechunk.refs import READ_ONLY
from gc_assets.lakes.icechunk.repo_edits import RepoEdits
from gc_assets.lakes.icechunk.repo_execution import heads_of
from gc_assets.lakes.icechunk.repo_file import Decision, RepoFile, StoredRepo, edit_repo, find_lock
from gc_assets.lakes.icechunk.repo_info import MAIN, RepoInfo
from gc_assets.lakes.icechunk.repo_updates import UpdateKind
from gc_assets.lakes.icechunk.repository_settings import ONLINE, RepositorySettings
from gc_assets.lakes.protocol import PROTECTED, ExpiryAction, ExpiryOutcome, FrozenRefs, Ref

_IS_MAIN = "it is the main branch"
_IS_SHARED = "several refs have its name"


def protect_branches(refs: FrozenRefs) -> FrozenRefs:
    """Mark branches to keep even if they are idle, by setting `PROTECTED` to the reason."""
    settings, shared = RepositorySettings.of(refs.sources), _shared_names(refs.refs)
    lock = None if settings.availability == ONLINE else f"the repository is {settings.availability}"

    def mark(ref: Ref) -> Ref:
        reason = (lock or find_protection(ref, shared)) if ref.ref_type == "branch" else None
        return ref if reason is None else replace(ref, properties={**ref.properties, PROTECTED: reason})

    return replace(refs, refs=tuple(map(mark, refs.refs)))


def find_protection(ref: Ref, shared: Collection[str]) -> str | None:
    """Return the reason to keep a branch even if it is idle, or None."""
    if ref.ref_name == MAIN:
        return _IS_MAIN
    if ref.ref_name in shared:
        return _IS_SHARED
    if DECODED_NAME in ref.properties:
        return f"it may also be named {ref.properties[DECODED_NAME]!r}"
    return "icechunk does not find its directory" if READ_ONLY in ref.properties else None


def _shared_names(refs: Sequence[Ref]) -> frozenset[str]:
    return frozenset(name for name, count in Counter(ref.ref_name for ref in refs).items() if count > 1)


def delete_ref_objects(actions: Sequence[ExpiryAction], refs: Sequence[Ref], editor: Editor) -> Iterator[ExpiryOutcome]:
    """Delete branches of a repository with spec version 1. Yields one outcome per branch.

    Args:
        actions: Approved deletions.
        refs: Current refs.
        editor: Removes the branch objects.
    """
    shared = _shared_names(refs)
    branches = {ref.ref_name: ref for ref in refs if ref.ref_type == "branch"}
    for action in actions:
        ref = branches.get(str(action.ref_name))
        reason = None if ref is None else find_protection(ref, shared)
        if reason is not None:
            yield ExpiryOutcome(action, "changed", f"{label(action)} is kept: {reason}")
        else:
            yield editor.delete_ref(action)


def delete_in_repo(actions: Sequence[ExpiryAction], file: RepoFile) -> Iterator[ExpiryOutcome]:
    """Delete branches of a repository with spec version 2. Yields one outcome per branch."""

    def decide(stored: StoredRepo) -> Decision:
        checks = {action: _check(action, stored.info) for action in actions}
        accepted = [action for action, refusal in checks.items() if refusal is None]
        settled = [ExpiryOutcome(action, *refusal) for action, refusal in checks.items() if refusal is not None]
        return Decision(settled, accepted, RepoEdits(deleted_refs=frozenset(map(ref_of, accepted))))

    return edit_repo(actions, file, decide, lambda _: UpdateKind.EXPIRATION_RAN)


def _check(action: ExpiryAction, info: RepoInfo) -> Refusal:
    """Return the outcome of a branch deletion if it must not be executed, otherwise None."""
    if (refusal := check_ref_deletion(action, heads_of(info))) is not None:
        return refusal
    name = str(action.ref_name)
    if name == MAIN or name in info.tags:
        return "changed", f"{label(action)} is kept: {_IS_MAIN if name == MAIN else _IS_SHARED}"
    lock = find_lock(info)
    return None if lock is None else ("changed", lock)
