"""`lakes.yaml` as pydantic models (design section 7): unknown keys are refused, an error names the key by its path.

Values only: nothing here opens a file, a lake or a storage. `config_file.py` reads the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    model_validator,
)

from gc_assets.core.errors import UsageError
from gc_assets.core.units import LONGEST, Cutoff, format_duration, parse_bytes, parse_cutoff, parse_duration

DEFAULT_GRACE = timedelta(hours=72)
# 24 h is the shortest grace that survives a slow writer's night (reliability.md H3); only GC_ASSETS_UNSAFE_GRACE_FLOOR lowers it.
GRACE_FLOOR = timedelta(hours=24)

LAKE_KINDS = ("iceberg", "icechunk", "lakefs", "nessie")


def _duration(value: Any) -> timedelta:
    # A bare number is refused: pydantic would take 30 for seconds, where days were meant.
    return value if isinstance(value, timedelta) else parse_duration(str(value))


def _some(value: timedelta) -> timedelta:
    # Iceberg refuses such an age too: by it every ref but main would lapse, whatever it points at.
    if not value:
        raise ValueError("an age of 0 would keep nothing; write one above 0")
    return value


def _number(value: Any) -> Any:
    # To Python `true` is 1: `max_delete_share: yes` would allow everything, `keep_last: yes` would keep one commit.
    if isinstance(value, bool):
        raise ValueError("write a number; yes or no is none")  # noqa: TRY004  (pydantic reports ValueErrors only)
    return value


def _cutoff_value(value: Any) -> str | int | datetime | None:
    if value is not None:
        parse_cutoff(value)
    return datetime.combine(value, time.min) if isinstance(value, date) and not isinstance(value, datetime) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
]
Age = Annotated[Duration, AfterValidator(_some)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
CutoffValue = Annotated[str | int | datetime | None, BeforeValidator(_cutoff_value)]
# At least one, or nothing is kept; at most what the int32 columns of the tables hold.
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, lt=2**31)]
Days = Annotated[int, BeforeValidator(_number), Field(ge=0, le=LONGEST.days)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _pattern(value: str) -> str:
    try:
        re.compile(str(value))
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Pattern = Annotated[str, BeforeValidator(_pattern)]


class Gates(_Model):
    """Limits a plan must stay below; shares are fractions of what the storage holds."""

    max_delete_share: Share = Field(default=0.2, description="Largest share of the storage's bytes or files a plan may take.")
    max_delete_bytes: Bytes = Field(default=10 * 10**12, description="Largest number of bytes a plan may take.")
    max_live_drop: Share = Field(default=0.2, description="Largest drop of the live count against the last published night.")


class Money(_Model):
    """What a byte costs, for the report. Left out, the report shows no money."""

    usd_per_gb_month: Annotated[float, BeforeValidator(_number)] = Field(
        gt=0, allow_inf_nan=False, description="Price of one GB (10^9 bytes) stored for a month."
    )


class StorageConfig(_Model):
    """One root location that is listed and swept."""

    name: Name
    location: str = Field(description="`file:///data/warehouse/` (or s3://bucket/prefix/ in a later release).")
    quarantine: Literal["trash", "versioned", "deferred"] = "trash"
    grace: Duration = Field(default=DEFAULT_GRACE, description="An orphan is older than this before it can be planned. Floor 24h.")
    quarantine_days: Days = Field(default=7, description="Days between quarantine and the first plan that may purge. 0 is for trials.")
    mode: Literal["plan", "apply"] = "plan"
    gates: Gates = Field(default_factory=lambda: Gates())
    money: Money | None = None


class RefRule(_Model):
    """The first rule whose pattern matches the whole ref name decides.

    `keep` and `cutoff` mean the same; `max_age` and `keep_last` combine.
    """

    match: Pattern
    keep: CutoffValue = None
    cutoff: CutoffValue = None
    max_age: Duration | None = None
    keep_last: Count | None = None

    @model_validator(mode="after")
    def _one_way(self) -> RefRule:
        _cutoff_of(self.keep, self.cutoff, self.max_age, self.keep_last)
        return self

    def as_cutoff(self) -> Cutoff:
        return _cutoff_of(self.keep, self.cutoff, self.max_age, self.keep_last)


class DefaultRule(_Model):
    """The rule for every ref that no pattern names."""

    keep: CutoffValue = None
    max_age: Duration | None = None
    keep_last: Count | None = None

    @model_validator(mode="after")
    def _one_way(self) -> DefaultRule:
        _cutoff_of(self.keep, None, self.max_age, self.keep_last)
        return self

    def as_cutoff(self) -> Cutoff:
        return _cutoff_of(self.keep, None, self.max_age, self.keep_last)


def _cutoff_of(keep: Any, cutoff: Any, max_age: timedelta | None, keep_last: int | None) -> Cutoff:
    single = [value for value in (keep, cutoff) if value is not None]
    if len(single) == 1 and max_age is None and keep_last is None:
        return parse_cutoff(single[0])
    if single or (max_age is None and keep_last is None):
        raise ValueError("say either one cut-off (keep or cutoff), or max_age and/or keep_last")
    return Cutoff(max_age=max_age, keep_last=keep_last)


TagPolicy = Literal["keep", "policy", "ignore"]


def _as_rule(value: Any) -> Any:
    if isinstance(value, dict | DefaultRule):
        return value
    parse_cutoff(value)
    return {"keep": value}


class _RefRetention(_Model):
    """How much history each ref keeps. Without a `default`, everything."""

    default: Annotated[DefaultRule, BeforeValidator(_as_rule)] = DefaultRule(keep="forever")
    refs: tuple[RefRule, ...] = ()

    def cutoff_for(self, ref_name: str) -> tuple[Cutoff, str]:
        """The cut-off of a ref and the configuration path of the rule that gives it."""
        for index, rule in enumerate(self.refs):
            if re.fullmatch(rule.match, ref_name):
                return rule.as_cutoff(), f"retention.refs[{index}]"
        return self.default.as_cutoff(), "retention.default"


class IcechunkRetention(_RefRetention):
    """How much history an Icechunk repository keeps. Without a `default`, everything."""

    tags: TagPolicy = "keep"


class NessieRetention(_RefRetention):
    """How much of each ref's log stays readable. Without a `default`, everything. A head always stays."""

    state_at_cutoff: bool = Field(
        default=True,
        description="Keep the state as of the cut-off, so that every later moment is readable; false is nessie-gc's rule.",
    )


