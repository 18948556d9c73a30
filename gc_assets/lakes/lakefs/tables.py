"""The tables that only lakes of kind lakefs have."""

from __future__ import annotations

from gc_assets.state.columns import BOOL, LONG, STRING, STRINGS, TIMESTAMP, column
from gc_assets.state.schemas import table

UNCOMMITTED_OBJECTS = table(
    "uncommitted_objects",
    "lake",
    "lakeFS: objects that staging areas name and no commit needs to; they are live.",
    ("storage", "key", "branch", "path"),
    column("storage", STRING, "Storage the object lies in; null for an external address."),
    column("key", STRING, "Canonical key in that storage, or the address of an external object."),
    column("branch", STRING, "Branch that has it staged; null where only the server's own list names it."),
    column("path", STRING, "Logical path; null where only the server's own list names it."),
    column("created_at", TIMESTAMP, "When the entry was written."),
)

POTENTIAL_COMMITS = table(
    "potential_commits",
    "lake",
    "lakeFS: commits that may hold objects which the lifecycle rules release and no finished run has handled yet.",
    ("commit_id",),
    column("commit_id", STRING, "Commit id."),
    column("branches", STRINGS, "Branches that reach it, the first 100: those that a rule names, then the others."),
    column("last_deleted", TIMESTAMP, "The bound used: the latest over the branches of the minimum; null = from the beginning."),
)

LIFECYCLE_OBJECTS = table(
    "lifecycle_objects",
    "lake",
    "lakeFS: objects that a lifecycle rule releases under at least one path, and whether another reference keeps them.",
    ("storage", "key"),
    column("storage", STRING, "Storage the object lies in."),
    column("key", STRING, "Canonical key."),
    column("paths", STRINGS, "Logical paths that name it, 100 at most, in alphabetical order."),
    column("matched_rules", STRINGS, "Ids of the rules that release it."),
    column("deduplicated", BOOL, "True: it is kept, because another path, branch, tag or staging area needs it, or once did."),
    column("size_bytes", LONG, "Size where the entries record it."),
    column("commits", LONG, "At most so many retained commits will hold a dangling path once it is gone: one counts once for each path."),
    column("potential", BOOL, "True: one of `potential_commits` holds it."),
)
