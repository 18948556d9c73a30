"""Results of a published table in Dagster: numbers, a sample of its rows, and check results.

All values are read back from the state, so that Dagster's page shows what was really published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.assets.checks import Check
from gc_assets.assets.figures import Figures, figures_table
from gc_assets.assets.lineage import column_lineage
from gc_assets.assets.markdown import escape_markdown
from gc_assets.assets.names import asset_key
from gc_assets.core.rehearsals import describe_rehearsal
from gc_assets.core.requests import KINDS, Requests
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE
from gc_assets.stages.mark.entry_scan import ROUTED_ROWS
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LIVE_FILES, Table
from gc_assets.state.side_tables import STATES_SIDE
from gc_assets.state.summaries import LiveFilesSummary, requests_of

SAMPLE_ROWS: Final = 20
# Longer cells are cut. Most addresses fit, but not, for example, long lists of parents.
CELL_CHARACTERS: Final = 160
# No sample is taken from parts that are larger than this.
SAMPLE_BYTES: Final = 64 * 2**20
# Live containers are not sampled if their source table is larger than this.
STATES_BYTES: Final = 4 * 2**20

# Returns a report in Markdown.
Report = Callable[[RunContext, PublishedTable], str]
# Returns additional metadata.
MetadataReader = Callable[[RunContext, PublishedTable], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """A table that a step publishes, with functions that compute its metadata for Dagster."""

    table: Table
    figures: Callable[[PublishedTable], Figures]
    report: Report | None = None
    extra_metadata: MetadataReader | None = None


def count_rows(name: str) -> Callable[[PublishedTable], Figures]:
    """Return a function that reports the number of rows under this name."""
    return lambda published: {name: published.receipt.rows}


def build_result(
    context: RunContext, group: str, output: StepOutput, checks: Sequence[Check], extra: Mapping[str, Any] | None = None
) -> dg.MaterializeResult:
    """Build the materialization of a published table, including its check results.

    Args:
        context: The run context.
        group: The lake or storage.
        output: The table, and how its metadata is computed.
        checks: The checks to evaluate.
        extra: Additional metadata about the run.

    Raises:
        StateError: If the table is missing or incomplete.
    """
    table = output.table
    published = context.table(table, group)
    receipt, key = published.receipt, asset_key(context.config, group, table)
    figures = {
        **output.figures(published),
        **_request_figures(requests_of(receipt.summary)),
        **_job_figures(receipt.summary),
        "table_bytes": receipt.size_bytes or sum(part.size_bytes for part in receipt.parts),
    }
    # Dagster keeps this order, so the most important metadata comes first.
    metadata: dict[str, Any] = {**rehearsal_metadata(context), **(extra or {})}
    if output.extra_metadata is not None:
        metadata |= output.extra_metadata(context, published)
    if output.report is not None:
        metadata["report"] = dg.MetadataValue.md(output.report(context, published))
    metadata |= {"figures": figures_table(figures), **figures, "sample": sample_rows(context, table, published)}
    metadata |= {
        "dagster/row_count": published.summary(LiveFilesSummary).files if table is LIVE_FILES else receipt.rows,
        "dagster/uri": context.state.files.uri(published.path),
        **column_lineage(context.config, group, table),
    }
    if receipt.unsafe:
        metadata["unsafe"] = dg.MetadataValue.md("\n".join(f"- {escape_markdown(text)}" for text in receipt.unsafe))
    return dg.MaterializeResult(
        asset_key=key,
        metadata=metadata,
        data_version=dg.DataVersion(receipt.digest),
        check_results=[check.result(context, key, published) for check in checks],
    )


def rehearsal_metadata(context: RunContext) -> dict[str, str]:
    """Return metadata that warns about a rehearsal, or nothing if the clock is real."""
    return {"rehearsal": describe_rehearsal(context.clock.now())} if context.clock.is_rehearsal else {}


def _request_figures(requests: Requests) -> Figures:
    figures: dict[str, int | float] = {f"{kind.lower()}_requests": requests.counts[kind] for kind in KINDS if requests.counts.get(kind)}
    return figures if requests.usd is None else {**figures, "requests_usd": requests.usd}


def _job_figures(summary: Mapping[str, Any]) -> Figures:
    return {"spark_jobs": summary["spark_jobs"]} if summary.get("spark_jobs") else {}


def sample_rows(context: RunContext, table: Table, published: PublishedTable) -> dg.TableMetadataValue:
    """Take a few example rows. Binary columns and very large parts are skipped."""
    names = [field.name for field in table.schema if str(field.type) != "binary"]
    rows = table.schema.empty_table().select(names)
    if table is LIVE_FILES:
        rows = pa.concat_tables([rows, _live_sample(context, published).select(names)]).slice(0, SAMPLE_ROWS)
    for part, path in zip(published.receipt.files, published.paths(), strict=True):
        if rows.num_rows < SAMPLE_ROWS and part.size_bytes <= SAMPLE_BYTES:
            rows = pa.concat_tables([rows, read_parts(context.state.files, [path], table.schema, names)]).slice(0, SAMPLE_ROWS)
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in rows.to_pylist(maps_as_pydicts="lossy")]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, str(table.schema.field(name).type)) for name in names])
    return dg.MetadataValue.table(records, schema)


def _live_sample(context: RunContext, published: PublishedTable) -> pa.Table:
    """Take example rows of live containers, because all other live files would have to be computed."""
    live = LiveSet(context, published)
    if not live.is_view or sum(part.size_bytes for part in published.parts(STATES_SIDE)) > STATES_BYTES:
        return ROUTED_ROWS.empty_table()
    rows = live.direct_rows()
    return rows.filter(pc.equal(rows.column(ROUTE), ""))


def _cell(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, date):
        return value.isoformat()
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"
