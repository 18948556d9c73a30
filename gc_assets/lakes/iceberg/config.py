"""Configuration of Iceberg lakes in `lakes.yaml`."""

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
from gc_assets.core.secret_names import SECRET_NAME
from gc_assets.core.units import Cutoff, parse_cutoff
from gc_assets.lakes.iceberg.catalog_selectors import list_selectors

# A server or account can have several catalogs. These properties select one of them.
_SERVER_KEYS: Final = ("warehouse", "prefix")
_ACCOUNT_KEYS: Final = ("type", "py-catalog-impl", "warehouse", "glue.id", "glue.region", "glue.endpoint", "table-name")
_IDENTITY_KEY: Final = re.compile(rf"{SECRET_NAME.pattern}|^user(name)?$", re.IGNORECASE)


def secrets_in(address: str) -> list[str]:
    """Find the secrets in a URL: its password, and query parameters whose names suggest a secret.

    Each secret is returned twice: as written, and URL-decoded.
    """
    parts = _split_url(address)
    if parts is None:
        return []
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    written = [password, *(value for name, _, value in pairs if SECRET_NAME.search(name))]
    return [spelling for value in written if value for spelling in (value, unquote_plus(value))]


def has_pyiceberg_config() -> bool:
    """Check whether pyiceberg may have a configuration of its own.

    It may come from environment variables or a file. If a directory of the file is unreadable, the
    result is True as well, because only pyiceberg can read the configuration.
    """
    if any(name.lower().startswith("pyiceberg_") for name in os.environ):  # PYICEBERG_HOME, for example, adds a directory.
        return True
    places = (os.path.expanduser("~"), ".")  # noqa: PTH111  (`Path` raises where the user has no home)
    try:
        return any(Path(place, ".pyiceberg.yaml").is_file() for place in places)
    except OSError:
        return True


def _strip_identity(value: str) -> str:
    """Remove the user and all secrets from a URL. Other strings are returned unchanged.

    The remaining query parameters are sorted by name.
    """
    if "://" not in value:
        return value
    address, _, query = value.partition("?")
    known = [pair for pair in query.split("&") if pair and not _IDENTITY_KEY.search(pair.partition("=")[0])]
    return re.sub(r"://[^/@]*@", "://", address) + ("?" + "&".join(sorted(known)) if known else "")


def _split_url(address: str) -> SplitResult | None:
    try:
        return urlsplit(address) if "://" in address else None
    except ValueError:  # It only looks like a URL.
        return None


