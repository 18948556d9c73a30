"""Remember the tables of all lakes from one accepted run to the next (`core/dropped_tables.py`).

Remembered tables are stored in a side table of `orphan_files`. Each run starts from the last
accepted run. Therefore, a refused run, for example one with an incomplete table list, does not
change the remembered tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import to_row
from gc_assets.core.claims import PrefixClaim
from gc_assets.core.dropped_tables import REPOSITORY, TABLE, LakeTables, RememberedTable, remember_tables
from gc_assets.core.untrusted_input import normalize_uuid
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import as_repository
from gc_assets.stages.mark.deleted_repositories import find_read_repository, identify, is_never_read
from gc_assets.stages.mark.lake_refs import locate_catalog
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.stages.records.accepted_runs import accepted_runs
from gc_assets.stages.records.newest_sweeps import open_sweep
from gc_assets.stages.records.verified_tables import HistoryName, VerifiedTable, read_verified_tables, record_verified_tables
from gc_assets.stages.sweep.known_tables import KnownTable, known_tables
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_CONTENTS, LIVE_FILES
from gc_assets.state.side_tables import (
    DROPPED_TABLES,
    DROPPED_TABLES_SIDE,
    LOCATIONS,
    LOCATIONS_SIDE,
    SOURCES,
    SOURCES_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary, RepositorySummary

_URN: Final = "urn:uuid:"
# Keys in a snapshot's summary that identify the program that wrote the snapshot.
_WRITERS: Final = ("engine-name", "spark.app.name", "spark.app.id", "trino_query_id", "flink.job-id", "app-id")
_FIELDS: Final = tuple(item.name for item in fields(RememberedTable))


def read_memory(context: RunContext, storage_name: str) -> list[RememberedTable]:
    """Return the tables that the last accepted run of a storage remembered.

    If that run was made by an older release that did not remember tables, the result is empty.
    """
    swept = find_accepted_sweep(context, storage_name)
    return [] if swept is None else [table for table, _ in read_remembered(context, swept)]


def find_accepted_sweep(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the sweep (`orphan_files`) of the newest accepted run that still has one, or None.

    `prune` of earlier releases deleted sweeps that a refused run of the same date had replaced.
    """
    swept = (open_sweep(context, storage_name, plan) for plan in accepted_runs(context, storage_name))
    return next((sweep for sweep in swept if sweep is not None), None)


def read_remembered(context: RunContext, swept: PublishedTable) -> list[tuple[RememberedTable, dict[str, Any]]]:
    """Read the tables that a sweep remembered, each with its row of `DROPPED_TABLES`."""
    rows = read_parts(context.state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES).to_pylist()
    return [(RememberedTable(**{name: _value(name, row[name]) for name in _FIELDS}), row) for row in rows]


def _value(name: str, value: Any) -> Any:
    if name == "table_uuid":
        return normalize_uuid(value)  # earlier releases preserved the case
    if name == "noun":
        return value or TABLE
    return tuple(value) if name == "prefixes" else value


def memory_row(table: RememberedTable) -> dict[str, Any]:
    """Convert a remembered table to a row of `DROPPED_TABLES`."""
    return {**to_row(table), "prefixes": list(table.prefixes)}


def update_memory(
    context: RunContext, storage_name: str, claims: Sequence[PrefixClaim], refs: Iterable[PublishedTable]
) -> tuple[list[RememberedTable], list[LakeTables]]:
    """Return the tables to remember after this run, and the tables that its lakes list.

    Args:
        refs: `lake_refs` of all lakes.
    """
    previous = read_memory(context, storage_name)
    refs = list(refs)
    has_repositories = any(table.summary(LakeRefsSummary).repository is not None for table in refs)
    if not previous and not has_repositories and not any(claim.table is not None and claim.collect for claim in claims):
        return [], []
    lakes = list_lake_tables(context, refs, claims, known_tables(context))
    previous = _add_verified(context, _add_never_read(context, storage_name, previous, refs), lakes)
    listed = {(item.lake, item.table_uuid) for item in previous if item.gone_since is None}
    if not context.clock.is_rehearsal and not {uuid for _, uuid in listed} <= frozenset[str]().union(*(lake.uuids for lake in lakes)):
        missed_at = context.store(storage_name).now()
        lakes = [replace(lake, missed_at=missed_at) for lake in lakes]
    remembered = remember_tables(previous, lakes)
    return [
        replace(item, last_writer=_find_writer(context, item))
        if item.gone_since is not None and (item.lake, item.table_uuid) in listed
        else item
        for item in remembered
    ], lakes


