"""The Dagster result of a published table: rows, address, sample, figures and checks.

All values are read back from the state.
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
# Longer cells are cut. An address usually fits, but a list of many parents does not.
CELL_CHARACTERS: Final = 160
# Parts larger than this are not read for a sample.
SAMPLE_BYTES: Final = 64 * 2**20
# Columns from which live containers are computed.
STATES_BYTES: Final = 4 * 2**20

# Markdown report of a published table.
Report = Callable[[RunContext, PublishedTable], str]
# Additional Dagster metadata of a published table.
MetadataReader = Callable[[RunContext, PublishedTable], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """A table of a step, and its metadata in Dagster."""

    table: Table
    figures: Callable[[PublishedTable], Figures]
    report: Report | None = None
    extra_metadata: MetadataReader | None = None


def build_result(
    context: RunContext, group: str, output: StepOutput, checks: Sequence[Check], extra: Mapping[str, Any] | None = None
) -> dg.MaterializeResult:
    """Return the result of a published table.

    Args:
        extra: Further metadata of the run.

    Raises:
        StateError: If the table is incomplete.
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
    # The most important metadata comes first. The address and the sample come last.
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
    """Return metadata that marks the run as a rehearsal. Empty if it is not a rehearsal."""
    return {"rehearsal": describe_rehearsal(context.clock.now())} if context.clock.is_rehearsal else {}


def _request_figures(requests: Requests) -> Figures:
    figures: dict[str, int | float] = {f"{kind.lower()}_requests": requests.counts[kind] for kind in KINDS if requests.counts.get(kind)}
    return figures if requests.usd is None else {**figures, "requests_usd": requests.usd}


def _job_figures(summary: Mapping[str, Any]) -> Figures:
    return {"spark_jobs": summary["spark_jobs"]} if summary.get("spark_jobs") else {}


def sample_rows(context: RunContext, table: Table, published: PublishedTable) -> dg.TableMetadataValue:
    """Return at most `SAMPLE_ROWS` rows, without binary columns and without parts over
    `SAMPLE_BYTES`.
    """
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
    """Return a sample of live containers, because other live files would have to be computed."""
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
