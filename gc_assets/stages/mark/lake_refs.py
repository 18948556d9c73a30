"""Record a lake's refs, claims, policy and time before a run reads anything else (the freeze).

Files that the lake's current state needs are recorded as pinned files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa

from gc_assets.core.arrow_rows import to_row
from gc_assets.core.claims import find_table_location
from gc_assets.core.errors import ClockSkewed, FormatError, LakeUnreadable, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.printable import to_message
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.lakes.protocol import (
    Claim,
    CommitSource,
    ContentRoot,
    FrozenRefs,
    Lake,
    NamedPrefixes,
    PrefixedLake,
    Ref,
    UnreadableTable,
    UpgradableLake,
    View,
)
from gc_assets.stages.mark.deleted_repositories import freeze_lake, name_unexpected_errors, summarize_repository, with_known_repository
from gc_assets.stages.mark.idle_branches import date_sighting
from gc_assets.stages.mark.previous_refs import add_hidden_tables, build_freeze, refuse_hidden
from gc_assets.stages.mark.quarantined_metadata import add_restore_commands
from gc_assets.stages.mark.resolution import are_links_unchanged, build_links, find_resolvable, resolve_or_keep, resolve_rows
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_LOG, LAKE_REFS, LIVE_FILES
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    LINKS,
    LINKS_SIDE,
    PINNED,
    PINNED_SIDE,
    SOURCES,
    SOURCES_SIDE,
    UNCOMMITTED,
    UNCOMMITTED_SIDE,
    VIEWS,
    VIEWS_SIDE,
)
from gc_assets.state.summaries import ExpiryOutcomes, LakeRefsSummary, LiveFilesSummary, UnreadTable

_SIDE_TABLES: Final = {
    SOURCES_SIDE: SOURCES,
    CLAIMS_SIDE: CLAIMS,
    UNCOMMITTED_SIDE: UNCOMMITTED,
    PINNED_SIDE: PINNED,
    VIEWS_SIDE: VIEWS,
}
_RESOLVED_SIDES: Final = (CLAIMS_SIDE, UNCOMMITTED_SIDE, PINNED_SIDE)


@log_progress(LAKE_REFS)
def lake_refs(context: RunContext, lake_name: str) -> PublishedTable:
    """Publish the refs that all steps of a run date use, or return those already published.

    Published refs are never overwritten. In the following cases, they are read and published again:

    - only one of the run and the published refs belongs to a rehearsal (its clock is set);
    - the run is a verification mark;
    - the run date is today, and the last run of that date could not read a table, or the lake's
      catalog has changed since then;
    - the run date is today and the lake's format was upgraded or a plan edited its history since
      then, so that recorded commits may no longer exist;
    - the run date is today and the refs were read by a clock that was days ahead
      (`State.is_overtaken`).

    If only storages or symbolic links have changed, the same rows are published with current keys.
    If the run date is today, this also updates the prefixes that containers refer to by name, and
    refs are read again if a link is broken. On other dates, addresses behind a broken link keep
    their keys.

    The clock is read before the first ref. Refs that are not read on their run date are
    `historical`, so the plan can be shown but not applied.

    Raises:
        LakeUnreadable: If the lake is unreadable or hides a ref that the previous run recorded.
    """
    state = context.state
    frozen = context.find(LAKE_REFS, lake_name)
    if frozen is not None and _is_current(context, lake_name, frozen) and (current := _with_current_keys(context, lake_name, frozen)):
        return current
    run = start_run(context, context.group(lake_name), LAKE_REFS)
    log_activity("reading refs")
    frozen_at = context.clock.now()
    lake, resolver, catalog = context.lake(lake_name), context.resolver(), locate_catalog(context, lake_name)
    refs, sides = _freeze(context, lake, resolver, frozen_at)
    _require_same_catalog(context, lake_name, catalog)
    refuse_hidden(context, lake_name, lake, build_freeze(frozen_at, refs.refs))
    rows = pa.Table.from_pylist([_ref_row(ref) for ref in refs.refs], schema=LAKE_REFS.schema)
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
        notes=tuple(map(to_message, refs.notes)),
        min_age_seconds=refs.min_age_seconds,
        unread=add_restore_commands(context, _list_unread(refs)),
        named_prefixes=None if refs.named_prefixes is None else dict(refs.named_prefixes.prefixes),
        named_prefixes_error=None if refs.named_prefixes is None else refs.named_prefixes.error,
        repository=summarize_repository(refs, frozen_at),
        catalog=catalog,
        seen_at=date_sighting(context, lake_name, frozen_at),
        resolved_as=resolver.settings_digest,
    )
    written = write_rows(rows, LAKE_REFS, run, state.files, sides)
    return publish(state, run, written, context.clock, summary=summary, unsafe=context.unsafe)


def _with_current_keys(context: RunContext, lake_name: str, frozen: PublishedTable) -> PublishedTable | None:
    """Return the published refs with current keys, or None if refs have to be read again."""
    try:
        prefixes = _read_prefixes(context, lake_name, frozen)
    except LakeUnreadable:
        return None  # reading the refs again reports it
    if _has_current_keys(context, frozen) and prefixes == frozen_prefixes(frozen):
        return frozen
    try:
        return _resolve_again(context, lake_name, frozen, prefixes)
    except (FormatError, StoreError):
        if context.run_date != context.clock.today():
            return _resolve_again(context, lake_name, frozen, prefixes, resolve_or_keep)
        return None  # reading the refs again finds the tables that need the broken link


def _require_same_catalog(context: RunContext, lake_name: str, catalog: str) -> None:
    if locate_catalog(context, lake_name) != catalog:
        raise LakeUnreadable(
            f"lake {lake_name}: its refs cannot be read, because {catalog} was changed to another catalog while the run read it. Run again"
        )


def locate_catalog(context: RunContext, lake_name: str) -> str:
    """Return the kind and address of a lake's catalog, and the settings that select it there.

    Secrets are not included. For example, a lake that is configured with another realm, region or
    profile reads another catalog at the same address.
    """
    return " ".join([locate_server(context, lake_name), *context.config.lake(lake_name).catalog_selectors()])


def locate_server(context: RunContext, lake_name: str) -> str:
    """Return the kind and the address of a lake's catalog or server, without secrets.

    Lakes with equal addresses may still read different catalogs of one server. Symbolic links in a
    local path are resolved, because a link may point to another catalog later.
    """
    kind, address = context.config.lake(lake_name).catalog_location()
    return f"{kind}{os.path.realpath(address) if address.startswith('/') else address}"


def _freeze(context: RunContext, lake: Lake, resolver: KeyResolver, frozen_at: datetime) -> tuple[FrozenRefs, dict[str, pa.Table]]:
    """Read a lake's refs, including tables that its catalog hides, and resolve their addresses.

    For some kinds, an error makes the whole lake unreadable instead of stopping the run.
    """
    try:
        refs = add_hidden_tables(context, lake, freeze_lake(context, lake, context.as_of), frozen_at)
        if context.kind(lake.name).fails_alone:
            return refs, _build_side_tables(refs, resolver, KeyResolver.resolve)
        refs = replace(refs, notes=(*refs.notes, *_describe_unresolved(refs, resolver)))
        return refs, _build_side_tables(refs, resolver)
    except ClockSkewed:
        raise  # this machine's clock may be wrong, and the ages of all lakes depend on it
    except (LakeUnreadable, StoreError, FormatError) as error:
        if not context.kind(lake.name).fails_alone:
            raise
        locations = find_resolvable(context.config.lake(lake.name).own_locations(), context.resolver())
        claims = tuple(Claim(address, collect=False) for address in locations)
        refs = FrozenRefs(lake.name, lake.kind, (), (), claims, (), unreadable=(UnreadableTable(None, str(error)),))
        refs = with_known_repository(context, lake, refs)
        return refs, _build_side_tables(refs, resolver)


def _is_current(context: RunContext, lake_name: str, frozen: PublishedTable) -> bool:
    if context.verification_id is not None or frozen.summary(LakeRefsSummary).rehearsal != context.clock.is_rehearsal:
        return False
    if context.run_date != context.clock.today():
        return True
    if frozen.summary(LakeRefsSummary).catalog not in {None, locate_catalog(context, lake_name)} or context.state.is_overtaken(frozen):
        return False
    if not _was_read_in_full(context, lake_name, frozen):
        return False
    if not _has_current_sources(context, lake_name, frozen):
        return False
    logs = context.state.history(lake_name, EXPIRY_LOG.name)
    return not any(
        {"done", "undone"} & log.summary(ExpiryOutcomes).by_outcome.keys() and log.run_id > frozen.receipt.run_id for log in logs
    )


def _was_read_in_full(context: RunContext, lake_name: str, frozen: PublishedTable) -> bool:
    """Check that all tables were readable when the refs were read and in later steps of the date."""
    live = context.find(LIVE_FILES, lake_name)
    return not frozen.summary(LakeRefsSummary).unread and (live is None or not live.summary(LiveFilesSummary).unreadable)


def _has_current_sources(context: RunContext, lake_name: str, frozen: PublishedTable) -> bool:
    """Check whether the recorded sources still belong to the lake's current format."""
    lake = context.lake(lake_name)
    if not isinstance(lake, UpgradableLake):
        return True
    sources = [CommitSource(**row) for row in read_side_rows(context, frozen, SOURCES_SIDE, SOURCES)]
    try:
        with name_unexpected_errors(lake, "format"):
            return all(lake.has_source(source) for source in sources)
    except (LakeUnreadable, StoreError):
        return True  # reading the commits will fail too


