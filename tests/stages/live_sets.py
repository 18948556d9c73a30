"""Publish live sets with given keys, without a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.content_roots import REACHED, RELEASED, SPARED
from gc_assets.stages.mark.file_entries import build_hashes
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import CONTAINERS, CONTAINERS_SIDE, HASHES, HASHES_SIDE, STATES, STATES_SIDE

_NO_COUNTS = dict.fromkeys(("files", "live_bytes", "expired_files", "dangling_files", "external_files"), 0)


def publish_live_set(context: RunContext, lake: str, keys: Mapping[str, Sequence[str]], rank: int = REACHED) -> PublishedTable:
    """Publish the live files of a lake, by storage, as the entries of one container per storage."""
    entries: list[dict[str, Any]] = []
    for storage, named in keys.items():
        file = {"container": f"{lake}-{storage}", "storage": storage, "kind": Kind.DATA, "is_container": False, "must_exist": True}
        entries += [{**file, "key": key, "address": key} for key in named]
    rows = pa.Table.from_pylist(entries, schema=MANIFEST_ENTRIES.schema)
    counts = [{"container": f"{lake}-{storage}", "files": len(named), "entries": len(named)} for storage, named in keys.items()]
    hashes = pa.Table.from_batches([build_hashes(batch) for batch in rows.to_batches()], HASHES)
    sides = {HASHES_SIDE: hashes, CONTAINERS_SIDE: pa.Table.from_pylist(counts, schema=CONTAINERS)}
    run = context.state.start(lake, MANIFEST_ENTRIES.name, context.run_date, context.clock)
    written = write_rows(rows, MANIFEST_ENTRIES, run, context.state.files, sides)
    segment = publish(context.state, run, written, context.clock, summary={"external": 0, "decoded_as": "", "resolved_as": ""})
    states = pa.Table.from_pylist(
        [
            {"address": row["container"], "kind": Kind.MANIFEST, "expands": True, "must_exist": True, "rank": rank, "files": row["files"]}
            for row in counts
        ],
        schema=STATES,
    )
    run = context.state.start(lake, LIVE_FILES.name, context.run_date, context.clock)
    written = write_rows(LIVE_FILES.schema.empty_table(), LIVE_FILES, run, context.state.files, {STATES_SIDE: states})
    by_storage = {storage: {"files": len(named), "bytes": 0} for storage, named in keys.items()}
    expired = sum(len(named) for named in keys.values()) if SPARED < rank <= RELEASED else 0
    summary = {
        **_NO_COUNTS,
        "expired_files": expired,
        "by_kind": {},
        "metadata_by_storage": {},
        "by_storage": by_storage,
        "segments": [segment.receipt.run_id],
    }
    return publish(context.state, run, written, context.clock, summary=summary)
