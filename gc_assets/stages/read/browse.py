"""Read published tables part by part and without Spark: complete tables, or the rows of given keys.

This module determines which runs make up a table. It keeps one part in memory at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.core.commands import command
from gc_assets.core.errors import StateError
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.state.arrow_types import is_added_column
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.listings import open_listing
from gc_assets.state.parts import add_missing_columns, read_parts
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, MANIFEST_ENTRIES, STORAGE_INVENTORY, TABLE_NAME, Table
from gc_assets.state.side_tables import EDITS_SIDE


def runs_of(state: State, table: Table, group: str, run_date: date) -> Sequence[PublishedTable | PastRun]:
    """Return the runs whose rows make up the table as of a run date.

    Usually this is the table's current run. Three tables consist of several runs:
    `manifest_entries` of all segments up to the date, and `deletion_log` and `expiry_log` of all
    executions of the date's plans. `storage_inventory` may be the listing of an earlier run.

    Raises:
        StateError: If no run is published for the date.
    """
    if table is MANIFEST_ENTRIES:
        found = [run for run in state.history(group, table.name) if run.run_date <= run_date]
    elif table.by_apply:
        found = [run for run in state.history(group, table.name) if run.run_date == run_date]
    else:
        published = state.require(group, table.name, run_date)
        return [open_listing(state, published) if table is STORAGE_INVENTORY else published]
    if not found:
        how = (
            "`gc-assets apply PLAN_ID` writes it at its end, and continues an interrupted apply"
            if table.by_apply
            else f"run `{command('run', run_date=str(run_date))}` first"
        )
        raise StateError(f"{group}/{table.name} has no table for {run_date}; {how}")
    return found


def paths_of(state: State, table: Table, group: str, run_date: date) -> list[str]:
    """Return the paths of the table's parts as of a run date, from `runs_of` and `find_path_edits`."""
    edits = find_path_edits(state, table, group, run_date)
    found = [path for run in runs_of(state, table, group, run_date) for path in run.paths()]
    return found if edits is None else [*found, *edits.paths(EDITS_SIDE)]


def find_path_edits(state: State, table: Table, group: str, run_date: date) -> PublishedTable | None:
    """Return the table whose side table `_edits` contains further rows of `expiry_plan`, or None.

    These rows are separate because they depend on the content of commits that `expiry_plan`
    selects. A table older than `expiry_plan` belongs to another run of the date.
    """
    if table is not EXPIRY_PLAN:
        return None
    found, edits = state.require(group, table.name, run_date), state.current(group, table_with(TableRole.PATH_EDITS).name, run_date)
    return edits if edits is not None and edits.receipt.run_id > found.receipt.run_id else None


def table_names(state: State, lake_name: str) -> list[str]:
    """Return the names of the lake's tables in the newest run, in alphabetical order.

    The result is empty if the lake is a single repository or has no run.
    """
    names: set[str] = set()
    for table, column in ((LAKE_REFS, TABLE_NAME.name), (LIVE_CONTENTS, "content_key")):
        published = state.latest(lake_name, table.name)
        if published is not None:
            names |= set(pc.unique(read_parts(state.files, published.paths(), table.schema, [column]).column(column)).to_pylist())
    return sorted(name for name in names if name)


def batches(
    state: State, schema: pa.Schema, paths: Collection[str], columns: Collection[str] | None = None, limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield at most `limit` rows of Parquet parts, with the columns of the schema.

    Raises:
        StateError: If an older release wrote a part without one of the columns.
    """
    fields = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    left = limit
    for path in paths:
        source = pq.ParquetFile(pa.BufferReader(_part(state, path, fields)))
        present = [name for name in fields.names if name in source.schema_arrow.names]
        for batch in source.iter_batches(columns=present):
            if left is not None and left <= 0:
                return
            rows = add_missing_columns(batch, fields)
            yield rows if left is None else rows.slice(0, left)
            left = None if left is None else left - rows.num_rows


def read_matching_rows(state: State, schema: pa.Schema, paths: Collection[str], column: str, values: Collection[str]) -> pa.Table:
    """Return the rows whose `column` is one of `values`.

    Row groups without such a value are skipped.

    Raises:
        StateError: If an older release wrote a part without one of the columns.
    """
    fields = pc.field(column).isin(list(values))
    found = [add_missing_columns(_read_matching(_part(state, path, schema), schema, fields), schema) for path in paths]
    return pa.concat_tables(found) if found else schema.empty_table()


def _read_matching(content: bytes, schema: pa.Schema, fields: pc.Expression) -> pa.Table:
    present = pq.read_schema(pa.BufferReader(content)).names
    return pq.read_table(pa.BufferReader(content), columns=[name for name in schema.names if name in present], filters=fields)


def _part(state: State, path: str, schema: pa.Schema) -> bytes:
    content = state.files.read(path)
    present = pq.read_schema(pa.BufferReader(content)).names
    missing = [field.name for field in schema if field.name not in present and not is_added_column(field)]
    if missing:
        group_asset, _, day = path.partition("/run_date=")
        raise StateError(
            f"{group_asset} of {day[:10]} was written by an older release of gc-assets without the columns {', '.join(missing)}, so it "
            f"cannot be shown. Run that date again, or choose a newer one."
        )
    return content
