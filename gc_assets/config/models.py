"""Pydantic models for `lakes.yaml`. Unknown keys are rejected, and errors contain key paths.

Options shared by all lakes and storages are defined here. Lake kind models are in
`lakes/<kind>/config.py` and passed to `Config.of`. This module does not open files, lakes or
storages.
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

# Settings of each kind of object store. `Config` and `StorageConfig` have a field for each.
STORE_SETTINGS: Final[Mapping[str, type[StoreSettings]]] = {kind.SCHEME: kind for kind in (S3Config, AzureConfig, GcsConfig)}

DEFAULT_GRACE = timedelta(hours=72)
# A grace period of less than 24 hours is unsafe for slow writers. Only GC_ASSETS_UNSAFE_GRACE_FLOOR
# lowers this minimum.
GRACE_FLOOR = timedelta(hours=24)
# Validation context key for the lake models by kind.
KINDS_KEY = "lake_kinds"
BYTES_PER_GB = 10**9
# A daily report may arrive two days late, and one report may be missing.
MAX_INVENTORY_AGE: Final = timedelta(days=3)
# With `run --no-listing`, a storage is listed if its last listing is as old as this.
MAX_LISTING_AGE: Final = timedelta(days=30)


def _check_a_day(value: timedelta) -> timedelta:
    # The dates of runs are compared, so that the time of day of a run does not matter.
    if value < timedelta(days=1):
        raise ValueError("write at least 1d; without this key, every run lists the storage")
    return value


class Gates(Model):
    """Plan limits. Shares are fractions of the amount in the storage."""

    RENAMED: ClassVar = {"max_sick": "max_unreadable"}

    max_delete_share: Share = Field(default=0.2, description="Largest share of the storage's bytes or files that a plan may delete.")
    max_delete_bytes: Bytes = Field(default=10 * 10**12, description="Largest number of bytes that a plan may delete.")
    max_live_drop: Share = Field(default=0.2, description="Largest drop of the number of live files since the last accepted run.")
    max_unreadable: int = Field(default=10, ge=0, description="Largest number of unreadable tables with which a run still makes a plan.")

    max_dropped_tables: int = Field(
        default=10, ge=0, description="Largest number of dropped tables whose files a plan may delete, without replaced ones."
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
        """Return the price per month of this many bytes."""
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
        """The name in `lakes.yaml`, whereas `name` is the name of its records in the state."""
        return self._label or self.name

    def with_recorded_name(self, name: str) -> Self:
        """Return a copy with the given name for its records in the state."""
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
    approvals_needed: Literal[1, 2] = Field(default=1, description="Number of different names that must approve a plan.")
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
        """Return the price per month of this many bytes, or None if no price is configured."""
        return None if self.money is None else self.money.usd_per_month(size_bytes)

    def with_listing(self, listing: bool | None) -> StorageConfig:
        """Return the storage with a different choice between listing and reusing a listing, for one
        run.

        Args:
            listing: True lists the storage. False uses the last listing up to an age of
                `MAX_LISTING_AGE`, or of `listing.every` if that is longer. None changes nothing.
        """
        if listing is None:
            return self
        longest = max(MAX_LISTING_AGE, self.listing.every) if self.listing is not None else MAX_LISTING_AGE
        return self.model_copy(update={"listing": None if listing else ListingConfig(every=longest)})

    def locations(self) -> tuple[str, ...]:
        """Return the locations of the storage and its inventory reports."""
        return (self.location,) if self.inventory is None else (self.location, self.inventory.location)

    def policy(self) -> dict[str, Any]:
        """Return the JSON covered by the policy digest.

        Keys added in 0.4 are only included if they differ from their default, so that older plan
        digests stay valid. `protect` is left out because an apply checks it for each file.
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
            found["gates"]["max_sick"] = max_unreadable  # the name that the digests of 0.3 contain
        return found

    def resolve_paths(self, anchor: BaseFolder) -> StorageConfig:
        """Return the storage with absolute paths."""
        update: dict[str, Any] = {"location": anchor.absolute(self.location, "location")}
        if self.inventory is not None:
            reports = anchor.absolute(self.inventory.location, "inventory.location")
            update["inventory"] = self.inventory.model_copy(update={"location": reports})
        return self.model_copy(update=update)


