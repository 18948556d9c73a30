"""A lake of kind iceberg in `lakes.yaml`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, model_validator

from gc_assets.config.anchor import Anchor
from gc_assets.config.models import LakeConfig
from gc_assets.config.rules import RefRule, policy_row, ref_rows
from gc_assets.config.values import Age, Count, Duration, Model, above_zero
from gc_assets.core.units import Cutoff

# Properties of pyiceberg's that say who asks, and not which catalog.
SECRET_KEY: Final = re.compile(r"secret|password|token|credential|key|auth", re.IGNORECASE)


class IcebergRetention(Model):
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
        return {key: re.sub(r"://[^/@]*@", "://", value).partition("?")[0] for key, value in known.items()}

    def policy(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"catalog"})

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
