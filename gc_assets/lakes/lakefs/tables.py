"""The tables that only lakeFS lakes have."""

from __future__ import annotations

from gc_assets.state.columns import BOOL, LONG, STRING, STRINGS, TIMESTAMP, column
from gc_assets.state.schemas import table

UNCOMMITTED_OBJECTS = table(
    "uncommitted_objects",
    "lake",
    "lakeFS: staged objects. They are live, even if no commit names them.",
    ("storage", "key", "branch", "path"),
    column("storage", STRING, "Storage that contains the object; null for an external address."),
    column("key", STRING, "Canonical key in that storage, or the address of an external object."),
    column("branch", STRING, "Branch of the staging area; null if only the server's own list names the object."),
    column("path", STRING, "Logical path; null if only the server's own list names the object."),
    column("created_at", TIMESTAMP, "When the entry was written."),
)

POTENTIAL_COMMITS = table(
    "potential_commits",
    "lake",
    "lakeFS: commits that may name objects that the lifecycle rules release and that no finished run has handled yet.",
    ("commit_id",),
    column("commit_id", STRING, "Commit id."),
    column("branches", STRINGS, "Branches that reach it, at most 100: those that a rule names, then the others."),
    column("last_deleted", TIMESTAMP, "The bound used: the latest minimum over the branches; null = from the beginning."),
)

LIFECYCLE_OBJECTS = table(
    "lifecycle_objects",
    "lake",
    "lakeFS: objects that a lifecycle rule releases under at least one path, and whether another reference keeps them.",
    ("storage", "key"),
    column("storage", STRING, "Storage that contains the object."),
    column("key", STRING, "Canonical key."),
    column("paths", STRINGS, "Logical paths that name it, at most 100, in alphabetical order."),
    column("matched_rules", STRINGS, "Ids of the rules that release it."),
    column("deduplicated", BOOL, "True: it is kept, because another path, branch, tag or staging area needs it or once needed it."),
    column("size_bytes", LONG, "Size, if the entries record it."),
    column("commits", LONG, "Maximum number of retained commits with a dangling path after its deletion; each path of a commit counts."),
    column("potential", BOOL, "True: one of `potential_commits` holds it."),
)
