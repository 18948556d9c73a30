"""`lakes.yaml` as pydantic models (design section 7). Unknown keys are refused, and an error names
the key by its path.

This module holds what all lakes and storages share. The model of a lake kind lies in its package
(`lakes/<kind>/config.py`), and `Config.of` is told which models there are. Nothing here opens a
file, a lake or a storage.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, SerializeAsAny, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from gc_assets.config.inventory import InventoryConfig
from gc_assets.config.jobs import CLIENT, DEPLOY_MODE, Databricks, EmrServerless
from gc_assets.config.notify import Target
from gc_assets.config.relative_paths import Anchor
from gc_assets.config.s3 import Places, S3Config
from gc_assets.config.spark import LOCAL, Remote
from gc_assets.config.values import Age, AssetOwner, AssetPath, Bytes, Days, Duration, Model, Name, Share, TagName, TagValue, number
from gc_assets.core.deadline import READ_SECONDS
from gc_assets.core.errors import UsageError
from gc_assets.core.paths import S3, Location, scheme_of
from gc_assets.core.suggest import did_you_mean, named

DEFAULT_GRACE = timedelta(hours=72)
# 24 h is the shortest grace that survives a slow writer's night (reliability.md H3). Only
# GC_ASSETS_UNSAFE_GRACE_FLOOR lowers it.
GRACE_FLOOR = timedelta(hours=24)
# The key of the validation context that holds the models of the lake kinds, by the name that an
# entry's `kind` has.
KINDS_KEY = "lake_kinds"
BYTES_PER_GB = 10**9


class Gates(Model):
    """Limits that a plan must not exceed. Shares are fractions of what the storage holds."""

    max_delete_share: Share = Field(default=0.2, description="Largest share of the storage's bytes or files a plan may take.")
    max_delete_bytes: Bytes = Field(default=10 * 10**12, description="Largest number of bytes a plan may take.")
    max_live_drop: Share = Field(default=0.2, description="Largest drop of the live count against the last published night.")
    max_unreadable: int = Field(default=10, ge=0, description="Most tables that may be unreadable in a night without stopping its plan.")


class Money(Model):
    """The price of a byte, for the report. Without it the report shows no money."""

    usd_per_gb_month: Annotated[float, BeforeValidator(number)] = Field(
        gt=0, allow_inf_nan=False, description="Price of one GB (10^9 bytes) stored for a month."
    )

    def usd_per_month(self, size_bytes: int) -> float:
        """Returns the price of storing so many bytes for a month."""
        return size_bytes / BYTES_PER_GB * self.usd_per_gb_month


class WrittenBy(Model):
    """An asset of one's own Dagster project that writes to a lake, or to one table of it."""

    key: AssetPath = Field(description="The asset's key, its parts joined by `/`: `analytics/orders`.")
    table: str | None = Field(default=None, min_length=1, description="The table that it writes, `namespace.table`; none: the whole lake.")


class OnPage(Model):
    """What Dagster's page says of assets beside what they are. No plan depends on it, so it is in no
    digest.
    """

    owners: tuple[AssetOwner, ...] = Field(default=(), exclude=True, description="Who answers for it: `team:NAME`, or an e-mail address.")
    tags: dict[TagName, TagValue] = Field(default_factory=dict[str, str], exclude=True, description="Tags of the assets.")


