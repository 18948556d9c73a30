"""Find claimed files that are not in any live set.

The live filter is applied first, and the remaining candidates are compared with the live keys
themselves. If a single candidate equals a live key, the plan stops. If a candidate differs from a
live key only in its spelling, it is not planned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims, Owner
from gc_assets.core.dropped_tables import AdoptableFiles
from gc_assets.core.foreign import ForeignRules
from gc_assets.core.plan import Amount, Unreadable
from gc_assets.core.printable import to_message
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import (
    MAX_SAMPLES,
    PARTS_DDL,
    ROUTE,
    Totals,
    WrittenParts,
    collect,
    frame_from_arrow,
    merge_written,
    publish,
    read_paths,
    read_rows,
    read_table,
    write_parts,
    write_routed,
    write_rows,
)
from gc_assets.lakes.file_kinds import INFORMATIONAL_KINDS
from gc_assets.lakes.kinds import uncollected_metadata
from gc_assets.stages.mark.live_set import MAX_KEYS
from gc_assets.stages.records.ledger import LogReader, quarantine_ledger
from gc_assets.stages.records.purged_by_rule import purged_by_rule
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of, notes_on_claims, prefixes_of
from gc_assets.stages.sweep.clock_lead import find_clock_lead, first_freeze
from gc_assets.stages.sweep.dropped_tables import DroppedTables, find_dropped_tables
from gc_assets.stages.sweep.exact_comparison import ignores_case
from gc_assets.stages.sweep.foreign_files import FOREIGN, ForeignSearch, foreign_notes, foreign_rules, protected_keys
from gc_assets.stages.sweep.foreign_metadata import suspect_pattern
from gc_assets.stages.sweep.former_views import find_former_views
from gc_assets.stages.sweep.listings import Listing
from gc_assets.stages.sweep.live_filter import ProbeFilter, live_count, live_keys, live_rows
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.stages.sweep.missing_count import EXCUSED, count_missing, hash_excused
from gc_assets.stages.sweep.named_candidates import restrict_candidates
from gc_assets.stages.sweep.orphan_reasons import ReasonSearch
from gc_assets.stages.sweep.other_listings import find_oldest_listing
from gc_assets.stages.sweep.probe import CANDIDATE, LIVE, ListedFiles, Probe, pattern_field
from gc_assets.stages.sweep.sweep_checks import (
    MAX_ACCEPTED,
    MAX_NAMED,
    REREAD,
    ForeignMetadata,
    Missing,
    MissingLiveFiles,
    behind_links,
    find_foreign_metadata,
    find_misspelled,
    find_other_names,
    find_unlisted,
    has_links,
    missing_metadata,
    rewritten_metadata,
)
from gc_assets.stages.sweep.unlisted_files import UnlistedFiles, find_unlisted_hashes
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, LIVE_FILTER, MANIFEST_ENTRIES, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import (
    CANDIDATES,
    CANDIDATES_SIDE,
    FALSE_NEGATIVES_SIDE,
    METADATA,
    METADATA_SIDE,
    MISSING_LIVE,
    MISSING_LIVE_SIDE,
    NAMED_TWICE_SIDE,
    NEAR_MISSES_SIDE,
    OPTIONAL_SIDE,
    REWRITTEN,
    REWRITTEN_SIDE,
    STOPPED_SIDES,
    SUSPECTS_SIDE,
)
from gc_assets.state.summaries import ForeignFiles, LakeRefsSummary, LiveFilesSummary, OrphanFilesSummary, StorageInventorySummary
from gc_assets.stores.protocol import LookUp


def grace_cutoff(context: RunContext, storage_name: str, refs: list[PublishedTable], lead: timedelta) -> datetime:
    """Return the time when the refs of the first lake were read, minus the grace period.

    Files that are younger than this grace cut-off are not candidates.

    Args:
        lead: How far the host's clock is ahead of the storage's (`find_clock_lead`).
    """
    return first_freeze(refs) - lead - context.storage(storage_name).grace


def candidate_cutoff(context: RunContext, storage_name: str, cutoff: datetime, report_as_of: datetime | None) -> datetime:
    """Return the grace cut-off, or the cut-off of an inventory report if that is earlier.

    The cut-off of a report is its scan time minus the grace period.
    """
    return cutoff if report_as_of is None else min(cutoff, report_as_of - context.storage(storage_name).grace)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The published tables that a sweep compares, and its cut-offs."""

    context: RunContext
    storage: str
    inventory: PublishedTable
    live_filter: PublishedTable
    live: list[PublishedTable]
    refs: list[PublishedTable]
    cutoff: datetime
    candidate_cutoff: datetime
    lead: timedelta
    lister: LookUp
    listing: Listing
    keys: LiveKeys

    @classmethod
    def of(cls, spark: SparkSession, context: RunContext, storage_name: str) -> Self:
        listing = Listing.of(context, storage_name)
        inventory = listing.inventory
        live_filter = context.table(LIVE_FILTER, storage_name)
        live, refs = context.lake_tables(LIVE_FILES), context.lake_tables(LAKE_REFS)
        lead = find_clock_lead(context, storage_name, refs)
        cutoff = grace_cutoff(context, storage_name, refs, lead)
        old_before = candidate_cutoff(context, storage_name, cutoff, inventory.summary(StorageInventorySummary).report_as_of)
        # In other storages, foreign metadata that was written after their last listing is unknown.
        oldest = find_oldest_listing(context, storage_name, [*refs, *live])
        old_before = old_before if oldest is None else min(old_before, oldest)
        look_up = listing.look_up(context, storage_name)
        keys = LiveKeys.of(spark, context, storage_name, live)
        return cls(context, storage_name, inventory, live_filter, live, refs, cutoff, old_before, lead, look_up, listing, keys)

    @property
    def state(self) -> State:
        return self.context.state

    def live_keys(self, spark: SparkSession) -> DataFrame:
        return live_keys(spark, self.context, self.storage, self.live)

    def read_inventory(self, spark: SparkSession) -> DataFrame:
        return read_table(spark, self.state, STORAGE_INVENTORY, self.inventory)


