"""Freezes what a run believes of a lake: refs, claims, pinned files, the policy and the clock
reading of the grace cut-off.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from gc_assets.core.errors import LakeUnreadable, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.lakes.protocol import Claim, CommitSource, ContentRoot, FrozenRefs, Lake, Ref, UnreadableTable
from gc_assets.stages.mark.previous_refs import build_freeze, refuse_hidden
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_LOG, LAKE_REFS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, PINNED, PINNED_SIDE, SOURCES, SOURCES_SIDE, UNCOMMITTED, UNCOMMITTED_SIDE
from gc_assets.state.summaries import LakeRefsSummary, UnreadTable, Verdicts


@log_progress(LAKE_REFS)
def lake_refs(context: RunContext, lake_name: str) -> PublishedTable:
    """Publishes the frozen refs of a run date, or returns what was frozen before: that is never
    overwritten (design 3.6).

    Three runs freeze anew beside it. A rehearsal ignores what other runs froze, and they ignore
    what it froze. A fresh mark (`verification_id`) always reads. Today's run reads again once a plan has
    edited the lake's history: what was frozen before names commits that are gone.

    The clock is read before the first ref. A date frozen on another day than its own is
    `historical`: its plan can be shown and never applied. Raises `LakeUnreadable` naming what could
    not be read, or a ref that the lake hides since the last night.
    """
    state = context.state
    frozen = context.find(LAKE_REFS, lake_name)
    if frozen is not None and _still_counts(context, lake_name, frozen):
        return frozen
    run = start_run(context, context.group(lake_name), LAKE_REFS)
    log_activity("reading refs")
    frozen_at = context.clock.now()
    lake = context.lake(lake_name)
    refs = _frozen(context, lake_name, lake)
    refuse_hidden(context, lake_name, lake, build_freeze(frozen_at, refs.refs))
    resolver = context.resolver()
    rows = pa.Table.from_pylist([_ref_row(ref) for ref in refs.refs], schema=LAKE_REFS.schema)
    side = {
        SOURCES_SIDE: pa.Table.from_pylist(
            [{**asdict(item), "properties": list(item.properties.items())} for item in refs.sources], SOURCES
        ),
        CLAIMS_SIDE: _resolved(pa.Table.from_pylist([asdict(item) for item in refs.claims], _unresolved(CLAIMS)), CLAIMS, resolver),
        UNCOMMITTED_SIDE: _resolved(
            pa.Table.from_pylist([asdict(item) for item in refs.uncommitted], _unresolved(UNCOMMITTED)), UNCOMMITTED, resolver
        ),
        PINNED_SIDE: _resolved(pa.Table.from_pylist([asdict(item) for item in refs.pinned], _unresolved(PINNED)), PINNED, resolver),
    }
    summary = LakeRefsSummary(
        kind=refs.kind,
        as_of=context.as_of,
        frozen_at=frozen_at,
        historical=context.run_date != context.clock.today(),
        rehearsal=context.clock.is_rehearsal,
        policy_digest=context.config.policy_digest(),
        refs_digest=refs_digest(refs),
        claims=len(refs.claims),
        pinned=len(refs.pinned),
        notes=refs.notes,
        min_age_seconds=refs.min_age_seconds,
        unread=tuple(UnreadTable(table_name=item.table_name, why=item.reason, address=item.address) for item in refs.unreadable),
    )
    written = write_rows(rows, LAKE_REFS, run, state.files, side)
    return publish(state, run, written, context.clock, summary=summary, unsafe=context.unsafe)


def _frozen(context: RunContext, lake_name: str, lake: Lake) -> FrozenRefs:
    """Returns what the lake says of itself. A lake that is one repository and cannot be read is
    `unread` as a whole; whether an earlier night read it is seen where its live set is made.
    """
    try:
        return lake.freeze(context.as_of)
    except (LakeUnreadable, StoreError) as error:
        if not context.kind(lake_name).is_one_table:
            raise
        return FrozenRefs(lake_name, lake.kind, (), (), (), (), unreadable=(UnreadableTable(None, str(error)),))


def _still_counts(context: RunContext, lake_name: str, frozen: PublishedTable) -> bool:
    if context.verification_id is not None or frozen.summary(LakeRefsSummary).rehearsal != context.clock.is_rehearsal:
        return False
    if context.run_date != context.clock.today():
        return True
    logs = context.state.history(lake_name, EXPIRY_LOG.name)
    return not any({"done", "undone"} & log.headline(Verdicts).by_outcome.keys() and log.run_id > frozen.receipt.run_id for log in logs)


def refs_digest(refs: FrozenRefs) -> str:
    """Returns a digest that changes when a ref is made, moved, removed or gets other settings, and
    when a table has new metadata or other claims.

    Order does not matter.
    """
    rows: list[Any] = [
        [ref.table_uuid, ref.ref_name, ref.ref_type, ref.head_commit_id, sorted(ref.properties.items())] for ref in refs.refs
    ]
    rows += [[claim.table_uuid, claim.address, claim.collect] for claim in refs.claims]
    rows += [[source.table_uuid, source.address] for source in refs.sources]
    rows += [["unread", item.table_name] for item in refs.unreadable]
    return hashlib.sha256(json.dumps(sorted(rows, key=json.dumps)).encode()).hexdigest()


def read_frozen_refs(context: RunContext, lake_name: str, published: PublishedTable) -> FrozenRefs:
    """Returns the value that `freeze` gave, read back from the published table.

    Uncommitted objects are not read back: `uncommitted_objects` reads them.
    """
    state, kind = context.state, context.config.lake(lake_name).kind
    table = read_rows(state, LAKE_REFS, published).to_pylist(maps_as_pydicts="strict")
    return FrozenRefs(
        lake=lake_name,
        kind=kind,
        refs=tuple(Ref(**row) for row in table),
        sources=tuple(CommitSource(**row) for row in read_side_rows(context, published, SOURCES_SIDE, SOURCES)),
        claims=tuple(Claim(**_without_place(row)) for row in read_side_rows(context, published, CLAIMS_SIDE, CLAIMS)),
        pinned=tuple(ContentRoot(**_without_place(row)) for row in read_side_rows(context, published, PINNED_SIDE, PINNED)),
        notes=published.summary(LakeRefsSummary).notes,
        min_age_seconds=published.summary(LakeRefsSummary).min_age_seconds,
        unreadable=tuple(UnreadableTable(item.table_name, item.why, item.address) for item in published.summary(LakeRefsSummary).unread),
    )


def read_side_rows(context: RunContext, published: PublishedTable, side: str, schema: pa.Schema) -> list[dict[str, Any]]:
    return read_parts(context.state.files, published.paths(side), schema).to_pylist(maps_as_pydicts="strict")


def _without_place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"storage", "key", "location_of"}}


def _ref_row(ref: Ref) -> dict[str, Any]:
    return {**asdict(ref), "properties": list(ref.properties.items())}


def _unresolved(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in {"storage", "key"}])


def _resolved(rows: pa.Table, schema: pa.Schema, resolver: KeyResolver) -> pa.Table:
    addresses = rows.column("address").combine_chunks()
    storage, key = resolver.resolve(addresses)
    return rows.append_column("storage", storage).append_column("key", key).select(schema.names).cast(schema)