class StorageConfig(OnPage):
    """One root location that is listed and swept."""

    name: Name
    location: str = Field(description="`file:///data/warehouse/`, or a path; `s3://bucket/prefix/`.")
    quarantine: Literal["trash", "versioned", "deferred"] = "trash"
    grace: Duration = Field(default=DEFAULT_GRACE, description="An orphan is older than this before it can be planned. Floor 24h.")
    quarantine_days: Days = Field(default=7, description="Days between quarantine and the first plan that may purge. 0 is for trials.")
    mode: Literal["plan", "apply"] = "plan"
    rehearsals: Literal["refused", "allowed"] = Field(
        default="refused", description="Whether runs under GC_ASSETS_UNSAFE_NOW may change the storage. `allowed` is for trials."
    )
    gates: Gates = Field(default_factory=lambda: Gates())
    approvals_needed: Literal[1, 2] = Field(default=1, description="How many different names have to approve a plan.")
    abort_uploads: bool = Field(default=True, description="Whether plans abort uploads in parts that nobody finished.")
    money: Money | None = None
    s3: S3Config | None = Field(default=None, description="How this storage is reached, over what `s3` says for all places.")
    inventory: InventoryConfig | None = Field(default=None, description="Reports that are read instead of listing the storage.")

    def usd_per_month(self, size_bytes: int) -> float | None:
        """Returns the price of storing so many bytes here for a month, or null where none is named."""
        return None if self.money is None else self.money.usd_per_month(size_bytes)

    def places(self) -> tuple[str, ...]:
        """Returns the storage's location, and that of its reports."""
        return (self.location,) if self.inventory is None else (self.location, self.inventory.location)

    def policy(self) -> dict[str, Any]:
        """Returns what enters the policy's digest, as JSON. What releases before 0.4 did not know
        counts where it is not the default, so that their plans stay theirs.
        """
        left_out = {"mode", "rehearsals", "money", "s3", "inventory"} | ({"approvals_needed"} if self.approvals_needed == 1 else set())
        found = self.model_dump(mode="json", exclude=left_out)
        if self.abort_uploads:
            del found["abort_uploads"]
        max_unreadable = found["gates"].pop("max_unreadable")
        if max_unreadable != Gates().max_unreadable:
            found["gates"]["max_sick"] = max_unreadable  # the name that the digests of 0.3 contain
        return found

    def anchored(self, anchor: Anchor) -> StorageConfig:
        """Returns the same storage with its relative paths made absolute."""
        update: dict[str, Any] = {"location": anchor.absolute(self.location, "location")}
        if self.inventory is not None:
            reports = anchor.absolute(self.inventory.location, "inventory.location")
            update["inventory"] = self.inventory.model_copy(update={"location": reports})
        return self.model_copy(update=update)


class LakeConfig(OnPage):
    """What every lake has, and what its kind decides about reading it and about its policy."""

    name: Name
    kind: str
    assets: tuple[WrittenBy, ...] = Field(
        default=(), exclude=True, description="Assets of one's own Dagster project that write to the lake: its lineage begins with them."
    )
    _read_seconds: float = PrivateAttr(default=READ_SECONDS)

    @property
    def read_seconds(self) -> float:
        """How long an answer of the lake's catalog or server is waited for (`read_timeout`)."""
        return self._read_seconds

    @abstractmethod
    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Returns the lake's policy as rows of `policy_table`, without the run's columns. Ages
        count back from `as_of`.
        """

    def with_retention(self, keep: str) -> Self:
        """Returns the same lake with another cut-off where no rule names a ref. Raises `UsageError`
        where its kind cannot keep by such a cut-off.
        """
        raise UsageError(f"lake {self.name} is of kind {self.kind}, which has no cut-off that {keep} could replace")

    def policy(self) -> dict[str, Any]:
        """Returns what enters the policy's digest, as JSON: everything but secrets and who asks."""
        return self.model_dump(mode="json")

    def place(self) -> dict[str, str] | None:
        """Returns which lake it is, for the digest, where `policy` leaves that out; None where
        `policy` does not.
        """
        return None

    def own_files(self) -> tuple[str, ...]:
        """Returns the absolute paths of files that the lake is configured by, or that are its catalog.
        No lake's claim reaches them.
        """
        return ()

    def completed(self) -> Self:
        """Returns the same lake with what the kind's library adds by itself, from files or
        variables of its own.
        """
        return self

    def anchored(self, anchor: Anchor) -> Self:
        """Returns the same lake with its relative paths made absolute."""
        del anchor
        return self

    def decoding(self) -> list[str]:
        """Returns the settings that decide how its metadata is decoded. What was decoded under
        other settings does not hold.
        """
        return []

    def server(self) -> str:
        """Returns the server that holds the lake's commits. Empty where commit ids alone tell which
        commits they are.
        """
        return ""

    @property
    def tolerates_missing_history(self) -> bool:
        """True if metadata of older live commits may be gone."""
        return False

    @property
    def full_listing_every(self) -> timedelta | None:
        """How often the directories that the lake claims are listed in full. Between full listings,
        unchanged directories are carried over. Null: the directories are listed in full every
        night.
        """
        return None

    @property
    def has_lifecycle(self) -> bool:
        """True if rules over paths release files that its commits keep (`lifecycle_objects`)."""
        return False

    @property
    def record_kept_for(self) -> timedelta | None:
        """How long `snapshot_history` keeps the record of an expired snapshot. Null where the lake
        has no such table.
        """
        return None