def _has_current_keys(context: RunContext, frozen: PublishedTable) -> bool:
    """Check whether the storages and symbolic links are unchanged since the refs were read."""
    resolver = context.resolver()
    if frozen.summary(LakeRefsSummary).resolved_as != resolver.settings_digest:
        return False
    return are_links_unchanged(resolver, read_parts(context.state.files, frozen.paths(LINKS_SIDE), LINKS))


def _read_prefixes(context: RunContext, lake_name: str, frozen: PublishedTable) -> NamedPrefixes | None:
    """Return the prefixes that containers refer to by name.

    If the run date is today, they are read from the lake, otherwise from the published refs.
    """
    lake = context.lake(lake_name)
    is_today = context.run_date == context.clock.today()
    if is_today and isinstance(lake, PrefixedLake):
        with name_unexpected_errors(lake, "named prefixes"):
            return lake.read_prefixes()
    return frozen_prefixes(frozen)


def _resolve_again(
    context: RunContext,
    lake_name: str,
    frozen: PublishedTable,
    prefixes: NamedPrefixes | None,
    resolve: Callable[[pa.Table, KeyResolver], pa.Table] = resolve_rows,
) -> PublishedTable:
    """Publish the recorded refs again with newly resolved keys and other named prefixes."""
    state, resolver = context.state, context.resolver()
    run = start_run(context, context.group(lake_name), LAKE_REFS)
    log_activity("resolving the addresses of the recorded refs again")
    rows = read_rows(state, LAKE_REFS, frozen)
    sides = {side: read_parts(state.files, frozen.paths(side), schema) for side, schema in _SIDE_TABLES.items()}
    sides |= {side: resolve(sides[side], resolver) for side in _RESOLVED_SIDES}
    written = write_rows(rows, LAKE_REFS, run, state.files, {**sides, LINKS_SIDE: build_links(resolver)})
    before = frozen.summary(LakeRefsSummary)
    update: dict[str, Any] = {"resolved_as": resolver.settings_digest}
    if prefixes is not None and prefixes != frozen_prefixes(frozen):
        notes = tuple(note for note in before.notes if before.named_prefixes_error is None or before.named_prefixes_error not in note)
        update |= {"named_prefixes": dict(prefixes.prefixes), "named_prefixes_error": prefixes.error, "notes": notes}
    summary = before.model_copy(update=update)
    return publish(state, run, written, context.clock, inputs=[frozen], summary=summary, unsafe=frozen.receipt.unsafe)


