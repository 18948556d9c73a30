"""A catalog's retention policy for one table, which a run stores with the refs that it reads.

The module `policy_reader` reads it from the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

CATALOG_POLICY = "catalog-policy"
NO_POLICY = "its catalog has no policy for snapshots"


@dataclass(frozen=True, slots=True)
class CatalogPolicy:
    """Policy that a catalog sets for one table.

    Attributes:
        origin: Name of the snapshot policy for messages, such as `inherited Polaris policy
            db.expire v3`. None if the catalog does not have one for the table.
        limits: Values that replace the table's `history.expire.*` properties.
        from_table: Keys of those `limits` that come from the table's own properties.
        keep_history: Reason for keeping all snapshots, or None.
        protect: Reason for keeping all files of the table, or None.
        min_file_age_seconds: Minimum age of files that may be removed as orphans.
    """

    origin: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    from_table: Sequence[str] = ()
    keep_history: str | None = None
    protect: str | None = None
    min_file_age_seconds: int = 0

    def origin_of(self, limit: str) -> str | None:
        """Return the name of the catalog's policy if it sets the limit, otherwise None."""
        return self.origin if limit in self.limits and limit not in self.from_table else None

    def with_default(self, *, has_default: bool) -> CatalogPolicy:
        """Keep the whole history of a table without a policy, unless lakes.yaml has a default."""
        if self.origin is None and self.keep_history is None and not has_default:
            return replace(self, keep_history=NO_POLICY)
        return self

    def as_property(self) -> dict[str, str]:
        """Serialize the policy to a property in `CommitSource.properties`."""
        return {CATALOG_POLICY: json.dumps(asdict(self), sort_keys=True)}


def read_policy(properties: Mapping[str, str]) -> CatalogPolicy | None:
    """Read the policy from `CommitSource.properties`. Returns None if it is missing."""
    return CatalogPolicy(**json.loads(properties[CATALOG_POLICY])) if CATALOG_POLICY in properties else None