def _of_its_kind(value: Any, info: ValidationInfo) -> Any:
    """Reads an entry of `lakes` by the model of its kind."""
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
    """Where Spark work runs."""

    mode: Literal["session", "connect", "submit", "emr_serverless", "databricks"] = "session"
    master: str = Field(default=LOCAL, description="For `session` and `submit`: the Spark master, `local[N]` or a cluster's.")
    remote: Remote = Field(default=LOCAL, description="For `connect`: sc://host:port, or local[N] for pyspark's reusable local server.")
    token: SecretStr | None = Field(default=None, min_length=1, description="For `connect`: the server's token, as ${NAME}.")
    python: str | None = Field(
        default=None, min_length=1, description="The Python of executors on other machines, as they find it. Default: `python3` there."
    )
    conf: dict[str, str] = Field(default_factory=dict[str, str], description="Further Spark settings.")
    class_archive: bool = Field(
        default=True,
        description="A JVM that is started here maps the archive of Spark's classes that `make env` wrote, where there is one.",
    )
    s3a: bool = Field(default=False, description="Spark has hadoop-aws, and reads a state on S3 by itself instead of through Python.")
    submit_program: str | None = Field(
        default=None, min_length=1, description="For `submit`: spark-submit, by its path or its name on PATH. Default: pyspark's own."
    )
    emr_serverless: EmrServerless | None = Field(default=None, description="For `emr_serverless`: what a job run is started with.")
    databricks: Databricks | None = Field(default=None, description="For `databricks`: what a run is started with.")

    @property
    def in_jobs(self) -> bool:
        """True if Dagster's steps start jobs, and no Spark in their own process."""
        return self.mode in {"submit", "emr_serverless", "databricks"}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.mode == "emr_serverless" and self.emr_serverless is None:
            raise ValueError("mode emr_serverless needs the key emr_serverless, with application_id, execution_role_arn and others")
        if self.mode == "databricks" and self.databricks is None:
            raise ValueError("mode databricks needs the key databricks, with entry_point, exchange and cluster")
        if self.mode == "submit" and self.conf.get(DEPLOY_MODE, CLIENT) != CLIENT:
            raise ValueError(f"mode submit keeps the driver on this machine: take {DEPLOY_MODE} out of conf")
        return self


# What a person may decide on Dagster's page. Each is a command of the same name, and a job.
PageJob = Literal["approve", "reject", "restore"]


