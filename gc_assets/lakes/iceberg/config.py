"""Iceberg lakes in `lakes.yaml`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote_plus, urlsplit

from pydantic import Field, PrivateAttr, SecretStr, model_validator

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import BaseFolder
from gc_assets.config.rules import DroppedTableRetention, RefRule, policy_row, ref_rows
from gc_assets.config.values import Age, Count, Duration, Model, check_above_zero
from gc_assets.core.errors import UsageError
from gc_assets.core.idle_branches import IdleRule
from gc_assets.core.units import Cutoff, parse_cutoff
from gc_assets.lakes.iceberg.catalog_selectors import list_selectors

# pyiceberg properties that identify the client rather than the catalog.
SECRET_KEY: Final = re.compile(r"secret|password|token|credential|key|auth", re.IGNORECASE)
# Properties that select one of several catalogs on a server or in an account.
_SERVER_KEYS: Final = ("warehouse", "prefix")
_ACCOUNT_KEYS: Final = ("type", "py-catalog-impl", "warehouse", "glue.id", "glue.region", "glue.endpoint", "table-name")
_IDENTITY_KEY: Final = re.compile(rf"{SECRET_KEY.pattern}|^user(name)?$", re.IGNORECASE)


def secrets_in(address: str) -> list[str]:
    """Return the secrets in a URL, i.e. its password and the query parameters with secret names.

    Each secret is returned twice: as written and URL-decoded.
    """
    parts = _split_url(address)
    if parts is None:
        return []
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    written = [password, *(value for name, _, value in pairs if SECRET_KEY.search(name))]
    return [spelling for value in written if value for spelling in (value, unquote_plus(value))]


def has_pyiceberg_config() -> bool:
    """Return True if pyiceberg may have its own configuration.

    This is the case if there is an environment variable or a file, or if the directories of the
    file are unreadable. Only pyiceberg can read the content (`completed`).
    """
    if any(name.lower().startswith("pyiceberg_") for name in os.environ):  # E.g. PYICEBERG_HOME, a further directory.
        return True
    places = (os.path.expanduser("~"), ".")  # noqa: PTH111  (`Path` raises where the user has no home)
    try:
        return any(Path(place, ".pyiceberg.yaml").is_file() for place in places)
    except OSError:
        return True


def _strip_identity(value: str) -> str:
    """Remove the user and the secrets from a URL. Any other text is returned unchanged.

    The other query parameters are kept in alphabetical order.
    """
    if "://" not in value:
        return value
    address, _, query = value.partition("?")
    known = [pair for pair in query.split("&") if pair and not _IDENTITY_KEY.search(pair.partition("=")[0])]
    return re.sub(r"://[^/@]*@", "://", address) + ("?" + "&".join(sorted(known)) if known else "")


def _split_url(address: str) -> SplitResult | None:
    try:
        return urlsplit(address) if "://" in address else None
    except ValueError:  # The value only looks like a URL.
        return None


class IcebergRetention(DroppedTableRetention):
    """Table-level `history.expire.*` and ref settings, with overrides.

    An override of None leaves the setting of the table. The ages and the count replace table-level
    defaults only. The settings of a ref have priority, as in Iceberg. A rule in `refs` replaces all
    settings of the refs that it matches, including their own.
    """

    source: Literal["table", "catalog"] = Field(
        default="table",
        description="`catalog`: limits come from the policies of Polaris, or the task queues of Lakekeeper. `min_snapshots_to_keep` is "
        "then a minimum, and the other limits are for tables without a policy.",
    )
    max_snapshot_age: Age | None = None
    min_snapshots_to_keep: Count | None = None
    max_ref_age: Age | None = None
    refs: tuple[RefRule, ...] = Field(
        default=(), description="Rules for refs: a ref that matches is retained by this cut-off instead of the table's settings."
    )
    unused_metadata: Literal["keep", "remove"] = Field(
        default="keep", description="`remove`: plans remove schemas and partition specs that no retained snapshot needs."
    )
    tags: Literal["keep", "policy"] = Field(
        default="policy", description="`policy`: a tag lapses by its max-ref-age, as in Iceberg; `keep`: no tag lapses."
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> IcebergRetention:
        for rule in self.refs:
            if (cutoff := rule.as_cutoff()).max_age is not None and cutoff.keep_last is None:
                check_above_zero(cutoff.max_age)
        return self


class PublishedHistory(Model):
    """Iceberg table to which each run writes the history of the lake's snapshots."""

    table: str = Field(
        default="gc.snapshot_history", pattern=r"^[^.\s]+(\.[^.\s]+)+$", description="The table, as `namespace.table`. It is created."
    )
    catalog: dict[str, SecretStr] | None = Field(default=None, description="pyiceberg's properties. Default: the catalog of the lake.")
    catalog_name: str | None = Field(default=None, description="pyiceberg's name of that catalog. Default: `catalog_name` of the lake.")


