"""Settings for the Dagster definitions, under `dagster` in `lakes.yaml`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

from gc_assets.config.values import Age, Model

APPROVED_PLANS_EVERY: Final = timedelta(seconds=60)
NOTIFICATIONS_EVERY: Final = timedelta(minutes=5)

GroupPrefix = Annotated[str, Field(pattern=r"^([A-Za-z0-9_]+/)*[A-Za-z0-9_]*$")]
KeyPrefix = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$")]


class DagsterNames(Model):
    """Prefixes of asset keys and groups, and intervals of the sensors."""

    group_prefix: GroupPrefix = Field(default="gc/", description="Beginning of the asset groups, before the name of the lake or storage.")
    key_prefix: KeyPrefix | None = Field(
        default=None, description="Beginning of all asset keys, with `/` between its parts. Default: none."
    )
    approved_plans_every: Age = Field(default=APPROVED_PLANS_EVERY, description="Interval of the `approved_plans` sensor.")
    notifications_every: Age = Field(default=NOTIFICATIONS_EVERY, description="Interval of the `notifications` sensor.")

    @property
    def key_prefix_parts(self) -> tuple[str, ...]:
        return tuple(self.key_prefix.split("/")) if self.key_prefix is not None else ()