class LakeConfig(_RecordOwner):
    """Options shared by all lakes, and the methods implemented by lake kinds."""

    kind: str
    assets: tuple[WrittenBy, ...] = Field(
        default=(), exclude=True, description="Assets of the user's own Dagster project that write to the lake, for its lineage."
    )
    max_garbage_share: Share | None = Field(
        default=None, exclude=True, description="Adds an asset check to `assets`: the largest share of garbage in the bytes of a table."
    )
    _read_seconds: float = PrivateAttr(default=READ_SECONDS)

    def catalog_location(self) -> tuple[str, str]:
        """Return the identity of the catalog or repository, which is independent of its name.

        Returns:
            The kind of the lake with further identifying properties, and the address. Both are ""
            if only the name identifies the lake.
        """
        return "", ""

    def catalog_selectors(self) -> tuple[str, ...]:
        """Return, without secrets, what selects one of several catalogs at `catalog_location`.

        Its changes never change the recorded name of the lake, so it may depend on the environment.
        """
        return ()

    def location_detail(self) -> str:
        """Return the settings that distinguish lakes of the same catalog, such as table patterns."""
        return ""

    def own_locations(self) -> tuple[str, ...]:
        """Return the configured locations, ending in `/`, to protect if the lake is unreadable."""
        return ()

    @property
    def read_seconds(self) -> float:
        """Catalog or server timeout (`read_timeout`)."""
        return self._read_seconds

    @abstractmethod
    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Return the retention policy as rows of `policy_table`, without the columns of the run.

        Ages are counted back from `as_of`.
        """

    def describe_retention(self, properties: Mapping[str, str]) -> str:
        """Describe in words what the policy keeps, for messages.

        Args:
            properties: Frozen properties of the table or repository (`CommitSource.properties`).
        """
        del properties
        return "see policy_table"

    def with_retention(self, keep: str) -> Self:
        """Return the lake with another default cut-off.

        Raises:
            UsageError: If the kind has no default cut-off.
        """
        raise UsageError(f"lake {self.name} is of kind {self.kind}, which has no default cut-off that {keep} could replace")

    def policy(self) -> dict[str, Any]:
        """Return the JSON covered by the policy digest, i.e. everything except secrets."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, str] | None:
        """Return the lake identity for the digest, or None if it is already part of `policy`."""
        return None

    @property
    def ignores_tags(self) -> bool:
        """True if the retention rules do not apply to tags, which then protect nothing."""
        return False

    @property
    def idle_rules(self) -> tuple[IdleRule, ...]:
        """Rules for the deletion of idle branches."""
        return ()

    def unused_rules(
        self, refs: Iterable[tuple[str, str]], as_of: datetime, properties: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return a note on each retention rule without any effect.

        Args:
            refs: Type (`branch` or `tag`) and name of each ref.
            as_of: Time of the run.
            properties: Frozen properties of the repository (`CommitSource.properties`).
        """
        del properties
        names = set(refs)
        branches = {name for ref_type, name in names if ref_type == "branch"}
        found = describe_unused_rules(self.policy_rows(as_of), branches, branches if self.ignores_tags else {name for _, name in names})
        return tuple(f"lake {self.name}: {text}" for text in (*found, *describe_unused_idle_rules(self.idle_rules, branches)))

    def own_files(self) -> tuple[str, ...]:
        """Return absolute paths of configuration and catalog files. Claims exclude them."""
        return ()

    def with_library_settings(self) -> Self:
        """Return the lake with the settings that its library reads from files and variables."""
        return self

    def resolve_paths(self, anchor: BaseFolder) -> Self:
        """Return the lake with absolute paths."""
        del anchor
        return self

    def decoding_settings(self, storages: Sequence[str]) -> list[str]:
        """Return the settings on which decoded rows depend.

        If they change, metadata is decoded again.

        Args:
            storages: Locations of the configured storages.
        """
        del storages
        return []

    def server(self) -> str:
        """Return the server to which the commits belong, or "" if commit ids are globally unique."""
        return ""

    @property
    def tolerates_missing_history(self) -> bool:
        """True if metadata may be missing for older live commits."""
        return False

    @property
    def full_listing_every(self) -> timedelta | None:
        """Interval between full listings of claimed directories, or None if every run lists in
        full.

        Between full listings, the listings of unchanged directories are reused.
        """
        return None

    @property
    def dropped_after(self) -> timedelta | None:
        """Waiting time before the files of a dropped table are collected, or None to keep them."""
        return None

    @property
    def collects_failed_creations(self) -> bool | None:
        """Whether metadata of unknown tables without snapshots is garbage in the tables' locations.

        The value is None if this lake kind has no such setting.
        """
        return None

    def collects(self, table_name: str | None) -> bool:
        """Check if the configuration selects a table of this name for collection."""
        del table_name
        return True

    @property
    def collects_metadata(self) -> bool:
        """True if plans may contain metadata that no commit references."""
        return False

    @property
    def has_lifecycle(self) -> bool:
        """True if path rules release files kept by commits (`lifecycle_objects`)."""
        return False

    @property
    def record_max_age(self) -> timedelta | None:
        """Retention of expired snapshots in `snapshot_history`, or None without such a table."""
        return None


def _validate_lake(value: Any, info: ValidationInfo) -> Any:
    """Parse a `lakes` entry with its kind's model."""
    if isinstance(value, LakeConfig):
        return value
    kinds: Mapping[str, type[LakeConfig]] = (info.context or {}).get(KINDS_KEY, {})
    if not isinstance(value, Mapping):
        raise ValueError("write a mapping with the keys name and kind")  # noqa: TRY004  (pydantic reports ValueErrors only)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        meant = did_you_mean(kind, kinds) if isinstance(kind, str) else ""
        unknown = PydanticCustomError("lake_kind", "this release knows {known}{meant}", {"known": ", ".join(kinds), "meant": meant})
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
        """True if Dagster steps start external jobs instead of running Spark in-process."""
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


# Decisions available as Dagster jobs, named like the CLI commands.
PageJob = Literal["approve", "reject", "restore"]


class Config(AssetMetadata):
    """Complete `lakes.yaml`. Its owners and tags are defaults for all lakes and storages."""

    RENAMED: ClassVar = {"first_night": "first_run_date"}
    # Since release 0.4, every run computes all live files.
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
        default=None, min_length=16, description="Secret with which plan ids are HMACs, as ${NAME}. Without it they are plain digests."
    )
    s3: S3Config = Field(default_factory=lambda: S3Config(), description="Connection to S3 for storages, lakes and the state.")
    gcs: GcsConfig = Field(
        default_factory=lambda: GcsConfig(), description="Connection to Google Cloud Storage for storages, lakes and the state."
    )
    azure: AzureConfig = Field(default_factory=lambda: AzureConfig(), description="Connection to Azure for storages, lakes and the state.")
    page_may: frozenset[PageJob] = Field(
        default=frozenset(), description="Decisions about plans for which Dagster has a job. Default: none."
    )
    notify: tuple[Target, ...] = Field(default=(), description="Targets of notifications, which the Dagster sensor `notifications` sends.")
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
        """Parse a document with the given lake models by kind.

        Raises:
            ValidationError: If a key is invalid.
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
        """Return the configuration with its absolute file path."""
        config = self.model_copy()
        config._path = path
        return config

    def own_files(self) -> tuple[str, ...]:
        """Return absolute paths of the configuration file and the lakes' own files."""
        own = () if self._path is None else (self._path,)
        return (*own, *(path for lake in self.lakes for path in lake.own_files()))

    def connections(self) -> Connections:
        """Return the settings by location. Inventory reports share those of storages."""
        defaults: dict[str, StoreSettings] = {scheme: getattr(self, kind.KEY) for scheme, kind in STORE_SETTINGS.items()}
        own: list[tuple[Location, StoreSettings]] = []
        for storage in self.storages:
            for place in filter(is_in_bucket, storage.locations()):
                location = Location.parse(place)
                settings: StoreSettings | None = getattr(storage, STORE_SETTINGS[location.scheme].KEY)
                own += [(location, settings.over(defaults[location.scheme]))] if settings is not None else []
        return Connections(tuple(own), tuple(defaults.values()), self.read_timeout.total_seconds())

    def settings_of(self, location: str) -> StoreSettings | None:
        """Return the connection settings of a location, or None for a location on disk."""
        kind = STORE_SETTINGS.get(scheme_of(location))
        return None if kind is None else self.connections().settings_for(location, kind)

    def endpoint_of(self, location: str) -> str | None:
        """Return the server of a location in an object store.

        Returns None for the provider's default server and for a location on disk. The server may
        come from the environment, as for the client.
        """
        settings = self.settings_of(location)
        return None if settings is None else settings.server or settings.server_of_environment()

    def address_aliases(self) -> list[tuple[str, str]]:
        """Return all additional addresses of the storages, as (name, address) pairs.

        They include web addresses.
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
        """Return the HMAC key for plan ids, or None for plain digests."""
        return self.plan_key.get_secret_value().encode() if self.plan_key is not None else None

    def state_settings(self) -> StoreSettings | None:
        """Return the object store settings of the state, or None if the state is on disk."""
        return self.settings_of(self.state)

    def storage(self, name: str) -> StorageConfig:
        return _find_by_name(self.storages, name, "storage")

    def lake(self, name: str) -> LakeConfig:
        return _find_by_name(self.lakes, name, "lake")

    def storage_of_user(self, name: str) -> StorageConfig:
        """Return the storage with this name in `lakes.yaml`, or else the one recorded with this
        name.
        """
        return _find_by_label(self.storages, name, "storage")

    def lake_of_user(self, name: str) -> LakeConfig:
        """Return the lake with this name in `lakes.yaml`, or else the one recorded with this name."""
        return _find_by_label(self.lakes, name, "lake")

    def label_of(self, recorded_name: str) -> str:
        """Return a lake's or storage's name in `lakes.yaml`, or the given name if it has no entry."""
        items: tuple[StorageConfig | LakeConfig, ...] = (*self.storages, *self.lakes)
        return next((item.label for item in items if item.name == recorded_name), recorded_name)

    @property
    def name_notes(self) -> tuple[str, ...]:
        """Messages about names in `lakes.yaml` that differ from the recorded names."""
        return self._name_notes

    @property
    def has_recorded_names(self) -> bool:
        """True if `name` of each storage and lake comes from the state."""
        return self._has_recorded_names

    @property
    def has_unrecorded_names(self) -> bool:
        """True if the first run under this configuration must record its locations in the state."""
        return self._has_unrecorded_names

    def with_recorded_names(self, names: Sequence[str], notes: tuple[str, ...], *, is_changed: bool) -> Config:
        """Return the configuration with these recorded names: those of its storages, then of its
        lakes.
        """
        storages = tuple(item.with_recorded_name(name) for item, name in zip(self.storages, names, strict=False))
        lakes = tuple(item.with_recorded_name(name) for item, name in zip(self.lakes, names[len(storages) :], strict=True))
        config = self.model_copy(update={"storages": storages, "lakes": lakes})
        config._name_notes = notes
        config._has_recorded_names, config._has_unrecorded_names = True, is_changed
        return config

    def resolve_paths(self, anchor: BaseFolder) -> Config:
        """Return the configuration with absolute paths."""
        return self.model_copy(
            update={
                "state": anchor.absolute(self.state, "state"),
                "storages": tuple(item.resolve_paths(anchor.for_key(f"storages[{index}]")) for index, item in enumerate(self.storages)),
                "lakes": tuple(item.resolve_paths(anchor.for_key(f"lakes[{index}]")) for index, item in enumerate(self.lakes)),
            }
        )

    def policy_digest(self) -> str:
        """Return the digest of all lake retention and storage safety settings.

        Secrets and Spark settings are excluded.
        """
        in_buckets = [storage.location for storage in self.storages if is_in_bucket(storage.location)]
        policy: dict[str, Any] = {
            "storages": [storage.policy() for storage in self.storages],
            "lakes": [lake.policy() for lake in self.lakes],
            "catalogs": [place for lake in self.lakes if (place := lake.identity()) is not None],
        }
        # Buckets with the same name on different servers are different.
        settings = {place: self.settings_of(place) for place in in_buckets}
        endpoints = {place: found.server for place, found in settings.items() if found is not None and found.server is not None}
        policy |= {"endpoints": endpoints} if endpoints else {}
        return hashlib.sha256(json.dumps(policy, sort_keys=True).encode()).hexdigest()


def _find_by_label(items: Any, name: str, what: str) -> Any:
    for item in items:
        if item.label == name:
            return item
    labels = [item.label for item in items]
    for item in items:
        if item.name == name:
            return item
    raise UsageError(f"no {what} is named {name!r}; the configuration has {join_names(labels)}{did_you_mean(name, labels)}")


def _find_by_name(items: Any, name: str, what: str) -> Any:
    for item in items:
        if item.name == name:
            return item
    names = [item.name for item in items]
    raise UsageError(f"no {what} is named {name!r}; the configuration has {join_names(names)}{did_you_mean(name, names)}")
