"""Determine which table each file in a storage belongs to, based on the claims of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from gc_assets.core.claims import Claims
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.browse import name_tables
from gc_assets.stages.read.dropped_tables import dropped_names
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES
from gc_assets.state.summaries import OrphanFilesSummary


@dataclass(frozen=True, slots=True)
class FileTables:
    """The claims on a storage and the names of the claiming tables.

    Attributes:
        names: Table names, keyed by lake and table UUID.
    """

    claims: Claims
    names: Mapping[tuple[str, str | None], str]

    @classmethod
    def of(cls, context: RunContext, storage_name: str) -> Self:
        """Read the claims and table names of a run date. Lakes without a run are ignored."""
        refs, live = context.find_lake_tables(LAKE_REFS), context.find_lake_tables(LIVE_FILES)
        names = dropped_names(context, context.find(ORPHAN_FILES, storage_name)) | name_tables(context.state, refs)
        return cls(_read_claims(context, storage_name, [*refs, *live]), names)

    def names_of(self, rows: pa.RecordBatch) -> list[str]:
        """Return the table name of each file.

        If the table is unknown or the lake is a single repository, the name is the lake's.

        Args:
            rows: Files with the columns key and lake.
        """
        lakes, claiming, uuids = (
            rows.column("lake").to_pylist(),
            *(column.to_pylist() for column in self.claims.resolve(rows.column("key"))),
        )
        return [
            self.names.get((lake, uuid), lake or "") if lake == owner else lake or ""
            for lake, owner, uuid in zip(lakes, claiming, uuids, strict=True)
        ]


def _read_claims(context: RunContext, storage_name: str, tables: list[PublishedTable]) -> Claims:
    """Return all claims on a storage, including claims of dropped tables."""
    swept = context.find(ORPHAN_FILES, storage_name)
    if swept is None or not swept.summary(OrphanFilesSummary).dropped_tables:
        return claims_of(context, storage_name, tables)
    from gc_assets.stages.sweep.dropped_tables import claims_with_dropped  # this module imports Spark

    return claims_with_dropped(context, storage_name, tables)
