"""A lake of kind iceberg in `lakes.yaml`."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote_plus, urlsplit

from pydantic import Field, PrivateAttr, SecretStr, model_validator

from gc_assets.config.models import LakeConfig
from gc_assets.config.relative_paths import Anchor
from gc_assets.config.rules import DanglingRetention, RefRule, policy_row, ref_rows
from gc_assets.config.values import Age, Count, Duration, Model, above_zero
from gc_assets.core.errors import UsageError
from gc_assets.core.units import Cutoff, parse_cutoff

# Properties of pyiceberg's that say who asks, and not which catalog.
SECRET_KEY: Final = re.compile(r"secret|password|token|credential|key|auth", re.IGNORECASE)
_SAYS_WHO: Final = re.compile(rf"{SECRET_KEY.pattern}|^user(name)?$", re.IGNORECASE)


def secrets_in(address: str) -> list[str]:
    """Returns the secrets that an address carries: its password, and parameters behind `?` whose
    name says so. Both as written there and decoded.
    """
    parts = _parts(address)
    if parts is None:
        return []
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    written = [password, *(value for name, _, value in pairs if SECRET_KEY.search(name))]
    return [spelling for value in written if value for spelling in (value, unquote_plus(value))]


def pyiceberg_is_told() -> bool:
    """Says whether pyiceberg may have a configuration of its own: a variable, or a file where it looks
    for one, or where nobody can look. What it says, only pyiceberg tells (`completed`).
    """
    if any(name.lower().startswith("pyiceberg_") for name in os.environ):  # PYICEBERG_HOME, another place, is one
        return True
    places = (os.path.expanduser("~"), ".")  # noqa: PTH111  (`Path` raises where the user has no home)
    try:
        return any(Path(place, ".pyiceberg.yaml").is_file() for place in places)
    except OSError:
        return True


def _without_secrets(value: str) -> str:
    """Returns an address without who asks. What stands behind `?` counts, users and secrets aside.
    Any other text stays as it is.
    """
    if "://" not in value:
        return value
    address, _, query = value.partition("?")
    known = [pair for pair in query.split("&") if pair and not _SAYS_WHO.search(pair.partition("=")[0])]
    return re.sub(r"://[^/@]*@", "://", address) + ("?" + "&".join(sorted(known)) if known else "")


def _parts(address: str) -> SplitResult | None:
    try:
        return urlsplit(address) if "://" in address else None
    except ValueError:  # a value that only looks like an address
        return None


class IcebergRetention(DanglingRetention):
    """The tables' own `history.expire.*` and ref settings, with overrides.

    A null override leaves the table's setting. The ages and the count replace the table-level
    defaults only; a ref's own settings still win, as in Iceberg. A rule in `refs` replaces the
    settings of the refs that it matches, their own too.
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
                above_zero(cutoff.max_age)
        return self


class HistoryConfig(Model):
    """How long the record of an expired snapshot is kept."""

    keep: Duration = timedelta(days=365)


class IcebergLakeConfig(LakeConfig):
    """The tables of one pyiceberg catalog.

    `catalog` holds pyiceberg's own properties; `tables` are shell patterns over `namespace.table`.
    """

    kind: Literal["iceberg"]  # pyright: ignore[reportIncompatibleVariableOverride]  (models are frozen)
    catalog: dict[str, SecretStr]
    catalog_name: str = Field(default="default", description="pyiceberg's catalog name (the SQL catalog stores rows under it).")
    tables: tuple[str, ...] = ("*",)
    retention: IcebergRetention = Field(default_factory=lambda: IcebergRetention())
    history: HistoryConfig = Field(default_factory=lambda: HistoryConfig())
    _merged_in: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _has_one_name(self) -> IcebergLakeConfig:
        if "name" in self.catalog:
            raise ValueError("catalog.name: say pyiceberg's name of the catalog by `catalog_name`, beside `catalog`")
        return self

    def place(self) -> dict[str, str]:
        """Returns which catalog it is, without who asks. Another catalog under the same name is
        another lake.
        """
        known = {key: value.get_secret_value() for key, value in sorted(self.catalog.items()) if not SECRET_KEY.search(key)}
        return {key: _without_secrets(value) for key, value in known.items()}

    def completed(self) -> IcebergLakeConfig:
        """Adds what pyiceberg would merge in by itself, from its configuration file and from
        `PYICEBERG_CATALOG__*`, so that it counts in the digest and is told (`merged_in`).
        """
        if not pyiceberg_is_told():
            return self
        try:
            from pyiceberg.utils.config import Config  # slow to load
        except ImportError:  # `open_lake` names the extra that is missing
            return self
        found = Config().get_catalog_config(self.catalog_name) or {}
        known = {key for key, value in self.catalog.items() if value.get_secret_value()}
        added = {str(key): str(value) for key, value in found.items() if key not in known}
        lake = self.model_copy(update={"catalog": self.catalog | {key: SecretStr(value) for key, value in added.items()}})
        lake._merged_in = tuple(sorted(added))
        return lake

    @property
    def merged_in(self) -> tuple[str, ...]:
        """The properties of `catalog` that do not stand in `lakes.yaml`, with their values where
        they are no secrets.
        """
        shown = self.place()
        return tuple(f"{key}={shown[key]}" if key in shown else f"{key} (not shown)" for key in self._merged_in)

    def policy(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"catalog"})

    def with_retention(self, keep: str) -> IcebergLakeConfig:
        """Returns the same lake with this age, or this number of snapshots, instead of the tables'
        own. A ref's own settings still win.
        """
        cutoff = parse_cutoff(keep)
        if not cutoff.max_age and cutoff.keep_last is None:
            raise UsageError(f"lake {self.name}: Iceberg's tables keep by an age or a number of snapshots; write 14d or 5, not {keep}")
        changed = {"max_snapshot_age": cutoff.max_age} if cutoff.max_age else {"min_snapshots_to_keep": cutoff.keep_last}
        return self.model_copy(update={"retention": self.retention.model_copy(update=changed)})

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        table = Cutoff(max_age=self.retention.max_snapshot_age, keep_last=self.retention.min_snapshots_to_keep)
        return [policy_row("retention.source=table", None, table, as_of), *ref_rows(self.retention.refs, as_of)]

    @property
    def record_kept_for(self) -> timedelta:
        return self.history.keep

    def own_files(self) -> tuple[str, ...]:
        """Returns the file of a catalog in sqlite, and those that sqlite writes beside it."""
        local = self._sqlite()
        if local is None:
            return ()
        path = local[2].partition("?")[0].removeprefix("file:")
        return tuple(path + suffix for suffix in ("", "-journal", "-wal", "-shm")) if path.startswith("/") else ()

    def _sqlite(self) -> re.Match[str] | None:
        uri = self.catalog["uri"].get_secret_value() if "uri" in self.catalog else ""
        return re.fullmatch(r"(sqlite(?:\+\w+)?:///)(?!:memory:)(.+)", uri)

    def anchored(self, anchor: Anchor) -> IcebergLakeConfig:
        """Makes the paths of a catalog in a local sqlite file absolute: the file and its warehouse.
        A server's warehouse is a name and stays.
        """
        local = self._sqlite()
        if local is None:
            return self
        places = {"uri": SecretStr(local[1] + anchor.absolute(local[2], "catalog.uri"))}
        if "warehouse" in self.catalog:
            places["warehouse"] = SecretStr(anchor.absolute(self.catalog["warehouse"].get_secret_value(), "catalog.warehouse"))
        return self.model_copy(update={"catalog": self.catalog | places})