def freeze_without(context: RunContext, lake_name: str, frozen: PublishedTable, reasons: Mapping[int, str]) -> PublishedTable:
    """Publish the recorded refs again, with the tables of some sources marked as unreadable.

    The claims of these tables become prefixes in which all files are kept. The tables' pinned files
    stay live, but their metadata may be missing.

    Args:
        reasons: Why a source cannot be read, keyed by its row number.
    """
    state, resolver = context.state, context.resolver()
    run = start_run(context, context.group(lake_name), LAKE_REFS)
    log_activity(f"recording {len(reasons):,} unreadable tables without their refs")
    before = frozen.summary(LakeRefsSummary)
    views = [View(**row) for row in read_side_rows(context, frozen, VIEWS_SIDE, VIEWS)]
    refs = replace(_without_sources(read_frozen_refs(context, lake_name, frozen), reasons), views=tuple(views))
    rows = pa.Table.from_pylist([_ref_row(ref) for ref in refs.refs], schema=LAKE_REFS.schema)
    written = write_rows(rows, LAKE_REFS, run, state.files, _build_side_tables(refs, resolver))
    summary = before.model_copy(
        update={
            "refs_digest": refs_digest(refs),
            "claims": len(refs.claims),
            "unread": _list_unread(refs),
            "resolved_as": resolver.settings_digest,
        }
    )
    return publish(state, run, written, context.clock, inputs=[frozen], summary=summary, unsafe=frozen.receipt.unsafe)