@dataclass(frozen=True, slots=True)
class _MetadataChecks:
    """Live metadata that is missing or was rewritten, according to the inventory.

    Attributes:
        reread: Metadata objects that were read again because they differ from the decoded ones.
        broken: Tables and lakes with missing metadata, each with the name of a missing object.
        stopping: Messages about metadata that stops the plan.
        lakes: Lakes that need metadata listed in `stopping`, each with a message.
    """

    reread: pa.Table
    broken: Mapping[Owner, str]
    stopping: list[str]
    lakes: Mapping[Owner, str]


@dataclass(frozen=True, slots=True)
class _Checks:
    """Results of the sweep checks."""

    foreign: ForeignMetadata
    behind_links: list[str]
    metadata: _MetadataChecks
    deferred: tuple[str, ...]
    unlisted: MissingLiveFiles
    dropped: DroppedTables
    misspelled: tuple[str, ...] = ()
    foreign_files: tuple[ForeignFiles, ...] = ()
    missing_statistics: tuple[str, ...] = ()


@log_progress(ORPHAN_FILES)
def orphan_files(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """Publish the claimed files that no lake needs (`orphan_files`), with results for the gates.

    The summary contains counts and samples, such as the files and bytes of each class, candidates
    that equal a live key (false negatives) or nearly (near misses), and missing metadata. The
    plan's gates decide whether any of them stops the plan.
    """
    sweep = _Sweep.of(spark, context, storage_name)
    run = start_run(context, storage_name, ORPHAN_FILES)
    dropped = find_dropped_tables(spark, context, storage_name, sweep.refs, sweep.live, sweep.listing, run)
    claims = claims_of(context, storage_name, [*sweep.refs, *sweep.live], dropped.claims)
    rules = foreign_rules(context, storage_name, claims, [*sweep.refs, *sweep.live], [item.table for item in dropped.tables])
    probed = _probe_inventory(spark, sweep, rules, run, dropped)
    dropped = dropped.add_adopted(storage_name, sweep.keys, context.state.files, probed, run)
    if sweep.listing.is_earlier:
        probed = restrict_candidates(spark, context, storage_name, probed, run)
    checks = _check_sweep(spark, sweep, probed, run, dropped)
    foreign = ForeignSearch.of(spark, context, storage_name, sweep.live, rules, probed, run)
    written = _write_orphans(spark, sweep, probed, checks, foreign, run)
    checks = replace(checks, misspelled=_find_misspelled(spark, sweep, written, run), foreign_files=foreign.sum_files(written))
    for side in probed.side:
        context.state.files.delete_directory(f"{run.path}/{side}")
    return _publish(sweep, claims, probed, checks, written, run)


def _probe_inventory(spark: SparkSession, sweep: _Sweep, rules: ForeignRules, run: TableRun, dropped: DroppedTables) -> WrittenParts:
    """Classify all listed objects, and write the candidates and suspects as side tables of `run`."""
    files, inventory = sweep.state.files, sweep.inventory
    probe = Probe(
        ProbeFilter(files, tuple(sweep.live_filter.paths())),
        rules.claims,
        ListedFiles(files, _paths(sweep.live, METADATA_SIDE), sweep.storage),
        ListedFiles(files, _paths(sweep.live, OPTIONAL_SIDE), sweep.storage),
        Ages.of(sweep.context, sweep.candidate_cutoff, sweep.refs, sweep.lead),
        uncollected_metadata(),
        suspect_pattern(),
        files,
        run,
        protected_keys(sweep.context, sweep.storage),
        sweep.context.storage(sweep.storage).protect,
        rules,
        dropped.prefixes,
        AdoptableFiles.of(dropped.remembered),
    )
    log_activity(f"comparing {inventory.receipt.rows:,} objects with {live_rows(sweep.live, sweep.storage):,} live keys")
    listed = ParquetScan.of(files, STORAGE_INVENTORY.schema, inventory.path, inventory.parts())
    return merge_written(listed.run_task(spark, probe, PARTS_DDL, inventory.rows))


def _check_sweep(spark: SparkSession, sweep: _Sweep, probed: WrittenParts, run: TableRun, dropped: DroppedTables) -> _Checks:
    context, storage_name, inventory = sweep.context, sweep.storage, sweep.inventory
    suspects, count = probed.paths(run, SUSPECTS_SIDE), probed.side_rows(SUSPECTS_SIDE)
    views = find_former_views(context, storage_name, sweep.refs)
    foreign = find_foreign_metadata(spark, context, storage_name, suspects, count, sweep.cutoff, dropped, views)
    linked = behind_links(spark, context, sweep.live_keys(spark), inventory) if has_links(inventory) else []
    newer = None
    if sweep.listing.is_earlier:
        newer = UnlistedFiles.find(context, sweep.keys, inventory, sweep.lister)
    metadata = _check_metadata(spark, sweep, probed, newer)
    deferred = (
        *prefixes_of(context, storage_name, [*sweep.refs, *sweep.live], metadata.broken),
        *foreign.protected_prefixes(storage_name),
        *foreign.views.list_prefixes(),
    )
    unlisted = _check_unlisted(spark, sweep, probed, metadata.broken, newer, run)
    statistics = _find_missing_statistics(spark, sweep, probed, newer)
    return _Checks(foreign, linked, metadata, deferred, unlisted, dropped.hold(foreign.dropped), missing_statistics=statistics)


def _find_missing_statistics(spark: SparkSession, sweep: _Sweep, probed: WrittenParts, newer: UnlistedFiles | None) -> tuple[str, ...]:
    """Return a note if live statistics files, which are informational, are missing."""
    optional = sum(table.summary(LiveFilesSummary).optional_by_storage.get(sweep.storage, 0) for table in sweep.live)
    if probed.summary.get("optional_found", 0) >= optional:
        return ()
    rows = read_parts(sweep.state.files, list(_paths(sweep.live, OPTIONAL_SIDE)), METADATA, ["storage", "key", "kind"])
    mine = pc.and_(pc.equal(rows.column("storage"), sweep.storage), pc.is_in(rows.column("kind"), pa.array(INFORMATIONAL_KINDS)))
    keys = pa.table({"key": rows.filter(mine).column("key").unique()})
    if not keys.num_rows:
        return ()
    if newer is not None:
        unlisted = keys.column("key").filter(pa.array(newer.contains(keys.column("key")))).to_pylist()
    else:
        listed = sweep.read_inventory(spark).select("key")
        unlisted = sorted(row["key"] for row in collect(frame_from_arrow(spark, keys).join(listed, "key", "left_anti")))
    missing = [key for key, size in zip(unlisted, sweep.lister.look_up(unlisted), strict=True) if size is None]
    if not missing:
        return ()
    return (
        f"{len(missing):,} statistics files of tables are missing, for example {missing[0]}. These files are informational, so "
        "plans do not wait for them, and queries are planned without them",
    )


def _check_metadata(spark: SparkSession, sweep: _Sweep, probed: WrittenParts, newer: UnlistedFiles | None) -> _MetadataChecks:
    needed = sum(table.summary(LiveFilesSummary).metadata_by_storage.get(sweep.storage, 0) for table in sweep.live)
    # If two lakes share metadata, it is needed twice and listed once, so the counts differ. The
    # slow comparison then shows that nothing is missing.
    missing, reread = list[Missing](), REREAD.empty_table()
    found = probed.summary.get("metadata_found", 0)
    if newer is not None:
        missing = missing_metadata(*newer.frames(spark), sweep.lister) if newer.rows.num_rows else []
        rows = read_parts(sweep.state.files, list(_paths(sweep.live, METADATA_SIDE)), METADATA, ["storage", "key"])
        found += np.count_nonzero(newer.contains(rows.column("key").filter(pc.equal(rows.column("storage"), sweep.storage))))
    if found < needed:
        listed = sweep.read_inventory(spark)
        missing = missing_metadata(sweep.live_keys(spark), listed, sweep.lister) if newer is None else missing
        reread = rewritten_metadata(spark, sweep.context, sweep.storage, _paths(sweep.live, METADATA_SIDE), listed)
        if sweep.listing.is_earlier:  # a run after the listing may have decoded the current object already
            reread = reread.filter(pc.invert(reread.column("same")))
    # If only a few metadata objects are missing, their tables have to wait until the objects are
    # repaired. Other files are safe, because the cache still contains the entries of the missing
    # objects. If most or all metadata is missing, another location was listed. If an object was
    # replaced, its entries are unknown.
    is_other_location = len(missing) >= min(MAX_NAMED, needed)
    lost = [item for item in missing if not item.is_replaced]
    broken = {Owner(item.lake, item.table_uuid): item.name for item in reversed(lost)} if not is_other_location else {}
    replaced = reread.filter(pc.invert(reread.column("same")))
    others = replaced.to_pylist()
    stopping = [f"{row['kind']} {row['key']}, which was overwritten after it was read. Start the run again" for row in others]
    stopped = [item for item in missing if is_other_location or item.is_replaced]
    stopping += [item.name for item in stopped]
    lakes = {Owner(item.lake, None): f"live metadata such as {item.name} is missing or was replaced" for item in reversed(stopped)}
    unnamed = _lakes_of_metadata(sweep, replaced if len(missing) < MAX_NAMED else None)
    lakes = {Owner(lake, None): "live metadata is missing or was replaced" for lake in unnamed} | lakes
    return _MetadataChecks(reread, broken, stopping, {owner: f"{why} in storage {sweep.storage}" for owner, why in lakes.items()})


def _lakes_of_metadata(sweep: _Sweep, replaced: pa.Table | None) -> set[str]:
    """Return the lakes that need any of the replaced metadata objects.

    If `replaced` is None, all lakes with metadata in the storage are returned.
    """
    found: set[str] = set()
    for table in sweep.live if replaced is None or replaced.num_rows else ():
        needed = read_parts(sweep.state.files, table.paths(METADATA_SIDE), METADATA, ["storage", "address"])
        needed = needed.filter(pc.equal(needed.column("storage"), sweep.storage)).column("address")
        if len(needed) and (replaced is None or pc.any(pc.is_in(replaced.column("address"), needed)).as_py()):
            found.add(table.receipt.owner)
    return found


def _check_unlisted(
    spark: SparkSession, sweep: _Sweep, probed: WrittenParts, broken: Collection[Owner], newer: UnlistedFiles | None, run: TableRun
) -> MissingLiveFiles:
    """Find live files that are missing from the inventory, and write them to a side table of `run`.

    The counts can differ although no file is missing. A rule of a lake may have allowed the purge
    of live files, or two lakes may need the same file. Therefore, the hashes are compared, or the
    files themselves if there are too many.
    """
    context, storage_name, live, files = sweep.context, sweep.storage, sweep.live, sweep.state.files
    optional = sum(table.summary(LiveFilesSummary).optional_by_storage.get(storage_name, 0) for table in live)
    found = probed.totals.get((LIVE,), Totals()).rows - probed.summary.get("side_files", 0)
    found += optional - probed.summary.get("optional_found", 0)
    lacking = max(0, live_rows(live, storage_name) - found)
    has_other_names = any(table.summary(LiveFilesSummary).possible_by_storage.get(storage_name) for table in live)
    if newer is None and lacking:
        hashes = find_unlisted_hashes(context, sweep.keys, sweep.inventory)
        if hashes is not None and len(hashes) <= MAX_KEYS:
            newer = UnlistedFiles.read(sweep.keys, hashes, sweep.lister)
        elif hashes is not None and sweep.listing.as_of is None and not has_other_names:  # no file has to be looked up
            log = LogReader.of(sweep.state, storage_name)
            session = choose_session(spark, log.rows, log.part_count)
            excused = hash_excused(*_read_excused(session, sweep)) if log.rows else EXCUSED.empty_table()
            writer = PartWriter(files, run.path, MISSING_LIVE, MISSING_LIVE_SIDE)
            return count_missing(sweep.keys, hashes, broken, excused, writer)
    if not (lacking if newer is None else newer.rows.num_rows):
        return MissingLiveFiles(0)
    if newer is None:
        session = choose_session(spark, *_size_of_all(sweep.state, sweep.inventory, live))
        keys, listed = sweep.live_keys(session), sweep.read_inventory(session)
    else:
        keys, listed = newer.frames(spark)
        session = keys.sparkSession
    waiting, purged = _read_excused(session, sweep)
    required = _without_owners(keys, broken)
    missing = find_unlisted(required, listed, waiting, purged, sweep.lister, files, run)
    if not missing.files or not has_other_names:
        return missing
    others = frame_from_arrow(session, _find_other_names(spark, sweep, broken))
    return find_unlisted(required.join(others, ["key", "lake"], "left_anti"), listed, waiting, purged, sweep.lister, files, run)


def _read_excused(session: SparkSession, sweep: _Sweep) -> tuple[DataFrame, DataFrame]:
    """Return the files in quarantine, and files purged because a rule of their lake allowed it."""
    rehearsal = sweep.context.clock.is_rehearsal
    waiting = quarantine_ledger(session, sweep.state, sweep.storage, rehearsal=rehearsal)
    return waiting, purged_by_rule(session, sweep.context, sweep.storage)


def _find_other_names(spark: SparkSession, sweep: _Sweep, broken: Collection[Owner]) -> pa.Table:
    context, live = sweep.context, sweep.live
    kinds = {table.receipt.owner: context.kind(table.receipt.owner) for table in live}
    session = choose_session(spark, *_size_of_all(sweep.state, sweep.inventory, live))
    waiting = quarantine_ledger(session, sweep.state, sweep.storage, rehearsal=context.clock.is_rehearsal)
    return find_other_names(_without_owners(sweep.live_keys(session), broken), kinds, sweep.read_inventory(session), waiting, sweep.lister)


def _write_orphans(
    spark: SparkSession,
    sweep: _Sweep,
    probed: WrittenParts,
    checks: _Checks,
    foreign: ForeignSearch,
    run: TableRun,
) -> WrittenParts:
    context, state = sweep.context, sweep.state
    candidates = probed.side_rows(CANDIDATES_SIDE)
    log_activity(f"comparing {candidates:,} candidates with the live keys themselves")
    written = write_rows(ORPHAN_FILES.schema.empty_table(), ORPHAN_FILES, run, state.files)
    if candidates:
        dropped = checks.dropped.find_files(foreign.finder, foreign.rules)
        search = ReasonSearch(spark, context, sweep.keys, foreign.finder, dropped, checks.deferred)
        found = search.find(ParquetScan.of(state.files, CANDIDATES, run.path, probed.side[CANDIDATES_SIDE]), candidates)
        written = write_routed(_route_repeated(spark, found), ORPHAN_FILES, run, state, ["reason", "lake", "foreign_rule"], STOPPED_SIDES)
    reread = checks.metadata.reread
    rewritten = tuple(write_parts(reread.select(REWRITTEN.names), run, state.files, REWRITTEN_SIDE)) if reread.num_rows else ()
    own = {
        **foreign.write(written),
        **checks.dropped.write(context, run),
        **checks.foreign.views.write(context, run),
        **checks.foreign.write(context, run),
        **({REWRITTEN_SIDE: rewritten} if rewritten else {}),
        **({MISSING_LIVE_SIDE: parts} if (parts := checks.unlisted.published_parts) else {}),
    }
    return replace(written, side={**written.side, **own})


def _find_misspelled(spark: SparkSession, sweep: _Sweep, written: WrittenParts, run: TableRun) -> tuple[str, ...]:
    """Return near misses whose live key is missing, so that they may be live files."""
    if NEAR_MISSES_SIDE not in written.side:
        return ()
    context, state = sweep.context, sweep.state
    session = choose_session(spark, *_size_of_all(state, sweep.inventory, sweep.live))
    near_misses = read_paths(session, state.files, ORPHAN_FILES.schema, written.paths(run, NEAR_MISSES_SIDE))
    waiting = quarantine_ledger(session, state, sweep.storage, rehearsal=context.clock.is_rehearsal)
    keys, listed = sweep.live_keys(session), sweep.read_inventory(session)
    ignore_case = ignores_case(context, sweep.storage)
    return find_misspelled(near_misses, keys, listed, waiting, sweep.lister, ignore_case=ignore_case)


def _publish(sweep: _Sweep, claims: Claims, probed: WrittenParts, checks: _Checks, written: WrittenParts, run: TableRun) -> PublishedTable:
    context, inventory = sweep.context, sweep.inventory
    breakdown = {key[0]: value for key, value in probed.totals.items()}
    stopped = sum(map(written.side_rows, STOPPED_SIDES))
    return publish(
        sweep.state,
        run,
        written,
        context.clock,
        inputs=[inventory, sweep.live_filter, *sweep.live, *sweep.refs],
        balances=[
            Balance(name="inventory rows probed", expected=inventory.receipt.rows, found=sum(total.rows for total in breakdown.values())),
            Balance(name="candidates compared", expected=breakdown.get(CANDIDATE, Totals()).rows, found=written.rows + stopped),
        ],
        summary=_summarize(sweep, claims, probed, checks, written, run),
        unsafe=context.unsafe,
    )


def _summarize(
    sweep: _Sweep, claims: Claims, probed: WrittenParts, checks: _Checks, written: WrittenParts, run: TableRun
) -> OrphanFilesSummary:
    context, storage_name, metadata = sweep.context, sweep.storage, checks.metadata
    stopped = {side: written.side_rows(side) for side in STOPPED_SIDES}
    return OrphanFilesSummary(
        grace_cutoff=sweep.candidate_cutoff,
        clock_lead_seconds=sweep.lead.total_seconds(),
        historical=any(table.summary(LakeRefsSummary).historical for table in sweep.refs),
        storage_breakdown={key[0]: total.amount for key, total in sorted(probed.totals.items())},
        by_reason=_sum_amounts({(f"{reason}/{lake}", rule): total for (reason, lake, rule), total in written.totals.items()}, 0),
        foreign=checks.foreign_files[:MAX_SAMPLES],
        foreign_claims=len(checks.foreign_files),
        **checks.dropped.summary(),
        foreign_by_rule=_sum_amounts({key: total for key, total in written.totals.items() if key[0] == FOREIGN}, 2),
        # Ranges and metaranges without a claim that no retained commit needs. They are only
        # counted.
        unneeded_metadata=Amount(files=probed.summary.get("unneeded_files", 0), bytes=probed.summary.get("unneeded_bytes", 0)),
        live_keys=live_count(sweep.live, storage_name).files,
        rewritten=metadata.reread.num_rows,
        missing_metadata=tuple(metadata.stopping[:MAX_SAMPLES]),
        missing_metadata_count=len(metadata.stopping),
        unreadable=_unreadable(
            context, storage_name, sweep.refs, {owner: f"{name} is missing from the listing" for owner, name in metadata.broken.items()}
        ),
        missing_lakes=_unreadable(context, storage_name, sweep.refs, metadata.lakes),
        unlisted_lakes=_unreadable(context, storage_name, sweep.refs, _unlisted_lakes(sweep, checks.unlisted)),
        live_unlisted=checks.unlisted.samples,
        live_unlisted_count=checks.unlisted.files,
        foreign_metadata=tuple(checks.foreign.messages[:MAX_SAMPLES]),
        foreign_metadata_count=len(checks.foreign.messages),
        foreign_metadata_lakes=tuple(sorted(checks.foreign.lakes)),
        foreign_metadata_storages=tuple(sorted(checks.foreign.other_storages)),
        junk=tuple(f"{key}: {reason}" for key, reason in checks.foreign.junk.items())[:MAX_SAMPLES],
        junk_count=len(checks.foreign.junk),
        junk_tables=_unreadable(
            context,
            storage_name,
            sweep.refs,
            {owner: f"{key} in storage {storage_name} cannot be read" for owner, key in checks.foreign.junk_owners.items()},
        ),
        behind_links=tuple(checks.behind_links[:MAX_SAMPLES]),
        behind_links_count=len(checks.behind_links),
        false_negatives=stopped[FALSE_NEGATIVES_SIDE],
        near_misses=stopped[NEAR_MISSES_SIDE],
        misspelled=checks.misspelled,
        named_twice=stopped[NAMED_TWICE_SIDE],
        stopped_samples=tuple(_samples(context, run, written)),
        problems=sweep.inventory.summary(StorageInventorySummary).problems,
        unused_patterns=tuple(
            pattern for pattern in context.storage(storage_name).protect if not probed.summary.get(pattern_field(pattern))
        ),
        notes=_list_notes(context, storage_name, claims, checks),
    )


def _list_notes(context: RunContext, storage_name: str, claims: Claims, checks: _Checks) -> tuple[str, ...]:
    notes = (
        *notes_on_claims(context, storage_name, claims),
        *foreign_notes(context, storage_name, checks.foreign_files),
        *checks.missing_statistics,
        *checks.dropped.notes,
        *checks.foreign.notes,
        *checks.foreign.views.describe(context, storage_name),
    )
    return tuple(map(to_message, notes))


def _sum_amounts(totals: Mapping[tuple[str, ...], Totals], part: int) -> dict[str, Amount]:
    """Add up the totals whose keys have the same component at position `part`."""
    found: dict[str, Totals] = {}
    for key, total in sorted(totals.items()):
        found[key[part]] = found.get(key[part], Totals()) + total
    return {name: total.amount for name, total in found.items()}


def _size_of_all(state: State, inventory: PublishedTable, live: Sequence[PublishedTable]) -> tuple[int, int]:
    """Return how many rows and files must be read to compare all live files with the inventory."""
    entries = [run for table in live for run in state.history(table.receipt.owner, MANIFEST_ENTRIES.name)]
    parts, log = inventory.parts(), LogReader.of(state, inventory.receipt.owner)
    rows = sum(part.rows for part in parts) + sum(run.rows for run in entries)
    return rows + log.rows, len(parts) + sum(len(run.entry.parts) for run in entries) + log.part_count


def _unlisted_lakes(sweep: _Sweep, unlisted: MissingLiveFiles) -> Mapping[Owner, str]:
    """Return the tables and lakes that need missing live files, each with a description."""
    live = live_count(sweep.live, sweep.storage)
    examples = ", ".join(unlisted.samples[:1])
    why = f"{unlisted.files:,} of {live.files:,} live files such as {examples} are missing in storage {sweep.storage}"
    if not unlisted.published_parts:
        why += f", and later runs cannot accept a loss of more than {MAX_ACCEPTED:,} files"
    return dict.fromkeys(unlisted.select_owners(live), why)


def _unreadable(context: RunContext, storage_name: str, refs: list[PublishedTable], reasons: Mapping[Owner, str]) -> tuple[Unreadable, ...]:
    """Describe the tables or lakes with missing files, and since when files have been missing."""
    if not reasons:
        return ()
    last = context.state.latest(storage_name, ORPHAN_FILES.name, before=context.run_date)
    summary = last.summary(OrphanFilesSummary) if last is not None else None
    earlier_items = (*summary.unreadable, *summary.missing_lakes, *summary.unlisted_lakes) if summary is not None else ()
    previous = {(item.lake, item.table_uuid): item for item in earlier_items}
    frozen = {table.receipt.owner: table for table in refs}
    found: list[Unreadable] = []
    for owner, why in sorted(reasons.items(), key=lambda item: (item[0].lake, item[0].table_uuid or "")):
        table = frozen[owner.lake]
        rows = read_rows(context.state, LAKE_REFS, table, columns=["table_uuid", "table_name"]).to_pylist()
        new = Unreadable(
            lake=owner.lake,
            table_uuid=owner.table_uuid,
            table_name={row["table_uuid"]: row["table_name"] for row in rows}.get(owner.table_uuid),
            why=why,
            since=table.summary(LakeRefsSummary).frozen_at,
            good_on=_last_complete(context, owner, last),
        )
        earlier = previous.get((owner.lake, owner.table_uuid), new)
        found.append(new.model_copy(update={"since": earlier.since, "good_on": earlier.good_on}))
    return tuple(found)


def _last_complete(context: RunContext, owner: Owner, last: PublishedTable | None) -> date:
    """Return the last run date whose sweep found all of the table's metadata.

    If there is no such run, the current run date is returned, because this run read the table
    before it noticed that metadata is missing.
    """
    day = last.receipt.run_date if last is not None else context.run_date
    refs = context.state.current(owner.lake, LAKE_REFS.name, day)
    known = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid"]).column("table_uuid") if refs is not None else ()
    return day if owner.table_uuid is None or owner.table_uuid in set(map(str, known)) else context.run_date


def _without_owners(keys: DataFrame, owners: Collection[Owner]) -> DataFrame:
    """Return the live keys, except for the rows of the given lakes and tables."""
    mine = F.lit(False)
    for owner in owners:
        mine |= (F.col("lake") == owner.lake) & (
            F.lit(True) if owner.table_uuid is None else F.col("table_uuid").eqNullSafe(owner.table_uuid)
        )
    return keys.filter(~mine)


def _route_repeated(spark: SparkSession, orphans: pa.Table | DataFrame) -> pa.Table | DataFrame:
    """Route rows whose key occurs more than once to a side table, unless they stop the plan."""
    if not isinstance(orphans, DataFrame):
        if len(orphans.column("key").unique()) == orphans.num_rows:
            return orphans
        orphans = frame_from_arrow(spark, orphans)
    names = orphans.groupBy("key").agg(F.count("key").alias("names"))
    route = F.when((F.col(ROUTE) == "") & (F.col("names") > 1), NAMED_TWICE_SIDE).otherwise(F.col(ROUTE))
    return orphans.join(names, "key").select(*[route.alias(ROUTE) if name == ROUTE else F.col(name) for name in orphans.columns])


def _samples(context: RunContext, run: TableRun, written: WrittenParts) -> list[str]:
    samples: list[str] = []
    for side in (FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE):
        for part in written.side.get(side, ())[:1]:
            table = read_parts(context.state.files, [f"{run.path}/{part.name}"], ORPHAN_FILES.schema, ["key"])
            samples += [f"{side.lstrip('_')}: {key}" for key in table.column("key")[:5].to_pylist()]
    return samples


def _paths(live: list[PublishedTable], side: str) -> tuple[str, ...]:
    return tuple(path for table in live for path in table.paths(side))
