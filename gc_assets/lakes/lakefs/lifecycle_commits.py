"""Delete paths on branches through commits, and revert these commits.

lakeFS does not offer a request that changes a branch only if it has a given head. We therefore
delete the paths on a hidden branch that starts at the planned head, and then cherry-pick its only
commit. The server deletes either all paths or none, because a path that changed since the planned
head is a conflict. The metadata of the resulting commit contains the plan id, so that a later apply
or undo finds the commit.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final

from lakefs_sdk.api.branches_api import BranchesApi
from lakefs_sdk.api.commits_api import CommitsApi
from lakefs_sdk.api.objects_api import ObjectsApi
from lakefs_sdk.api.refs_api import RefsApi
from lakefs_sdk.exceptions import ApiException
from lakefs_sdk.models.cherry_pick_creation import CherryPickCreation
from lakefs_sdk.models.commit_creation import CommitCreation
from lakefs_sdk.models.commit_overrides import CommitOverrides
from lakefs_sdk.models.path_list import PathList
from lakefs_sdk.models.revert_creation import RevertCreation

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.units import count_of
from gc_assets.lakes.lakefs.branches import UNCOMMITTED, BranchClient, Protection, Verdict, describe_refusal, edit_each
from gc_assets.lakes.lakefs.client import OPTIONS, PAGE, describe_error
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome

_log = logging.getLogger(__name__)
# Names of temporary branches start with this prefix. Users must not choose such names.
TEMPORARY: Final = "gc-assets-lifecycle-"
_TEMPORARY_NAME: Final = re.compile(TEMPORARY + "[0-9a-f]{16}")
# Keys in the metadata of these commits.
PLAN: Final = "gc-assets.plan"
BRANCH: Final = "gc-assets.branch"
PATHS: Final = "gc-assets.paths"
RULES: Final = "gc-assets.rules"
# Limit set by the server.
_BATCH: Final = 1000
_CONFLICT: Final = 409
_NO_CHANGES: Final = "no changes"


class PathClient(BranchClient):
    """Client that deletes paths on branches, commits and reverts. It never retries a request."""

    def temporary_branches(self) -> list[str]:
        """Return the names of existing temporary branches, on which gc-assets prepares commits."""
        api = BranchesApi(self._api)
        pages = self._pages(
            "temporary branches",
            lambda after: api.list_branches(self._name, prefix=TEMPORARY, after=after, amount=PAGE, show_hidden=True, **OPTIONS),
        )
        return [item.id for page in pages for item in page if _TEMPORARY_NAME.fullmatch(item.id)]

    def delete_objects(self, branch: str, paths: Sequence[str]) -> ApiException | None:
        """Stage the deletion of up to 1,000 paths. Returns the server's error if it refuses."""
        found: Any = self._send(
            f"deletion of {count_of(len(paths), 'path')}",
            lambda: ObjectsApi(self._api).delete_objects(self._name, branch, PathList(paths=list(paths)), **OPTIONS),
        )
        if isinstance(found, ApiException) or not found.errors:
            return found if isinstance(found, ApiException) else None
        first = found.errors[0]
        return ApiException(status=first.status_code, reason=f"{first.path}: {first.message}")

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str | ApiException:
        """Commit the staged changes. Returns the id of the commit, or the server's error."""
        creation = CommitCreation(message=message, metadata=dict(metadata))
        found: Any = self._send(
            f"commit on {branch}", lambda: CommitsApi(self._api).commit(self._name, branch, commit_creation=creation, **OPTIONS)
        )
        return found if isinstance(found, ApiException) else str(found.id)

    def try_commit(self, branch: str) -> ApiException | None:
        """Request a commit on a branch that does not exist. Returns the server's error."""
        found = self.commit(branch, "Check the permission to commit", {})
        return found if isinstance(found, ApiException) else None

    def cherry_pick(self, branch: str, commit: str, metadata: Mapping[str, str]) -> ApiException | None:
        """Apply the changes of a commit to a branch. Returns the server's error if it refuses."""
        # Without these overrides, lakeFS (at least up to 1.84) changes the commit's metadata in its
        # cache and then does not find the commit any more.
        creation = CherryPickCreation(ref=commit, commit_overrides=CommitOverrides(metadata=dict(metadata)))
        return self._try(f"cherry-pick on {branch}", lambda: BranchesApi(self._api).cherry_pick(self._name, branch, creation, **OPTIONS))

    def revert(self, branch: str, commit: str) -> ApiException | None:
        """Revert a commit on a branch. Returns the server's error if it refuses."""
        creation = RevertCreation(ref=commit, parent_number=0)
        return self._try(f"revert on {branch}", lambda: BranchesApi(self._api).revert_branch(self._name, branch, creation, **OPTIONS))

    def log(self, branch: str) -> Iterator[Any]:
        """Yield the first-parent history of a branch, newest commit first."""
        api, after = RefsApi(self._api), ""
        while True:
            fetch = partial(api.log_commits, self._name, branch, after=after, amount=PAGE, first_parent=True, **OPTIONS)
            page: Any = self._call(f"log of {branch}", fetch)
            yield from page.results
            if not page.pagination.has_more:
                return
            if page.pagination.next_offset == after:
                raise self._unreadable(f"log of {branch}", f"the page after {after!r} continues after itself; run again")
            after = page.pagination.next_offset


