"""A lake of kind nessie in `lakes.yaml`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import Anchor
from gc_assets.config.rules import RefRetention


class NessieRetention(RefRetention):
    """How much of each ref's log stays readable. Without a `default` everything does. A head always
    stays.
    """

    state_at_cutoff: bool = Field(
        default=True,
        description="Keep the state as of the cut-off, so that every later moment is readable; false is nessie-gc's rule.",
    )


class NessieLakeConfig(LakeConfig):
    """The Iceberg tables and views of all refs of one Nessie server (REST API v2)."""

    kind: Literal["nessie"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    uri: Annotated[str, Field(pattern=r"^https?://")] = Field(description="Root of API v2, such as http://localhost:19120/api/v2.")
    token: SecretStr | None = Field(default=None, description="Bearer token, as ${NAME}; none where the server asks nobody who he is.")
    retention: NessieRetention = Field(default_factory=lambda: NessieRetention())
    keep_listed_snapshots: Literal["all", "refs", "none"] = Field(
        default="all",
        description="What a live metadata file keeps beside its current snapshot: all it lists, what its own refs name, or none.",
    )
    missing_history: Literal["refuse", "tolerate"] = Field(
        default="refuse", description="Metadata of older live commits that is gone, and not by a plan of ours: stop, or go on without it."
    )
    empty_commits: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="A commit that shows no operation: a sign that it is hidden from us, or made by an old server.",
    )
    claims: tuple[str, ...] = Field(
        default=(), description="Prefixes that are wholly this lake's, beside the locations of its tables: `s3://bucket/warehouse/`."
    )

    def decoding(self) -> list[str]:
        return [self.keep_listed_snapshots]

    def server(self) -> str:
        return self.uri

    @property
    def tolerates_missing_history(self) -> bool:
        return self.missing_history == "tolerate"

    def policy(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"token"})

    def with_retention(self, keep: str) -> NessieLakeConfig:
        return self.model_copy(update={"retention": self.retention.with_default(keep)})

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        return self.retention.policy_rows(as_of)

    def anchored(self, anchor: Anchor) -> NessieLakeConfig:
        claims = tuple(anchor.absolute(claim, f"claims[{index}]") for index, claim in enumerate(self.claims))
        return self.model_copy(update={"claims": claims})
