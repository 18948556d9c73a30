"""Configuration of Nessie lakes in `lakes.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import BaseFolder
from gc_assets.config.rules import DroppedTableRetention, RefRetention
from gc_assets.core.idle_branches import IdleRule


class NessieRetention(DroppedTableRetention, RefRetention):
    """Cut-offs for the history of refs.

    Without a `default`, all commits are kept. Heads of refs are always kept.
    """

    state_at_cutoff: bool = Field(
        default=True,
        description="Keep the state at the cut-off, so that every later time is readable; false: the rule of nessie-gc.",
    )


class NessieLakeConfig(LakeConfig):
    """Iceberg tables and views in all refs of one Nessie server (REST API v2)."""

    kind: Literal["nessie"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    uri: Annotated[str, Field(pattern=r"^https?://")] = Field(description="Root URI of API v2, such as http://localhost:19120/api/v2.")
    token: SecretStr | None = Field(default=None, description="Bearer token, as ${NAME}. Omit it if the server has no authentication.")
    retention: NessieRetention = Field(default_factory=lambda: NessieRetention())
    keep_listed_snapshots: Literal["all", "refs", "none"] = Field(
        default="all",
        description="Snapshots that a live metadata file keeps besides its current one: all that it lists, those of its refs, or none.",
    )
    missing_history: Literal["refuse", "tolerate"] = Field(
        default="refuse",
        description="If metadata of older live commits is missing and no plan of gc-assets deleted it: stop, or continue without it.",
    )
    empty_commits: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="If a commit has no operations, because the server hides them or an old server made it: stop, or accept it.",
    )
    claims: tuple[str, ...] = Field(
        default=(),
        description="Prefixes that only this lake uses, in addition to its table locations, for example `s3://bucket/warehouse/`.",
    )

    def decoding_settings(self, storages: Sequence[str]) -> list[str]:
        del storages
        return [self.keep_listed_snapshots]

    def server(self) -> str:
        return self.uri

    def catalog_location(self) -> tuple[str, str]:
        return "nessie ", re.sub(r"://[^/@]*@", "://", self.uri).rstrip("/")

    @property
    def keeps_listed_snapshots(self) -> bool:
        return self.keep_listed_snapshots == "all"

    @property
    def tolerates_missing_history(self) -> bool:
        return self.missing_history == "tolerate"

    def policy(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"token"})

    @property
    def dropped_after(self) -> timedelta | None:
        return self.retention.dropped_after

    def with_retention(self, keep: str) -> NessieLakeConfig:
        return self.model_copy(update={"retention": self.retention.with_default(keep)})

    def describe_retention(self, properties: Mapping[str, str]) -> str:
        del properties
        return self.retention.describe()

    @property
    def idle_rules(self) -> tuple[IdleRule, ...]:
        return self.retention.idle_rules()

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        return self.retention.policy_rows(as_of)

    def resolve_paths(self, anchor: BaseFolder) -> NessieLakeConfig:
        claims = tuple(anchor.absolute(claim, f"claims[{index}]") for index, claim in enumerate(self.claims))
        return self.model_copy(update={"claims": claims})
