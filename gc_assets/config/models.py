"""Pydantic models for `lakes.yaml`.

This module defines everything that does not depend on the kind of a lake. The models of the kinds
are in `lakes/<kind>/config.py` and are passed to `Config.of`, so that this module does not have to
import them. Validation never opens a file, lake or storage.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from gc_assets.config.azure import AzureConfig
from gc_assets.config.connections import Connections, StoreSettings
from gc_assets.config.dagster_names import DagsterNames
from gc_assets.config.gcs import GcsConfig
from gc_assets.config.jobs import CLIENT, DEPLOY_MODE, Databricks, EmrServerless
from gc_assets.config.notify import Target
from gc_assets.config.relative_paths import BaseFolder
from gc_assets.config.rules import describe_unused_rules
from gc_assets.config.s3 import S3Config
from gc_assets.config.spark import LOCAL, Remote
from gc_assets.config.values import (
    Age,
    AssetOwner,
    AssetPath,
    Bytes,
    Days,
    Duration,
    KeyPattern,
    Model,
    Name,
    Share,
    TagName,
    TagValue,
    check_number,
)
from gc_assets.core.deadline import READ_SECONDS
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.errors import UsageError
from gc_assets.core.idle_branches import IdleRule
from gc_assets.core.idle_branches import describe_unused_rules as describe_unused_idle_rules
from gc_assets.core.paths import AZURE, GCS, Location, is_in_bucket, scheme_of
from gc_assets.core.suggest import did_you_mean, join_names
from gc_assets.core.urls import provider_address, storage_urls, urls_without_account

# The settings of each kind of object store, by scheme. `Config` and `StorageConfig` have a field
# for each of them.
STORE_SETTINGS: Final[Mapping[str, type[StoreSettings]]] = {kind.SCHEME: kind for kind in (S3Config, AzureConfig, GcsConfig)}

DEFAULT_GRACE = timedelta(hours=72)
# With a shorter grace period, files of slow writers could be deleted before they are committed.
# Only GC_ASSETS_UNSAFE_GRACE_FLOOR lowers this minimum.
GRACE_FLOOR = timedelta(hours=24)
# The key of the validation context under which the model of each kind of lake is passed.
KINDS_KEY = "lake_kinds"
BYTES_PER_GB = 10**9
# Leaves room for a daily report that arrives two days late, or for one missing report.
MAX_INVENTORY_AGE: Final = timedelta(days=3)
# Even with `run --no-listing`, a storage is listed again if its last listing is this old.
MAX_LISTING_AGE: Final = timedelta(days=30)


def _check_a_day(value: timedelta) -> timedelta:
    # Only run dates are compared, because the time of day at which a run starts must not matter.
    if value < timedelta(days=1):
        raise ValueError("expected at least 1d; without this key, every run lists the storage")
    return value


class Gates(Model):
    """Plan limits. Shares are fractions of the amount in the storage."""

    RENAMED: ClassVar = {"max_sick": "max_unreadable"}

    max_delete_share: Share = Field(default=0.2, description="Largest share of the storage's bytes or files that a plan may delete.")
    max_delete_bytes: Bytes = Field(default=10 * 10**12, description="Largest number of bytes that a plan may delete.")
    max_live_drop: Share = Field(default=0.2, description="Largest drop of the number of live files since the last accepted run.")
    max_unreadable: int = Field(default=10, ge=0, description="Largest number of unreadable tables. With more, the plan is refused.")

    max_dropped_tables: int = Field(
        default=10, ge=0, description="Largest number of dropped tables whose files a plan may delete, not counting replaced ones."
    )
    max_idle_branches: int = Field(default=20, ge=0, description="Largest number of idle branches that a plan may delete.")
    max_deleted_paths: int = Field(
        default=100_000, ge=0, description="Largest number of paths that a plan may delete on branches by commits."
    )
    max_deleted_path_share: Share = Field(
        default=0.5, description="Largest share of the paths of one branch that a plan may delete by a commit."
    )

    max_sick = RenamedAttribute("max_unreadable")


class Money(Model):
    """Storage price for reports. Without it, reports show no prices."""

    usd_per_gb_month: Annotated[float, BeforeValidator(check_number)] = Field(
        gt=0, allow_inf_nan=False, description="Price of one GB (10^9 bytes) per month."
    )

    def usd_per_month(self, size_bytes: int) -> float:
        """Compute the monthly price of storing these bytes."""
        return size_bytes / BYTES_PER_GB * self.usd_per_gb_month


class WrittenBy(Model):
    """Asset in the user's Dagster project that writes to a lake or table."""

    key: AssetPath = Field(description="Key of the asset, with `/` between its parts: `analytics/orders`.")
    table: str | None = Field(
        default=None, min_length=1, description="The table that it writes, as `namespace.table`. Default: the whole lake."
    )
    max_garbage_share: Share | None = Field(
        default=None, description="Adds an asset check: the largest share of garbage in the bytes of the table. Default: that of the lake."
    )


