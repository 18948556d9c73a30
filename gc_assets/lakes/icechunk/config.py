"""Configuration of Icechunk lakes in `lakes.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import BaseFolder
from gc_assets.config.rules import RefRetention, check_has_no_count
from gc_assets.config.values import CutoffValue, Model, TagPolicy
from gc_assets.core.idle_branches import IdleRule
from gc_assets.core.units import Cutoff, parse_cutoff

# Snapshots that no ref reaches can be recovered for a week, or for the grace period if it is
# longer.
_DANGLING: Final = Cutoff(max_age=timedelta(days=7))
_OBJECT_ID: Final = "^[0-9A-HJKMNP-TV-Z]{20}$"
_OVERWRITTEN: Final = Cutoff(max_age=timedelta(days=30))


class IcechunkRetention(RefRetention):
    """Rules for the history to keep.

    Without a `default`, every snapshot that a ref reaches is kept.
    """

    OMITTED_IF_UNSET = ("dangling", "overwritten")

    tags: TagPolicy = "keep"
    overwritten: Annotated[CutoffValue, AfterValidator(check_has_no_count)] = Field(
        default=None, description="How long copies of `repo` in `overwritten/` are kept (spec version 2). `forever` keeps all of them."
    )

    def dangling_cutoff(self) -> Cutoff:
        return super().dangling_cutoff() or _DANGLING

    def overwritten_cutoff(self) -> Cutoff:
        """Return the cut-off for backup copies of the object `repo` in `overwritten/`."""
        return _OVERWRITTEN if self.overwritten is None else parse_cutoff(self.overwritten)


class IcechunkExpiry(Model):
    """How the history of an Icechunk repository is edited.

    Attributes:
        semantics: Rule that decides which edits are made, see
            `gc_assets/lakes/icechunk/expiration.py`. `icechunk` is the library's rule for the
            repository's spec version. `icechunk-v1` is an older name for it.
        delete_expired_tags: Delete tags whose head has expired.
        delete_expired_branches: Delete branches whose head has expired, except `main`.
    """

    semantics: Literal["seed", "icechunk", "icechunk-v1"] = "seed"
    delete_expired_tags: bool = False
    delete_expired_branches: bool = False


class IcechunkLakeConfig(LakeConfig):
    """An Icechunk repository with spec version 1 or 2."""

    kind: Literal["icechunk"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    location: str
    retention: IcechunkRetention = Field(default_factory=lambda: IcechunkRetention())
    expiry: IcechunkExpiry = Field(default_factory=lambda: IcechunkExpiry())
    lost_snapshots: tuple[Annotated[str, Field(pattern=_OBJECT_ID)], ...] = Field(
        default=(), description="Snapshots whose objects are permanently lost (spec version 1). Earlier snapshots need not be kept."
    )

    def policy(self) -> dict[str, Any]:
        found = self.model_dump(mode="json")
        if not self.lost_snapshots:  # Digests from version 0.3 do not have this key.
            del found["lost_snapshots"]
        return found

    def with_retention(self, keep: str) -> IcechunkLakeConfig:
        return self.model_copy(update={"retention": self.retention.with_default(keep)})

    def catalog_location(self) -> tuple[str, str]:
        return "icechunk ", self.location

    @property
    def ignores_tags(self) -> bool:
        return self.retention.tags == "ignore"

    def describe_retention(self, properties: Mapping[str, str]) -> str:
        del properties
        return self.retention.describe()

    @property
    def idle_rules(self) -> tuple[IdleRule, ...]:
        return self.retention.idle_rules()

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        return self.retention.policy_rows(as_of)

    def own_locations(self) -> tuple[str, ...]:
        return (f"{self.location.rstrip('/')}/",)

    def decoding_settings(self, storages: Sequence[str]) -> list[str]:
        del storages
        # Earlier decoders did not resolve virtual chunk containers, so their rows lack these
        # locations. In other old rows, all possible names of a location must exist.
        return ["virtual chunk containers", "possible names"]

    def resolve_paths(self, anchor: BaseFolder) -> IcechunkLakeConfig:
        return self.model_copy(update={"location": anchor.absolute(self.location, "location")})
