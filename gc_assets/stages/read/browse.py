"""Read published tables, or selected rows of them, without Spark.

The functions find the runs whose rows a table consists of, and read one part at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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
from gc_assets.state.parts import add_missing_columns, open_part, read_errors, read_filtered, read_parts
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, MANIFEST_ENTRIES, STORAGE_INVENTORY, TABLE_NAME, Table
from gc_assets.state.side_tables import EDITS_SIDE


def runs_of(state: State, table: Table, group: str, run_date: date) -> Sequence[PublishedTable | PastRun]:
    """Return the runs whose rows a table consists of on a run date.

    For most tables, this is the current run of the date. The exceptions are:

    - `manifest_entries` consists of all segments up to the date,
    - `deletion_log` and `expiry_log` consist of all applies of the date's plans,
    - `storage_inventory` may be the listing of an earlier run.

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
            "`gc-assets apply PLAN_ID` writes it when it finishes, and also continues an interrupted apply"
            if table.by_apply
            else f"run `{command('run', run_date=str(run_date))}` first"
        )
        raise StateError(f"Cannot show {group}/{table.name}: it has no table for {run_date}; {how}")
    return found


def paths_of(state: State, table: Table, group: str, run_date: date) -> list[str]:
    """Return the paths of all parts that a table consists of on a run date."""
    edits = find_path_edits(state, table, group, run_date)
    found = [path for run in runs_of(state, table, group, run_date) for path in run.paths()]
    return found if edits is None else [*found, *edits.paths(EDITS_SIDE)]


def find_path_edits(state: State, table: Table, group: str, run_date: date) -> PublishedTable | None:
    """Find the table that contains additional rows of `expiry_plan` in its side table `_edits`.

    These rows are computed later, because they depend on the content of commits that `expiry_plan`
    selects.

    Returns:
        The table, or None if it does not exist. A table that is older than `expiry_plan` is
        ignored, because it belongs to another run of the date.
    """
    if table is not EXPIRY_PLAN:
        return None
    found, edits = state.require(group, table.name, run_date), state.current(group, table_with(TableRole.PATH_EDITS).name, run_date)
    return edits if edits is not None and edits.receipt.run_id > found.receipt.run_id else None


def table_names(state: State, lake_name: str) -> list[str]:
    """Return the names of a lake's tables in its newest run, in alphabetical order.

    If the lake is a single repository or has no run, the list is empty.
    """
    names: set[str] = set()
    for table, column in ((LAKE_REFS, TABLE_NAME.name), (LIVE_CONTENTS, "content_key")):
        published = state.latest(lake_name, table.name)
        if published is not None:
            names |= set(pc.unique(read_parts(state.files, published.paths(), table.schema, [column]).column(column)).to_pylist())
    return sorted(name for name in names if name)


def name_tables(state: State, frozen: Iterable[PublishedTable]) -> dict[tuple[str, str | None], str]:
    """Return the names of the tables in `lake_refs` of some lakes, keyed by lake and table UUID."""
    found: dict[tuple[str, str | None], str] = {}
    for refs in frozen:
        rows = read_parts(state.files, refs.paths(), LAKE_REFS.schema, ["table_uuid", "table_name"]).to_pylist()
        found |= {(refs.receipt.owner, row["table_uuid"]): row["table_name"] for row in rows if row["table_name"] is not None}
    return found


def batches(
    state: State, schema: pa.Schema, paths: Collection[str], columns: Collection[str] | None = None, limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Read up to `limit` rows from Parquet parts, with the columns of a schema.

    Raises:
        StateError: If a part is missing or damaged, or if it was written by an older release and
            lacks a column.
    """
    fields = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    left = limit
    for path in paths:
        with read_errors(f"{state.files.root}/{path}"):
            source = open_part(_read_part(state, path, fields))
            present = [name for name in fields.names if name in source.schema_arrow.names]
            for batch in source.iter_batches(columns=present):
                if left is not None and left <= 0:
                    return
                rows = add_missing_columns(batch, fields)
                yield rows if left is None else rows.slice(0, left)
                left = None if left is None else left - rows.num_rows


def read_matching_rows(state: State, schema: pa.Schema, paths: Collection[str], column: str, values: Collection[str]) -> pa.Table:
    """Read the rows in which `column` has one of the given values.

    Parquet row groups are skipped if their statistics rule out a match.

    Raises:
        StateError: If a part is missing or damaged, or if it was written by an older release and
            lacks a column.
    """
    is_wanted, found = pc.field(column).isin(list(values)), [schema.empty_table()]
    for path in paths:
        with read_errors(f"{state.files.root}/{path}"):
            content = _read_part(state, path, schema)
            present = pq.read_schema(pa.BufferReader(content)).names
            found.append(add_missing_columns(read_filtered(content, [name for name in schema.names if name in present], is_wanted), schema))
    return pa.concat_tables(found)


def _read_part(state: State, path: str, schema: pa.Schema) -> bytes:
    content = state.files.read(path)
    present = pq.read_schema(pa.BufferReader(content)).names
    missing = [field.name for field in schema if field.name not in present and not is_added_column(field)]
    if missing:
        group_asset, _, day = path.partition("/run_date=")
        raise StateError(
            f"Cannot show {group_asset} of {day[:10]}: an older release of gc-assets wrote it without the columns "
            f"{', '.join(missing)}. Run that date again, or choose a newer date."
        )
    return content
