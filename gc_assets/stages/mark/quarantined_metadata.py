"""Find unreadable tables whose metadata is in quarantine, and add the command to restore it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from gc_assets.core.commands import command
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.ledger import SHARE_ROWS, CopySelection, LogReader, newest_of_each_key
from gc_assets.state.arrow_types import STRING
from gc_assets.state.summaries import UnreadTable

# In deferred quarantine, objects stay in place.
_DEFERRED: Final = "deferred"


def add_restore_commands(context: RunContext, unread: Sequence[UnreadTable]) -> tuple[UnreadTable, ...]:
    """Add the command to restore metadata to the reasons of tables whose metadata is in quarantine.

    If a storage has too many log entries for the driver process, nothing is added for it.
    """
    resolver, keys = context.resolver(), defaultdict[str, dict[str, str]](dict)
    for item in unread:
        located = None if item.address is None else resolver.locate_one(item.address)
        if located is not None and item.address is not None:
            keys[located[0]][located[1]] = item.address
    plans: dict[str | None, str] = {}
    for storage, addresses in keys.items():
        plans.update((addresses[key], plan) for key, plan in _find_plans(context, storage, list(addresses)).items())
    return tuple(
        item.model_copy(update={"why": f"{item.why}. The file is in quarantine: `{command('restore', plan=plans[item.address][:12])}`"})
        if item.address in plans
        else item
        for item in unread
    )


def _find_plans(context: RunContext, storage_name: str, keys: Sequence[str]) -> dict[str, str]:
    """Return the ids of the plans that quarantined each file, keyed by file key."""
    reader = LogReader.of(context.state, storage_name)
    if not reader.rows or reader.rows > SHARE_ROWS:
        return {}
    copies = CopySelection(rehearsal=True if context.clock.is_rehearsal else None)
    rows = newest_of_each_key(copies.find_copies(reader.read_keys(pa.array(keys, STRING)))).to_pylist()
    return {row["key"]: row["source_plan_id"] for row in rows if row["quarantine"] != _DEFERRED}
