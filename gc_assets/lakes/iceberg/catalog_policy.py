"""The retention of one table by a policy of its catalog, and its form in frozen properties.

The functions are pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

CATALOG_POLICY = "catalog-policy"
NO_POLICY = "its catalog has no policy for snapshots"


@dataclass(frozen=True, slots=True)
class CatalogPolicy:
    """Policy set by a catalog for one table.

    Attributes:
        origin: The policy for snapshots in words, such as `inherited Polaris policy db.expire v3`.
            None if the catalog has none for the table.
        limits: Values that replace the table's `history.expire.*` properties, by property.
        from_table: The `limits` that come from the table's own properties.
        keep_history: Reason why no snapshot expires, or None.
        protect: Reason why no file of the table is collected, or None.
        min_file_age_seconds: Minimum age of orphans that the policy permits to remove.
    """

    origin: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    from_table: Sequence[str] = ()
    keep_history: str | None = None
    protect: str | None = None
    min_file_age_seconds: int = 0

    def origin_of(self, limit: str) -> str | None:
        """Describe the policy in words if it sets this limit, otherwise return None."""
        return self.origin if limit in self.limits and limit not in self.from_table else None

    def with_default(self, *, has_default: bool) -> CatalogPolicy:
        """Keep the whole history if the table has no policy, unless lakes.yaml has a limit for it."""
        if self.origin is None and self.keep_history is None and not has_default:
            return replace(self, keep_history=NO_POLICY)
        return self

    def as_property(self) -> dict[str, str]:
        """Return the policy as a frozen property of the table."""
        return {CATALOG_POLICY: json.dumps(asdict(self), sort_keys=True)}


def read_policy(properties: Mapping[str, str]) -> CatalogPolicy | None:
    """Read the policy from a table's frozen properties. Returns None if there is no policy."""
    return CatalogPolicy(**json.loads(properties[CATALOG_POLICY])) if CATALOG_POLICY in properties else None
