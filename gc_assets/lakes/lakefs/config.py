"""A lake of kind lakefs in `lakes.yaml`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import Anchor
from gc_assets.config.rules import RefRetention, policy_row
from gc_assets.config.values import Duration, TagPolicy
from gc_assets.core.units import Cutoff
from gc_assets.lakes.lakefs.lifecycle_rules import read_rules, rule_rows


class LakeFsRetention(RefRetention):
    """How much history a lakeFS repository keeps: the server's own garbage collection rules, or
    those here. Without rules, everything.
    """

    source: Literal["server", "configured"] = "server"
    tags: TagPolicy = Field(
        default="keep", description="`keep`: a tag protects its commit; `policy`: it is like a branch; `ignore`: lakeFS's own collector."
    )

    @model_validator(mode="after")
    def _one_source(self) -> LakeFsRetention:
        if self.source == "server" and self.model_fields_set & {"default", "refs", "dangling"}:
            raise ValueError("default, refs and dangling need `source: configured`; with `source: server` the server's rules decide")
        return self


def _endpoint(value: Any) -> str:
    parts = urlsplit(str(value))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write the server's address, such as http://localhost:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address holds no credentials; write them as access_key_id and secret_access_key")
    return str(value).rstrip("/").removesuffix("/api/v1")


class LakeFsLakeConfig(LakeConfig):
    """One repository of a lakeFS server."""

    kind: Literal["lakefs"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    endpoint: Annotated[str, BeforeValidator(_endpoint)] = Field(description="The server's address, such as http://localhost:8000.")
    repository: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="The repository's id.")
    access_key_id: SecretStr
    secret_access_key: SecretStr
    retention: LakeFsRetention = Field(default_factory=lambda: LakeFsRetention())
    rules: str | None = Field(default=None, description="A JSON file with lifecycle rules by path prefix, read afresh every run.")
    verify_deduplicated: bool = Field(
        default=True, description="Look again at objects that other paths once kept from a lifecycle rule; the proposal never does."
    )
    full_listing: Duration = Field(
        default=timedelta(days=7), description="How often the whole of data/ is listed; between, only what changed. 0s: every night."
    )
    location: str | None = Field(
        default=None, description="Where the storage namespace is, if the server's own words for it do not name a configured storage."
    )

    def policy(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"access_key_id", "secret_access_key"})

    def with_retention(self, keep: str) -> LakeFsLakeConfig:
        """Returns the same lake with this cut-off, also instead of the server's own rules."""
        retention = self.retention.with_default(keep).model_copy(update={"source": "configured"})
        return self.model_copy(update={"retention": retention})

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Returns the rules over history, and those over paths as their file says now. Raises
        `UsageError` naming that file.
        """
        # The server's rules are read with the refs that they are about, and frozen there.
        from_server = [policy_row("retention.source=server", None, Cutoff(forever=True), as_of)]
        history = from_server if self.retention.source == "server" else self.retention.policy_rows(as_of)
        return [*history, *(rule_rows(read_rules(self.rules), as_of) if self.rules is not None else [])]

    def own_files(self) -> tuple[str, ...]:
        """Returns the file with the rules."""
        return () if self.rules is None else (self.rules,)

    def anchored(self, anchor: Anchor) -> LakeFsLakeConfig:
        location = None if self.location is None else anchor.absolute(self.location, "location")
        rules = None if self.rules is None else anchor.absolute(self.rules, "rules")
        return self.model_copy(update={"location": location, "rules": rules})

    @property
    def full_listing_every(self) -> timedelta:
        return self.full_listing

    @property
    def has_lifecycle(self) -> bool:
        return self.rules is not None
