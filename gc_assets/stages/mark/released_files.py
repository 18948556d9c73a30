"""Find files that lifecycle rules allow to be deleted although retained commits need them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.errors import StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_paths
from gc_assets.lakes.kind import TableRole
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import Table
from gc_assets.state.summaries import LifecycleObjectsSummary, LifecyclePathsSummary

_COLUMNS: Final = ["storage", "key", "deduplicated"]


@dataclass(frozen=True, slots=True)
class ReleasedFiles:
    """The published table of files that lifecycle rules allow to be deleted."""

    table: Table
    published: PublishedTable

    @property
    def notes(self) -> tuple[str, ...]:
        """The table's notes, including notes about rules that do not apply to any file."""
        summary = self.published.summary(LifecycleObjectsSummary)
        return (*summary.unused_rules, *summary.notes)

    def read_keys(self, files: Files) -> pa.Table:
        """Read the storage and key of each released file.

        Files that another reference keeps (`deduplicated`) are not included.
        """
        rows = read_parts(files, self.published.paths(), self.table.schema, _COLUMNS)
        return rows.filter(pc.invert(rows.column("deduplicated"))).select(["storage", "key"])

    def keys_frame(self, spark: SparkSession, files: Files) -> DataFrame:
        """Return the same rows as `read_keys`, but as a Spark frame."""
        sizes = [part.size_bytes for part in self.published.parts()]
        rows = read_paths(spark, files, self.table.schema, self.published.paths(), _COLUMNS, sizes)
        return rows.filter("not deduplicated").select("storage", "key")


def find_released_files(context: RunContext, lake_name: str) -> ReleasedFiles | None:
    """Return the files released by lifecycle rules in this run, or None if the lake has no rules.

    Raises:
        StateError: If the lake has such rules, but the table is not published.
    """
    table = context.kind(lake_name).table_with(TableRole.RELEASED_FILES, context.config.lake(lake_name))
    return ReleasedFiles(table, context.table(table, lake_name)) if table is not None else None


def find_last_rule_notes(context: RunContext, lake_name: str) -> tuple[date, tuple[str, ...]] | None:
    """Return the newest run date with results of path rules, and the notes about these rules.

    Returns None if no results are published.
    """
    summaries = {TableRole.RELEASED_FILES: LifecycleObjectsSummary, TableRole.PATH_EDITS: LifecyclePathsSummary}
    for role, model in summaries.items():
        table = context.kind(lake_name).table_with(role, context.config.lake(lake_name))
        published = context.state.latest(lake_name, table.name) if table is not None else None
        if published is not None:
            summary = published.summary(model)
            return published.receipt.run_date, (*summary.unused_rules, *summary.notes)
    return None


def find_released_files_of(context: RunContext, live: PublishedTable) -> ReleasedFiles | None:
    """Return the released files that a published `live_files` is based on, or None.

    Raises:
        StateError: If the lake has such rules, but the table no longer exists.
    """
    table = context.kind(live.receipt.owner).table_with(TableRole.RELEASED_FILES)
    if table is None:
        return None
    for name, reference in live.receipt.inputs.items():
        group, asset, _ = name.rsplit("/", 2)
        if asset == table.name:
            return ReleasedFiles(table, _open_run(context.state, group, asset, reference.partition(":")[0], live))
    return None


def _open_run(state: State, group: str, asset: str, run_id: str, live: PublishedTable) -> PublishedTable:
    for run in state.history(group, asset):
        if run.run_id == run_id:
            return state.open(run)
    raise StateError(
        f"Cannot read live_files of {live.receipt.run_date}: it depends on {asset} of run {run_id}, which is not in the "
        "state. Run both assets again"
    )