class AssetMetadata(Model):
    """Dagster asset owners and tags. Plans do not depend on them, so they are excluded from
    digests.
    """

    owners: tuple[AssetOwner, ...] = Field(default=(), exclude=True, description="Owners of the assets: `team:NAME`, or an e-mail address.")
    tags: dict[TagName, TagValue] = Field(default_factory=dict[str, str], exclude=True, description="Tags of the assets.")


class ListingConfig(Model):
    """How often a storage is listed."""

    every: Annotated[Duration, AfterValidator(_check_a_day)] = Field(
        description="Runs list the storage again after this time, at least 1d. Runs between use the last listing."
    )


class InventoryConfig(Model):
    """Location, format and maximum age of a storage's inventory reports."""

    kind: Literal["s3", "plain", "azure", "gcs"] = Field(description="Format of the reports.")
    location: str = Field(description="Directory with one subdirectory per report, named after the time of its scan.")
    max_inventory_age: Age = Field(default=MAX_INVENTORY_AGE, description="Maximum age of the newest report. An older one is rejected.")


class _RecordOwner(AssetMetadata):
    """Storage or lake. Its name in `lakes.yaml` may differ from that of its records in the state."""

    name: Name
    _label: str | None = PrivateAttr(default=None)

    @property
    def label(self) -> str:
        """The name in `lakes.yaml`. It can differ from `name`, which is used in the state."""
        return self._label or self.name

    def with_recorded_name(self, name: str) -> Self:
        """Return a copy that uses the given name for its records in the state."""
        copy = self.model_copy(update={"name": name})
        copy._label = self.label
        return copy