def _add_never_read(
    context: RunContext, storage_name: str, previous: Sequence[RememberedTable], refs: Iterable[PublishedTable]
) -> list[RememberedTable]:
    """Add repositories that were deleted before the first run to the remembered tables.

    If a run reads the repository of such a lake, it may be the deleted one, so its entry is
    removed. Entries are also removed if their location or server is no longer the configured one.
    If a user accepted a repository on another server, this acceptance does not apply to the new
    entry.
    """
    found = list(previous)
    for table in refs:
        lake, summary = table.receipt.owner, table.summary(LakeRefsSummary)
        repository, opened = summary.repository, as_repository(context.lake(lake))
        if opened is None or repository is None:
            continue
        is_dropped = repository.never_read and repository.deleted
        if is_dropped or find_read_repository(summary) is not None:
            uuid, catalog = identify(repository).uuid, catalog_identity(context, lake)
            others = [
                item for item in found if item.lake == lake and is_never_read(item) and (item.table_uuid, item.catalog) != (uuid, catalog)
            ]
            is_moved = any(item.table_uuid == uuid for item in others)
            found = [item for item in found if item not in others]
            if is_dropped and not any(item.table_uuid == uuid for item in found):
                storage, key = context.resolver().locate_one(opened.claimed_location(repository.namespace)) or ("", "")
                last_seen = context.clock.now() if is_moved else repository.read_at
                if storage == storage_name:
                    found.append(_remember_repository(context, lake, repository, (f"{key.rstrip('/')}/",), last_seen))
    return found


def _add_verified(context: RunContext, previous: Sequence[RememberedTable], lakes: Sequence[LakeTables]) -> list[RememberedTable]:
    """Update tables that this run is the first to miss with the metadata last read by an apply."""
    listed = frozenset[str]().union(*(lake.uuids for lake in lakes))
    missed = {item.lake for item in previous if item.gone_since is None and item.table_uuid not in listed}
    verified = {lake: read_verified_tables(context, lake) for lake in missed}
    found: list[RememberedTable] = []
    for item in previous:
        record = verified.get(item.lake, {}).get(item.table_uuid) if item.gone_since is None else None
        if record is not None and record.catalog == item.catalog and record.at > item.last_seen:
            newest_ms, address = max(item.newest_ms, record.newest_ms), record.metadata_location or item.metadata_location
            item = replace(item, last_seen=record.at, newest_ms=newest_ms, metadata_location=address)
        found.append(item)
    return found


def record_verified(context: RunContext, mark: RunContext, refs: Iterable[PublishedTable], edited: Collection[HistoryName]) -> None:
    """Record the tables edited by an apply, in the state that it read afterwards.

    Args:
        mark: The run context of the verification mark.
        refs: `lake_refs` of the mark.
        edited: Lakes and UUIDs of the tables that the apply edited.
    """
    tables = {lake: {uuid for name, uuid in edited if name == lake and uuid is not None} for lake, _ in edited}
    known = known_tables(mark) if any(tables.values()) else {}
    for table in refs:
        lake, summary = table.receipt.owner, table.summary(LakeRefsSummary)
        wanted = tables.get(lake, set())
        if not wanted:
            continue
        unreadable = {item.table_uuid for item in mark.table(LIVE_FILES, lake).summary(LiveFilesSummary).unreadable}
        _, addresses = _read_catalog(mark, table)
        catalog = catalog_identity(mark, lake)
        record_verified_tables(
            context,
            lake,
            [
                VerifiedTable(
                    table_uuid=uuid,
                    catalog=catalog,
                    at=summary.frozen_at,
                    metadata_location=addresses[uuid],
                    newest_ms=known[uuid].newest,
                    rehearsal=context.clock.is_rehearsal,
                )
                for uuid in sorted(wanted & addresses.keys() & known.keys() - unreadable)
            ],
        )