def delete_paths(
    client: PathClient,
    plan_id: str,
    actions: Sequence[ExpiryAction],
    read_paths: Callable[[ExpiryAction], Sequence[str]],
    check: Callable[[], None],
) -> Iterator[ExpiryOutcome]:
    """Delete the planned paths on branches that still have the planned head.

    `check` renews the lease of the apply before each request, because deleting a million paths
    takes longer than a lease lasts.

    Yields:
        One outcome per branch.
    """
    protection = Protection.read(client)
    _remove_leftovers(client)
    yield from edit_each(actions, lambda action: _delete(client, protection, plan_id, action, read_paths, check))


def restore_paths(client: PathClient, plan_id: str, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
    """Revert a plan's commits. Yields one outcome per branch."""
    yield from edit_each(actions, lambda action: _restore(client, plan_id, action))


def _delete(
    client: PathClient,
    protection: Protection,
    plan_id: str,
    action: ExpiryAction,
    read_paths: Callable[[ExpiryAction], Sequence[str]],
    check: Callable[[], None],
) -> Verdict:
    name = str(action.ref_name)
    if (reason := _find_change(client, protection, action)) is not None:
        return _settle(client, plan_id, action, reason)
    temporary, paths = TEMPORARY + sha256(f"{plan_id} {name}".encode()).hexdigest()[:16], read_paths(action)
    rules = ", ".join(json.loads(action.details or "{}").get("rules", {}))
    metadata = {PLAN: plan_id, BRANCH: name, PATHS: str(len(paths)), RULES: rules}
    try:
        commit = _commit_on(client, temporary, action.snapshot_id, paths, metadata, check)
        if not isinstance(commit, str):
            return commit
        # Read the head again, because the deletion on the temporary branch can take minutes.
        if (reason := _find_change(client, protection, action)) is not None:
            return _settle(client, plan_id, action, reason)
        check()
        error = client.cherry_pick(name, commit, metadata)
    finally:
        _remove(client, temporary)
    if error is None:
        return "done", None
    if error.status == _CONFLICT:
        return "changed", f"planned paths of branch {name} changed since the plan: {describe_error(error)}"
    if (reason := _find_change(client, protection, action)) is not None:
        return _settle(client, plan_id, action, reason)
    return _refuse(f"the deletion cannot be committed on branch {name}", error, "fs:CreateCommit", "fs:ReadCommit")


def _settle(client: PathClient, plan_id: str, action: ExpiryAction, reason: str) -> Verdict:
    """Return the outcome for a branch that has changed.

    An earlier attempt may have made the commit.
    """
    exists = client.find_head(str(action.ref_name)) is not None
    return ("absent", None) if exists and _find_commits(client, plan_id, action)[0] else ("changed", reason)


def _refuse(problem: str, error: ApiException, *permissions: str) -> Verdict:
    """Return the outcome of a refused request. A refusal for one branch must not block the others."""
    verdict, reason = describe_refusal(problem, error, *permissions)
    return "changed" if verdict == "denied" else verdict, reason


def _find_change(client: PathClient, protection: Protection, action: ExpiryAction) -> str | None:
    """Return why the paths of a branch must not be deleted now, or None if they may be."""
    name = str(action.ref_name)
    head = client.find_head(name)
    if head is None:
        return f"branch {name} does not exist now"
    if head != action.snapshot_id:
        return f"branch {name} points at commit {head} now"
    reason = protection.find_block(name) or (UNCOMMITTED if client.has_changes(name) else None)
    return None if reason is None else f"the paths of branch {name} are kept: {reason}"


def _commit_on(
    client: PathClient, temporary: str, head: str, paths: Sequence[str], metadata: Mapping[str, str], check: Callable[[], None]
) -> str | Verdict:
    """Commit the deletion of paths on a new temporary branch. Returns the commit id, or a refusal."""
    error = client.create_branch(temporary, head, hidden=True)
    if error is not None:
        return _refuse(f"the temporary branch {temporary} cannot be created", error, "fs:CreateBranch")
    for first in range(0, len(paths), _BATCH):
        check()
        if (error := client.delete_objects(temporary, paths[first : first + _BATCH])) is not None:
            return _refuse(f"paths cannot be deleted on the temporary branch {temporary}", error, "fs:DeleteObject")
    message = f"Delete {count_of(len(paths), 'path')} by lifecycle rules: {metadata[RULES]}"
    commit = client.commit(temporary, message, metadata)
    if isinstance(commit, str):
        return commit
    if _NO_CHANGES in describe_error(commit):
        return "changed", f"commit {head} contains none of the planned paths; run again"
    return _refuse("the deletion cannot be committed on the temporary branch", commit, "fs:CreateCommit")


def _find_commits(client: PathClient, plan_id: str, action: ExpiryAction) -> tuple[list[str], bool]:
    """Find a plan's commits on a branch. The flag is True if the log contains the planned head.

    A branch can have several such commits, if an attempt was repeated while the server was still
    working on the first one.
    """
    found = list[str]()
    for commit in client.log(str(action.ref_name)):
        if commit.id == action.snapshot_id:
            return found, True
        metadata = commit.metadata or {}
        if metadata.get(PLAN) == plan_id and metadata.get(BRANCH) == action.ref_name:
            found.append(str(commit.id))
    return found, bool(found)


def _restore(client: PathClient, plan_id: str, action: ExpiryAction) -> Verdict:
    name, advice = str(action.ref_name), f"commit {action.snapshot_id} has the deleted paths"
    if client.find_head(name) is None:
        return "changed", f"branch {name} does not exist now; {advice}"
    commits, has_head = _find_commits(client, plan_id, action)
    if not commits:
        # If the planned head is missing, the branch was moved or recreated.
        return ("absent", None) if has_head else ("changed", f"branch {name} does not contain the commit of the plan now; {advice}")
    for commit in commits:
        error = client.revert(name, commit)
        if error is None:
            return "done", None
        if client.has_changes(name):
            return "changed", f"branch {name} has uncommitted changes; commit or reset them, and restore again"
        if error.status == _CONFLICT:
            return "changed", f"deleted paths of branch {name} were written again since; {advice}"
        if _NO_CHANGES not in describe_error(error):
            return describe_refusal(f"commit {commit} cannot be reverted on branch {name}", error, "fs:RevertBranch")
    return "absent", None


def _remove_leftovers(client: PathClient) -> None:
    """Delete temporary branches that interrupted applies left behind."""
    try:
        names = client.temporary_branches()
    except LakeUnreadable as error:
        _log.warning("temporary branches of interrupted applies cannot be listed: %s", error)
        return
    for name in names:
        _remove(client, name)


def _remove(client: PathClient, temporary: str) -> None:
    """Delete a temporary branch. If the deletion fails, the next apply tries again."""
    try:
        error = client.delete_branch(temporary)
        problem = None if error is None or error.status == 404 else f"HTTP {error.status}: {describe_error(error)}"
    except LakeUnreadable as found:
        problem = str(found)
    if problem is not None:
        _log.warning("the temporary branch %s is not deleted: %s", temporary, problem)
