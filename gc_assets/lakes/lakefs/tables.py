"""Schemas of the tables that only lakeFS lakes have."""

from __future__ import annotations

from gc_assets.state.columns import BOOL, LONG, STRING, STRINGS, TIMESTAMP, column
from gc_assets.state.schemas import table

UNCOMMITTED_OBJECTS = table(
    "uncommitted_objects",
    "lake",
    "Staged objects in lakeFS. They are live even if no commit references them.",
    ("storage", "key", "branch", "path"),
    column("storage", STRING, "Storage of the object. Null for an external address."),
    column("key", STRING, "Canonical key, or address of an external object."),
    column("branch", STRING, "Branch on which the object is staged. Null if only the server's own list contains it."),
    column("path", STRING, "Logical path. Null if only the server's own list contains the object."),
    column("created_at", TIMESTAMP, "Time of the entry."),
)

POTENTIAL_COMMITS = table(
    "potential_commits",
    "lake",
    "Commits in lakeFS whose objects lifecycle rules may delete, and that no finished run has handled.",
    ("commit_id",),
    column("commit_id", STRING, "Commit or snapshot id."),
    column("branches", STRINGS, "Branches that reach the commit, at most 100, those listed in rules first."),
    column("last_deleted", TIMESTAMP, "Time after which commits are potential. Null if all are."),
)

LIFECYCLE_OBJECTS = table(
    "lifecycle_objects",
    "lake",
    "Objects in lakeFS that a lifecycle rule allows to be deleted under at least one path.",
    ("storage", "key"),
    column("storage", STRING, "Storage of the object. Null for an external address."),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("paths", STRINGS, "Logical paths of the object, at most 100."),
    column("matched_rules", STRINGS, "Ids of the rules that select the object."),
    column("deduplicated", BOOL, "True if the object is kept because another path or ref needs or needed it."),
    column("size_bytes", LONG, "Size, if known."),
    column("commits", LONG, "Upper bound of the retained commits that reference the object, counted per path."),
    column("potential", BOOL, "True if one of `potential_commits` references the object."),
)

LIFECYCLE_PATHS = table(
    "lifecycle_paths",
    "lake",
    "Paths at lakeFS branch heads that lifecycle rules delete with new commits (`lifecycle: commit`).",
    ("branch", "path"),
    column("branch", STRING, "Branch name."),
    column("path", STRING, "Logical path at the branch head."),
    column("storage", STRING, "Storage of the object. Null for an external address."),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("size_bytes", LONG, "Size, if known."),
    column("age", TIMESTAMP, "Time of the entry, or of the first commit with it."),
    column("rule_id", STRING, "Rule that deletes the path."),
)