class IcechunkExpiry(_Model):
    """Which of the named semantics edits history (research/icechunk.md 2.1), and whether lapsed refs go."""

    semantics: Literal["seed", "icechunk-v1"] = "seed"
    delete_expired_tags: bool = False
    delete_expired_branches: bool = False


class IcebergRetention(_Model):
    """The tables' own `history.expire.*` and ref settings, with overrides. A null override leaves the table's setting.

    Overrides replace the table-level defaults only; a ref's own settings still win, as in Iceberg.
    """

    source: Literal["table"] = "table"
    max_snapshot_age: Age | None = None
    min_snapshots_to_keep: Count | None = None
    max_ref_age: Age | None = None
    refs: tuple[RefRule, ...] = Field(
        default=(), description="Refs that match are retained by this cut-off instead of the table's settings."
    )
    tags: Literal["keep", "policy"] = Field(
        default="policy", description="`policy`: Iceberg's own meaning, a tag lives by its max-ref-age; `keep`: no tag ever lapses."
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> IcebergRetention:
        for rule in self.refs:
            if (cutoff := rule.as_cutoff()).max_age is not None and cutoff.keep_last is None:
                _some(cutoff.max_age)
        return self


class History(_Model):
    """How long the record of an expired snapshot is kept."""

    keep: Duration = timedelta(days=365)


class _LakeModel(_Model):
    """What every lake has, and what its kind decides about reading it."""

    name: Name

    def decoding(self) -> list[str]:
        """The settings that decide how its metadata is decoded: under others, what was decoded before does not hold."""
        return []

    def server(self) -> str:
        """The server whose commits its graph holds; empty where the commits tell by themselves which they are."""
        return ""

    @property
    def tolerates_missing_history(self) -> bool:
        return False


class IcechunkLakeConfig(_LakeModel):
    """An Icechunk repository of spec v1."""

    kind: Literal["icechunk"]
    location: str
    retention: IcechunkRetention = Field(default_factory=lambda: IcechunkRetention())
    expiry: IcechunkExpiry = Field(default_factory=lambda: IcechunkExpiry())


class IcebergLakeConfig(_LakeModel):
    """The tables of one pyiceberg catalog.

    `catalog` holds pyiceberg's own properties; `tables` are shell patterns over `namespace.table`.
    """

    kind: Literal["iceberg"]
    catalog: dict[str, SecretStr]
    catalog_name: str = Field(default="default", description="pyiceberg's catalog name (the SQL catalog stores rows under it).")
    tables: tuple[str, ...] = ("*",)
    retention: IcebergRetention = Field(default_factory=lambda: IcebergRetention())
    history: History = Field(default_factory=lambda: History())

    def place(self) -> dict[str, str]:
        """Which catalog it is, without who asks: another one under the same name is another lake."""
        known = {key: self.catalog[key].get_secret_value() for key in ("type", "uri", "warehouse") if key in self.catalog}
        return {key: re.sub(r"://[^/@]*@", "://", value).partition("?")[0] for key, value in known.items()}


class NessieLakeConfig(_LakeModel):
    """The Iceberg tables and views of all refs of one Nessie server (REST API v2)."""

    kind: Literal["nessie"]
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


class LakeFsRetention(_Model):
    """How much history a lakeFS repository keeps: the server's own garbage collection rules, or those here. Without rules, everything."""

    source: Literal["server", "configured"] = "server"
    default: Annotated[DefaultRule, BeforeValidator(_as_rule)] = DefaultRule(keep="forever")
    refs: tuple[RefRule, ...] = ()
    tags: TagPolicy = Field(
        default="keep", description="`keep`: a tag protects its commit; `policy`: it is like a branch; `ignore`: lakeFS's own collector."
    )

    @model_validator(mode="after")
    def _one_source(self) -> LakeFsRetention:
        if self.source == "server" and self.model_fields_set & {"default", "refs"}:
            raise ValueError("default and refs count only with `source: configured`; with `source: server` the server's rules decide")
        return self

    def cutoff_for(self, ref_name: str) -> tuple[Cutoff, str]:
        """The cut-off of a ref and the configuration path of the rule that gives it, where the configuration decides."""
        for index, rule in enumerate(self.refs):
            if re.fullmatch(rule.match, ref_name):
                return rule.as_cutoff(), f"retention.refs[{index}]"
        return self.default.as_cutoff(), "retention.default"


def _endpoint(value: Any) -> str:
    parts = urlsplit(str(value))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write the server's address, such as http://localhost:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address holds no credentials; write them as access_key_id and secret_access_key")
    return str(value).rstrip("/").removesuffix("/api/v1")


class LakeFsLakeConfig(_LakeModel):
    """One repository of a lakeFS server."""

    kind: Literal["lakefs"]
    endpoint: Annotated[str, BeforeValidator(_endpoint)] = Field(description="The server's address, such as http://localhost:8000.")
    repository: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="The repository's id.")
    access_key_id: SecretStr
    secret_access_key: SecretStr
    retention: LakeFsRetention = Field(default_factory=lambda: LakeFsRetention())
    rules: str | None = Field(default=None, description="A JSON file with lifecycle rules by path prefix, read afresh every run.")
    recheck_deduplicated: bool = Field(
        default=True, description="Look again at objects that other paths once kept from a lifecycle rule; the proposal never does."
    )
    full_listing: Duration = Field(
        default=timedelta(days=7), description="How often the whole of data/ is listed; between, only what changed. 0s: every night."
    )
    location: str | None = Field(
        default=None, description="Where the storage namespace is, if the server's own words for it do not name a configured storage."
    )