def _without_sources(refs: FrozenRefs, reasons: Mapping[int, str]) -> FrozenRefs:
    lost = {(source.table_uuid, source.table_name): source for number, source in enumerate(refs.sources) if number in reasons}
    sources = tuple(source for number, source in enumerate(refs.sources) if number not in reasons)
    required = {source.address for source in sources}
    absent = {source.address for source in lost.values()} - required
    unreadable = [
        UnreadableTable(source.table_name, reasons[number], source.address, table_uuid=source.table_uuid)
        for number, source in enumerate(refs.sources)
        if number in reasons
    ]
    return replace(
        refs,
        refs=tuple(ref for ref in refs.refs if (ref.table_uuid, ref.table_name) not in lost),
        sources=sources,
        claims=tuple(_claims_without(refs, {source.table_uuid for source in sources}, lost.values())),
        pinned=tuple(replace(root, must_exist=False) if root.address in absent else root for root in refs.pinned),
        unreadable=(*refs.unreadable, *unreadable),
    )


def _claims_without(refs: FrozenRefs, readable: Collection[str | None], lost: Collection[CommitSource]) -> Iterator[Claim]:
    """Yield the claims of readable tables and of the lake, and then shields for lost tables.

    A shield is a prefix in which no file is collected.
    """
    yield from (claim for claim in refs.claims if claim.table_uuid is None or claim.table_uuid in readable)
    locations = {(source.table_name, find_table_location(source.address)) for source in lost}
    locations |= {(source.table_name, claim.address) for claim in refs.claims for source in lost if claim.table_uuid == source.table_uuid}
    yield from (Claim(address, None, name, collect=False) for name, address in sorted(locations, key=str))


def refs_digest(refs: FrozenRefs) -> str:
    """Return a digest of refs, ref settings, table metadata and claims, in any order."""
    rows: list[Any] = [
        [ref.table_uuid, ref.ref_name, ref.ref_type, ref.head_commit_id, sorted(ref.properties.items())] for ref in refs.refs
    ]
    rows += [[claim.table_uuid, claim.address, claim.collect] for claim in refs.claims]
    rows += [[source.table_uuid, source.address] for source in refs.sources]
    rows += [["unread", item.table_name, item.table_uuid or item.address] for item in refs.unreadable]
    rows += [["prefix", *item] for item in (refs.named_prefixes.prefixes.items() if refs.named_prefixes is not None else ())]
    return hashlib.sha256(json.dumps(sorted(rows, key=json.dumps)).encode()).hexdigest()


