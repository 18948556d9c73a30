"""Configuration of lakeFS lakes in `lakes.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import BaseFolder
from gc_assets.config.rules import DroppedTableRetention, RefRetention, policy_row
from gc_assets.config.values import Duration, TagPolicy
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.idle_branches import IdleRule
from gc_assets.core.paths import Location
from gc_assets.core.units import Cutoff
from gc_assets.lakes.lakefs.lifecycle_rules import read_rules, rule_rows

# Key in `CommitSource.properties`: days of the server's rule for branches without their own rule.
DEFAULT_RETENTION_DAYS: Final = "default_retention_days"


class LakeFsRetention(DroppedTableRetention, RefRetention):
    """Rules for the history to keep: the server's garbage collection rules, or configured ones.

    Without rules, the whole history is kept.
    """

    source: Literal["server", "configured"] = "server"
    tags: TagPolicy = Field(
        default="keep",
        description="`keep`: tags protect their commits; `policy`: tags expire like branches; `ignore`: as in lakeFS, no protection.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> LakeFsRetention:
        if self.source == "server" and self.model_fields_set & {"default", "refs", "dangling"}:
            raise ValueError("default, refs and dangling require `source: configured`; with `source: server` the server's rules apply")
        return self


def _endpoint(value: Any) -> str:
    parts = urlsplit(str(value))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("expected the server's address, such as http://localhost:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address must not contain credentials; set access_key_id and secret_access_key")
    return str(value).rstrip("/").removesuffix("/api/v1")


class LakeFsLakeConfig(LakeConfig):
    """Lake that consists of one repository on a lakeFS server."""

    RENAMED: ClassVar = {"recheck_deduplicated": "verify_deduplicated"}

    kind: Literal["lakefs"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    endpoint: Annotated[str, BeforeValidator(_endpoint)] = Field(description="Address of the server, such as http://localhost:8000.")
    repository: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="Id of the repository.")
    access_key_id: SecretStr
    secret_access_key: SecretStr
    retention: LakeFsRetention = Field(default_factory=lambda: LakeFsRetention())
    rules: str | None = Field(default=None, description="JSON file with lifecycle rules for path prefixes. Every run reads it again.")
    lifecycle: Literal["address", "commit"] = Field(
        default="address",
        description="How lifecycle rules work: `address` collects files that commits still reference, `commit` deletes paths on branches.",
    )
    publish_results: bool = Field(
        default=False,
        description="Whether runs list the objects that lifecycle rules may delete in _lakefs/retention/lc/ of the namespace.",
    )
    verify_deduplicated: bool = Field(
        default=True,
        description="Check objects again that were once kept because another path needed them. The lakeFS proposal does not do this.",
    )
    unused_ranges: Literal["keep", "collect"] = Field(
        default="keep",
        description="`collect`: ranges and metaranges that no commit references are garbage, including those of old refs dumps.",
    )
    full_listing: Duration = Field(
        default=timedelta(days=7),
        description="Interval of full listings of data/. Other runs only list changed partitions. 0s: every run lists everything.",
    )
    location: str | None = Field(
        default=None, description="Location of the storage namespace, if its address on the server is not in any configured storage."
    )

    recheck_deduplicated = RenamedAttribute("verify_deduplicated")

    @model_validator(mode="after")
    def _results_need_addresses(self) -> LakeFsLakeConfig:
        if self.lifecycle == "commit" and self.publish_results:
            raise ValueError("publish_results requires `lifecycle: address`, because `lifecycle: commit` deletes paths, not objects")
        return self

    def policy(self) -> dict[str, Any]:
        found = self.model_dump(mode="json", exclude={"access_key_id", "secret_access_key", "publish_results"})
        found["recheck_deduplicated"] = found.pop("verify_deduplicated")  # Digests up to 0.3 use this name.
        if self.lifecycle == "address":  # Digests of releases without this option do not have the key.
            del found["lifecycle"]
        if self.unused_ranges == "keep":
            del found["unused_ranges"]
        return found

    def catalog_location(self) -> tuple[str, str]:
        return "lakefs ", f"{self.endpoint}/{self.repository}"

    def with_retention(self, keep: str) -> LakeFsLakeConfig:
        """Return a copy of the lake whose default cut-off is `keep`.

        The copy uses this configured retention instead of the rules on the server.
        """
        retention = self.retention.with_default(keep).model_copy(update={"source": "configured"})
        return self.model_copy(update={"retention": retention})

    @property
    def ignores_tags(self) -> bool:
        return self.retention.tags == "ignore"

    def describe_retention(self, properties: Mapping[str, str]) -> str:
        if self.retention.source != "server":
            return self.retention.describe()
        days = properties.get(DEFAULT_RETENTION_DAYS)
        if days is None:
            return "everything (the server has no rules)"
        return f"{Cutoff.of_days(int(days)).policy_text} (rules of the server)"

    def unused_rules(
        self, refs: Iterable[tuple[str, str]], as_of: datetime, properties: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return notes about unused rules, as for all kinds, and about settings without effect.

        If there are no refs, the lake is deleted or unreadable, and its rules are unknown.
        """
        names = list(refs)
        found = super().unused_rules(names, as_of)
        if not names:
            return found
        if self.retention.source == "server" and DEFAULT_RETENTION_DAYS not in (properties or {}):
            found += (f"lake {self.name}: the server has no garbage collection rules for this repository, so every commit is kept",)
        elif self.retention.source == "configured" and self.retention.keeps_everything:
            found += (f"lake {self.name}: `retention` keeps every commit; set `default` or `refs` to collect files of old commits",)
        if self.rules is None and (self.lifecycle == "commit" or self.publish_results):
            option = "lifecycle: commit" if self.lifecycle == "commit" else "publish_results: true"
            found += (f"lake {self.name}: `{option}` has no effect without `rules`, the file with lifecycle rules",)
        return found

    @property
    def idle_rules(self) -> tuple[IdleRule, ...]:
        return self.retention.idle_rules()

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Return the rules for history, and the current lifecycle rules for paths.

        Raises:
            UsageError: If the rules file cannot be read or is invalid.
        """
        # The server's rules are read later, together with the refs.
        from_server = [policy_row("retention.source=server", None, Cutoff(forever=True), as_of)]
        history = from_server if self.retention.source == "server" else self.retention.policy_rows(as_of)
        return [*history, *(rule_rows(read_rules(self.rules), as_of) if self.rules is not None else [])]

    def decoding_settings(self, storages: Sequence[str]) -> list[str]:
        # If an address contains another mount point, the object may be in any of the storages. In
        # rows of earlier decoders, which ignored `location` or percent-encoding, some names of
        # bucket addresses are missing.
        return [*sorted(storages), *([] if self.location is None else ["outside location"]), "percent-encoding"]

    def own_files(self) -> tuple[str, ...]:
        """Return the file that contains the lifecycle rules."""
        return () if self.rules is None else (self.rules,)

    def own_locations(self) -> tuple[str, ...]:
        return () if self.location is None else (str(Location.parse(self.location)),)

    def resolve_paths(self, anchor: BaseFolder) -> LakeFsLakeConfig:
        location = None if self.location is None else anchor.absolute(self.location, "location")
        rules = None if self.rules is None else anchor.absolute(self.rules, "rules")
        return self.model_copy(update={"location": location, "rules": rules})

    @property
    def dropped_after(self) -> timedelta | None:
        return self.retention.dropped_after

    @property
    def full_listing_every(self) -> timedelta:
        return self.full_listing

    @property
    def collects_metadata(self) -> bool:
        return self.unused_ranges == "collect"

    @property
    def has_lifecycle(self) -> bool:
        return self.rules is not None and self.lifecycle == "address"

    @property
    def has_commit_rules(self) -> bool:
        """True if lifecycle rules delete paths through commits."""
        return self.rules is not None and self.lifecycle == "commit"

    def commit_rule_filter(self) -> Callable[[str], bool]:
        """Return a function that checks whether commits may delete paths of a branch.

        Raises:
            UsageError: If the rules file cannot be read or is invalid.
        """
        rules = [] if self.rules is None or not self.has_commit_rules else read_rules(self.rules).values()
        enabled = [rule for rule in rules if rule.enabled]
        named = {branch for rule in enabled for branch in rule.branch_days}
        return lambda branch: branch in named or any(rule.days is not None for rule in enabled)
