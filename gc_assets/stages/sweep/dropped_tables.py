"""Find a storage's dropped tables, and the files that belong to them (`core/dropped_tables.py`).

A sweep decides which dropped tables are due, which means that their files may be deleted, and
publishes the result next to `orphan_files`. Plans and applies read this result. Everything that may
have changed since the sweep is checked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.config.models import LakeConfig
from gc_assets.core.claims import Claims, Owner, PrefixClaim
from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import (
    FORGET_AFTER,
    REPOSITORY,
    TABLE,
    DroppedPrefixes,
    DroppedTable,
    FormerFiles,
    LakeTables,
    RememberedTable,
    find_gone_namespaces,
    find_later_use,
    find_reason_to_wait,
    select_due,
    with_oldest_files,
)
from gc_assets.core.errors import GcError
from gc_assets.core.foreign import OTHER_FORMAT, ClaimAges, ForeignRules
from gc_assets.core.hashing import xxhash64
from gc_assets.core.moments import from_micros
from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.plan import Unreadable
from gc_assets.core.printable import show, to_message
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.stored_hashes import StoredHashes
from gc_assets.engine.tables import MAX_SAMPLES, ROUTE, WrittenParts, spark_schema, write_parts
from gc_assets.lakes.protocol import as_listing, as_repository
from gc_assets.stages.mark.deleted_repositories import find_read_repository, identify, is_never_read
from gc_assets.stages.records.dead_tables import dead_tables, read_table_id
from gc_assets.stages.records.newest_sweeps import find_sweep, list_newest_sweeps
from gc_assets.stages.records.set_aside import with_set_aside
from gc_assets.stages.sweep.adopted_files import NO_ADOPTED_FILES, AdoptedFiles, find_adopted_files
from gc_assets.stages.sweep.claims import claims_of, collector_paths, effective_claims
from gc_assets.stages.sweep.clock_lead import first_freeze
from gc_assets.stages.sweep.foreign_files import FOREIGN, ForeignFinder
from gc_assets.stages.sweep.foreign_metadata import StoragePrefix, directory_of
from gc_assets.stages.sweep.known_tables import KnownTable
from gc_assets.stages.sweep.listings import Listing
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.stages.sweep.table_memory import (
    catalog_identity,
    list_lake_tables,
    memory_row,
    memory_table,
    read_remembered,
    update_memory,
)
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartFile, read_parts
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import (
    ADOPTABLE,
    ADOPTABLE_SIDE,
    ADOPTED_SIDE,
    CANDIDATES,
    DEFERRED_SIDE,
    DROPPED_FILES,
    DROPPED_TABLES_SIDE,
)
from gc_assets.state.summaries import DroppedTableSummary, GoneNamespaceSummary, LakeRefsSummary, LiveFilesSummary, OrphanFilesSummary
from gc_assets.stores.protocol import Store

# Value of the `reason` column in `orphan_files`.
DROPPED: Final = "dropped"
# States of a dropped table's file.
DUE, WAITS = "due", "waits"
_LISTED: Final = pa.schema([STORAGE_INVENTORY.schema.field(name) for name in ("key", "size_bytes", "last_modified")])
_NOTHING: Final = DroppedPrefixes(())
# Every task that searches for adopted files holds their hashes and times, with 16 bytes each.
MAX_ADOPTABLE: Final = 2_000_000


@dataclass(frozen=True)
class DroppedTables:
    """Tables that a storage's sweeps remember, including the dropped ones.

    Attributes:
        remembered: All tables that the next run needs.
        prefixes: The dropped tables, indexed by the prefixes that they claimed.
        lakes: The tables that each lake currently lists.
        adopted: Files that the remembered tables referenced outside their claims.
        notes: Why some of the adopted files are unknown.
    """

    remembered: tuple[RememberedTable, ...] = ()
    prefixes: DroppedPrefixes = _NOTHING
    lakes: tuple[LakeTables, ...] = ()
    adopted: AdoptedFiles = NO_ADOPTED_FILES
    notes: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[DroppedTable, ...]:
        return self.prefixes.tables

    @property
    def claims(self) -> list[PrefixClaim]:
        return build_claims(self.prefixes)

    def build_known(self) -> dict[str, KnownTable]:
        """Return the dropped tables as known tables, by table UUID."""
        return {item.table.table_uuid: KnownTable(item.table.newest_ms, in_use=False, dropped=True) for item in self.tables}

    def summary(self) -> dict[str, Any]:
        """Return the fields of `OrphanFilesSummary` about dropped tables."""
        shown = sorted(
            (item for item in self.tables if item.former_files.count), key=lambda item: (not item.is_due, -item.former_files.bytes)
        )
        due = [item for item in shown if item.is_due and item.accepted_at is None and item.table.is_missed]
        lost = {
            f"lake {item.table.lake} has lacked {item.table.lost_amount} since {item.table.gone_since:%Y-%m-%d}"
            for item in due
            if item.table.noun == REPOSITORY or 2 * item.table.lost_tables > item.table.known_tables
        }
        return {
            "dropped": tuple(_summarize(item) for item in shown[:MAX_SAMPLES]),
            "dropped_tables": len(self.tables),
            "dropped_due": len(due),
            "lost_tables": tuple(sorted(lost)),
            "gone_namespaces": tuple(
                GoneNamespaceSummary(lake=item.lake, name=item.name, tables=item.tables)
                for item in find_gone_namespaces(self.tables, self.lakes)
            ),
        }

    def metadata_directories(self, context: RunContext, storage_name: str) -> set[tuple[str, str]]:
        """Return the directories of dropped tables' newest known metadata, each with its lake."""
        resolver, found = context.resolver(), set[tuple[str, str]]()
        for table in (item.table for item in self.tables):
            resolved = resolver.locate_one(table.metadata_location) if table.metadata_location is not None else None
            if resolved is not None and resolved[0] == storage_name:
                found.add((table.lake, directory_of(resolved[1])))
        return found

    def contains(self, storage_name: str, place: StoragePrefix) -> bool:
        """Check whether only dropped tables claim a prefix."""
        return place.storage == storage_name and SuspectSplit(self.prefixes).find_prefix(place.prefix) is not None

    def explain_foreign(self, found: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Return why foreign metadata (key, reason) delays dropped tables, keyed by claimed prefix."""
        split, reasons = SuspectSplit(self.prefixes), dict[str, str]()
        for key, reason in sorted(found):
            if (prefix := split.find_prefix(key)) is not None:
                reasons.setdefault(prefix, f"{show(key)} is {reason}")
        return reasons

    def add_adopted(self, storage_name: str, keys: LiveKeys, files: Files, probed: WrittenParts, run: TableRun) -> DroppedTables:
        """Return a copy in which listed tables own the older files that their commits reference.

        If there are too many older files to compare, these tables own files of any age.

        Args:
            storage_name: Name of the storage.
            keys: Hashes of its live keys.
            files: The files of the state.
            probed: Parts of `run`, with the files that tables may have adopted.
            run: The run of `orphan_files`.
        """
        if not (count := probed.side_rows(ADOPTABLE_SIDE)):
            return self
        if count > MAX_ADOPTABLE:
            return replace(
                self, remembered=tuple(replace(item, owns_from=None) if item.gone_since is None else item for item in self.remembered)
            )
        rows = read_parts(files, probed.paths(run, ADOPTABLE_SIDE), ADOPTABLE)
        first = rows.group_by("key_hash").aggregate([("modified_us", "min")]).sort_by("key_hash")
        hashes, times = first.column("key_hash").to_numpy(), first.column("modified_us_min").to_numpy()
        with_limit = {item.lake for item in self.remembered if item.gone_since is None and item.owns_from is not None}
        oldest = {
            (item.lake, table_uuid): from_micros(time)
            for item, lake in zip(keys.sets, keys.lakes, strict=True)
            if item.lake in with_limit
            for table_uuid, time in lake.oldest_by_table(storage_name, hashes, times).items()
        }
        return replace(self, remembered=tuple(with_oldest_files(self.remembered, oldest)))

    def hold(self, reasons: Mapping[str, str]) -> DroppedTables:
        """Return a copy in which tables under the given prefixes are marked as written.

        A table that was due waits for the reason given for its prefix instead.
        """
        tables = tuple(
            replace(item, waits_for=item.waits_for or why, is_written=True)
            if (why := next((reasons[at] for at in item.table.prefixes if at in reasons), None)) is not None
            else item
            for item in self.tables
        )
        return replace(self, prefixes=DroppedPrefixes(tables, self.prefixes.present, self.prefixes.of_lakes))

    def find_files(self, foreign: ForeignFinder | None, rules: ForeignRules) -> DroppedFinder | None:
        """Return the task that finds files of dropped tables, or None if no such file can exist."""
        if not (self.tables or self.adopted.rows):
            return None
        return DroppedFinder.of(self.prefixes, foreign, rules, self.adopted)

    def write(self, context: RunContext, run: TableRun) -> dict[str, tuple[PartFile, ...]]:
        """Write the remembered tables and their adopted files to side tables of the run."""
        states = {(item.table.lake, item.table.table_uuid): item for item in self.tables}
        rows = [
            {**memory_row(table), **_state_row(states.get((table.lake, table.table_uuid)))}
            for table in self.remembered
            if not _is_forgotten(states.get((table.lake, table.table_uuid)), context.clock.now())
        ]
        if not rows:
            return {}
        files = context.state.files
        written = {DROPPED_TABLES_SIDE: tuple(write_parts(memory_table(rows), run, files, DROPPED_TABLES_SIDE))}
        return {**written, ADOPTED_SIDE: self.adopted.write(files, run, ((row["lake"], row["table_uuid"]) for row in rows))}


def _summarize(item: DroppedTable) -> DroppedTableSummary:
    table = item.table
    return DroppedTableSummary(
        lake=table.lake,
        table_uuid=table.table_uuid,
        table_name=table.table_name,
        files=item.former_files.count,
        bytes=item.former_files.bytes,
        last_seen=table.last_seen,
        gone_since=table.gone_since or table.last_seen,
        last_writer=table.last_writer,
        waits_for=item.waits_for,
        noun=table.noun,
    )


NO_DROPPED_TABLES: Final = DroppedTables()


def add_dropped(known: Mapping[str, KnownTable], dropped: DroppedTables) -> dict[str, KnownTable]:
    """Add dropped tables to the known tables. If a table is in both, the newer entry has priority."""
    found = dict(known)
    for uuid, item in dropped.build_known().items():
        if uuid not in found or found[uuid].newest < item.newest:
            found[uuid] = item
    return found


def _is_forgotten(item: DroppedTable | None, now: datetime) -> bool:
    gone_since = item.table.gone_since if item is not None else None
    return item is not None and gone_since is not None and not item.former_files.count and now - gone_since > FORGET_AFTER


def _state_row(item: DroppedTable | None) -> dict[str, Any]:
    if item is None:
        return {}
    return {
        "waits_for": None if item.waits_for is None else to_message(item.waits_for),
        "due_at": item.due_at,
        "accepted_at": item.accepted_at,
        "shares_location": item.shares_location,
        "files": item.former_files.count,
        "bytes": item.former_files.bytes,
        "newest_file": item.former_files.newest,
        "newest_key": item.former_files.newest_key,
    }


def find_dropped_tables(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    refs: Sequence[PublishedTable],
    live: Sequence[PublishedTable],
    listing: Listing,
    run: TableRun,
) -> DroppedTables:
    """Determine which tables to remember after this run, and the states of dropped tables.

    Args:
        refs: `lake_refs` of all lakes.
        live: `live_files` of all lakes.
        listing: The listing of the storage that the sweep uses.
        run: The run of `orphan_files`, to which tasks write the files that dropped tables adopted.
    """
    claims, _ = effective_claims(context, storage_name, [*refs, *live])
    remembered, lakes = update_memory(context, storage_name, claims, refs)
    gone = [item for item in remembered if item.gone_since is not None]
    read = {(table.lake, table.table_uuid) for lake in lakes for table in lake.tables}
    unread = {(item.lake, item.table_uuid) for item in remembered} - read
    if not gone:
        adopted, notes = find_adopted_files(spark, context, storage_name, _NOTHING, (), unread, run)
        return DroppedTables(tuple(remembered), adopted=adopted, notes=notes)
    present, of_lakes = _present_prefixes(context, storage_name, claims)
    bare = DroppedPrefixes(tuple(map(DroppedTable, gone)), present, of_lakes)
    times = {lake.lake: lake.waits_from for lake in lakes}
    missed = [number for number, item in enumerate(gone) if item.noun == TABLE and item.gone_since == times.get(item.lake)]
    adopted, notes = find_adopted_files(spark, context, storage_name, bare, missed, unread, run)
    accepted = _accepted_times(context, storage_name, gone)
    tables = tuple(
        replace(item, accepted_at=accepted.get(index), shares_location=all(map(bare.is_shared, item.table.prefixes)))
        for index, item in enumerate(bare.tables)
    )
    found = DroppedPrefixes(tables, present, of_lakes)
    sums = _sum_former_files(spark, context, found, listing.inventory)
    frozen_at = first_freeze(refs)
    now = min(frozen_at, listing.as_of or frozen_at)
    decided = [replace(item, former_files=sums.get(index, FormerFiles())) for index, item in enumerate(tables)]
    unreadable = _list_unreadable(context, live)
    decided = [_add_state(context, item, now, unreadable, is_new=item.table.gone_since == times.get(item.table.lake)) for item in decided]
    if listing.is_earlier:
        decided = [item if item.waits_for is not None else replace(item, waits_for="this run did not list the storage") for item in decided]
    decided = _confirm_repositories(context, _confirm(context, _hold_used(context, storage_name, decided), lakes), claims)
    prefixes = DroppedPrefixes(tuple(decided), present, of_lakes)
    if prefixes.has_several_owners:
        prefixes = _count_again(prefixes, _sum_former_files(spark, context, prefixes, listing.inventory))
    return DroppedTables(tuple(remembered), prefixes, tuple(lakes), adopted, notes)


def _count_again(found: DroppedPrefixes, sums: Mapping[int, FormerFiles]) -> DroppedPrefixes:
    """Count files of dropped tables again, because the states of the tables decide who owns a file."""
    counted = (sums.get(index, FormerFiles()) for index in range(len(found.tables)))
    return replace(
        found,
        tables=tuple(
            replace(item, former_files=replace(item.former_files, count=new.count, bytes=new.bytes))
            for item, new in zip(found.tables, counted, strict=True)
        ),
    )


def load_dropped_tables(
    context: RunContext, storage_name: str, tables: Sequence[PublishedTable], *, confirm: bool = False
) -> DroppedPrefixes:
    """Return the dropped tables that a sweep found (see `find_sweep`), with their current states.

    Tables that a lake lists again are omitted. Waiting times and unreadable tables are evaluated
    for the current time, because an apply may run long after the sweep.

    Args:
        context: The context of the run, or of a verification mark.
        tables: `lake_refs` and `live_files` of all lakes.
        confirm: If True, ask catalogs and servers again for the name of each due table, because the
            table may have returned to a catalog that hides it.
    """
    swept = find_sweep(context, storage_name)
    if swept is None or not swept.summary(OrphanFilesSummary).dropped_tables:
        return _NOTHING
    rows = [pair for pair in read_remembered(context, swept) if pair[0].gone_since is not None]
    refs = [table for table in tables if table.receipt.asset == LAKE_REFS.name]
    live = [table for table in tables if table.receipt.asset == LIVE_FILES.name]
    if not rows or {table.receipt.owner for table in live} != {lake.name for lake in context.config.lakes} or len(refs) < len(live):
        return _NOTHING
    lakes = list_lake_tables(context, refs)
    listed = frozenset[str]().union(*(lake.uuids for lake in lakes))
    claims, _ = effective_claims(context, storage_name, tables)
    present, of_lakes = _present_prefixes(context, storage_name, claims)
    now, unreadable = context.clock.now(), _list_unreadable(context, live)
    stored = _without_withdrawn(context, storage_name, [_stored_table(*pair) for pair in rows if pair[0].table_uuid not in listed])
    decided = [item if item.waits_for is not None else _add_state(context, item, now, unreadable) for item in stored]
    decided = _hold_used(context, storage_name, decided)
    if confirm:
        decided = _confirm_repositories(context, _confirm(context, decided, lakes), claims)
    return DroppedPrefixes(tuple(decided), present, of_lakes)


def _without_withdrawn(context: RunContext, storage_name: str, stored: list[DroppedTable]) -> list[DroppedTable]:
    """Remove acceptances that users have withdrawn since the sweep."""
    accepted = _accepted_times(context, storage_name, [item.table for item in stored])
    return [item if index in accepted else replace(item, accepted_at=None) for index, item in enumerate(stored)]


def _hold_used(context: RunContext, storage_name: str, decided: list[DroppedTable]) -> list[DroppedTable]:
    """Make due tables wait if a newer sweep, or one of another storage, found them in use.

    A plan may be older than these sweeps, and a table may have its metadata in one storage and its
    data in another. Tables in use are also marked as written.
    """
    if not decided:
        return decided
    by_storage = {
        swept.receipt.owner: [_stored_table(*pair) for pair in read_remembered(context, swept)] for swept in list_newest_sweeps(context)
    }
    records = [record for found in by_storage.values() for record in found]
    found: list[DroppedTable] = []
    for item in decided:
        reason = find_later_use(item, records) or _find_unconfirmed(context, storage_name, item, by_storage)
        is_written = reason is not None or item.has_newer_file
        found.append(replace(item, waits_for=reason if item.is_due else item.waits_for, is_written=is_written))
    return found


def _find_unconfirmed(
    context: RunContext, storage_name: str, item: DroppedTable, by_storage: Mapping[str, Sequence[DroppedTable]]
) -> str | None:
    """Return why a dropped table must wait for the storage with its metadata, or None.

    If another catalog wrote metadata of the table, only the sweep of that storage can find it.
    """
    location = item.table.metadata_location
    resolved = None if location is None else context.resolver().locate_one(location)
    if resolved is None or resolved[0] == storage_name:
        return None
    record = next((record for record in by_storage.get(resolved[0], ()) if record.table.table_uuid == item.table.table_uuid), None)
    if record is not None:
        reason = record.waits_for if record.table.gone_since is not None else "the last run of this storage found the table in its catalog"
        return None if reason is None else f"its metadata is in storage {resolved[0]}: {reason}"
    if item.accepted_at is not None:
        return None
    name = item.table.table_name or item.table.table_uuid
    return (
        f"its metadata is in storage {resolved[0]}, whose last run has no record of the table. To collect its files: "
        f"{command('accept', name, by='WHO', comment='WHY')}"
    )


def find_stored(context: RunContext, storage_name: str) -> DroppedPrefixes:
    """Return the dropped tables, with the state that the sweep of this run date recorded for each."""
    swept = context.state.current(storage_name, ORPHAN_FILES.name, context.run_date)
    if swept is None or not swept.summary(OrphanFilesSummary).dropped_tables:
        return _NOTHING
    rows = [pair for pair in read_remembered(context, swept) if pair[0].gone_since is not None]
    lakes = [lake.name for lake in context.config.lakes]
    tables = [found for lake in lakes for table in (LAKE_REFS, LIVE_FILES) if (found := context.find(table, lake)) is not None]
    claims, _ = effective_claims(context, storage_name, tables)
    return DroppedPrefixes(tuple(_stored_table(*pair) for pair in rows), *_present_prefixes(context, storage_name, claims))


def _stored_table(table: RememberedTable, row: Mapping[str, Any]) -> DroppedTable:
    former = FormerFiles(row["files"] or 0, row["bytes"] or 0, row["newest_file"], row["newest_key"])
    return DroppedTable(table, former, row["waits_for"], row["due_at"], row["accepted_at"], bool(row["shares_location"]))


def claims_with_dropped(context: RunContext, storage_name: str, tables: Sequence[PublishedTable]) -> Claims:
    """Return the claims on a storage, including claims of dropped tables with collected files."""
    return claims_of(context, storage_name, tables, build_claims(load_dropped_tables(context, storage_name, tables)))


def build_claims(found: DroppedPrefixes) -> list[PrefixClaim]:
    """Return the claims of the dropped tables whose files are collected."""
    return [
        PrefixClaim(
            prefix, Owner(item.table.lake, item.table.table_uuid if item.table.claims_by_uuid else None), table=item.table.claim_table
        )
        for prefix, item in select_due(found.tables, found.present)
    ]


def _present_prefixes(context: RunContext, storage_name: str, claims: Sequence[PrefixClaim]) -> tuple[frozenset[str], frozenset[str]]:
    own, _ = collector_paths(context, storage_name)
    of_lakes = {claim.prefix for claim in claims if claim.table is None and claim.collect}
    return frozenset({*(claim.prefix for claim in claims), *own}), frozenset(of_lakes)


def _accepted_times(context: RunContext, storage_name: str, gone: Sequence[RememberedTable]) -> dict[int, datetime]:
    """Return when users accepted dropped tables as dead, keyed by index in `gone`.

    Each claimed prefix needs an acceptance of the prefix or of a directory that contains it, and
    the oldest one determines the time. An acceptance that was made before a run did not find the
    table is ignored, because it refers to metadata written by another catalog.
    """
    found: dict[int, datetime] = {}
    records = dead_tables(context, storage_name)
    for index, item in enumerate(gone):
        mine = [
            record
            for record in records
            if record.table_uuid == read_table_id(item.table_uuid) and _is_about_dropped(context, storage_name, item, record.at)
        ]
        times = [max((record.at for record in mine if prefix.startswith(record.prefix)), default=None) for prefix in item.prefixes]
        known = [time for time in times if time is not None]
        if times and len(known) == len(times):
            found[index] = min(known)
    return found


def _is_about_dropped(context: RunContext, storage_name: str, table: RememberedTable, accepted_at: datetime) -> bool:
    """Check whether a table was already known to be dropped when a user accepted it.

    If the first run that did not find the table was refused, `gone_since` is later than that run.
    """
    if table.gone_since is None or accepted_at < table.last_seen:
        return False
    if accepted_at >= table.gone_since:
        return True
    sweeps = map(context.state.open, reversed(context.state.history(storage_name, ORPHAN_FILES.name)))
    seen = next((sweep for sweep in sweeps if sweep.receipt.created_at <= accepted_at), None)
    known = [other for other, _ in read_remembered(context, seen)] if seen is not None else []
    return any((other.lake, other.table_uuid) == (table.lake, table.table_uuid) and other.gone_since is not None for other in known)


def _list_unreadable(context: RunContext, live: Sequence[PublishedTable]) -> tuple[Unreadable, ...]:
    """Return the unreadable tables, including whether a user has set them aside."""
    return with_set_aside(context, tuple(item for table in live for item in table.summary(LiveFilesSummary).unreadable))


def _may_use_files(unreadable: Unreadable, item: DroppedTable) -> bool:
    """Check whether an unreadable table may use the files of a dropped table.

    Any unreadable table may have started to use these files, unless a user set it aside. If its
    UUID is unknown, it may be the dropped table under another name.
    """
    is_unknown = unreadable.table_uuid is None and unreadable.lake == item.table.lake
    return unreadable.blocks_purges or (is_unknown and item.accepted_at is None)


def _add_state(
    context: RunContext, item: DroppedTable, now: datetime, unreadable: Sequence[Unreadable], *, is_new: bool = False
) -> DroppedTable:
    lake = next((lake for lake in context.config.lakes if lake.name == item.table.lake), None)
    if lake is None:
        return find_reason_to_wait(item, now, None, None)
    reason = None if lake.collects(item.table.table_name) else "no pattern of `tables` matches it"
    if is_never_read(item.table):
        reason = _find_reason_to_keep(item, lake)
    elif reason is None:
        reason = _find_unresolved(context, item)
    names = [other.name for other in unreadable if _may_use_files(other, item)]
    return find_reason_to_wait(item, now, lake.dropped_after, catalog_identity(context, lake.name), names, reason, is_new=is_new)


def _find_unresolved(context: RunContext, item: DroppedTable) -> str | None:
    """Return why a dropped table's location cannot be resolved, if no user accepted the table."""
    location = item.table.metadata_location
    problem = None if location is None or item.accepted_at is not None else context.resolver().find_problem(location)
    return None if problem is None else f"its metadata {location} cannot be found: {problem}"


def _find_reason_to_keep(item: DroppedTable, lake: LakeConfig) -> str | None:
    """Return why the files of a repository that was never read are not collected, or None."""
    if item.table.metadata_location not in lake.own_locations():
        return f"`location` of lake {lake.label} is not {item.table.metadata_location} any more"
    if item.accepted_at is None:
        name = item.table.table_name or item.table.table_uuid
        return f"no run read the repository. To collect its files: {command('accept', name, by='WHO', comment='WHY')}"
    return None


def _confirm(context: RunContext, decided: list[DroppedTable], lakes: Sequence[LakeTables]) -> list[DroppedTable]:
    """Ask the catalogs whether each table name exists, and whether they can restore the table.

    A table list may omit tables that the account of gc-assets cannot see. If it omits one table, it
    may omit others, which may need any file. Therefore, all due tables wait. A table that can be
    restored only needs its own files.
    """
    reasons: dict[str, str] = {}
    due = [item for item in decided if item.is_due]
    if not due:
        return decided
    recoverable = _find_recoverable(context, due, lakes)
    for lake in lakes:
        names = {
            item.table.table_uuid: item.table.table_name
            for item in decided
            if item.table.lake == lake.lake
            and item.table.table_name is not None
            and not item.table.replaced
            and (item.is_due or item.former_files.count)
        }
        opened = as_listing(context.lake(lake.lake)) if names else None
        if opened is None:
            continue
        try:
            reasons |= opened.find_listed(names)
        except (GcError, OSError) as error:
            reasons |= dict.fromkeys(names, f"its catalog cannot be queried: {error}")
    others: str | None = None
    if reasons:
        example = next(item for item in decided if item.table.table_uuid in reasons)
        others = f"the table list of lake {example.table.lake} may be incomplete: {reasons[example.table.table_uuid]}"
    waits = {item.table.table_uuid: others for item in due} | recoverable | reasons
    return [replace(item, waits_for=waits[item.table.table_uuid]) if item.is_due else item for item in decided]


def _find_recoverable(context: RunContext, due: Sequence[DroppedTable], lakes: Sequence[LakeTables]) -> dict[str, str]:
    """Return why catalogs can still restore some due tables, keyed by table UUID.

    If a catalog does not respond, its tables wait unless a user has accepted them.
    """
    found: dict[str, str] = {}
    for lake in lakes:
        mine = [item for item in due if item.table.lake == lake.lake]
        opened = as_listing(context.lake(lake.lake)) if mine else None
        if opened is None:
            continue
        try:
            found |= opened.find_recoverable({item.table.table_uuid for item in due})
        except (GcError, OSError) as error:
            reason = f"its catalog does not show whether it can be restored: {error}"
            found |= {item.table.table_uuid: reason for item in mine if item.accepted_at is None}
    return found


def _confirm_repositories(context: RunContext, decided: list[DroppedTable], claims: Sequence[PrefixClaim]) -> list[DroppedTable]:
    """Ask the servers whether each due repository exists. If so, or if needed, its files wait."""
    return [replace(item, waits_for=_find_repository(context, item.table, claims)) if item.is_due else item for item in decided]


def _find_repository(context: RunContext, table: RememberedTable, claims: Sequence[PrefixClaim]) -> str | None:
    lake = as_repository(context.lake(table.lake)) if table.noun == REPOSITORY else None
    if lake is None:
        return None
    summary = context.table(LAKE_REFS, table.lake).summary(LakeRefsSummary)
    current, read = summary.repository, find_read_repository(summary)
    if current is None or table.metadata_location is None:
        return f"lake {table.lake} is unreadable"
    if current.never_read and (claim := _find_overlap(table, claims)) is not None:
        return f"lake {claim.owner.lake} claims {show(claim.prefix)}, so it is not the namespace of a deleted repository"
    successor = None if read is None else identify(read).uuid
    return lake.find_repository(table.table_uuid, table.metadata_location, current.server_id, successor, is_configured=current.never_read)


def _find_overlap(table: RememberedTable, claims: Sequence[PrefixClaim]) -> PrefixClaim | None:
    """Return a claim of another lake that overlaps a repository's former claims."""
    pairs = ((claim, prefix) for claim in claims for prefix in table.prefixes if claim.owner.lake != table.lake)
    return next((claim for claim, prefix in pairs if claim.prefix.startswith(prefix) or prefix.startswith(claim.prefix)), None)


def _sum_former_files(
    spark: SparkSession, context: RunContext, found: DroppedPrefixes, inventory: PublishedTable
) -> dict[int, FormerFiles]:
    """Count each dropped table's listed files and add up their sizes, by index of the table."""
    scan = ParquetScan.of(context.state.files, _LISTED, inventory.path, inventory.parts())
    sums: dict[int, FormerFiles] = {}
    for row in scan.run_task(spark, _SumDropped(found), spark_schema(DROPPED_FILES), inventory.rows):
        old = sums.get(row["table"], FormerFiles())
        is_newer = row["newest"] is not None and (old.newest is None or row["newest"] > old.newest)
        sums[row["table"]] = FormerFiles(
            old.count + row["files"],
            old.bytes + row["bytes"],
            row["newest"] if is_newer else old.newest,
            row["newest_key"] if is_newer else old.newest_key,
        )
    return sums


@dataclass(frozen=True)
class _SumDropped:
    """Count listed files of each dropped table (`DROPPED_FILES` columns), on Spark executors."""

    found: DroppedPrefixes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([*self._sum_own(batch), *self._find_newest(batch)], DROPPED_FILES)

    def _sum_own(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        index = self.found.find(batch.column("key"), batch.column("last_modified"))
        rows = pa.table({"table": index, "size": batch.column("size_bytes")}).filter(pc.is_valid(index))
        for row in rows.group_by("table").aggregate([([], "count_all"), ("size", "sum")]).to_pylist():
            yield {"table": row["table"], "files": row["count_all"], "bytes": row["size_sum"] or 0}

    def _find_newest(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Yield the newest file under each prefix that only dropped tables claim.

        The file is skipped if it belongs to one of the dropped tables that claim the prefix.
        """
        directories = pc.replace_substring_regex(batch.column("key"), "[^/]*$", "").dictionary_encode()
        prefixes = [self.found.find_prefix(name) for name in directories.dictionary.to_pylist()]
        unshared = [prefix if prefix is not None and not self.found.is_shared(prefix) else None for prefix in prefixes]
        mine = pa.array(unshared, pa.string()).take(directories.indices)
        rows = pa.table({"prefix": mine, "at": batch.column("last_modified"), "key": batch.column("key")})
        rows = rows.filter(pc.and_(pc.is_valid(mine), pc.is_valid(batch.column("last_modified"))))
        for row in rows.group_by("prefix").aggregate([("at", "max")]).to_pylist():
            if row["at_max"] < self.found.explained_until(row["prefix"]):
                continue
            is_newest = pc.and_(pc.equal(rows.column("prefix"), row["prefix"]), pc.equal(rows.column("at"), row["at_max"]))
            key = rows.column("key").filter(is_newest)[0].as_py()
            for index in self.found.by_prefix[row["prefix"]]:
                yield {"table": index, "files": 0, "bytes": 0, "newest": row["at_max"], "newest_key": key}


@dataclass(frozen=True)
class DroppedFinder:
    """Set the reason and route of dropped tables' files, given as rows of `ROUTED_ORPHANS`.

    A due table's file gets the `dropped` reason, unless expired history or a lifecycle rule still
    refers to it, or the ages of the dropped claims make it foreign. A file waits if a table that
    adopted it is not due. If its own table is not due, it waits too, unless a current claim
    contains it, a commit referenced it, and it is not older than this claim. It also waits if no
    commit referenced it and another catalog may write a table that claimed it.

    Attributes:
        found: The dropped tables.
        foreign: Finds foreign files among the candidates, or None.
        rules: Foreign-file rules for the files of dropped tables.
        adopted: Files adopted by tables that are not due.
        present_ages: Ages of the claims of current tables.
    """

    found: DroppedPrefixes
    foreign: ForeignFinder | None
    rules: ForeignRules
    adopted: StoredHashes | None = None
    present_ages: ClaimAges = field(default_factory=ClaimAges)

    @classmethod
    def of(cls, found: DroppedPrefixes, foreign: ForeignFinder | None, rules: ForeignRules, adopted: AdoptedFiles) -> DroppedFinder:
        of_dropped = replace(rules, ages=rules.dropped_ages, seen=rules.dropped_seen)
        return cls(found, foreign, of_dropped, adopted.find_waiting(found.tables), rules.ages)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._mark(batch)

    def _mark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        states, is_alone = self.find_states(batch.column("key"), batch.column("last_modified"))
        of_others = pc.or_(pc.is_valid(batch.column("held_by")), pc.equal(batch.column("reason"), "lifecycle"))
        is_due = pc.and_not(pc.fill_null(pc.equal(states, DUE), False), of_others)
        rules = self.find_rules(batch, is_due)
        is_foreign = pc.equal(pc.if_else(is_due, "", batch.column("reason")), FOREIGN)
        is_foreign = pc.or_(is_foreign, pc.and_(is_due, pc.is_valid(rules)))
        reason = pc.if_else(is_foreign, FOREIGN, pc.if_else(is_due, DROPPED, batch.column("reason")))
        # If a commit referenced the file, a listed table or lake that also claims the location
        # decides.
        is_unnamed = pc.and_not(pc.is_null(batch.column("kind")), is_foreign)
        waits = pc.and_(pc.fill_null(pc.equal(states, WAITS), False), pc.or_(is_alone, is_unnamed))
        waits = pc.or_(waits, pc.and_(self.find_written(batch.column("key")), pc.and_not(pc.is_null(batch.column("kind")), is_due)))
        route = pc.if_else(pc.and_(waits, pc.equal(batch.column(ROUTE), "")), DEFERRED_SIDE, batch.column(ROUTE))
        changed = {"reason": reason, "foreign_rule": rules, ROUTE: route}
        columns = [changed.get(name, batch.column(name)) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def find_states(self, keys: pa.Array, modified: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return each file's state, and a mask of files for which only this state counts.

        The state is `DUE`, `WAITS`, or None if the file does not belong to a dropped table. The
        mask selects files that only dropped tables claim, files adopted by a table that is not due,
        and files that no listed table wrote. A file of unknown origin waits if only dropped tables
        claim it.
        """
        index = self.found.find(keys, modified)
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        prefixes = [self.found.find_prefix(name) for name in directories.dictionary.to_pylist()]
        unshared = [prefix is not None and not self.found.is_shared(prefix) for prefix in prefixes]
        alone = pc.fill_null(pa.array(unshared, pa.bool_()).take(directories.indices), False)
        matched = pc.if_else(self.found.is_due(index), DUE, WAITS)
        other = pc.if_else(alone, pa.scalar(WAITS), pa.scalar(None, pa.string()))
        states = pc.if_else(pc.is_valid(index), matched, other)
        is_adopted = self.find_adopted(keys)
        is_only = pc.or_(alone, self.find_older(index, keys, modified))
        return pc.if_else(is_adopted, WAITS, states), pc.or_(is_only, is_adopted)

    def find_adopted(self, keys: pa.Array) -> pa.Array:
        """Return a mask of the files adopted by a table that is not due."""
        return pa.repeat(False, len(keys)) if self.adopted is None else pa.array(self.adopted.contains(xxhash64(keys)))

    def find_older(self, index: pa.Array, keys: pa.Array, modified: pa.Array) -> pa.Array:
        """Return a mask of the files that are older than all current claims on their directory.

        No listed table wrote these files. Claims that a run already had when it last read the
        dropped table of a file do not count.

        Args:
            index: The index of the dropped table to which each file belongs, or None.
        """
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        claimed = pa.array(map(self.present_ages.of_directory, directories.dictionary.to_pylist()), modified.type)
        since = claimed.take(directories.indices)
        runs = [item.table.read_by_run_from for item in self.found.tables]
        is_later = pc.greater_equal(since, pa.array(runs, modified.type).take(index))
        return pc.fill_null(pc.and_(is_later, pc.less(modified, since)), False)

    def find_written(self, keys: pa.Array) -> pa.Array:
        """Return a mask of files claimed by dropped tables that another catalog may write."""
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        prefixes = [self.found.find_prefix(name) for name in directories.dictionary.to_pylist()]
        written = pa.array([prefix is not None and self.found.is_written(prefix) for prefix in prefixes], pa.bool_())
        return pc.fill_null(written.take(directories.indices), False)

    def find_rules(self, batch: pa.RecordBatch, is_due: pa.Array) -> pa.Array:
        """Return the rule that makes each file foreign.

        Files of due tables are checked with the rules for dropped tables.

        Args:
            batch: Files with their current rules in the column foreign_rule.
            is_due: Mask of the files of due tables.
        """
        rules = batch.column("foreign_rule")
        if not pc.any(is_due).as_py():
            return rules
        known, datasets = (self.foreign.known, self.foreign.datasets) if self.foreign is not None else (frozenset(), frozenset())
        rows = batch.filter(is_due)
        own = self.rules.find_foreign(rows, known, datasets)
        is_named = pc.is_valid(rows.column("kind"))
        own = pc.if_else(pc.and_(is_named, pc.fill_null(pc.not_equal(own, OTHER_FORMAT), False)), pa.scalar(None, pa.string()), own)
        return pc.replace_with_mask(rules, is_due, own)


UNDUE: Final = pa.schema([("key", pa.string()), ("source_plan_id", pa.string()), ("is_certain", pa.bool_())])


@dataclass(frozen=True)
class FindUndue:
    """Find plan rows of dropped tables that are no longer due for deletion (`UNDUE` columns).

    The task checks rows with the `dropped` reason, and files for which only the state of the
    dropped table counts. For a purge of any other file, the result is not certain, because the file
    waits only if it was quarantined as a file of a dropped table. It is pickled and sent to Spark
    executors.
    """

    finder: DroppedFinder
    store: Store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            states, is_alone = self.finder.find_states(batch.column("key"), self.store.modification_times(batch.column("etag")))
            is_due = pc.fill_null(pc.equal(states, DUE), False)
            is_purge, is_dropped = pc.equal(batch.column("action"), PURGE), pc.equal(batch.column("reason"), DROPPED)
            takes = pc.or_(is_purge, pc.equal(batch.column("action"), QUARANTINE))
            is_certain = pc.and_(takes, pc.or_(is_dropped, is_alone))
            is_doubtful = pc.and_(is_purge, pa.array(self.finder.found.find_undecided(batch.column("key"))))
            undue = pc.and_not(pc.or_(is_certain, is_doubtful), is_due)
            columns = [batch.column("key"), batch.column("source_plan_id"), is_certain]
            yield pa.RecordBatch.from_arrays([column.filter(undue) for column in columns], schema=UNDUE)


@dataclass(frozen=True)
class SuspectSplit:
    """Add the `dropped_prefix` column with the dropped table's claim that contains each suspect.

    The column is null if a listed table or lake claims the prefix too. It is pickled and sent to
    Spark executors.
    """

    found: DroppedPrefixes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column("key").to_pylist()
            yield batch.append_column("dropped_prefix", pa.array(list(map(self.find_prefix, keys)), pa.string()))

    def find_prefix(self, key: str) -> str | None:
        prefix = self.found.find_prefix(key[: key.rfind("/") + 1])
        return prefix if prefix is not None and not self.found.is_shared(prefix) else None


SPLIT_SUSPECTS: Final = pa.schema([*CANDIDATES, pa.field("is_old", pa.bool_()), pa.field("dropped_prefix", pa.string())])