class StorageConfig(_RecordOwner):
    """Root location to list and sweep."""

    location: str = Field(description="`file:///data/warehouse/`, or a path; `s3://bucket/prefix/`.")
    aliases: tuple[str, ...] = Field(
        default=(),
        description="Other addresses of the location in metadata: of an access point, another mount, a web server, or another scheme.",
    )
    quarantine: Literal["trash", "versioned", "deferred"] = "trash"
    grace: Duration = Field(default=DEFAULT_GRACE, description="Minimum age of an orphan in a plan. At least 24h.")
    quarantine_days: Days = Field(default=7, description="Days between quarantine and purge. 0 is for trials.")
    mode: Literal["plan", "apply"] = "plan"
    rehearsals: Literal["refused", "allowed"] = Field(
        default="refused", description="Whether rehearsals (GC_ASSETS_UNSAFE_NOW) may change the storage. `allowed` is for trials."
    )
    gates: Gates = Field(default_factory=lambda: Gates())
    approvals_needed: Literal[1, 2] = Field(default=1, description="Number of different people that must approve a plan.")
    abort_uploads: bool = Field(default=True, description="Whether plans abort unfinished multipart uploads.")
    money: Money | None = None
    s3: S3Config | None = Field(default=None, description="Connection of this storage. It overrides the global `s3`.")
    gcs: GcsConfig | None = Field(default=None, description="Connection of this storage. It overrides the global `gcs`.")
    azure: AzureConfig | None = Field(default=None, description="Connection of this storage. It overrides the global `azure`.")
    inventory: InventoryConfig | None = Field(default=None, description="Inventory reports that replace the listing of the storage.")
    listing: ListingConfig | None = Field(default=None, description="How often the storage is listed. Default: in every run.")
    protect: tuple[KeyPattern, ...] = Field(
        default=(),
        description="Patterns of keys that are never deleted: `raw/landing/**`. `*` does not match `/`, `**` does.",
    )

    def usd_per_month(self, size_bytes: int) -> float | None:
        """Compute the monthly price of storing these bytes, if a price is configured."""
        return None if self.money is None else self.money.usd_per_month(size_bytes)

    def with_listing(self, listing: bool | None) -> StorageConfig:
        """Override for one run whether the storage is listed.

        Args:
            listing: True to list the storage. False to reuse the last listing, unless it is older
                than `MAX_LISTING_AGE` and than `listing.every`. None to keep the configuration.
        """
        if listing is None:
            return self
        longest = max(MAX_LISTING_AGE, self.listing.every) if self.listing is not None else MAX_LISTING_AGE
        return self.model_copy(update={"listing": None if listing else ListingConfig(every=longest)})

    def locations(self) -> tuple[str, ...]:
        """Return the location of the storage and, if it has inventory reports, their location."""
        return (self.location,) if self.inventory is None else (self.location, self.inventory.location)

    def policy(self) -> dict[str, Any]:
        """Return the settings on which the policy digest depends, as JSON.

        Keys that were added in 0.4 are included only if they differ from their default. Otherwise
        the digests of existing plans would become invalid. `protect` is not included, because an
        apply checks it for each file anyway.
        """
        left_out = {"mode", "rehearsals", "money", *(kind.KEY for kind in STORE_SETTINGS.values()), "inventory", "listing", "protect"} | (
            {"approvals_needed"} if self.approvals_needed == 1 else set()
        )
        found = self.model_dump(mode="json", exclude=left_out)
        if self.abort_uploads:
            del found["abort_uploads"]
        if not self.aliases:
            del found["aliases"]
        for name in ("max_dropped_tables", "max_idle_branches", "max_deleted_paths", "max_deleted_path_share"):
            if found["gates"][name] == getattr(Gates(), name):
                del found["gates"][name]
        max_unreadable = found["gates"].pop("max_unreadable")
        if max_unreadable != Gates().max_unreadable:
            found["gates"]["max_sick"] = max_unreadable  # digests of 0.3 contain the old name
        return found

    def resolve_paths(self, anchor: BaseFolder) -> StorageConfig:
        """Return a copy of the storage with absolute paths."""
        update: dict[str, Any] = {"location": anchor.absolute(self.location, "location")}
        if self.inventory is not None:
            reports = anchor.absolute(self.inventory.location, "inventory.location")
            update["inventory"] = self.inventory.model_copy(update={"location": reports})
        return self.model_copy(update=update)


