"""Write the snapshot history to the table that is configured for a lake.

Nothing else depends on this table, and the next run writes missing rows. Therefore, a failure is
only reported as a note of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import pyarrow as pa

from gc_assets.core.errors import GcError
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.state_scan import decode_parquet
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.lakes.protocol import CommitSource, as_history_publisher, is_editable
from gc_assets.state.parts import decode_each
from gc_assets.state.summaries import HistoryPublicationSummary

_log = logging.getLogger(__name__)
_SCHEMA: Final = table_with(TableRole.HISTORY).schema


def publish_history(
    context: RunContext,
    lake_name: str,
    paths: Sequence[str],
    sources: Iterable[CommitSource],
    kept: timedelta,
    earlier: HistoryPublicationSummary | None,
) -> HistoryPublicationSummary | None:
    """Write the snapshot history to the lake's configured table, so that other engines can read it.

    Args:
        paths: Parts of `snapshot_history`, relative to the state root.
        sources: The lake's tables, as read with the refs.
        kept: How long records of expired snapshots are kept.
        earlier: Summary of the last run's publication, or None.

    Returns:
        A summary of what was written, or None if the lake does not publish its history.
    """
    lake = as_history_publisher(context.lake(lake_name))
    if lake is None:
        return None
    named = earlier.named if earlier is not None else ()
    if context.clock.is_rehearsal and any(storage.rehearsals != "allowed" for storage in context.config.storages):
        return HistoryPublicationSummary(named=named, notes=("the history is not published, because this run is a rehearsal",))
    log_activity("publishing the history")
    editable = {item.table_uuid: item.table_name for item in sources if item.table_uuid and item.table_name and is_editable(item)}
    try:
        unnamed = {uuid: editable[uuid] for uuid in editable.keys() - set(named)}
        found = lake.publish_history(partial(_read, context, paths), unnamed, context.clock.now() - kept)
    except GcError as error:
        _log.warning("lake %s: the history is not published: %s", lake_name, error)
        return HistoryPublicationSummary(named=named, notes=(f"the history is not published: {error}",))
    return HistoryPublicationSummary(
        table=found.table, written=found.written, removed=found.removed, named=tuple(sorted({*named, *found.pointed})), notes=found.notes
    )


def _read(context: RunContext, paths: Sequence[str], columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    schema = _SCHEMA if columns is None else pa.schema([_SCHEMA.field(name) for name in columns])
    return decode_each(context.state.files, paths, partial(decode_parquet, schema=schema))