def read_frozen_refs(context: RunContext, lake_name: str, published: PublishedTable) -> FrozenRefs:
    """Read the published result of `Lake.freeze`, without uncommitted objects."""
    state, kind = context.state, context.config.lake(lake_name).kind
    table = read_rows(state, LAKE_REFS, published).to_pylist(maps_as_pydicts="strict")
    summary = published.summary(LakeRefsSummary)
    return FrozenRefs(
        lake=lake_name,
        kind=kind,
        refs=tuple(Ref(**row) for row in table),
        sources=tuple(CommitSource(**row) for row in read_side_rows(context, published, SOURCES_SIDE, SOURCES)),
        claims=tuple(Claim(**_without_location(row)) for row in read_side_rows(context, published, CLAIMS_SIDE, CLAIMS)),
        pinned=tuple(ContentRoot(**_without_location(row)) for row in read_side_rows(context, published, PINNED_SIDE, PINNED)),
        notes=summary.notes,
        min_age_seconds=summary.min_age_seconds,
        unreadable=tuple(UnreadableTable(item.table_name, item.why, item.address, table_uuid=item.table_uuid) for item in summary.unread),
        named_prefixes=frozen_prefixes(published),
    )


def frozen_prefixes(published: PublishedTable) -> NamedPrefixes | None:
    """Return the prefixes that containers refer to by name, or None if the lake has none."""
    summary = published.summary(LakeRefsSummary)
    return None if summary.named_prefixes is None else NamedPrefixes(summary.named_prefixes, summary.named_prefixes_error)


def read_side_rows(context: RunContext, published: PublishedTable, side: str, schema: pa.Schema) -> list[dict[str, Any]]:
    """Read a side table of a published table into memory, as dictionaries."""
    return read_parts(context.state.files, published.paths(side), schema).to_pylist(maps_as_pydicts="strict")


def _describe_unresolved(refs: FrozenRefs, resolver: KeyResolver) -> Iterator[str]:
    """Yield a note for each location that is not claimed because its address cannot be resolved.

    If the lake needs files at such an address, their table is unreadable, or the address is
    reported as unknown.
    """
    for claim in refs.claims:
        if (problem := resolver.find_problem(claim.address)) is not None:
            subject = f"table {claim.table_name}" if claim.table_name is not None else f"lake {refs.lake}"
            yield f"{subject}: the location {claim.address} is not claimed, because it cannot be found: {problem}"


def _build_side_tables(
    refs: FrozenRefs,
    resolver: KeyResolver,
    resolve: Callable[[KeyResolver, pa.Array], tuple[pa.Array, pa.Array]] = KeyResolver.locate,
) -> dict[str, pa.Table]:
    sources = [{**to_row(item), "properties": list(item.properties.items())} for item in refs.sources]
    resolved = {CLAIMS_SIDE: refs.claims, UNCOMMITTED_SIDE: refs.uncommitted, PINNED_SIDE: refs.pinned}
    sides = {
        side: _resolve([to_row(item) for item in items], _SIDE_TABLES[side], partial(resolve, resolver)) for side, items in resolved.items()
    }
    views = pa.Table.from_pylist([to_row(item) for item in refs.views], VIEWS)
    return {SOURCES_SIDE: pa.Table.from_pylist(sources, SOURCES), **sides, VIEWS_SIDE: views, LINKS_SIDE: build_links(resolver)}


def _resolve(rows: list[dict[str, Any]], schema: pa.Schema, resolve: Callable[[pa.Array], tuple[pa.Array, pa.Array]]) -> pa.Table:
    """Resolve the address of each row, and add its storage and canonical key."""
    unresolved = pa.schema([field for field in schema if field.name not in {"storage", "key"}])
    table = pa.Table.from_pylist(rows, unresolved)
    storage, key = resolve(table.column("address").combine_chunks())
    return table.append_column("storage", storage).append_column("key", key).select(schema.names).cast(schema)


def _without_location(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"storage", "key", "location_of"}}


def _list_unread(refs: FrozenRefs) -> tuple[UnreadTable, ...]:
    return tuple(
        UnreadTable(table_name=item.table_name, why=item.reason, address=item.address, table_uuid=item.table_uuid)
        for item in refs.unreadable
    )


def _ref_row(ref: Ref) -> dict[str, Any]:
    return {**to_row(ref), "properties": list(ref.properties.items())}