def list_lake_tables(
    context: RunContext, refs: Iterable[PublishedTable], claims: Sequence[PrefixClaim] = (), known: Mapping[str, KnownTable] | None = None
) -> list[LakeTables]:
    """Return the tables that each lake lists in this run or verification mark.

    Args:
        refs: `lake_refs` of all lakes.
        claims: The claims on a storage, which contain the prefixes of the tables.
        known: The known tables, keyed by table UUID.
    """
    refs = list(refs)
    first = min((table.summary(LakeRefsSummary).frozen_at for table in refs), default=None)
    lakes = [_list_tables(context, table, claims, known or {}) for table in refs]
    return [replace(lake, tables=tuple(replace(table, last_run=first) for table in lake.tables)) for lake in lakes]


def catalog_identity(context: RunContext, lake_name: str) -> str:
    """Identify the catalog or server from which the run read a lake, without secrets.

    Runs of releases before 0.4 did not record the catalog. For these, the configured catalog is
    returned.
    """
    refs = context.find(LAKE_REFS, lake_name)
    summary = None if refs is None else refs.summary(LakeRefsSummary)
    repository = None if summary is None else summary.repository
    server_id = f" {repository.server_id}" if repository is not None and repository.server_id is not None else ""
    read_from = None if summary is None else summary.catalog
    return f"{read_from or locate_catalog(context, lake_name)}{server_id}"


def _list_tables(context: RunContext, refs: PublishedTable, claims: Sequence[PrefixClaim], known: Mapping[str, KnownTable]) -> LakeTables:
    lake, summary = refs.receipt.owner, refs.summary(LakeRefsSummary)
    catalog = catalog_identity(context, lake)  # opens a table, so it is not repeated for each table of the lake
    live = context.table(LIVE_FILES, lake)
    unreadable = live.summary(LiveFilesSummary).unreadable
    names, addresses = _read_server(context, lake) if context.kind(lake).has_live_contents else _read_catalog(context, refs)
    unreadable_uuids = frozenset(item.table_uuid for item in unreadable if item.table_uuid is not None)
    tables = tuple(
        RememberedTable(
            lake,
            uuid,
            names[uuid],
            catalog,
            tuple(sorted({claim.prefix for claim in found})),
            summary.frozen_at,
            claims_by_uuid=found[0].owner.table_uuid is not None,
            metadata_location=addresses.get(uuid),
            newest_ms=known[uuid].newest,
        )
        for uuid, found in sorted(_group_claims(lake, claims).items())
        if uuid in names and uuid not in unreadable_uuids and uuid in known
    )
    repository = _find_repository(context, refs, claims)
    if repository is not None:
        names, tables = {**names, repository.table_uuid: repository.table_name}, (*tables, repository)
    return LakeTables(
        lake,
        catalog,
        summary.frozen_at,
        tables,
        frozenset(names) | unreadable_uuids,
        unreadable_uuids,
        {name: uuid for uuid, name in names.items() if name is not None},
        frozenset(item.table_name for item in (*unreadable, *summary.unread) if item.table_name is not None),
        any(item.is_whole_lake for item in unreadable),
        oldest_ms={uuid: item.oldest for uuid, item in known.items() if item.oldest is not None},
        longest_write=max(storage.grace for storage in context.config.storages),
    )


