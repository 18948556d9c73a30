"""Settings of an Icechunk repository that affect retention.

They are stored in `CommitSource.properties`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from gc_assets.lakes.protocol import CommitSource

ONLINE: Final = "online"
DELETE_TAG: Final = "delete_tag"


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """Spec version, availability and disabled features of a repository.

    A repository with spec version 1 only has the version.

    Attributes:
        availability: `online`, `read-only` or `offline`.
        disabled_features: Names of the library's feature flags disabled by a user.
    """

    spec_version: int = 1
    availability: str = ONLINE
    disabled_features: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sources: Sequence[CommitSource]) -> Self:
        """Read the settings from the properties of a repository's commit sources."""
        found = sources[0].properties if sources else {}
        return cls(
            int(found.get("spec_version", "1")),
            found.get("availability", ONLINE),
            frozenset(name for name in found.get("disabled_features", "").split(",") if name),
        )

    def to_properties(self) -> dict[str, str]:
        return {
            "spec_version": str(self.spec_version),
            "availability": self.availability,
            "disabled_features": ",".join(sorted(self.disabled_features)),
        }

    @property
    def can_delete_tags(self) -> bool:
        return DELETE_TAG not in self.disabled_features

    def __str__(self) -> str:
        disabled = f", disabled features: {', '.join(sorted(self.disabled_features))}" if self.disabled_features else ""
        status = f", {self.availability}{disabled}" if self.spec_version > 1 else ""
        return f"spec version {self.spec_version}{status}"
