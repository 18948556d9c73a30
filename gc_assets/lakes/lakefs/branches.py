"""Protect branches of a lakeFS repository, delete idle ones, and recreate them.

lakeFS deletes a branch together with its staging area (uncommitted changes), and a deletion request
cannot specify the expected head. We therefore read the head and the uncommitted changes immediately
before the deletion. If a user makes a commit between these requests, it stays in the repository,
but no ref points to it. Objects that are staged in this time are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from lakefs_sdk.api.branches_api import BranchesApi
from lakefs_sdk.api.repositories_api import RepositoriesApi
from lakefs_sdk.exceptions import ApiException, NotFoundException
from lakefs_sdk.models.branch_creation import BranchCreation

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.idle_branches import MAIN, IdleRule, find_rule
from gc_assets.lakes.lakefs.client import OPTIONS, PAGE, RepositoryClient, Server, describe_error, is_of_server
from gc_assets.lakes.protocol import PROTECTED, UNEDITABLE, ExpiryAction, ExpiryOutcome, ExpiryVerdict, Ref

DENIED: Final = (401, 403)
_HOOK: Final = 412
NOT_FOUND: Final = 404
_CONFLICT: Final = 409
# We do not evaluate this pattern syntax. A rule that uses it protects all branches.
_UNKNOWN_SYNTAX: Final = frozenset("{}[]\\")
UNCOMMITTED: Final = "it has uncommitted changes"
READ_ONLY: Final = "the repository is read-only"
_UNEXAMINED: Final = "no rule of delete_idle matched it when the refs were frozen"
_Result = TypeVar("_Result")
Verdict = tuple[ExpiryVerdict, str | None]


class BranchClient(RepositoryClient):
    """Client that reads and changes the branches of a repository.

    Requests are not retried. If a branch was deleted and then created again, a second deletion
    would delete the new branch.
    """

    def __init__(self, server: Server, repository: str) -> None:
        super().__init__(server, repository, retries=0)

    def default_branch(self) -> str:
        entry: Any = self._call("repository", lambda: RepositoriesApi(self._api).get_repository(self._name, **OPTIONS))
        return entry.default_branch

    def visible_branches(self) -> set[str]:
        """Return the names of branches that are not hidden."""
        api = BranchesApi(self._api)
        pages = self._pages("the list of branches", lambda after: api.list_branches(self._name, after=after, amount=PAGE, **OPTIONS))
        return {item.id for page in pages for item in page}

    def protection_patterns(self) -> list[str]:
        """Return the patterns of the branch protection rules."""
        api = RepositoriesApi(self._api)
        rules = self._call("branch protection rules", lambda: api.get_branch_protection_rules(self._name, **OPTIONS))
        return [rule.pattern for rule in rules or ()]

    def has_changes(self, branch: str) -> bool:
        """Return True if a branch has uncommitted changes. Deletions count as changes."""
        api = BranchesApi(self._api)
        found: Any = self._call(f"changes of {branch}", lambda: api.diff_branch(self._name, branch, amount=1, **OPTIONS))
        return bool(found.results)

    def find_head(self, branch: str) -> str | None:
        """Return the head of a branch, or None if the server reports that the branch is missing."""

        def fetch() -> str | None:
            try:
                return str(BranchesApi(self._api).get_branch(self._name, branch, **OPTIONS).commit_id)
            except NotFoundException as error:
                if not is_of_server(error):  # The response came from a proxy.
                    raise
                return None

        return self._call(f"branch {branch}", fetch)

    def delete_branch(self, branch: str) -> ApiException | None:
        """Delete a branch. Returns the server's error if it refuses."""
        return self._try(f"deletion of branch {branch}", lambda: BranchesApi(self._api).delete_branch(self._name, branch, **OPTIONS))

    def create_branch(self, branch: str, commit: str, *, hidden: bool = False) -> ApiException | None:
        """Create a branch at a commit. Returns the server's error if it refuses."""
        creation = BranchCreation(name=branch, source=commit, hidden=hidden)
        return self._try(f"creation of branch {branch}", lambda: BranchesApi(self._api).create_branch(self._name, creation, **OPTIONS))

    def _try(self, what: str, call: Callable[[], object]) -> ApiException | None:
        found = self._send(what, call)
        return found if isinstance(found, ApiException) else None

    def _send(self, what: str, call: Callable[[], _Result]) -> _Result | ApiException:
        """Return the response to a request.

        If the server refuses it, return the server's error instead.
        """

        def send() -> _Result | ApiException:
            try:
                return call()
            except ApiException as error:
                if (error.status or 0) >= 500:  # The change may have been made anyway.
                    raise
                return error

        return self._call(what, send)


@dataclass(frozen=True, slots=True)
class Protection:
    """Protection of a repository's branches from deletion and edits.

    Attributes:
        default: Name of the default branch.
        visible: Branches that are not hidden.
        patterns: Patterns of the branch protection rules.
        error: Why the protection cannot be read, or None. If it cannot be read, all branches are
            protected.
    """

    default: str = ""
    visible: frozenset[str] = frozenset()
    patterns: Sequence[str] = field(default_factory=tuple[str, ...])
    error: str | None = None

    @classmethod
    def read(cls, client: BranchClient) -> Protection:
        try:
            return cls(client.default_branch(), frozenset(client.visible_branches()), client.protection_patterns())
        except LakeUnreadable as error:
            return cls(error=str(error))

    def find_reason(self, branch: str) -> str | None:
        """Return the reason to keep a branch even if it is idle, or None."""
        if branch == self.default:
            return "it is the default branch of the repository"
        return "it is the main branch" if branch == MAIN and self.error is None else self.find_block(branch)

    def find_block(self, branch: str) -> str | None:
        """Return why a branch must not be edited, or None. The default branch may be edited."""
        if self.error is not None:
            return f"its protection cannot be read: {self.error}"
        if branch not in self.visible:
            return "it is hidden"
        rule = next((pattern for pattern in self.patterns if _is_protected(pattern, branch)), None)
        return None if rule is None else f"the branch protection rule {rule!r} protects it"


