"""lakeFS-specific tables."""

from __future__ import annotations

from gc_assets.state.columns import BOOL, LONG, STRING, STRINGS, TIMESTAMP, column
from gc_assets.state.schemas import table

UNCOMMITTED_OBJECTS = table(
    "uncommitted_objects",
    "lake",
    "lakeFS: staged objects. They are live, even if no commit names them.",
    ("storage", "key", "branch", "path"),
    column("storage", STRING, "Storage of the object; null for an external address."),
    column("key", STRING, "Canonical key, or the address of an external object."),
    column("branch", STRING, "Branch of the staging area; null if only the server lists the object."),
    column("path", STRING, "Logical path; null if only the server lists the object."),
    column("created_at", TIMESTAMP, "Time of the entry."),
)

POTENTIAL_COMMITS = table(
    "potential_commits",
    "lake",
    "lakeFS: commits with objects that lifecycle rules may release and that no finished run has handled yet.",
    ("commit_id",),
    column("commit_id", STRING, "Commit id."),
    column("branches", STRINGS, "Branches that reach it, at most 100: those that a rule names, then the others."),
    column("last_deleted", TIMESTAMP, "The bound: the latest minimum over the branches; null: from the beginning."),
)

LIFECYCLE_OBJECTS = table(
    "lifecycle_objects",
    "lake",
    "lakeFS: objects that a lifecycle rule releases under at least one path.",
    ("storage", "key"),
    column("storage", STRING, "Storage that contains the object."),
    column("key", STRING, "Canonical key."),
    column("paths", STRINGS, "Logical paths that name it, at most 100, sorted."),
    column("matched_rules", STRINGS, "Ids of the rules that release it."),
    column("deduplicated", BOOL, "True: it is kept, because another path, branch, tag or staging area needs or needed it."),
    column("size_bytes", LONG, "Size, if the entries record it."),
    column("commits", LONG, "Maximum number of retained commits with a dangling path after its deletion, counted per path."),
    column("potential", BOOL, "True: one of `potential_commits` names it."),
)

LIFECYCLE_PATHS = table(
    "lifecycle_paths",
    "lake",
    "lakeFS: paths at heads of branches that lifecycle rules delete by commits (`lifecycle: commit`).",
    ("branch", "path"),
    column("branch", STRING, "Branch."),
    column("path", STRING, "Logical path at the head of the branch."),
    column("storage", STRING, "Storage of the object; null for an external address."),
    column("key", STRING, "Canonical key of the object; null for an external address."),
    column("size_bytes", LONG, "Size, if the entry records it."),
    column("age", TIMESTAMP, "Time from which the age counts: of the entry or of the first commit with it."),
    column("rule_id", STRING, "Id of the rule."),
)