class IcebergRetention(DroppedTableRetention):
    """Iceberg's retention by `history.expire.*` table properties and ref settings, with overrides.

    If an override is None, the table's setting applies. An overriding age or count only replaces
    the setting of the table, because settings of a single ref have priority, as in Iceberg. A rule
    in `refs` replaces all settings for the refs that it matches, including the ref's own settings.
    """

    source: Literal["table", "catalog"] = Field(
        default="table",
        description="`catalog`: limits come from Polaris policies or Lakekeeper task queues. `min_snapshots_to_keep` is then a minimum, "
        "and the other limits only apply to tables without a policy.",
    )
    max_snapshot_age: Age | None = None
    min_snapshots_to_keep: Count | None = None
    max_ref_age: Age | None = None
    refs: tuple[RefRule, ...] = Field(
        default=(), description="Rules for refs. If a rule matches a ref, its cut-off applies to the ref instead of the table's settings."
    )
    unused_metadata: Literal["keep", "remove"] = Field(
        default="keep", description="`remove`: plans remove schemas and partition specs that no retained snapshot needs."
    )
    tags: Literal["keep", "policy"] = Field(
        default="policy", description="`policy`: tags expire after their max-ref-age, as in Iceberg; `keep`: tags never expire."
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> IcebergRetention:
        for rule in self.refs:
            if (cutoff := rule.as_cutoff()).max_age is not None and cutoff.keep_last is None:
                check_above_zero(cutoff.max_age)
        return self


class PublishedHistory(Model):
    """Configuration of the Iceberg table to which each run writes the lake's snapshot history."""

    table: str = Field(
        default="gc.snapshot_history", pattern=r"^[^.\s]+(\.[^.\s]+)+$", description="Table as `namespace.table`. Created if missing."
    )
    catalog: dict[str, SecretStr] | None = Field(default=None, description="pyiceberg properties of its catalog. Default: the lake's.")
    catalog_name: str | None = Field(default=None, description="pyiceberg's name for that catalog. Default: the lake's `catalog_name`.")


class HistoryConfig(Model):
    """How long records of expired snapshots are kept, and where they are published."""

    keep: Duration = timedelta(days=365)
    # Plans do not depend on publication, so policy digests do not include it.
    publish: PublishedHistory | None = Field(default=None, exclude=True, description="Table for other engines with the snapshot history.")


class IcebergLakeConfig(LakeConfig):
    """Lake that consists of the tables in one pyiceberg catalog.

    `catalog` contains pyiceberg properties. `tables` are shell patterns for `namespace.table`.
    """

    kind: Literal["iceberg"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    catalog: dict[str, SecretStr]
    catalog_name: str = Field(default="default", description="pyiceberg's catalog name. The SQL catalog stores its rows under this name.")
    tables: tuple[str, ...] = ("*",)
    retention: IcebergRetention = Field(default_factory=lambda: IcebergRetention())
    history: HistoryConfig = Field(default_factory=lambda: HistoryConfig())
    failed_creations: Literal["refuse", "collect"] = Field(
        default="refuse",
        description="`collect`: if a known table's location contains the first metadata of an unknown table without snapshots, that "
        "metadata is garbage. Use this only if no other catalog has tables in these locations.",
    )
    _merged_properties: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _has_one_name(self) -> IcebergLakeConfig:
        if "name" in self.catalog:
            raise ValueError("catalog.name is not supported; write pyiceberg's catalog name as `catalog_name`, next to `catalog`")
        return self

    def identity(self) -> dict[str, str]:
        """Return the catalog properties that identify the catalog, without users and secrets.

        If they change, the lake's name refers to another catalog and therefore to another lake.
        """
        known = {key: value.get_secret_value() for key, value in sorted(self.catalog.items()) if not SECRET_NAME.search(key)}
        return {key: _strip_identity(value) for key, value in known.items()}

    def catalog_location(self) -> tuple[str, str]:
        """Return the identity of the catalog: its kind with its name, and its address.

        The name (`catalog_name`) is left out for servers, which do not know it.
        """
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

        pyiceberg reads them from its configuration file and from environment variables that start
        with `PYICEBERG_CATALOG__`. The policy digest includes them, and reports show them
        (`merged_properties`).
        """
        if not has_pyiceberg_config():
            return self
        try:
            from pyiceberg.utils.config import Config  # This import is slow.
        except ImportError:  # `open_lake` reports the missing extra.
            return self
        found = Config().get_catalog_config(self.catalog_name) or {}
        known = {key for key, value in self.catalog.items() if value.get_secret_value()}
        added = {str(key): str(value) for key, value in found.items() if key not in known}
        lake = self.model_copy(update={"catalog": self.catalog | {key: SecretStr(value) for key, value in added.items()}})
        lake._merged_properties = tuple(sorted(added))
        return lake

    @property
    def merged_properties(self) -> tuple[str, ...]:
        """Properties of `catalog` that do not come from `lakes.yaml`, with secret values hidden.

        Request headers are hidden too, because any of them may be a secret.
        """
        public = {key: value for key, value in self.identity().items() if not key.startswith("header.")}
        return tuple(f"{key}={public[key]}" if key in public else f"{key} (not shown)" for key in self._merged_properties)

    def policy(self) -> dict[str, Any]:
        found = self.model_dump(mode="json", exclude={"catalog"})
        if self.retention.unused_metadata == "keep":  # Digests from version 0.3 do not have this key.
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
        """Return a copy of the lake with one age or snapshot count instead of the tables' settings.

        Settings of single refs still have priority.
        """
        try:
            cutoff = parse_cutoff(keep)
        except ValueError:
            cutoff = Cutoff()
        if not cutoff.max_age and cutoff.keep_last is None:
            raise UsageError(f"lake {self.name}: {keep} is not valid; Iceberg retains by age or number of snapshots, for example 14d or 5")
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
        """Return a sqlite catalog's database file and the files that sqlite creates next to it."""
        local = _match_sqlite_uri(self.catalog)
        if local is None:
            return ()
        path = local[2].partition("?")[0].removeprefix("file:")
        return tuple(path + suffix for suffix in ("", "-journal", "-wal", "-shm")) if path.startswith("/") else ()

    def resolve_paths(self, anchor: BaseFolder) -> IcebergLakeConfig:
        """Make the database path and warehouse of a sqlite catalog absolute.

        The warehouse of a catalog server is a name instead of a path, so it is left unchanged.
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
