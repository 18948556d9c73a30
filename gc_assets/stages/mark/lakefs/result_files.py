"""Write the results of lifecycle rules to the namespace, as described in the lakeFS proposal.

Existing files are kept, and runs neither read nor delete them. No claim includes `_lakefs/`.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.core.errors import GcError
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts
from gc_assets.lakes.lakefs.addresses import DATA
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.stages.mark.policy import newest_finished_date
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import LifecycleObjectsSummary

_log = logging.getLogger(__name__)
_COLUMNS: Final = ["key", "paths", "matched_rules", "deduplicated"]


def write_results(context: RunContext, refs: PublishedTable, run: TableRun, written: WrittenParts) -> Iterator[str]:
    """Write the objects that a run released, and how much the last finished deletion released.

    Verification marks and historical runs do not write these files. The same applies to rehearsals
    that must not change storages.

    Yields:
        A note if the files cannot be written. This is not an error, because nothing depends on
        them.
    """
    from gc_assets.lakes.lakefs.lake import LakeFsLake  # this module imports the SDK

    lake_name = refs.receipt.owner
    lake, rows = context.lake(lake_name), read_side_rows(context, refs, CLAIMS_SIDE, CLAIMS)
    claims = [row for row in rows if row["address"].endswith(f"/{DATA}")]
    is_rehearsal = context.clock.is_rehearsal and any(storage.rehearsals != "allowed" for storage in context.config.storages)
    is_current = context.verification_id is None and context.run_date == context.clock.today()
    if not isinstance(lake, LakeFsLake) or not lake.publishes_results or is_rehearsal or not is_current or len(claims) != 1:
        return
    log_activity("writing the results of lifecycle rules")
    claim, prefix = claims[0]["address"], claims[0]["key"] or ""
    try:
        for number, path in enumerate(written.paths(run)):
            rows = read_parts(context.state.files, [path], LIFECYCLE_OBJECTS.schema, _COLUMNS)
            name = f"addresses/date={context.run_date}/{run.run_id}-{number}.parquet"
            lake.write_result(claim, name, _to_parquet(rows, run.run_id, prefix))
        day = newest_finished_date(context)
        finished = context.state.current(lake_name, LIFECYCLE_OBJECTS.name, day) if day is not None else None
        if finished is not None:
            amount = finished.summary(LifecycleObjectsSummary).released
            content = f"run_id,addresses,bytes,status\n{finished.receipt.run_id},{amount.files},{amount.bytes},finished\n"
            lake.write_result(claim, f"stats/{day}.csv", content.encode())
    except (GcError, OSError) as error:
        _log.warning("lake %s: the results of lifecycle rules are not written: %s", lake_name, error)
        yield f"lake {lake_name}: the results of lifecycle rules are not written to the namespace: {error}"


def _to_parquet(rows: pa.Table, run_id: str, prefix: str) -> bytes:
    """Return the released objects as Parquet, with the proposal's columns and relative addresses."""
    rows = rows.filter(pc.invert(rows.column("deduplicated")))
    names = pc.binary_join_element_wise(DATA, pc.utf8_slice_codeunits(rows.column("key"), len(prefix)), "")
    columns = {"run_id": pa.repeat(run_id, rows.num_rows), "address": names, "paths": rows.column("paths")}
    sink = io.BytesIO()
    pq.write_table(pa.table({**columns, "matched_rules": rows.column("matched_rules")}), sink)
    return sink.getvalue()
