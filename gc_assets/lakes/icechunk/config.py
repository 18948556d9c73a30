"""A lake of kind icechunk in `lakes.yaml`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import Field

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import Anchor
from gc_assets.config.rules import RefRetention
from gc_assets.config.values import Model, TagPolicy
from gc_assets.core.units import Cutoff

# Design 2: what no ref reaches can be brought back for a week. The grace period keeps it where that
# is longer.
_DANGLING: Final = Cutoff(max_age=timedelta(days=7))


class IcechunkRetention(RefRetention):
    """How much history an Icechunk repository keeps. Without a `default` it keeps everything that a
    ref reaches.
    """

    tags: TagPolicy = "keep"

    def dangling_cutoff(self) -> Cutoff:
        return super().dangling_cutoff() or _DANGLING


class IcechunkExpiry(Model):
    """Which of the named semantics edits history (research/icechunk.md 2.1), and whether lapsed
    refs go.
    """

    semantics: Literal["seed", "icechunk-v1"] = "seed"
    delete_expired_tags: bool = False
    delete_expired_branches: bool = False


class IcechunkLakeConfig(LakeConfig):
    """An Icechunk repository of spec v1."""

    kind: Literal["icechunk"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    location: str
    retention: IcechunkRetention = Field(default_factory=lambda: IcechunkRetention())
    expiry: IcechunkExpiry = Field(default_factory=lambda: IcechunkExpiry())

    def with_retention(self, keep: str) -> IcechunkLakeConfig:
        return self.model_copy(update={"retention": self.retention.with_default(keep)})

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        return self.retention.policy_rows(as_of)

    def anchored(self, anchor: Anchor) -> IcechunkLakeConfig:
        return self.model_copy(update={"location": anchor.absolute(self.location, "location")})