AnyLake = IcebergLakeConfig | IcechunkLakeConfig | LakeFsLakeConfig | NessieLakeConfig
LakeConfig = Annotated[AnyLake, Field(discriminator="kind")]


class SparkConfig(_Model):
    """Where Spark work runs."""

    mode: Literal["session", "connect"] = "session"
    master: str = Field(default="local[*]", description="For `session`: the Spark master.")
    remote: str = Field(default="local[*]", description="For `connect`: sc://host:port, or local[N] for pyspark's reusable local server.")
    conf: dict[str, str] = Field(default_factory=dict[str, str], description="Further Spark settings.")


# What may change without the policy changing.
_SECRET_OR_PLACE = {"catalog", "token", "access_key_id", "secret_access_key"}


class Config(_Model):
    """A whole `lakes.yaml`."""

    state: str
    storages: tuple[StorageConfig, ...]
    lakes: tuple[LakeConfig, ...]
    spark: SparkConfig = Field(default_factory=lambda: SparkConfig())

    @model_validator(mode="after")
    def _names(self) -> Config:
        if not self.storages or not self.lakes:
            raise ValueError("at least one storage and one lake are needed")
        names = [group.name for group in (*self.storages, *self.lakes)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"every lake and storage needs a name of its own; used twice: {', '.join(twice)}")
        return self

    def storage(self, name: str) -> StorageConfig:
        return _named(self.storages, name, "storage")

    def lake(self, name: str) -> AnyLake:
        return _named(self.lakes, name, "lake")

    def policy_digest(self) -> str:
        """Changes whenever a lake's retention or a storage's safety settings change; secrets and Spark settings leave it alone."""
        policy = {
            "storages": [storage.model_dump(mode="json", exclude={"mode", "money"}) for storage in self.storages],
            "lakes": [lake.model_dump(mode="json", exclude=_SECRET_OR_PLACE) for lake in self.lakes],
            "catalogs": [lake.place() for lake in self.lakes if isinstance(lake, IcebergLakeConfig)],
        }
        return hashlib.sha256(json.dumps(policy, sort_keys=True).encode()).hexdigest()


def _named(items: Any, name: str, what: str) -> Any:
    for item in items:
        if item.name == name:
            return item
    raise UsageError(f"there is no {what} named {name!r}; the configuration has {', '.join(item.name for item in items)}")
