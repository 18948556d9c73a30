"""The Icechunk lake, which is a single repository.

Commits are snapshots. Their content root is the snapshot object itself. Spec versions 1 and 2 have
different layouts, which `Repository` hides from this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from gc_assets.core.errors import LakeUnreadable, StoreError
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.icechunk import entries
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.current_state import CurrentState, RequestedEdits
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.icechunk.execution import execute
from gc_assets.lakes.icechunk.graph import commit_table
from gc_assets.lakes.icechunk.idle_branches import delete_in_repo, delete_ref_objects, protect_branches
from gc_assets.lakes.icechunk.refs import read_refs
from gc_assets.lakes.icechunk.repo_execution import execute_repo
from gc_assets.lakes.icechunk.repo_file import RepoFile
from gc_assets.lakes.icechunk.repo_info import RepoInfo
from gc_assets.lakes.icechunk.repo_restore import restore_repo
from gc_assets.lakes.icechunk.repository import Repository, has_repo_object, repo_address
from gc_assets.lakes.icechunk.repository_v1 import RepositoryV1
from gc_assets.lakes.icechunk.repository_v2 import RepositoryV2
from gc_assets.lakes.icechunk.restore import restore
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.protocol import (
    EDIT_PARENT,
    Commit,
    CommitSource,
    Container,
    ExpiryAction,
    ExpiryOutcome,
    FrozenRefs,
    NamedPrefixes,
    Retention,
)


class IcechunkLake:
    """A lake that consists of one Icechunk repository. It can be pickled if `objects` can."""

    kind = "icechunk"

    def __init__(self, config: IcechunkLakeConfig, objects: EditableObjects, chunk_containers: NamedPrefixes | None = None) -> None:
        self.name = config.name
        self._config = config
        self._objects = objects
        self._chunk_containers = chunk_containers
        self._repository = config.location.rstrip("/")

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Read all branches and tags.

        Raises:
            LakeUnreadable: If a ref cannot be read, or the repository does not have any refs.
        """
        refs = protect_branches(self._open().freeze(as_of))
        if refs.named_prefixes is None or refs.named_prefixes.error is None:
            return refs
        error = f"{refs.named_prefixes.error}; a commit with locations in virtual chunk containers would be unreadable"
        return replace(refs, notes=(*refs.notes, f"lake {self.name}: {error}"))

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the snapshots in the shard of `snapshots/` that the source describes.

        Raises:
            LakeUnreadable: If the store fails, or not all snapshots can be read.
        """
        return (self._v2 if source.address == repo_address(self._repository) else self._v1).commits(source)

    def has_source(self, source: CommitSource) -> bool:
        """Return True if an earlier run's source belongs to the repository's current spec version."""
        return self._is_v2() == (source.address == repo_address(self._repository))

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Decode a snapshot or chunk manifest into the objects that it references."""
        return entries.decode(container, raw, self._chunk_containers)

    def read_prefixes(self) -> NamedPrefixes:
        """Read the virtual chunk containers (named prefixes). If that fails, return the reason."""
        try:
            return self._open().read_prefixes()
        except LakeUnreadable as error:
            return NamedPrefixes({}, str(error))

    def with_prefixes(self, named_prefixes: NamedPrefixes) -> IcechunkLake:
        return IcechunkLake(self._config, self._objects, named_prefixes)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Decide which snapshots to keep, by the configured cut-offs and expiry semantics."""
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Make the approved history edits.

        If any object of the repository cannot be read, all actions fail, because each of them may
        depend on it.
        """
        planned = frozenset(action.snapshot_id for action in actions if action.action == EDIT_PARENT)

        def apply_policy(refs: FrozenRefs, commits: Iterable[Commit]) -> Retention:
            return retain(refs, commit_table(commits), as_of, grace_cutoff, self._config, planned)

        try:
            if self._is_v2():
                yield from execute_repo(actions, self._prepare_policy(apply_policy), self._repo_file)
                return
            refs, commits = self._read_current()
            policy = apply_policy(refs, commits)
            if (now := self._v1.read_state()).refs != refs.refs:  # Refs can move while many snapshots are read.
                refs, commits = now, [*commits, *self._v1.read_new_commits({commit.commit_id for commit in commits})]
                policy = apply_policy(refs, commits)
        except (LakeUnreadable, StoreError) as error:
            yield from _fail_all(actions, error)
            return
        requested = RequestedEdits.of([ExpiryAction(**row) for row in policy.expiry.to_pylist()])
        yield from execute(actions, requested, CurrentState.of(refs, commits), self._editor)

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete idle branches that still have the planned heads."""
        try:
            if self._is_v2():
                yield from delete_in_repo(actions, self._repo_file)
                return
            refs = read_refs(self.name, self._objects, self._repository).refs
        except (LakeUnreadable, StoreError) as error:
            yield from _fail_all(actions, error)
            return
        yield from delete_ref_objects(actions, refs, self._editor)

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Recreate deleted branches whose entire history still exists."""
        yield from self.undo(actions)

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Undo history edits whose result is unchanged, if all objects of the old history exist."""
        try:
            if self._is_v2():
                yield from restore_repo(actions, self._repo_file)
                return
            refs, commits = self._read_current()
        except (LakeUnreadable, StoreError) as error:
            yield from _fail_all(actions, error)
            return
        yield from restore(actions, CurrentState.of(refs, commits), self._editor)

    @property
    def _editor(self) -> Editor:
        return Editor(self._objects, self._repository)

    @property
    def _v1(self) -> RepositoryV1:
        return RepositoryV1(self.name, self._objects, self._repository)

    @property
    def _v2(self) -> RepositoryV2:
        return RepositoryV2(self.name, self._objects, self._repository, self._config.retention.overwritten_cutoff())

    def _open(self) -> Repository:
        return self._v2 if self._is_v2() else self._v1

    def _is_v2(self) -> bool:
        return has_repo_object(self.name, self._objects, self._repository)

    @property
    def _repo_file(self) -> RepoFile:
        return RepoFile(self._objects, self._repository)

    def _prepare_policy(self, apply_policy: Callable[[FrozenRefs, Iterable[Commit]], Retention]) -> Callable[[RepoInfo], Retention]:
        """Return a function that applies the policy to content of `repo` without store requests.

        The time between reading and replacing `repo` must be short, because writers may commit in
        between. Snapshot files that `repo` does not list are therefore read in advance. Their only
        effect is to protect their ancestors.
        """
        repository = self._v2
        info = repository.read()
        unlisted = [commit for commit in repository.commits_of(info) if commit.commit_id not in info.snapshots]

        def apply_to(current: RepoInfo) -> Retention:
            others = (commit for commit in unlisted if commit.commit_id not in current.snapshots)
            return apply_policy(repository.state_without_files(current), [*repository.listed_commits(current), *others])

        return apply_to

    def _read_current(self) -> tuple[FrozenRefs, list[Commit]]:
        refs = self._v1.read_state()
        return refs, [commit for source in refs.sources for commit in self._v1.commits(source)]


def _fail_all(actions: Sequence[ExpiryAction], error: Exception) -> Iterator[ExpiryOutcome]:
    for action in actions:
        yield ExpiryOutcome(action, "failed", str(error))