def _group_claims(lake_name: str, claims: Iterable[PrefixClaim]) -> dict[str, list[PrefixClaim]]:
    """Return the claims of a lake's readable tables, keyed by table UUID."""
    found: dict[str, list[PrefixClaim]] = {}
    for claim in claims:
        if claim.owner.lake == lake_name and claim.table is not None and claim.collect and not claim.is_unread:
            found.setdefault(claim.table.removeprefix(_URN), []).append(claim)
    return found


def _find_repository(context: RunContext, refs: PublishedTable, claims: Sequence[PrefixClaim]) -> RememberedTable | None:
    """Return the lake's repository as a table, or None if this run did not read a repository."""
    lake, summary = refs.receipt.owner, refs.summary(LakeRefsSummary)
    found = find_read_repository(summary)
    if found is None:
        return None
    own = (claim for claim in claims if claim.owner.lake == lake and claim.table is None and claim.collect)
    prefixes = {claim.prefix for claim in own if claim.names is None}
    return _remember_repository(context, lake, found, tuple(sorted(prefixes)), summary.frozen_at)


def _remember_repository(
    context: RunContext, lake: str, found: RepositorySummary, prefixes: tuple[str, ...], last_seen: datetime
) -> RememberedTable:
    return RememberedTable(
        lake,
        identify(found).uuid,
        found.name,
        catalog_identity(context, lake),
        prefixes,
        last_seen,
        claims_by_uuid=False,
        metadata_location=found.namespace,
        noun=REPOSITORY,
    )


def _read_catalog(context: RunContext, refs: PublishedTable) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the names and metadata addresses of a catalog's tables, both keyed by table UUID."""
    rows = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name"]).to_pylist()
    sources = read_parts(context.state.files, refs.paths(SOURCES_SIDE), SOURCES, ["table_uuid", "address"]).to_pylist()
    names = {row["table_uuid"]: row["table_name"] for row in rows if row["table_uuid"] is not None}
    return names, {row["table_uuid"]: row["address"] for row in sources if row["table_uuid"] is not None}


def _read_server(context: RunContext, lake: str) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the names and metadata addresses of tables in retained commits, by table UUID."""
    contents = read_rows(
        context.state, LIVE_CONTENTS, context.table(LIVE_CONTENTS, lake), columns=["metadata_location", "content_key", "at_head"]
    )
    paths = context.state.paths(find_segments(context, lake), LOCATIONS_SIDE)
    places = read_parts(context.state.files, paths, LOCATIONS, ["container", "address", "kind"])
    of_tables = pc.and_(
        pc.equal(places.column("kind"), Kind.TABLE_UUID), pc.is_in(places.column("container"), contents["metadata_location"])
    )
    uuids = {row["container"]: row["address"].removeprefix(_URN) for row in places.filter(of_tables).to_pylist()}
    names: dict[str, str | None] = {}
    addresses: dict[str, str] = {}
    for row in sorted(contents.to_pylist(), key=lambda row: bool(row["at_head"])):
        uuid = uuids.get(row["metadata_location"])
        if uuid is not None:
            names[uuid], addresses[uuid] = row["content_key"], row["metadata_location"]
    return names, addresses


def _find_writer(context: RunContext, table: RememberedTable) -> str | None:
    """Return the program that wrote the table's newest commit in the last commit graph, if known."""
    graph = context.state.latest(table.lake, COMMIT_GRAPH.name, before=table.last_seen.date() + timedelta(days=1))
    if graph is None or context.kind(table.lake).has_live_contents:
        return None
    rows = read_rows(context.state, COMMIT_GRAPH, graph, columns=["table_uuid", "committed_at", "summary"])
    mine = rows.filter(pc.equal(rows.column("table_uuid"), table.table_uuid)).to_pylist(maps_as_pydicts="strict")
    if not mine:
        return None
    summary: Mapping[str, str] = max(mine, key=itemgetter("committed_at"))["summary"] or {}
    return next((summary[name] for name in _WRITERS if summary.get(name)), None)


def memory_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build a table with the `DROPPED_TABLES` columns."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=DROPPED_TABLES)