def _is_protected(pattern: str, branch: str) -> bool:
    return bool(_UNKNOWN_SYNTAX & set(pattern)) or fnmatchcase(branch, pattern)


def protect_branches(
    client: BranchClient,
    refs: Sequence[Ref],
    rules: Sequence[IdleRule],
    staged: Iterable[str | None],
    has_lifecycle: Callable[[str], bool] = lambda _: False,
    *,
    read_only: bool,
) -> tuple[Ref, ...]:
    """Mark branches that must be kept even if they are idle, or must not be edited.

    The marks are the properties `PROTECTED` and `UNEDITABLE` of the refs, with the reason as value.

    Args:
        client: Client of the repository.
        refs: Refs to mark.
        rules: Rules for idle branches. Branches without a rule are protected, because a user may
            add a rule before the refs are read again.
        staged: Branches with staged objects.
        has_lifecycle: Returns True if commits may delete paths of a branch under lifecycle rules.
        read_only: True if the repository is read-only.
    """
    changed = set(staged)
    is_examined = any(ref.ref_type == "branch" and (find_rule(rules, ref.ref_name) or has_lifecycle(ref.ref_name)) for ref in refs)
    protection = Protection.read(client) if is_examined else Protection()

    def mark(ref: Ref) -> Ref:
        if ref.ref_type != "branch":
            return ref
        name, reasons, blocks = ref.ref_name, dict[str, str | None]({PROTECTED: _UNEXAMINED}), dict[str, Callable[[str], str | None]]()
        if find_rule(rules, name) is not None:
            blocks[PROTECTED] = protection.find_reason
        if has_lifecycle(name):
            blocks[UNEDITABLE] = protection.find_block
        reasons |= {key: READ_ONLY if read_only else find(name) for key, find in blocks.items()}
        if None in reasons.values():
            changes = UNCOMMITTED if name in changed else _find_changes(client, name)
            reasons = {key: reason or changes for key, reason in reasons.items()}
        found = {key: reason for key, reason in reasons.items() if reason is not None}
        return replace(ref, properties={**ref.properties, **found}) if found else ref

    return tuple(map(mark, refs))


def _find_changes(client: BranchClient, branch: str) -> str | None:
    try:
        return UNCOMMITTED if client.has_changes(branch) else None
    except LakeUnreadable as error:
        return f"its changes cannot be read: {error}"


def delete_branches(client: BranchClient, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
    """Delete unchanged branches that still have the planned head. Yields one outcome per branch."""
    protection = Protection.read(client)
    yield from edit_each(actions, lambda action: _delete(client, protection, action))


def create_branches(client: BranchClient, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
    """Recreate deleted branches at their old heads. Yields one outcome per branch."""
    yield from edit_each(actions, lambda action: _create(client, action))


def edit_each(actions: Sequence[ExpiryAction], edit: Callable[[ExpiryAction], Verdict]) -> Iterator[ExpiryOutcome]:
    for action in actions:
        try:
            verdict, error = edit(action)
        except LakeUnreadable as found:
            verdict, error = "failed", f"{found}; apply again"
        yield ExpiryOutcome(action, verdict, error)


def _delete(client: BranchClient, protection: Protection, action: ExpiryAction) -> Verdict:
    name = str(action.ref_name)
    if client.find_head(name) is None:
        return "absent", None
    reason = protection.find_reason(name) or (UNCOMMITTED if client.has_changes(name) else None)
    if reason is not None:
        return "changed", f"branch {name} is kept: {reason}"
    head = client.find_head(name)
    if head is None:
        return "absent", None
    if head != action.snapshot_id:
        return "changed", f"branch {name} points at commit {head} now"
    error = client.delete_branch(name)
    if error is None:
        return "done", None
    if error.status == NOT_FOUND and is_of_server(error):
        return "absent", None
    return describe_refusal(f"branch {name} cannot be deleted", error, "fs:DeleteBranch")


def _create(client: BranchClient, action: ExpiryAction) -> Verdict:
    name, head = str(action.ref_name), action.snapshot_id
    error = client.create_branch(name, head)
    if error is not None and error.status != _CONFLICT:
        return describe_refusal(f"branch {name} cannot be created at commit {head}", error, "fs:CreateBranch")
    found = client.find_head(name)
    if found == head:
        return "done" if error is None else "absent", None
    used = f"the name is in use: branch {name} points at commit {found} now"
    return "changed", f"{used}; create a branch with another name at commit {head}"


def describe_refusal(problem: str, error: ApiException, *permissions: str) -> Verdict:
    """Return the outcome of a refused request that needs these permissions."""
    found = f"{problem}: HTTP {error.status}: {describe_error(error)}"
    if error.status in DENIED:
        needed = " and ".join(f"`{name}`" for name in permissions)
        return "denied", f"{found}; grant {needed} to the collector's user"
    return ("denied", f"{found}; check the hooks of the repository") if error.status == _HOOK else ("failed", found)