class HistoryConfig(Model):
    """Retention of expired snapshot records."""

    keep: Duration = timedelta(days=365)
    # Plans do not depend on it, so it is excluded from digests.
    publish: PublishedHistory | None = Field(default=None, exclude=True, description="Publication of the history for other engines.")


class IcebergLakeConfig(LakeConfig):
    """Tables of one pyiceberg catalog.

    `catalog` holds pyiceberg's properties. `tables` are shell patterns for `namespace.table`.
    """

    kind: Literal["iceberg"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    catalog: dict[str, SecretStr]
    catalog_name: str = Field(default="default", description="pyiceberg's catalog name (the SQL catalog stores rows under it).")
    tables: tuple[str, ...] = ("*",)
    retention: IcebergRetention = Field(default_factory=lambda: IcebergRetention())
    history: HistoryConfig = Field(default_factory=lambda: HistoryConfig())
    failed_creations: Literal["refuse", "collect"] = Field(
        default="refuse",
        description="`collect`: the first metadata of an unknown table without snapshots, in the location of a known table, is garbage. "
        "Use it only if no other catalog has tables in these locations.",
    )
    _merged_properties: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _has_one_name(self) -> IcebergLakeConfig:
        if "name" in self.catalog:
            raise ValueError("catalog.name: write pyiceberg's name of the catalog as `catalog_name`, next to `catalog`")
        return self

    def identity(self) -> dict[str, str]:
        """Return the properties that identify the catalog, without users and secrets.

        If the same name refers to another catalog, it is a different lake.
        """
        known = {key: value.get_secret_value() for key, value in sorted(self.catalog.items()) if not SECRET_KEY.search(key)}
        return {key: _strip_identity(value) for key, value in known.items()}

    def catalog_location(self) -> tuple[str, str]:
        """Return the catalog. In an SQL catalog, `catalog_name` is part of the key of each row."""
        local = _match_sqlite_uri(self.catalog)
        if local is not None:
            return f"iceberg {self.catalog_name} ", local[2].partition("?")[0].removeprefix("file:")
        known = self.identity()
        uri = known.get("uri", "").rstrip("/")
        is_server = uri.startswith(("http:", "https:", "thrift:"))
        keys = () if uri and not is_server else _SERVER_KEYS if uri else _ACCOUNT_KEYS
        selected = [f"{key}={known[key]}" for key in keys if key in known]
        return f"iceberg {'' if is_server else f'{self.catalog_name} '}", " ".join([uri, *selected]).strip()

    def catalog_selectors(self) -> tuple[str, ...]:
        return list_selectors(self.identity(), os.environ)

    def location_detail(self) -> str:
        return " ".join(sorted(self.tables))

    def with_library_settings(self) -> IcebergLakeConfig:
        """Add the properties that pyiceberg would merge from its own configuration.

        They come from its configuration file and from `PYICEBERG_CATALOG__*`. They are part of the
        policy digest, and are reported (`merged_properties`).
        """
        if not has_pyiceberg_config():
            return self
        try:
            from pyiceberg.utils.config import Config  # The import is slow.
        except ImportError:  # The error of `open_lake` contains the missing extra.
            return self
        found = Config().get_catalog_config(self.catalog_name) or {}
        known = {key for key, value in self.catalog.items() if value.get_secret_value()}
        added = {str(key): str(value) for key, value in found.items() if key not in known}
        lake = self.model_copy(update={"catalog": self.catalog | {key: SecretStr(value) for key, value in added.items()}})
        lake._merged_properties = tuple(sorted(added))
        return lake

    @property
    def merged_properties(self) -> tuple[str, ...]:
        """The properties of `catalog` that are not in `lakes.yaml`. Secret values are omitted."""
        public = self.identity()
        return tuple(f"{key}={public[key]}" if key in public else f"{key} (not shown)" for key in self._merged_properties)

    def policy(self) -> dict[str, Any]:
        found = self.model_dump(mode="json", exclude={"catalog"})
        if self.retention.unused_metadata == "keep":  # the digests of 0.3 do not contain the key
            del found["retention"]["unused_metadata"]
        if self.failed_creations == "refuse":
            del found["failed_creations"]
        return found

    @property
    def collects_failed_creations(self) -> bool:
        return self.failed_creations == "collect"

    @property
    def dropped_after(self) -> timedelta | None:
        return self.retention.dropped_after

    def collects(self, table_name: str | None) -> bool:
        return table_name is None or any(fnmatchcase(table_name, pattern) for pattern in self.tables)

    def with_retention(self, keep: str) -> IcebergLakeConfig:
        """Return the lake with this age or number of snapshots instead of the tables' own settings.

        The settings of a ref have priority.
        """
        try:
            cutoff = parse_cutoff(keep)
        except ValueError:
            cutoff = Cutoff()
        if not cutoff.max_age and cutoff.keep_last is None:
            raise UsageError(f"lake {self.name}: Iceberg retains by age or number of snapshots; write for example 14d or 5, not {keep}")
        changed = {"max_snapshot_age": cutoff.max_age} if cutoff.max_age else {"min_snapshots_to_keep": cutoff.keep_last}
        return self.model_copy(update={"retention": self.retention.model_copy(update={"source": "table", **changed})})

    @property
    def idle_rules(self) -> tuple[IdleRule, ...]:
        return self.retention.idle_rules()

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        table = Cutoff(max_age=self.retention.max_snapshot_age, keep_last=self.retention.min_snapshots_to_keep)
        return [policy_row(f"retention.source={self.retention.source}", None, table, as_of), *ref_rows(self.retention.refs, as_of)]

    @property
    def record_max_age(self) -> timedelta:
        return self.history.keep

    def own_files(self) -> tuple[str, ...]:
        """Return the sqlite catalog's database file and sqlite's temporary files next to it."""
        local = _match_sqlite_uri(self.catalog)
        if local is None:
            return ()
        path = local[2].partition("?")[0].removeprefix("file:")
        return tuple(path + suffix for suffix in ("", "-journal", "-wal", "-shm")) if path.startswith("/") else ()

    def resolve_paths(self, anchor: BaseFolder) -> IcebergLakeConfig:
        """Make the database path and the warehouse of sqlite catalogs absolute.

        The warehouse of a server is a name, so it is not changed.
        """
        update: dict[str, Any] = {"catalog": _resolve_paths(self.catalog, anchor, "catalog")}
        published = self.history.publish
        if published is not None and published.catalog is not None:
            catalog = _resolve_paths(published.catalog, anchor, "history.publish.catalog")
            update["history"] = self.history.model_copy(update={"publish": published.model_copy(update={"catalog": catalog})})
        return self.model_copy(update=update)


def _match_sqlite_uri(catalog: Mapping[str, SecretStr]) -> re.Match[str] | None:
    uri = catalog["uri"].get_secret_value() if "uri" in catalog else ""
    return re.fullmatch(r"(sqlite(?:\+\w+)?:///)(?!:memory:)(.+)", uri)


def _resolve_paths(catalog: Mapping[str, SecretStr], anchor: BaseFolder, key: str) -> dict[str, SecretStr]:
    local = _match_sqlite_uri(catalog)
    if local is None:
        return dict(catalog)
    places = {"uri": SecretStr(local[1] + anchor.absolute(local[2], f"{key}.uri"))}
    if "warehouse" in catalog:
        places["warehouse"] = SecretStr(anchor.absolute(catalog["warehouse"].get_secret_value(), f"{key}.warehouse"))
    return {**catalog, **places}
