"""Check whether a lakeFS server permits edits, by requests that have no effect.

The requests are for a branch that does not exist. lakeFS checks the permission first, then looks up
the branch, and calls hooks last.
"""

from __future__ import annotations

import uuid

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.findings import CHECK_AGAIN, HISTORY_EDITS, OK, WARN, Finding
from gc_assets.lakes.lakefs.branches import DENIED, NOT_FOUND
from gc_assets.lakes.lakefs.client import describe_error, is_of_server
from gc_assets.lakes.lakefs.lifecycle_commits import PathClient


def probe_edits(lake: str, client: PathClient, *, commits: bool) -> Finding:
    """Check that the server permits the deletion of branches.

    Args:
        lake: Name of the lake.
        client: Client of its repository.
        commits: If True, also check that the server permits commits.
    """
    branch = f"gc-assets-probe-{uuid.uuid4().hex}"
    requests = {"fs:DeleteBranch": lambda: client.delete_branch(branch)}
    if commits:
        requests["fs:CreateCommit"] = lambda: client.try_commit(branch)
    try:
        for permission, send in requests.items():
            error = send()
            if error is not None and error.status in DENIED:
                found = f"the server denies {permission} on another branch: HTTP {error.status}: {describe_error(error)}"
                todo = f"Grant {permission} to the collector's user, unless the user has it on all branches that plans edit."
                return Finding(lake, HISTORY_EDITS, WARN, found, todo)
            if error is None or error.status != NOT_FOUND or not is_of_server(error):
                answer = "it succeeded" if error is None else f"HTTP {error.status}: {describe_error(error)}"
                return Finding(lake, HISTORY_EDITS, WARN, f"{permission} was not checked: unexpected response: {answer}", CHECK_AGAIN)
    except LakeUnreadable as error:
        return Finding(lake, HISTORY_EDITS, WARN, f"the right to edit was not checked: {error}", CHECK_AGAIN)
    return Finding(lake, HISTORY_EDITS, OK, f"the server permits {' and '.join(requests)}")
