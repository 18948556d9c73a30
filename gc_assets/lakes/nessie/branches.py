"""Delete or recreate idle branches on a Nessie server.

The server verifies the planned head and deletes the branch in one step. The commits of a deleted
branch remain until the server's own clean-up removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.idle_branches import MAIN
from gc_assets.lakes.nessie.client import NO_REFERENCE, NessieClient, Refusal
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome, ExpiryVerdict

_BRANCH: Final = {"type": "BRANCH"}
_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_Verdict = tuple[ExpiryVerdict, str | None]


def find_protection(name: str, default_branch: str) -> str | None:
    """Return the reason to keep a branch even if it is idle, or None."""
    if name == default_branch:
        return "it is the default branch of the server"
    return "it is the main branch" if name == MAIN else None


def delete_branches(client: NessieClient, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
    """Delete branches that still have the planned head. Yields one outcome per branch."""
    yield from _edit(client, actions, _delete)


def create_branches(client: NessieClient, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
    """Recreate deleted branches at their old heads. Yields one outcome per branch."""
    yield from _edit(client, actions, _create)


def _edit(
    client: NessieClient, actions: Sequence[ExpiryAction], edit: Callable[[NessieClient, ExpiryAction], _Verdict]
) -> Iterator[ExpiryOutcome]:
    for action in actions:
        try:
            verdict, error = edit(client, action)
        except LakeUnreadable as found:
            verdict, error = "failed", str(found)
        yield ExpiryOutcome(action, verdict, error)


def _delete(client: NessieClient, action: ExpiryAction) -> _Verdict:
    name = str(action.ref_name)
    if (reason := find_protection(name, client.get_config().default_branch)) is not None:
        return "changed", f"branch {name} is kept: {reason}"
    if (found := client.read_ref(name)) is None:
        return "absent", None
    if (found.type, found.hash) != ("BRANCH", action.snapshot_id):
        return "changed", f"{found.type.lower()} {name} points at commit {found.hash} now"
    refusal = client.change("DELETE", f"trees/{quote(name, safe='')}@{action.snapshot_id}", _BRANCH)
    if refusal is None:
        return "done", None
    if refusal.code == NO_REFERENCE:
        return "absent", None
    if refusal.status == HTTPStatus.CONFLICT:
        return "changed", f"branch {name} moved during the deletion ({refusal.text})"
    return _describe_refusal(f"branch {name} cannot be deleted", refusal)


def _create(client: NessieClient, action: ExpiryAction) -> _Verdict:
    name, head = str(action.ref_name), action.snapshot_id
    found = client.read_ref(name)
    if found is None:
        refusal = client.change("POST", "trees", {"name": name, **_BRANCH}, {"type": "DETACHED", "hash": head})
        if refusal is None:
            return "done", None
        if refusal.status != HTTPStatus.CONFLICT:
            return _describe_refusal(f"branch {name} cannot be created at commit {head}", refusal)
        found = client.read_ref(name)
    if found is not None and (found.type, found.hash) == ("BRANCH", head):
        return "absent", None
    used = "the name is in use" if found is None else f"the name is in use: {found.type.lower()} {name} points at commit {found.hash} now"
    return "changed", f"{used}; create a branch with another name at commit {head}"


def _describe_refusal(problem: str, refusal: Refusal) -> _Verdict:
    if refusal.status in _DENIED:
        return "denied", f"{problem}: {refusal.text}; grant CREATE_REFERENCE and DELETE_REFERENCE on branches that rules match"
    return "failed", f"{problem}: {refusal.text}"