class Config(OnPage):
    """A whole `lakes.yaml`. Its owners and tags are those of every lake and storage that says
    nothing else.
    """

    state: str
    storages: tuple[StorageConfig, ...]
    lakes: tuple[Annotated[SerializeAsAny[LakeConfig], BeforeValidator(_of_its_kind)], ...]
    spark: SparkConfig = Field(default_factory=lambda: SparkConfig())
    read_timeout: Age = Field(
        default=timedelta(seconds=READ_SECONDS),
        description="Longest wait for one object that is read whole, or one answer of a catalog or server.",
    )
    full_every: int = Field(
        default=10,
        ge=0,
        description="Every so many nights all rows of live_files are computed, and compared with those that the nights between carry over. "
        "0: every night, without comparing.",
    )
    plan_key: SecretStr | None = Field(
        default=None, min_length=16, description="Secret that makes the id of a plan an HMAC, as ${NAME}; without it the id is a digest."
    )
    s3: S3Config = Field(default_factory=lambda: S3Config(), description="How places on S3 are reached: storages, lakes and the state.")
    page_may: frozenset[PageJob] = Field(
        default=frozenset(), description="Decisions about plans for which Dagster's page has a job; none unless named."
    )
    notify: tuple[Target, ...] = Field(default=(), description="Who is told of what happens.")
    first_run_date: date | None = Field(
        default=None, description="Run date with which Dagster's partitions begin; without it the first night that was run."
    )
    _path: str | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, document: Any, kinds: Mapping[str, type[LakeConfig]]) -> Config:
        """Reads a document as a configuration, with the models of the lake kinds by name. Raises
        pydantic's `ValidationError`.
        """
        return cls.model_validate(document, context={KINDS_KEY: kinds})

    @model_validator(mode="after")
    def _names(self) -> Config:
        if not self.storages or not self.lakes:
            raise ValueError("at least one storage and one lake are needed")
        names = [group.name for group in (*self.storages, *self.lakes)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"every lake and storage needs a name of its own; used twice: {', '.join(twice)}")
        told = [target.name for target in self.notify]
        if again := sorted({name for name in told if told.count(name) > 1}):
            raise ValueError(f"every target of notify needs a name of its own; used twice: {', '.join(again)}")
        for lake in self.lakes:
            lake._read_seconds = self.read_timeout.total_seconds()  # pyright: ignore[reportPrivateUsage]
        return self

    def read_from(self, path: str) -> Config:
        """Returns the same configuration, of the file at an absolute path."""
        config = self.model_copy()
        config._path = path
        return config

    def own_files(self) -> tuple[str, ...]:
        """Returns the absolute paths of the configuration's own file, and of those of its lakes."""
        own = () if self._path is None else (self._path,)
        return (*own, *(path for lake in self.lakes for path in lake.own_files()))

    def places(self) -> Places:
        """Returns how every address on S3 is reached. Reports about a storage are reached as the
        storage is.
        """
        own = [(place, storage.s3.over(self.s3)) for storage in self.storages if storage.s3 is not None for place in storage.places()]
        return Places(
            tuple((Location.parse(place), settings) for place, settings in own if scheme_of(place) == S3),
            self.s3,
            self.read_timeout.total_seconds(),
        )

    def plan_secret(self) -> bytes | None:
        """Returns the key of the plans' ids, or null where these are digests."""
        return self.plan_key.get_secret_value().encode() if self.plan_key is not None else None

    def state_s3(self) -> S3Config:
        """Returns how the state is reached where it lies on S3."""
        return self.places().s3_of(self.state) if scheme_of(self.state) == S3 else self.s3

    def storage(self, name: str) -> StorageConfig:
        return _named(self.storages, name, "storage")

    def lake(self, name: str) -> LakeConfig:
        return _named(self.lakes, name, "lake")

    def anchored(self, anchor: Anchor) -> Config:
        """Returns the same configuration with relative paths made absolute."""
        return self.model_copy(
            update={
                "state": anchor.absolute(self.state, "state"),
                "storages": tuple(item.anchored(anchor.at(f"storages[{index}]")) for index, item in enumerate(self.storages)),
                "lakes": tuple(item.anchored(anchor.at(f"lakes[{index}]")) for index, item in enumerate(self.lakes)),
            }
        )

    def policy_digest(self) -> str:
        """Returns a digest that changes whenever a lake's retention or a storage's safety settings
        change. Secrets and Spark settings leave it alone.
        """
        places = self.places()
        on_s3 = [storage.location for storage in self.storages if scheme_of(storage.location) == S3]
        policy: dict[str, Any] = {
            "storages": [storage.policy() for storage in self.storages],
            "lakes": [lake.policy() for lake in self.lakes],
            "catalogs": [place for lake in self.lakes if (place := lake.place()) is not None],
        }
        # The same bucket name on another server is another bucket.
        endpoints = {place: endpoint for place in on_s3 if (endpoint := places.s3_of(place).endpoint) is not None}
        policy |= {"endpoints": endpoints} if endpoints else {}
        return hashlib.sha256(json.dumps(policy, sort_keys=True).encode()).hexdigest()


def _named(items: Any, name: str, what: str) -> Any:
    for item in items:
        if item.name == name:
            return item
    names = [item.name for item in items]
    raise UsageError(f"there is no {what} named {name!r}; the configuration has {named(names)}{did_you_mean(name, names)}")
