"""`gc-assets show`: print a published table, or export it to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from gc_assets.cli.context import Settings, WholeNumber, common_options, run_date_option, wide_option
from gc_assets.cli.output import json_default, print_command, print_message, write_json, write_table
from gc_assets.core.errors import UsageError
from gc_assets.core.phases import RESTORE_PREFIX
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.suggest import did_you_mean, join_names
from gc_assets.core.units import count_of, format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.config.models import Config
    from gc_assets.engine.run_context import RunContext
    from gc_assets.state.schemas import Table

# The columns printed in format `table` unless --wide is given. `table`, `size` and `plan` are not
# stored but computed.
SHORT_COLUMNS: Final = {
    "lake_refs": ("table_name", "ref_name", "ref_type", "head_commit_id"),
    "commit_graph": ("table_name", "commit_id", "committed_at", "parents", "message"),
    "reachable_snapshots": ("table_name", "commit_id", "state", "refs", "reason"),
    "snapshot_history": ("table_name", "snapshot_id", "committed_at", "operation", "refs", "expired"),
    "live_files": ("kind", "size", "key", "commit_id"),
    "storage_inventory": ("size", "last_modified", "key"),
    "orphan_files": ("table", "reason", "size", "key"),
    "deletion_plan": ("table", "reason", "size", "key", "action"),
    "expiry_plan": ("table_name", "action", "snapshot_id", "ref_name", "reason"),
    "expiry_log": ("table_name", "action", "snapshot_id", "ref_name", "outcome", "error", "reason"),
    "deletion_log": ("phase", "outcome", "size", "key", "error", "plan", "at"),
    "dropped_tables": ("table", "last_seen", "gone_since", "size", "last_writer", "state"),
}
# Format `table` prints this many rows by default. The other formats are meant for programs and are
# always complete.
TABLE_ROWS = 100
# A command that accepts a dropped table is printed only for this many rows.
MAX_COMMANDS: Final = 5


class _Asset(click.types.StringParamType):
    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        del param, ctx
        return f"The assets are {', '.join(_list_tables())}."


def _list_tables() -> dict[str, Table]:
    from gc_assets.lakes.kinds import all_tables
    from gc_assets.state.side_tables import DROPPED_TABLES_VIEW

    return {**all_tables(), DROPPED_TABLES_VIEW.name: DROPPED_TABLES_VIEW}


@click.command("show", short_help="Print a table of a run date.")
@click.argument("asset", type=_Asset())
@run_date_option
@click.option("--lake", metavar="N", help="The lake of the table. Required if there are several.")
@click.option("--storage", metavar="N", help="The storage of the table. Required if there are several.")
@click.option("--table", "only", metavar="T", help="Only rows of this table: `namespace.table`.")
@click.option("--format", "format_", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="F", help="The file to write. Default: standard output.")
@click.option("--limit", type=WholeNumber(), metavar="N", help=f"At most N rows. Default: {TABLE_ROWS} for `table`, otherwise all.")
@wide_option
@common_options
def show_command(
    settings: Settings,
    asset: str,
    run_date: date | None,
    lake: str | None,
    storage: str | None,
    only: str | None,
    format_: str,
    output: str | None,
    limit: int | None,
    wide: bool,
) -> None:
    """Print the table ASSET of a run date. If there is only one lake or storage, --lake and
    --storage can be omitted.

    \b
    Examples:
      gc-assets show lake_refs --lake sales
      gc-assets show snapshot_history --lake sales --table shop.orders
      gc-assets show orphan_files --run-date 2026-11-21 --limit 20
      gc-assets show deletion_plan --wide
      gc-assets show dropped_tables
      gc-assets show live_files --lake sales --format parquet -o live.parquet
    """
    from gc_assets.state.schemas import TABLE_NAME

    tables = _list_tables()
    if asset not in tables:
        raise UsageError(f"unknown asset {asset!r}; available: {', '.join(tables)}{did_you_mean(asset, tables)}")
    if format_ == "parquet" and output is None:
        raise UsageError("--format parquet requires -o FILE")
    platform = settings.platform()
    table = tables[asset]
    if only is not None and TABLE_NAME.name not in table.schema.names:
        raise UsageError(f"--table {only}: cannot select rows of {asset} by table, because it has no column {TABLE_NAME.name}")
    group = _owner_name(platform.config, table, lake, storage)
    day = run_date or platform.clock.today()
    context = platform.run_context(day)
    wanted = TABLE_ROWS if limit is None and format_ == "table" else limit
    rows, total = _select_rows(context, table, group, only, wanted)
    if format_ == "parquet":
        _write_parquet(rows, table.schema, Path(str(output)))
    elif output is None and format_ == "table" and not wide and asset in SHORT_COLUMNS:
        _write_short(rows, context, table, group)
    elif output is None:
        _write_text(rows, table, format_, sys.stdout, wide=wide)
    else:
        with Path(output).open("w", encoding="utf-8", newline="") as target:
            _write_text(rows, table, format_, target, wide=True)
    shown = total if wanted is None else min(wanted, total)
    print_message(f"{group}/{asset} of {day}: {shown:,} of {count_of(total, 'row')}" + (f" in {output}" if output else ""))


def _select_rows(
    context: RunContext, table: Table, group: str, only: str | None, limit: int | None
) -> tuple[Iterator[pa.RecordBatch], int]:
    """Select the rows to print.

    Args:
        only: The lake table whose rows are selected, or None for all rows.
        limit: The maximum number of rows, or None for no limit.

    Returns:
        The rows, and the number of rows without the limit.
    """
    import pyarrow.compute as pc

    from gc_assets.stages.read.browse import paths_of, read_matching_rows
    from gc_assets.stages.read.table_rows import count_table_rows, read_table_rows
    from gc_assets.state.schemas import TABLE_NAME
    from gc_assets.state.side_tables import DROPPED_TABLES_VIEW

    if table.name == DROPPED_TABLES_VIEW.name:
        from gc_assets.stages.read.dropped_tables import read_dropped_tables  # it imports Spark

        found = read_dropped_tables(context, group)
        found = found if only is None else found.filter(pc.equal(found.column(TABLE_NAME.name), only))
    elif only is None:
        return read_table_rows(context, table, group, limit=limit), count_table_rows(context, table, group)
    else:
        paths = paths_of(context.state, table, group, context.run_date)
        found = read_matching_rows(context.state, table.schema, paths, TABLE_NAME.name, [only])
    return iter(found.slice(0, limit).to_batches()), found.num_rows


def _owner_name(config: Config, table: Table, lake: str | None, storage: str | None) -> str:
    from gc_assets.lakes.kinds import KINDS, owners_of

    given, other = (lake, storage) if table.scope == "lake" else (storage, lake)
    by_label = {config.label_of(name): name for name in owners_of(config, table)}
    names = list(by_label)
    if not names:
        kinds = [kind.name for kind in KINDS.values() if kind.has(table)]
        raise UsageError(f"{table.name} is a table of lakes of kind {' or '.join(kinds)}, and the configuration has no such lake")
    if other is not None:
        raise UsageError(f"{table.name} is a table of a {table.scope}. Use --{table.scope} ({', '.join(names)}).")
    if given is None and len(names) == 1:
        return by_label[names[0]]
    given = next((label for label, name in by_label.items() if name == given), given) if given not in by_label else given
    if given not in names:
        problem = "is required" if given is None else f"{given}: no such {table.scope} with this table"
        raise UsageError(f"--{table.scope} {problem}; configured: {join_names(names)}{did_you_mean(given or '', names)}")
    return by_label[given]


def _write_text(rows: Iterator[pa.RecordBatch], table: Table, format_: str, target: TextIO, *, wide: bool) -> None:
    if format_ == "csv":
        _write_csv(rows, table.schema, target)
    elif format_ == "json":
        write_json(_read_rows(rows), target)
    else:
        shown = list(_read_rows(rows))
        write_table(shown, _filled_columns(shown, table.schema.names), target, wide=wide)


def _filled_columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    return [name for name in names if not rows or any(row.get(name) is not None for row in rows)]


def _write_short(rows: Iterator[pa.RecordBatch], context: RunContext, table: Table, storage: str) -> None:
    """Print only the most useful columns of a table of files, with the lake table of each file."""
    from gc_assets.stages.read.dropped_tables import accept_command, short_row
    from gc_assets.stages.read.file_tables import FileTables
    from gc_assets.state.side_tables import DROPPED_TABLES_VIEW

    if table.name == DROPPED_TABLES_VIEW.name:
        found = list(_read_rows(rows))
        write_table([short_row(row, context.config.label_of(row["lake"])) for row in found], SHORT_COLUMNS[table.name])
        for row in found[:MAX_COMMANDS]:
            if (accept := accept_command(row["table_uuid"], row["waits_for"])) is not None:
                print_command(f"If {row['table_name'] or row['table_uuid']} is not in use, accept it", accept)
        return
    columns = SHORT_COLUMNS[table.name]
    tables = FileTables.of(context, storage) if "table" in columns else None
    shown: list[dict[str, Any]] = []
    for batch in rows:
        names = tables.names_of(batch) if tables is not None else [None] * batch.num_rows
        for row, name in zip(batch.to_pylist(maps_as_pydicts="strict"), names, strict=True):
            size = {"size": format_bytes(row["size_bytes"])} if row.get("size_bytes") is not None else {}
            # Only deletion_log mixes rows of rehearsals with other rows.
            outcome = {"outcome": mark_rehearsal(row["outcome"], bool(row["rehearsal"]))} if "rehearsal" in row else {}
            shown.append({**row, "table": name, "plan": _shorten_plan(row.get("plan_id")), **size, **outcome})
    write_table(shown, _filled_columns(shown, columns))


def _shorten_plan(plan_id: str | None) -> str | None:
    """Shorten a plan id to a prefix that commands accept. Names of restores stay complete."""
    return plan_id if plan_id is None or plan_id.startswith(RESTORE_PREFIX) else plan_id[:12]


def _read_rows(rows: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in rows:
        yield from batch.to_pylist(maps_as_pydicts="strict")


def _write_csv(rows: Iterator[pa.RecordBatch], schema: pa.Schema, target: TextIO) -> None:
    """Write CSV (RFC 4180) with a header line.

    Missing values are empty cells. Lists and maps are written as JSON, times as ISO 8601.
    """
    import csv

    writer = csv.writer(target)
    writer.writerow(schema.names)
    for row in _read_rows(rows):
        writer.writerow([_csv_value(value) for value in row.values()])


def _csv_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return json.dumps(value, default=json_default, ensure_ascii=False) if isinstance(value, list | dict) else json_default(value)


def _write_parquet(rows: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)
