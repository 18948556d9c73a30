"""Find out whether gc-assets removed objects whose paths an undo would bring back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.commands import command
from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.printable import show_list, to_message
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.stages.delete.planned_edits import PlannedPaths
from gc_assets.stages.records.ledger import LOG_ENTRIES, LogReader, newest_entries

_DEFERRED: Final = "deferred"


def describe_removed_objects(context: RunContext, planned: PlannedPaths, action: ExpiryAction) -> str | None:
    """Return why the deletion of paths must not be undone, or None.

    A later plan may have purged or quarantined objects at these paths, so that the paths would name
    missing files. The deletion logs of all storages are read.

    Raises:
        StateError: If the table with the paths is missing or was changed.
    """
    objects, found = planned.read_objects(action), list[pa.Table]()
    for storage in pc.unique(objects.column("storage")).drop_null().to_pylist():
        keys = objects.column("key").filter(pc.equal(objects.column("storage"), storage)).combine_chunks()
        last = newest_entries(_read_entries(LogReader.of(context.state, storage), keys), ("key",))
        is_hidden = pc.not_equal(pc.fill_null(last.column("quarantine"), ""), _DEFERRED)
        is_gone = pc.or_(pc.equal(last.column("phase"), PURGE), pc.and_(pc.equal(last.column("phase"), QUARANTINE), is_hidden))
        found.append(last.filter(is_gone).select(["key", "phase", "by"]))
    gone = pa.concat_tables(found) if found else None
    if gone is None or not gone.num_rows:
        return None
    purged = gone.filter(pc.equal(gone.column("phase"), PURGE))
    if purged.num_rows:
        return _describe(action, purged.column("key").to_pylist(), "were purged") + f"; commit {action.snapshot_id} has the deleted paths"
    plans = show_list([f"`{command('restore', plan=plan[:12])}`" for plan in sorted(set(gone.column("by").to_pylist()))])
    return _describe(action, gone.column("key").to_pylist(), "are in quarantine") + f"; first run {plans}"


def _describe(action: ExpiryAction, keys: Sequence[str], state: str) -> str:
    objects = f"{count_of(len(keys), 'object')} at the deleted paths of branch {action.ref_name}"
    return to_message(f"{objects} {state}, such as {min(keys)}, so the paths would name missing files")


def _read_entries(reader: LogReader, keys: pa.Array) -> pa.Table:
    """Return the log entries of some keys (columns `LOG_ENTRIES`)."""
    numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(reader.part_count), pa.int64())})
    return pa.Table.from_batches([batch.filter(pc.is_in(batch.column("key"), keys)) for batch in reader(iter([numbers]))], LOG_ENTRIES)