class LakeConfig(_RecordOwner):
    """Options of all lakes, and methods that the models of lake kinds implement."""

    kind: str
    assets: tuple[WrittenBy, ...] = Field(
        default=(), exclude=True, description="Assets of the user's own Dagster project that write to the lake, for its lineage."
    )
    max_garbage_share: Share | None = Field(
        default=None, exclude=True, description="Adds an asset check to `assets`: the largest share of garbage in the bytes of a table."
    )
    _read_seconds: float = PrivateAttr(default=READ_SECONDS)

    def catalog_location(self) -> tuple[str, str]:
        """Identify the catalog or repository, so that the lake is recognized if it is renamed.

        Returns:
            The kind with further identifying properties, and the address. Both are empty if the
            lake can only be identified by its name.
        """
        return "", ""

    def catalog_selectors(self) -> tuple[str, ...]:
        """Return the settings that select one of several catalogs at `catalog_location`.

        They contain no secrets. They may depend on the environment, because a change never affects
        the recorded name of the lake.
        """
        return ()

    def location_detail(self) -> str:
        """Return settings that distinguish lakes in the same catalog, such as patterns."""
        return ""

    def own_locations(self) -> tuple[str, ...]:
        """Return locations, ending in `/`, whose files are kept while the lake is unreadable."""
        return ()

    @property
    def read_seconds(self) -> float:
        """The timeout for requests to the catalog or server (`read_timeout`)."""
        return self._read_seconds

    @abstractmethod
    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Convert the retention policy to rows of `policy_table`.

        Ages become points in time before `as_of`. The columns that describe the run are added
        later.
        """

    def describe_retention(self, properties: Mapping[str, str]) -> str:
        """Describe what the policy keeps, to be shown to users.

        Args:
            properties: The properties of the table or repository that the run has read
                (`CommitSource.properties`).
        """
        del properties
        return "see policy_table"

    def with_retention(self, keep: str) -> Self:
        """Return a copy of the lake with another default cut-off.

        Raises:
            UsageError: If lakes of this kind have no default cut-off.
        """
        raise UsageError(
            f"lake {self.name} is of kind {self.kind}, which has no default cut-off. {keep} would therefore have no effect; "
            "select other lakes with --lake"
        )

    def policy(self) -> dict[str, Any]:
        """Return the settings on which the policy digest depends, as JSON. Secrets are left out."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, str] | None:
        """Return what identifies the lake in the policy digest.

        None if `policy` already contains it.
        """
        return None

    @property
    def ignores_tags(self) -> bool:
        """Whether the policy ignores tags, so that they do not protect any commit."""
        return False

    @property
    def idle_rules(self) -> tuple[IdleRule, ...]:
        """The rules by which plans delete idle branches."""
        return ()

    def unused_rules(
        self, refs: Iterable[tuple[str, str]], as_of: datetime, properties: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Describe each retention rule that has no effect.

        Args:
            refs: The type (`branch` or `tag`) and name of each ref.
            as_of: The time at which the run evaluates ages.
            properties: The repository properties that the run has read (`CommitSource.properties`).
        """
        del properties
        names = set(refs)
        branches = {name for ref_type, name in names if ref_type == "branch"}
        found = describe_unused_rules(self.policy_rows(as_of), branches, branches if self.ignores_tags else {name for _, name in names})
        return tuple(f"lake {self.name}: {text}" for text in (*found, *describe_unused_idle_rules(self.idle_rules, branches)))

    def own_files(self) -> tuple[str, ...]:
        """Return absolute paths of configuration and catalog files, which are never claimed."""
        return ()

    def with_library_settings(self) -> Self:
        """Add the settings that the lake's library would read from files and the environment."""
        return self

    def resolve_paths(self, anchor: BaseFolder) -> Self:
        """Return a copy of the lake with absolute paths."""
        del anchor
        return self

    def decoding_settings(self, storages: Sequence[str]) -> list[str]:
        """Return the settings that influence how metadata is decoded.

        Decoded metadata is cached. If one of these settings changes, it is decoded again.

        Args:
            storages: The locations of all storages.
        """
        del storages
        return []

    def server(self) -> str:
        """Return the server on which commit ids are unique, or "" if they are globally unique."""
        return ""

    @property
    def keeps_listed_snapshots(self) -> bool:
        """True if all snapshots that live metadata lists are live."""
        return True

    @property
    def tolerates_missing_history(self) -> bool:
        """Whether metadata of old live commits may be missing without making the lake unreadable."""
        return False

    @property
    def full_listing_every(self) -> timedelta | None:
        """How often all claimed directories are listed, or None to list them in every run.

        Runs in between reuse the listings of unchanged directories.
        """
        return None

    @property
    def dropped_after(self) -> timedelta | None:
        """How long the files of a dropped table are kept, or None to keep them permanently."""
        return None

    @property
    def collects_failed_creations(self) -> bool | None:
        """Whether metadata that a failed table creation left behind is garbage.

        Such metadata belongs to an unknown table, has no snapshots, and is in the location of a
        table. None for kinds without this setting.
        """
        return None

    def collects(self, table_name: str | None) -> bool:
        """Check if garbage of a table is collected, based on its name."""
        del table_name
        return True

    @property
    def collects_metadata(self) -> bool:
        """Whether plans may contain metadata files that no commit references."""
        return False

    @property
    def has_lifecycle(self) -> bool:
        """Whether rules allow files to be deleted by path although commits still need them."""
        return False

    @property
    def record_max_age(self) -> timedelta | None:
        """How long `snapshot_history` keeps expired snapshots. None for kinds without this table."""
        return None


def _validate_lake(value: Any, info: ValidationInfo) -> Any:
    """Parse an entry of `lakes` with the model of its kind."""
    if isinstance(value, LakeConfig):
        return value
    kinds: Mapping[str, type[LakeConfig]] = (info.context or {}).get(KINDS_KEY, {})
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping with the keys name and kind")  # noqa: TRY004  (pydantic reports ValueErrors only)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        meant = did_you_mean(kind, kinds) if isinstance(kind, str) else ""
        unknown = PydanticCustomError("lake_kind", "expected one of {known}{meant}", {"known": ", ".join(kinds), "meant": meant})
        raise ValidationError.from_exception_data("lake", [InitErrorDetails(type=unknown, loc=("kind",), input=kind)])
    return kinds[kind].model_validate(value)


class SparkConfig(Model):
    """Spark settings for the stages."""

    mode: Literal["session", "connect", "submit", "emr_serverless", "databricks"] = "session"
    master: str = Field(default=LOCAL, description="For `session` and `submit`: the Spark master, `local[N]` or a cluster's.")
    remote: Remote = Field(default=LOCAL, description="For `connect`: sc://host:port, or local[N] for pyspark's reusable local server.")
    token: SecretStr | None = Field(default=None, min_length=1, description="For `connect`: the token of the server, as ${NAME}.")
    python: str | None = Field(default=None, min_length=1, description="Python of executors on other machines. Default: `python3`.")
    conf: dict[str, str] = Field(default_factory=dict[str, str], description="Further Spark settings.")
    class_archive: bool = Field(
        default=True,
        description="Whether a JVM on this machine maps the archive of Spark's classes that `make env` writes, if it exists.",
    )
    s3a: bool = Field(default=False, description="Whether Spark has hadoop-aws and reads a state on S3 itself, without Python.")
    submit_program: str | None = Field(
        default=None, min_length=1, description="For `submit`: path of spark-submit, or its name on PATH. Default: that of pyspark."
    )
    emr_serverless: EmrServerless | None = Field(default=None, description="For `emr_serverless`: parameters of the job runs.")
    databricks: Databricks | None = Field(default=None, description="For `databricks`: parameters of the runs.")

    @property
    def runs_in_jobs(self) -> bool:
        """Whether Dagster steps start external jobs instead of running Spark themselves."""
        return self.mode in {"submit", "emr_serverless", "databricks"}

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "emr_serverless" and self.emr_serverless is None:
            raise ValueError("mode emr_serverless needs the key emr_serverless, with application_id, execution_role_arn and others")
        if self.mode == "databricks" and self.databricks is None:
            raise ValueError("mode databricks needs the key databricks, with entry_point, exchange and cluster")
        if self.mode == "submit" and self.conf.get(DEPLOY_MODE, CLIENT) != CLIENT:
            raise ValueError(f"mode submit runs the driver on this machine: remove {DEPLOY_MODE} from conf")
        return self


# The decisions that can have a Dagster job, with the names of the commands.
PageJob = Literal["approve", "reject", "restore"]


class Config(AssetMetadata):
    """Complete `lakes.yaml`. Its owners and tags are defaults for all lakes and storages."""

    RENAMED: ClassVar = {"first_night": "first_run_date"}
    # Since 0.4, every run computes all live files, so this interval is meaningless.
    IGNORED: ClassVar = frozenset({"full_every"})

    state: str
    storages: tuple[StorageConfig, ...]
    lakes: tuple[Annotated[SerializeAsAny[LakeConfig], BeforeValidator(_validate_lake)], ...]
    spark: SparkConfig = Field(default_factory=lambda: SparkConfig())
    read_timeout: Age = Field(
        default=timedelta(seconds=READ_SECONDS),
        description="Timeout for reading one object, or for one response of a catalog or server.",
    )
    plan_key: SecretStr | None = Field(
        default=None, min_length=16, description="Secret for plan ids, as ${NAME}: they are HMACs with it, and plain digests without it."
    )
    s3: S3Config = Field(default_factory=lambda: S3Config(), description="Connection to S3 for storages, lakes and the state.")
    gcs: GcsConfig = Field(
        default_factory=lambda: GcsConfig(), description="Connection to Google Cloud Storage for storages, lakes and the state."
    )
    azure: AzureConfig = Field(default_factory=lambda: AzureConfig(), description="Connection to Azure for storages, lakes and the state.")
    page_may: frozenset[PageJob] = Field(default=frozenset(), description="Decisions about plans that have a Dagster job. Default: none.")
    notify: tuple[Target, ...] = Field(default=(), description="Targets of notifications, which Dagster's `notifications` sensor sends.")
    dagster: DagsterNames = Field(
        default_factory=lambda: DagsterNames(), description="Names of the assets in Dagster, and intervals of its sensors."
    )
    first_run_date: date | None = Field(
        default=None, description="First run date of Dagster's partitions. Default: the date of the first run."
    )
    _path: str | None = PrivateAttr(default=None)
    _name_notes: tuple[str, ...] = PrivateAttr(default=())
    _has_recorded_names: bool = PrivateAttr(default=False)
    _has_unrecorded_names: bool = PrivateAttr(default=False)

    first_night = RenamedAttribute("first_run_date")

    @classmethod
    def of(cls, document: Any, kinds: Mapping[str, type[LakeConfig]]) -> Config:
        """Validate a document, using the given model for each kind of lake.

        Raises:
            ValidationError: If the document is invalid.
        """
        return cls.model_validate(document, context={KINDS_KEY: kinds})

    @model_validator(mode="after")
    def _names(self) -> Config:
        if not self.storages or not self.lakes:
            raise ValueError("at least one storage and one lake are needed")
        names = [group.name for group in (*self.storages, *self.lakes)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"every lake and storage needs a unique name; used twice: {', '.join(twice)}")
        targets = [target.name for target in self.notify]
        if repeated := sorted({name for name in targets if targets.count(name) > 1}):
            raise ValueError(f"every target of notify needs a unique name; used twice: {', '.join(repeated)}")
        for lake in self.lakes:
            lake._read_seconds = self.read_timeout.total_seconds()  # pyright: ignore[reportPrivateUsage]
        return self

    def with_path(self, path: str) -> Config:
        """Return a copy that records the absolute path of its file."""
        config = self.model_copy()
        config._path = path
        return config

    def own_files(self) -> tuple[str, ...]:
        """Return absolute paths of this configuration's file and of files that belong to lakes."""
        own = () if self._path is None else (self._path,)
        return (*own, *(path for lake in self.lakes for path in lake.own_files()))

    def connections(self) -> Connections:
        """Collect the settings of all locations, including those of inventory reports.

        A report is read with the settings of its storage.
        """
        defaults: dict[str, StoreSettings] = {scheme: getattr(self, kind.KEY) for scheme, kind in STORE_SETTINGS.items()}
        own: list[tuple[Location, StoreSettings]] = []
        for storage in self.storages:
            for place in filter(is_in_bucket, storage.locations()):
                location = Location.parse(place)
                settings: StoreSettings | None = getattr(storage, STORE_SETTINGS[location.scheme].KEY)
                own += [(location, settings.over(defaults[location.scheme]))] if settings is not None else []
        return Connections(tuple(own), tuple(defaults.values()), self.read_timeout.total_seconds())

    def settings_of(self, location: str) -> StoreSettings | None:
        """Return the connection settings for a location. A location on disk has none."""
        kind = STORE_SETTINGS.get(scheme_of(location))
        return None if kind is None else self.connections().settings_for(location, kind)

    def endpoint_of(self, location: str) -> str | None:
        """Return the server on which an object store's location is.

        Like the client libraries, this also considers the environment. The result is None for the
        cloud provider itself and for locations on disk.
        """
        settings = self.settings_of(location)
        return None if settings is None else settings.endpoint or settings.server_of_environment()

    def address_aliases(self) -> list[tuple[str, str]]:
        """Return all other addresses of storages, including HTTP URLs.

        Returns:
            Pairs of a storage's name and an address.
        """
        written = [(storage.name, alias) for storage in self.storages for alias in storage.aliases]
        aliases = [(name, form) for name, alias in written for form in dict.fromkeys((alias, provider_address(alias)))]
        in_buckets = [storage for storage in self.storages if is_in_bucket(storage.location)]
        named = [(name, alias) for name, alias in aliases if scheme_of(alias) in {AZURE, GCS}]
        locations, account = [(storage.name, storage.location) for storage in in_buckets], self.azure.account
        aliases += {*urls_without_account(locations, account), *urls_without_account([*locations, *named], account)}
        aliases += [(name, url) for name, alias in named for url in storage_urls(alias, None)]
        return aliases + [
            (storage.name, url) for storage in in_buckets for url in storage_urls(storage.location, self.endpoint_of(storage.location))
        ]

    def plan_secret(self) -> bytes | None:
        """Return the secret for plan ids. Without it, plan ids are plain digests."""
        return self.plan_key.get_secret_value().encode() if self.plan_key is not None else None

    def state_settings(self) -> StoreSettings | None:
        """Return the connection settings for the state, unless it is on disk."""
        return self.settings_of(self.state)

    def storage(self, name: str) -> StorageConfig:
        return _find(self.storages, name, "storage", "name")

    def lake(self, name: str) -> LakeConfig:
        return _find(self.lakes, name, "lake", "name")

    def storage_of_user(self, name: str) -> StorageConfig:
        """Look up a storage by its name in `lakes.yaml`, falling back to the recorded name."""
        return _find(self.storages, name, "storage", "label", "name")

    def lake_of_user(self, name: str) -> LakeConfig:
        """Look up a lake by its name in `lakes.yaml`, falling back to the recorded name."""
        return _find(self.lakes, name, "lake", "label", "name")

    def label_of(self, recorded_name: str) -> str:
        """Translate a recorded name to the name in `lakes.yaml`. Unknown names are unchanged."""
        items: tuple[StorageConfig | LakeConfig, ...] = (*self.storages, *self.lakes)
        return next((item.label for item in items if item.name == recorded_name), recorded_name)

    @property
    def name_notes(self) -> tuple[str, ...]:
        """Notes for the user about names in `lakes.yaml` that differ from recorded names."""
        return self._name_notes

    @property
    def has_recorded_names(self) -> bool:
        """Whether `name` of all storages and lakes has been looked up in the state."""
        return self._has_recorded_names

    @property
    def has_unrecorded_names(self) -> bool:
        """Whether the next run must record locations of this configuration in the state."""
        return self._has_unrecorded_names

    def with_recorded_names(self, names: Sequence[str], notes: tuple[str, ...], *, is_changed: bool) -> Config:
        """Return a copy with the names that are recorded in the state.

        Args:
            names: The recorded names of all storages, followed by the names of all lakes.
            notes: Notes for the user about names that differ.
            is_changed: Whether the next run must record locations in the state.
        """
        storages = tuple(item.with_recorded_name(name) for item, name in zip(self.storages, names, strict=False))
        lakes = tuple(item.with_recorded_name(name) for item, name in zip(self.lakes, names[len(storages) :], strict=True))
        config = self.model_copy(update={"storages": storages, "lakes": lakes})
        config._name_notes = notes
        config._has_recorded_names, config._has_unrecorded_names = True, is_changed
        return config

    def resolve_paths(self, anchor: BaseFolder) -> Config:
        """Return a copy with absolute paths."""
        return self.model_copy(
            update={
                "state": anchor.absolute(self.state, "state"),
                "storages": tuple(item.resolve_paths(anchor.for_key(f"storages[{index}]")) for index, item in enumerate(self.storages)),
                "lakes": tuple(item.resolve_paths(anchor.for_key(f"lakes[{index}]")) for index, item in enumerate(self.lakes)),
            }
        )

    def policy_digest(self) -> str:
        """Compute the digest of everything that affects what may be deleted.

        It depends on the retention of lakes and the safety settings of storages, but neither on
        secrets nor on Spark settings.
        """
        in_buckets = [storage.location for storage in self.storages if is_in_bucket(storage.location)]
        policy: dict[str, Any] = {
            "storages": [storage.policy() for storage in self.storages],
            "lakes": [lake.policy() for lake in self.lakes],
            "catalogs": [place for lake in self.lakes if (place := lake.identity()) is not None],
        }
        # Two servers can have buckets of the same name.
        settings = {place: self.settings_of(place) for place in in_buckets}
        endpoints = {place: found.endpoint for place, found in settings.items() if found is not None and found.endpoint is not None}
        policy |= {"endpoints": endpoints} if endpoints else {}
        return hashlib.sha256(json.dumps(policy, sort_keys=True).encode()).hexdigest()


def _find(items: Any, name: str, what: str, *attributes: str) -> Any:
    """Find the item that has this value in one of the attributes.

    Earlier attributes take precedence.
    """
    for attribute in attributes:
        for item in items:
            if getattr(item, attribute) == name:
                return item
    names = [getattr(item, attributes[0]) for item in items]
    raise UsageError(f"unknown {what} {name!r}; configured: {join_names(names)}{did_you_mean(name, names)}")
